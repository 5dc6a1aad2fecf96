"""The configuration as the bitstream has it: `keyglance.bitstream` with as few bytes of samples as that needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from keyglance.bitstream import StreamHeaders
from keyglance.video import StreamConfig

#: The beginning of a sample's payload, by its number.
Beginnings: TypeAlias = Callable[[int], bytes]
#: From the configuration as the container tells it, the beginnings of samples, and the number of the first keyframe:
#: the configuration as the bitstream tells it, and notes, one short sentence each.
Describe: TypeAlias = Callable[[StreamConfig, Beginnings, int], tuple[StreamConfig, Sequence[str]]]

#: Codecs whose samples repeat or hold the headers of the sequence.
_IN_BAND = {"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mpeg1video"}


def by_bitstream(config: StreamConfig, beginning: Beginnings, keyframe: int) -> tuple[StreamConfig, Sequence[str]]:
    """By the codec configuration record; where that has no headers of the sequence, by the first keyframe."""
    headers = StreamHeaders(config)
    described = headers.describe()
    if described.problem and config.codec in _IN_BAND:
        headers.kind(beginning(keyframe), whole=False)
        described = headers.describe()
    return described.config, described.disagreements


def as_the_container_says(config: StreamConfig, beginning: Beginnings, keyframe: int) -> tuple[StreamConfig, Sequence[str]]:
    """The configuration unchanged; no sample is touched."""
    return config, ()
