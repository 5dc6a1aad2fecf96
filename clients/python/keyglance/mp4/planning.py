"""Which samples of an MP4 file to look at, with the key flags checked against the samples themselves.

Client and server plan by this one function, so that a client that has the whole file knows which bytes the server will need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from keyglance.bitstream import SampleKind, StreamHeaders
from keyglance.mp4.limits import Declined, Mp4Limits
from keyglance.mp4.reader import read_index
from keyglance.mp4.source import RandomAccess
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy, plan
from keyglance.video import SampleFlag, VideoIndex

#: Where a flag lies, all samples of a track of at most so many are looked into: a few microseconds each.
_MOST_LOOKED_INTO = 10_000
#: Longer tracks are planned anew without the flags that lie, at most so often. What still lies then is left to the decoder.
_ROUNDS = 8
#: Bytes of a sample that are looked at: the headers before the first slice, and its beginning.
_BEGINNING = 4096
#: Codecs whose decoders predict from grey without a word, and whose headers `keyglance.bitstream` does not read.
_UNCHECKED = frozenset({"h263"})
_PREDICTED = (SampleKind.P, SampleKind.B)


def read_checkable(source: RandomAccess, limits: Mp4Limits | None = None) -> VideoIndex:
    """As `read_index`; declines what `plan_samples` could not check either."""
    index = read_index(source, limits)
    if index.config.codec in _UNCHECKED:
        raise Declined(f"the key flags of {index.config.codec} cannot be checked here")
    return index


def plan_samples(
    source: RandomAccess, index: VideoIndex, policy: SamplingPolicy, limits: SamplingLimits
) -> tuple[SamplingPlan, VideoIndex]:
    """The plan, and the index with the key flags that the bitstream has, where those of the container were caught lying.

    Reads the beginnings of the flagged samples that the plan begins with, and of all samples where one of these is none.
    Errors of the source pass through.
    """
    truth = _Truth(source, index)
    checked: set[int] = set()
    told = 0
    for _ in range(_ROUNDS):
        made = plan(index, policy, limits)
        flagged = [number for number in _beginnings(made) if index.samples.flags[number] & SampleFlag.KEY]
        lies = [number for number in flagged if number not in checked and truth.contradicts(number)]
        if not lies:
            break
        told += len(lies)
        if not checked and len(index.samples) <= _MOST_LOOKED_INTO:
            index = _flagged(index, truth.keyframes())
            checked.update(range(len(index.samples)))
        else:
            checked.update(flagged)
            index = _flagged(index, set(np.flatnonzero(index.samples.having(SampleFlag.KEY)).tolist()) - set(lies))
    if told:
        index = replace(index, notes=(*index.notes, f"{told} samples are flagged as keyframes and are none"))
    return made, index


class _Truth:
    """What samples are by their own headers."""

    def __init__(self, source: RandomAccess, index: VideoIndex) -> None:
        self._source = source
        self._samples = index.samples
        self._headers = StreamHeaders(index.config)
        #: Whether a sample of these codecs without a picture's header has no picture.
        self._exhaustive = index.config.codec in ("h264", "hevc") and not self._headers.describe().problem

    def contradicts(self, number: int) -> bool:
        """True where the sample is certainly no keyframe."""
        kind = self._kind(number)
        return kind in _PREDICTED or (self._exhaustive and kind is SampleKind.UNKNOWN)

    def keyframes(self) -> set[int]:
        """All samples that decode alone: random access points, else intra pictures."""
        kinds = [self._kind(number) for number in range(len(self._samples))]
        starts = {number for number, kind in enumerate(kinds) if kind.random_access}
        return starts or {number for number, kind in enumerate(kinds) if kind.intra}

    def _kind(self, number: int) -> SampleKind:
        position, size = int(self._samples.position[number]), int(self._samples.size[number])
        beginning = bytes(self._source.read(position, min(size, _BEGINNING)))
        return self._headers.kind(beginning, whole=len(beginning) == size).kind


def _beginnings(made: SamplingPlan) -> list[int]:
    return sorted({run.samples[0] for run in made.runs} | {frame.sample for frame in made.frames if frame.keyframe})


def _flagged(index: VideoIndex, keyframes: Iterable[int]) -> VideoIndex:
    flags = index.samples.flags & np.uint8(0xFF ^ int(SampleFlag.KEY))
    flags[list(keyframes)] |= np.uint8(SampleFlag.KEY)
    return replace(index, samples=replace(index.samples, flags=flags))
