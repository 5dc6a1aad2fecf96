"""Key flags against the bitstream: what lies is found out, and found out of as few bytes as that takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from keyglance.mp4 import BytesSource, CountingSource, Declined, read_index
from keyglance.mp4.planning import plan_samples, read_checkable
from keyglance.sampling import SamplingLimits, SamplingPolicy
from keyglance.video import SampleFlag, VideoIndex
from loadtest.clips import encode, pan, photograph

KEYS = [0, 25, 50]


@pytest.fixture(scope="module")
def clip() -> bytes:
    return encode(pan(photograph("coffee"), 75, 160, 120), keyframe_interval=25, b_frames=2)


def flagged(index: VideoIndex, keys: list[int]) -> VideoIndex:
    flags = np.zeros(len(index.samples), np.uint8)
    flags[keys] = SampleFlag.KEY
    return replace(index, samples=replace(index.samples, flags=flags))


def planned(source: CountingSource, index: VideoIndex, frames: int = 16) -> tuple[list[int], VideoIndex]:
    made, told = plan_samples(source, index, SamplingPolicy(frames=frames), SamplingLimits())
    return [frame.sample for frame in made.frames], told


def test_true_flags_are_believed_and_only_their_samples_are_touched(clip: bytes) -> None:
    index = read_index(BytesSource(clip))
    source = CountingSource(BytesSource(clip))
    samples, told = planned(source, index)
    assert (samples, told) == (KEYS, index)
    starts = {int(index.samples.position[n]) for n in KEYS}
    assert {offset for offset, _ in source.reads} == starts


@pytest.mark.parametrize("lie", [[0, 10, 25, 50], [5, 6, 7], list(range(75)), [1]])
def test_flags_on_predicted_pictures_are_found_out(clip: bytes, lie: list[int]) -> None:
    index = flagged(read_index(BytesSource(clip)), lie)
    samples, told = planned(CountingSource(BytesSource(clip)), index)
    assert samples == KEYS
    assert np.flatnonzero(told.samples.having(SampleFlag.KEY)).tolist() == KEYS
    assert "are none" in told.notes[-1]


def test_a_long_track_is_not_looked_through(clip: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyglance.mp4.planning._MOST_LOOKED_INTO", 10)
    index = flagged(read_index(BytesSource(clip)), [0, 10, 25, 50])
    source = CountingSource(BytesSource(clip))
    samples, _ = planned(source, index)
    assert samples == KEYS
    assert len({offset for offset, _ in source.reads}) == 4


def test_codecs_whose_flags_nobody_can_check_are_left_to_others() -> None:
    clip = encode(pan(photograph("coffee"), 3, 176, 144), codec="h263", container="3gp")
    assert read_index(BytesSource(clip)).config.codec == "h263"
    with pytest.raises(Declined, match="h263"):
        read_checkable(BytesSource(clip))
