"""Which samples of an MP4 file to look at, with the key flags checked against the samples themselves.

Client and server plan by this one function, so that a client that has the whole file knows which bytes the server will need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keyglance.bitstream import SampleKind, StreamHeaders
from keyglance.mp4.source import RandomAccess
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy, plan
from keyglance.video import SampleFlag, VideoIndex

#: How often a plan is made anew because flags lied. A file that lies more often than that is left to the decoder.
_ROUNDS = 8
#: Bytes of a sample that are looked at: the headers before the first slice, and its beginning.
_BEGINNING = 4096
_PREDICTED = (SampleKind.P, SampleKind.B)


def plan_samples(
    source: RandomAccess, index: VideoIndex, policy: SamplingPolicy, limits: SamplingLimits
) -> tuple[SamplingPlan, VideoIndex]:
    """The plan, and the index without the key flags that the bitstream contradicts (of the planned samples only).

    Reads the beginnings of the flagged samples that the plan begins with; errors of the source pass through.
    """
    headers = StreamHeaders(index.config)
    told: set[int] = set()
    checked: set[int] = set()
    for _ in range(_ROUNDS):
        made = plan(index, policy, limits)
        flagged = [number for number in _beginnings(made) if index.samples.flags[number] & SampleFlag.KEY]
        lies = [number for number in flagged if number not in checked and _is_predicted(source, index, number, headers)]
        checked.update(flagged)
        if not lies:
            break
        told.update(lies)
        index = _without_flags(index, lies)
    if told:
        note = f"{len(told)} of the samples looked at are flagged as keyframes and are predicted pictures"
        index = replace(index, notes=(*index.notes, note))
    return made, index


def _beginnings(made: SamplingPlan) -> list[int]:
    return sorted({run.samples[0] for run in made.runs} | {frame.sample for frame in made.frames if frame.keyframe})


def _is_predicted(source: RandomAccess, index: VideoIndex, number: int, headers: StreamHeaders) -> bool:
    position, size = int(index.samples.position[number]), int(index.samples.size[number])
    beginning = bytes(source.read(position, min(size, _BEGINNING)))
    return headers.kind(beginning, whole=len(beginning) == size).kind in _PREDICTED


def _without_flags(index: VideoIndex, numbers: Sequence[int]) -> VideoIndex:
    flags = index.samples.flags.copy()
    flags[list(numbers)] &= 0xFF ^ int(SampleFlag.KEY)
    return replace(index, samples=replace(index.samples, flags=flags))
