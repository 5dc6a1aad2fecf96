"""The service: gRPC front, pipeline, engine, configuration, telemetry and lifecycle."""
