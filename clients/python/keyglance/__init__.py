"""Client of Keyglance: labels for short videos in one gRPC call."""
