"""Index, sampling and decoding: from a container's bytes to pictures through a pool of lasting decoders."""
