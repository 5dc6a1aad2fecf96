"""Sampling: no blind spot, whatever the container says; properties first, then the corpus' lessons one by one."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.errors import BadPolicy
from keyglance.sampling import SPARE, SamplingLimits, SamplingPolicy, coverage, plan
from keyglance.video import SampleFlag, Samples, StreamConfig, VideoIndex

KEY, OUTSIDE, ENCRYPTED = int(SampleFlag.KEY), int(SampleFlag.OUTSIDE_EDIT), int(SampleFlag.ENCRYPTED)


def video(times, flags, duration=None):
    """An index with these times (seconds, decoding order) and flags."""
    times, flags = np.asarray(times, dtype=np.float64), np.asarray(flags, dtype=np.uint8)
    count = len(times)
    samples = Samples(np.arange(count) * 10, np.full(count, 10), times, np.zeros(count), flags)
    shown = times[(flags & OUTSIDE) == 0]
    end = float(shown.max()) + 0.04 if len(shown) else 0.0
    return VideoIndex("mov", 10 * count, StreamConfig("h264", 64, 64), samples, duration if duration is not None else end)


def steady(seconds, rate=25, keys=(0,)):
    """A stream without reordering; keys at these sample numbers."""
    count = round(seconds * rate)
    flags = np.zeros(count, dtype=np.uint8)
    flags[[k for k in keys if k < count]] = KEY
    return video(np.arange(count) / rate, flags, seconds)


def check(index, policy, limits):
    """What holds of every plan."""
    made = plan(index, policy, limits)
    wanted = [sample for run in made.runs for sample in run.wanted]
    assert sorted(wanted) == sorted(frame.sample for frame in made.frames)
    assert len(set(wanted)) == len(wanted)
    assert len(made.frames) <= limits.frames
    assert made.decoded_samples <= limits.decoded_samples
    assert [f.time for f in made.frames] == sorted(f.time for f in made.frames)
    flags = index.samples.flags
    for run in made.runs:
        assert run.samples == tuple(range(run.samples[0], run.samples[-1] + 1))
        assert flags[run.samples[0]] & KEY or run.samples[0] == 0
        assert not (flags[list(run.samples)] & ENCRYPTED).any()
        assert 0 <= run.spare <= SPARE
        assert max(run.wanted) == run.samples[len(run.samples) - run.spare - 1]
    needed = [run.samples[: len(run.samples) - run.spare] for run in made.runs]
    assert len({s for samples in needed for s in samples}) == sum(len(samples) for samples in needed)
    seen = coverage(index, [f.time for f in made.frames if not f.outside_edit])
    if not made.gap_exceeded:
        assert seen.largest_gap <= policy.largest_gap + 1e-6
    assert plan(index, policy, limits) == made
    return made, seen


@st.composite
def videos(draw):
    count = draw(st.integers(1, 120))
    steps = draw(st.lists(st.sampled_from([0.0, 0.001, 0.04, 0.04, 0.04, 1.0, 7.0]), min_size=count, max_size=count))
    times = np.cumsum(steps)
    for at in draw(st.lists(st.integers(0, max(0, count - 2)), max_size=20)):  # B pictures: neighbours change places
        if at + 1 < count:
            times[[at, at + 1]] = times[[at + 1, at]]
    pool = draw(
        st.sampled_from([[0], [0, 0, 0, KEY], [KEY], [0, KEY, OUTSIDE, OUTSIDE | KEY], [0, KEY, ENCRYPTED, ENCRYPTED | KEY]])
    )
    flags = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    if draw(st.booleans()):
        flags[0] |= KEY
    times -= times.min()
    return video(times, flags, float(times.max()) + draw(st.sampled_from([0.0, 0.04, 30.0])))


policies = st.builds(
    SamplingPolicy,
    frames=st.integers(1, 40),
    largest_gap=st.floats(0.01, 50, allow_nan=False),
    add_non_keyframes=st.booleans(),
)
limits_ = st.builds(SamplingLimits, frames=st.integers(1, 64), decoded_samples=st.integers(1, 300))


@given(videos(), policies, limits_)
@settings(max_examples=400, deadline=None)
def test_every_plan_keeps_the_rules(index, policy, limits):
    check(index, policy, limits)


@given(
    st.integers(1, 400),
    st.lists(st.integers(0, 399), max_size=12),
    st.floats(0.1, 20),
    st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_the_gap_is_kept_wherever_pictures_and_limits_allow_it(count, keys, gap, frames):
    index = steady(count / 25, keys=[0, *keys])
    made, seen = check(index, SamplingPolicy(frames, gap), SamplingLimits(10_000, 1_000_000))
    assert not made.gap_exceeded
    assert seen.largest_gap <= gap + 1e-6


@given(videos(), policies)
@settings(max_examples=200, deadline=None)
def test_something_is_seen_wherever_anything_can_be(index, policy):
    made, _ = check(index, policy, SamplingLimits(64, 10_000))
    clear = (index.samples.flags & ENCRYPTED) == 0
    usable = clear[0] or (clear & ((index.samples.flags & KEY) != 0)).any()
    assert bool(made.frames) == bool(usable)


def test_one_grey_keyframe_and_a_minute_behind_it():
    made, seen = check(steady(60), SamplingPolicy(), SamplingLimits())
    assert seen.largest_gap <= 10
    assert len(made.frames) == 6
    assert [f.keyframe for f in made.frames] == [True] + [False] * 5
    assert len(made.runs) == 1  # one group of pictures, decoded once
    assert not made.gap_exceeded


def test_without_non_keyframes_the_gap_is_told():
    made, seen = check(steady(60), SamplingPolicy(add_non_keyframes=False), SamplingLimits())
    assert len(made.frames) == 1
    assert made.gap_exceeded
    assert seen.largest_gap == 60


def test_a_short_clip_with_one_keyframe_needs_no_more():
    made, _ = check(steady(5), SamplingPolicy(), SamplingLimits())
    assert [f.sample for f in made.frames] == [0]
    assert not made.gap_exceeded


def test_keyframes_are_spread_over_the_time():
    index = steady(100, keys=range(0, 2500, 25))
    made, seen = check(index, SamplingPolicy(frames=16), SamplingLimits())
    assert len(made.frames) == 16
    assert all(f.keyframe for f in made.frames)
    steps = np.diff([f.time for f in made.frames])
    assert steps.max() <= 2 * steps.min()
    assert seen.largest_gap <= 10


def test_a_burst_of_keyframes_does_not_draw_the_attention():
    burst = list(range(16 * 20))  # 12.8 s of keyframes, then four in the rest
    index = steady(60, keys=[*burst, 500, 750, 1000, 1250])
    made, _ = check(index, SamplingPolicy(frames=8), SamplingLimits())
    assert {500, 750, 1000, 1250} <= {f.sample for f in made.frames}


def test_keyframes_come_before_predicted_pictures():
    index = steady(100, keys=range(0, 2500, 200))  # every 8 s
    made, _ = check(index, SamplingPolicy(frames=2, largest_gap=10), SamplingLimits())
    assert all(f.keyframe for f in made.frames)
    assert not made.gap_exceeded


def test_a_predicted_picture_is_taken_where_it_is_cheap():
    index = steady(24, keys=[0, 300])  # keys at 0 and 12 s, gap 10: the first picture that closes the gap is at 2 s
    made, _ = check(index, SamplingPolicy(), SamplingLimits())
    assert [f.sample for f in made.frames] == [0, 50, 300, 350]


def test_the_hard_limit_of_frames_widens_the_gap_evenly():
    made, seen = check(steady(3600, rate=5), SamplingPolicy(largest_gap=1), SamplingLimits(frames=64))
    assert made.gap_exceeded
    assert 55 <= len(made.frames) <= 64
    assert seen.largest_gap < 3600 / 55


def test_the_limit_of_decoded_samples_sees_what_it_can():
    index = steady(400, keys=[0])
    made, seen = check(index, SamplingPolicy(), SamplingLimits(64, 2000))
    assert made.gap_exceeded
    assert made.frames[-1].time > 65  # 2000 samples are 80 s
    assert seen.largest_gap_start == made.frames[-1].time
    assert all(b.time - a.time <= 10.001 for a, b in pairwise(made.frames))


def test_pictures_that_stay_on_the_screen_leave_no_gap():
    slides = video([0, 30, 60, 90], [KEY] * 4, 120)
    made, seen = check(slides, SamplingPolicy(), SamplingLimits())
    assert len(made.frames) == 4
    assert seen.largest_gap == 0
    assert coverage(slides, [0, 90]).largest_gap == 90


def test_coverage_counts_the_ends():
    index = steady(20)
    assert (coverage(index, [8.0]).largest_gap, coverage(index, [8.0]).largest_gap_start) == (12.0, 8.0)
    assert (coverage(index, [15.0]).largest_gap, coverage(index, [15.0]).largest_gap_start) == (15.0, 0.0)
    assert coverage(index, []).largest_gap == 20
    assert coverage(index, index.samples.time.tolist()).largest_gap == 0


def test_lesson_1_the_only_keyframe_is_preroll():
    flags = [KEY | OUTSIDE] + [0] * 16
    made, _ = check(video((np.arange(17) - 1) / 30, flags), SamplingPolicy(), SamplingLimits())
    assert [f.outside_edit for f in made.frames] == [True, False]
    assert made.runs[0].samples[0] == 0
    assert made.frames[1].sample in (1, 2)


def test_lesson_1_also_without_non_keyframes():
    flags = [KEY | OUTSIDE] * 1 + [OUTSIDE] * 19 + [0] * 5
    made, _ = check(video((np.arange(25) - 20) / 30, flags), SamplingPolicy(add_non_keyframes=False), SamplingLimits())
    assert any(not f.outside_edit for f in made.frames)


def test_hidden_content_is_looked_at_by_the_same_rule():
    count = 25 * 100
    flags = np.zeros(count, dtype=np.uint8)
    flags[0] = KEY
    flags[250:] |= OUTSIDE  # 10 s shown, 90 s behind the edit list's end
    made, _ = check(video(np.arange(count) / 25, flags), SamplingPolicy(), SamplingLimits())
    hidden = [f.time for f in made.frames if f.outside_edit]
    assert not made.gap_exceeded
    assert max(np.diff([10.0, *hidden, 99.96])) <= 10.001


def test_lesson_2_a_lone_field_can_be_followed():
    made, _ = check(steady(2, keys=[0, 25]), SamplingPolicy(), SamplingLimits())
    assert all(run.spare == SPARE for run in made.runs)
    assert made.runs[0].samples[:2] == (0, 1)


def test_lesson_4_no_key_flag_at_all():
    made, seen = check(video(np.arange(1500) / 25, np.zeros(1500)), SamplingPolicy(), SamplingLimits())
    assert made.frames[0].sample == 0
    assert not made.frames[0].keyframe
    assert seen.largest_gap <= 10


def test_lesson_5_flags_on_everything():
    made, _ = check(video(np.arange(122) / 25, np.full(122, KEY)), SamplingPolicy(), SamplingLimits())
    assert len(made.frames) == 16
    assert all(len(run.samples) <= 5 for run in made.runs)  # not every packet of the stream once more for each run


def test_lesson_5_the_flags_begin_late():
    flags = np.zeros(1500)
    flags[500] = KEY  # 20 s into the stream
    made, _ = check(video(np.arange(1500) / 25, flags), SamplingPolicy(), SamplingLimits())
    early = [f for f in made.frames if f.sample < 500]
    assert early  # asked for, so that the answer names them if they give no picture
    assert made.runs[0].samples[0] == 0


def test_lesson_6_encrypted_samples_are_never_wanted_nor_decoded():
    flags = np.zeros(3000, dtype=np.uint8)
    flags[::250] = KEY
    flags[1000:] |= ENCRYPTED
    made, _ = check(video(np.arange(3000) / 25, flags), SamplingPolicy(), SamplingLimits())
    assert max(f.sample for f in made.frames) < 1000
    assert made.gap_exceeded


def test_open_groups_leading_pictures_begin_one_entry_point_earlier():
    #         I0 P1  then I of the next group, its two leading pictures, and on
    times = [0.0, 8.0, 20.0, 12.0, 16.0, 24.0]
    flags = [KEY, 0, KEY, 0, 0, 0]
    made, _ = check(video(times, flags), SamplingPolicy(frames=4, largest_gap=4.5), SamplingLimits())
    assert {3, 4} <= {f.sample for f in made.frames}
    assert len(made.runs) == 1
    assert made.runs[0].samples[0] == 0


def test_everything_encrypted_gives_an_empty_plan():
    made = plan(video([0, 1], [KEY | ENCRYPTED] * 2), SamplingPolicy(), SamplingLimits())
    assert (made.frames, made.runs) == ((), ())


@pytest.mark.parametrize(("frames", "gap"), [(0, 1), (1, 0), (1, -1), (1, float("nan")), (1, float("inf"))])
def test_policies_out_of_range(frames, gap):
    with pytest.raises(BadPolicy):
        SamplingPolicy(frames, gap)


@pytest.mark.parametrize("keys", [[0], range(0, 1_000_000, 50), range(1_000_000)])
def test_a_million_samples(keys):
    index = steady(40_000, keys=keys)
    start = time.process_time()
    made, _ = check(index, SamplingPolicy(frames=64), SamplingLimits(1024, 1_000_000))
    assert made.frames
    assert time.process_time() - start < 30  # a bound on growth, not a benchmark


@given(videos(), policies)
@settings(max_examples=300, deadline=None)
def test_a_gap_is_left_only_where_looking_at_everything_would_leave_it(index, policy):
    policy = SamplingPolicy(policy.frames, policy.largest_gap, True)
    made, _ = check(index, policy, SamplingLimits(10_000, 100_000))
    everything, _ = check(index, SamplingPolicy(10_000, 1e-9), SamplingLimits(10_000, 100_000))
    usable = [f for f in everything.frames if not f.outside_edit]
    seen = coverage(index, [f.time for f in made.frames if not f.outside_edit])
    best = coverage(index, [f.time for f in usable])
    assert seen.largest_gap <= max(policy.largest_gap, best.largest_gap) + 1e-6
