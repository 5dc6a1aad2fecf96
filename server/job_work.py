"""What engines in a process have in common when they work for a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from decoder_pool.decoder import Decoded
from decoder_pool.picture import Picture
from keyglance.errors import InternalError, KeyglanceError
from keyglance.video import StreamConfig
from server.degradation import Degradation, DegradationReason
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


def told(config: StreamConfig, *, failed_models: Mapping[str, str], not_tone_mapped: int) -> list[Degradation]:
    """What an engine has to say of models that failed (by name, why) and of pictures that were not tone-mapped."""
    degradations = []
    if not_tone_mapped:
        shown = f"transfer {config.colour.transfer} was shown to the models as it is"
        degradations.append(Degradation(DegradationReason.NOT_TONE_MAPPED, not_tone_mapped, shown))
    degradations += [Degradation(DegradationReason.MODEL_LEFT_OUT, 1, f"{name}: {why}") for name, why in failed_models.items()]
    return degradations


def without(failed_models: Mapping[str, str], frames: Sequence[FrameOutcome]) -> Sequence[FrameOutcome]:
    """The frames without these models' results: one that failed on some pictures has no say on the others either."""
    if not failed_models:
        return frames
    return [replace(frame, results={n: r for n, r in frame.results.items() if n not in failed_models}) for frame in frames]


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
