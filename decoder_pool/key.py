"""The key of a decoder: what it was made for and cannot change without being made anew."""

from __future__ import annotations

from typing import NamedTuple

from keyglance.video import StreamConfig


class DecoderKey(NamedTuple):
    """Streams of one key can share a decoder by reconfiguring it (the rule of NVDEC, kept for every decoder)."""

    codec: str
    bit_depth: int
    chroma_format: str
    #: Both sides of any picture are at most this many pixels.
    size_class: int

    @classmethod
    def of(cls, config: StreamConfig, size_classes: tuple[int, ...]) -> DecoderKey:
        """The key for a stream: the smallest of the ascending `size_classes` that holds it, else its own longer side."""
        side = max(config.width, config.height)
        size = next((c for c in size_classes if side <= c), side)
        return cls(config.codec, config.bit_depth, config.chroma_format, size)
