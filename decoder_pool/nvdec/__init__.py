"""The `nvdec` decoder: hardware decoders of NVIDIA GPUs behind the pool's protocol, through PyNvVideoCodec."""
