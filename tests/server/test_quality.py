"""Less than was asked for: fewer pictures of the same plan, fewer models, each told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy, coverage, plan
from keyglance.video import SampleFlag, Samples, StreamConfig, VideoIndex
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from server.degradation import DegradationReason
from server.quality import FULL, Quality, thinned, told

REQUIRED = fake_manifest("required", [LabelSpec("a")], required=True)
OPTIONAL = fake_manifest("optional", [LabelSpec("b")])
EXTRA = replace(fake_manifest("extra", [LabelSpec("c")]), default_on=False)
MODELS = (REQUIRED, OPTIONAL, EXTRA)


def video(flags: list[int], fps: float = 2.0) -> VideoIndex:
    count = len(flags)
    samples = Samples(
        position=np.arange(count, dtype=np.int64),
        size=np.ones(count, np.int64),
        time=np.arange(count) / fps,
        duration=np.full(count, 1 / fps),
        flags=np.array(flags, np.uint8),
    )
    return VideoIndex("mov", count, StreamConfig("h264", 64, 48), samples, duration=count / fps)


KEY, NONE, HIDDEN = int(SampleFlag.KEY), int(SampleFlag.NONE), int(SampleFlag.OUTSIDE_EDIT)
FLAGS = st.lists(st.sampled_from([KEY, NONE, NONE, KEY | HIDDEN, HIDDEN]), min_size=1, max_size=120).map(lambda f: [KEY, *f])


@settings(deadline=None, max_examples=300)
@given(FLAGS, st.integers(1, 24), st.integers(2, 24), st.floats(0.6, 30))
def test_a_thinned_plan_is_a_part_of_the_full_one_without_new_gaps(flags: list[int], wanted: int, most: int, gap: float) -> None:
    index = video(flags)
    full = plan(index, SamplingPolicy(frames=wanted, largest_gap=gap), SamplingLimits(frames=64))
    thin = thinned(full, most, gap)
    assert set(thin.frames) <= set(full.frames)
    assert list(thin.frames) == sorted(thin.frames, key=lambda frame: (frame.time, frame.sample))
    samples = {sample for run in full.runs for sample in run.samples}
    assert {sample for run in thin.runs for sample in run.samples} <= samples, "no byte that a caller has not sent"
    assert sorted(sample for run in thin.runs for sample in run.wanted) == sorted(frame.sample for frame in thin.frames)
    entries = {run.samples[0] for run in full.runs}
    for run in thin.runs:
        assert run.samples[0] in entries, "decoding begins where it would have begun"
        needed = run.samples[: len(run.samples) - run.spare]
        assert needed[-1] == run.wanted[-1], "and ends at the last picture"
    before, after = (coverage(index, [frame.time for frame in each.frames]).largest_gap for each in (full, thin))
    assert after <= max(before, gap) + 1e-3, "the gap wins over the number"
    if len(full.frames) <= most:
        assert thin is full


def test_with_a_wide_gap_the_number_is_kept() -> None:
    full = plan(video([KEY] * 64), SamplingPolicy(frames=32, largest_gap=100), SamplingLimits())
    for most in (2, 3, 8, 31):
        thin = thinned(full, most, 100)
        assert len(thin.frames) == most
        assert (thin.frames[0], thin.frames[-1]) == (full.frames[0], full.frames[-1])


def test_what_a_player_does_not_show_keeps_its_share() -> None:
    full = plan(video([KEY] * 40 + [KEY | HIDDEN] * 40), SamplingPolicy(frames=32, largest_gap=100), SamplingLimits())
    thin = thinned(full, 8, 100)
    shares = [sum(frame.outside_edit for frame in each.frames) / len(each.frames) for each in (full, thin)]
    assert abs(shares[0] - shares[1]) < 0.15


def test_full_quality_changes_nothing() -> None:
    full = plan(video([KEY] * 30), SamplingPolicy(), SamplingLimits())
    assert FULL.plan(full, 10) is full
    assert FULL.models((), MODELS) == ((), ())
    assert FULL.models(("extra",), MODELS) == (("extra",), ())
    assert FULL.sampling == ()
    assert told(full, full, ()) == []


def test_optional_models_are_left_out_unless_they_are_asked_for_by_name() -> None:
    quality = Quality(leave_out=frozenset({"optional", "extra", "required"}))
    assert quality.models((), MODELS) == (("required",), ("optional",))
    assert quality.models(("optional",), MODELS) == (("optional",), ())


def test_an_answer_has_one_model_at_least() -> None:
    assert Quality(leave_out=frozenset({"optional"})).models((), (OPTIONAL, EXTRA)) == ((), ())


def test_everything_is_told_with_its_number() -> None:
    full = plan(video([KEY] * 64), SamplingPolicy(frames=16, largest_gap=100), SamplingLimits())
    thin = Quality(frames=4).plan(full, 100)
    fewer, left_out = told(full, thin, ("optional", "other"))
    assert (fewer.reason, fewer.count) == (DegradationReason.FEWER_FRAMES, 12)
    assert "4 of 16" in fewer.detail
    assert (left_out.reason, left_out.count) == (DegradationReason.MODEL_LEFT_OUT, 2)
    assert "load" in left_out.detail
    assert "optional, other" in left_out.detail


def test_an_empty_plan_stays_empty() -> None:
    empty = SamplingPlan((), (), False)
    assert thinned(empty, 4, 10) is empty
