"""What engines in a process have in common when they work for a job."""

from __future__ import annotations

from dataclasses import replace

from decoder_pool.decoder import Decoded
from decoder_pool.picture import Picture
from keyglance.errors import InternalError, KeyglanceError
from keyglance.video import StreamConfig
from server.degradation import DegradationReason
from server.engine import FrameOutcome


def skipped(decoded: Decoded) -> FrameOutcome:
    """The outcome of a wanted sample that has no picture."""
    reason = DegradationReason.FRAME_DAMAGED if decoded.damaged else DegradationReason.FRAME_UNDECODABLE
    return FrameOutcome(decoded.sample, decoded.alone, skipped=reason, detail=decoded.detail)


def found_config(config: StreamConfig, picture: Picture) -> StreamConfig:
    """The stream as its pictures have it: the bitstream is believed, not the container."""
    return replace(
        config,
        width=picture.width,
        height=picture.height,
        bit_depth=picture.bit_depth,
        chroma_format=picture.chroma_format,
        colour=picture.colour,
    )


def cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to tell of several that came together: ours before a stranger's."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [errors]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    ours = [error for error in leaves if isinstance(error, KeyglanceError)]
    return ours[0] if ours else InternalError(f"{type(leaves[0]).__name__}: {leaves[0]}")
