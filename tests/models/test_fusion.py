from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.backends.fake import fake_manifest
from models.fusion import FrameScores, Fusion, ModelScore, Segment, VideoLabel, parents_of
from models.manifest import FrameFusion, LabelSpec, Manifest
from models.result import FrameResult, LabelNames, LabelScores
from tests.models import fusion_reference


def frames(*scores: float | None, model: str = "m", label: str = "x", outside: tuple[int, ...] = ()) -> list[FrameScores]:
    """One picture a second; None: the model did not look."""
    return [
        FrameScores(float(time), time in outside, {} if score is None else {model: FrameResult({label: score})})
        for time, score in enumerate(scores)
    ]


def model(name: str = "m", *labels: LabelSpec, **overrides) -> Manifest:
    return fake_manifest(name, labels or (LabelSpec("x"),), **overrides)


def one(found: list[FrameScores], *manifests: Manifest) -> VideoLabel:
    (label,) = Fusion(manifests or (model(),)).fuse(found, least_score=0.0).values()
    return label


def spans(label: VideoLabel) -> list[tuple[float, float, float]]:
    return [(segment.start, segment.end, segment.peak) for segment in label.segments]


class TestOverPictures:
    def test_the_best_picture_counts_by_default(self):
        label = one(frames(0.1, 0.8, 0.3))
        assert (label.score, label.passed) == (0.8, True)
        assert label.sources == (ModelScore("m", 0.8),)

    @pytest.mark.parametrize(("k", "score"), [(1, 0.8), (2, 0.7), (3, 0.5), (9, 0.5)])
    def test_or_the_mean_of_the_k_best_of_fewer_where_there_are_fewer(self, k, score):
        label = one(frames(0.1, 0.8, 0.6), model(frame_fusion=FrameFusion.TOP_K_MEAN, top_k=k))
        assert label.score == pytest.approx(score)

    def test_a_label_that_a_result_lacks_has_score_0_there(self):
        found = [FrameScores(0, False, {"m": FrameResult({"x": 0.9})}), FrameScores(1, False, {"m": FrameResult()})]
        assert one(found, model(frame_fusion=FrameFusion.TOP_K_MEAN, top_k=2)).score == pytest.approx(0.45)

    def test_a_picture_at_which_the_model_did_not_look_does_not_count(self):
        assert one(frames(0.9, None), model(frame_fusion=FrameFusion.TOP_K_MEAN, top_k=2)).score == 0.9


class TestOverModels:
    two = (model("a", LabelSpec("x", weight=3.0, threshold=0.6)), model("b", LabelSpec("x", weight=1.0, threshold=0.5)))

    def test_weights_share_the_score_and_sources_keep_their_own(self):
        label = one([FrameScores(0, False, {"a": FrameResult({"x": 0.8}), "b": FrameResult({"x": 0.4})})], *self.two)
        assert label.score == pytest.approx(0.7)
        assert label.sources == (ModelScore("a", 0.8), ModelScore("b", 0.4))
        assert label.threshold == 0.5
        assert label.segments == (Segment(0, 0, 0, pytest.approx(0.7)),)

    def test_a_model_that_never_looked_has_no_say(self):
        label = one([FrameScores(0, False, {"b": FrameResult({"x": 0.4})})], *self.two)
        assert (label.score, label.sources) == (0.4, (ModelScore("b", 0.4),))

    def test_a_picture_has_the_mean_of_the_models_that_looked_at_it(self):
        found = [
            FrameScores(0, False, {"a": FrameResult({"x": 0.2}), "b": FrameResult({"x": 0.9})}),  # 0.375
            FrameScores(1, False, {"b": FrameResult({"x": 0.9})}),
        ]
        assert spans(one(found, *self.two)) == [(1, 1, 1)]

    def test_a_label_that_passed_shows_its_best_picture_where_none_alone_reaches_the_threshold(self):
        even = (model("a", LabelSpec("x", threshold=0.8)), model("b", LabelSpec("x", threshold=0.8)))
        found = [
            FrameScores(0, False, {"a": FrameResult({"x": 0.9}), "b": FrameResult({"x": 0.1})}),
            FrameScores(1, False, {"a": FrameResult({"x": 0.2}), "b": FrameResult({"x": 0.9})}),
        ]
        label = one(found, *even)
        assert label.passed
        assert label.segments == (Segment(1, 1, 1, pytest.approx(0.55)),)


class TestSegments:
    @pytest.mark.parametrize(
        ("scores", "expected"),
        [
            ((0.1, 0.2), []),
            ((0.9,), [(0, 0, 0)]),
            ((0.5, 0.6, 0.9, 0.7, 0.1), [(0, 3, 2)]),
            ((0.6, 0.4, 0.7), [(0, 0, 0), (2, 2, 2)]),
            ((0.1, 0.6, 0.6, 0.1), [(1, 2, 1)]),  # of equal ones the first is the peak
            ((0.6, None, 0.7), [(0, 2, 2)]),  # a picture at which nobody looked says nothing
        ],
    )
    def test_neighbours_at_or_above_the_threshold_are_one(self, scores, expected):
        assert spans(one(frames(*scores))) == expected

    def test_pictures_outside_the_edit_list_are_neighbours_of_one_another_only(self):
        label = one(frames(0.6, 0.7, 0.8, 0.9, 0.1, outside=(1, 3)))
        assert spans(label) == [(0, 2, 2), (1, 3, 3)]
        assert label.score == 0.9

    def test_times_before_the_first_shown_picture_may_be_negative(self):
        found = [replace(frame, time=frame.time - 5, outside_edit=True) for frame in frames(0.9, 0.9)]
        assert spans(one(found)) == [(-5, -4, -5)]


class TestParents:
    family = model(
        "m", LabelSpec("revolver", "weapon", threshold=0.6), LabelSpec("rifle", "weapon", threshold=0.4), LabelSpec("cat")
    )

    def labels(self, *results: dict[str, float], manifests: tuple[Manifest, ...] = ()) -> dict[str, VideoLabel]:
        found = [FrameScores(float(time), False, {"m": FrameResult(scores)}) for time, scores in enumerate(results)]
        return dict(Fusion(manifests or (self.family,)).fuse(found, least_score=0.0))

    def test_a_parent_that_no_model_gives_is_as_good_as_its_best_child(self):
        labels = self.labels({"revolver": 0.5, "rifle": 0.1}, {"revolver": 0.1, "rifle": 0.45})
        weapon = labels["weapon"]
        assert (weapon.score, weapon.threshold, weapon.passed, weapon.parent) == (0.5, 0.4, True, "")
        assert spans(weapon) == [(0, 1, 0)]
        assert weapon.sources == (ModelScore("m", 0.5),)
        assert labels["revolver"].parent == "weapon"
        assert not labels["revolver"].passed

    def test_a_parent_that_a_model_gives_keeps_its_own_score_and_threshold(self):
        manifest = replace(self.family, labels=(*self.family.labels, LabelSpec("weapon", threshold=0.7)))
        weapon = self.labels({"revolver": 0.5, "rifle": 0.1, "weapon": 0.6}, manifests=(manifest,))["weapon"]
        assert (weapon.score, weapon.threshold, weapon.passed) == (0.6, 0.7, False)

    def test_parents_have_parents(self):
        sub = model("n", LabelSpec("knife", "blade"), LabelSpec("blade-like", "weapon", threshold=0.9))
        top = replace(self.family, labels=(*self.family.labels, LabelSpec("unused", "thing")))
        found = [FrameScores(0, False, {"m": FrameResult({"rifle": 0.3}), "n": FrameResult({"knife": 0.8, "blade-like": 0.7})})]
        labels = Fusion((sub, top)).fuse(found, least_score=0.0)
        assert labels["blade"].score == 0.8
        assert labels["weapon"].score == 0.7
        assert labels["weapon"].sources == (ModelScore("m", 0.3), ModelScore("n", 0.7))
        assert labels["thing"].score == 0

    def test_contradictions_are_refused(self):
        with pytest.raises(ValueError, match="'revolver' has parent 'tool' in model 'n', 'weapon' in another"):
            parents_of([self.family, model("n", LabelSpec("revolver", "tool"))])
        with pytest.raises(ValueError, match="'a' is above itself"):
            parents_of([model("n", LabelSpec("a", "b"), LabelSpec("b", "c"), LabelSpec("c", "a"))])
        assert parents_of([self.family, model("n", LabelSpec("revolver"))]) == {"revolver": "weapon", "rifle": "weapon"}


class TestShown:
    manifest = model(
        "m", LabelSpec("low"), LabelSpec("early", threshold=0.05), LabelSpec("b"), LabelSpec("a"), LabelSpec("top", threshold=0.9)
    )
    found = (FrameScores(0, False, {"m": FrameResult({"low": 0.1, "early": 0.06, "a": 0.7, "b": 0.7, "top": 0.8})}),)

    def test_passed_ones_come_first_then_score_then_name(self):
        labels = Fusion([self.manifest]).fuse(self.found, least_score=0.1)
        assert [label.name for label in labels.shown] == ["a", "b", "early", "top", "low"]

    def test_those_that_passed_are_shown_whatever_is_asked_for_and_all_are_there_for_the_policy(self):
        labels = Fusion([self.manifest]).fuse(self.found, least_score=0.9)
        assert [label.name for label in labels.shown] == ["a", "b", "early"]
        assert list(labels) == ["a", "b", "early", "top", "low"]
        assert len(labels) == 5


def test_no_pictures_no_labels():
    for nothing in ([], frames(None)):
        labels = Fusion([model()]).fuse(nothing, least_score=0.0)
        assert (dict(labels), labels.shown) == ({}, ())


def test_a_label_that_the_manifest_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="model 'm' gave labels that are not known: y"):
        Fusion([model()]).fuse(frames(0.5, label="y"), least_score=0.0)


def test_no_label_is_made_before_it_is_asked_for_unless_it_is_shown():
    labels = Fusion([TestShown.manifest]).fuse(TestShown.found, least_score=0.75)
    assert {label.name for label in labels.shown} == {"a", "b", "early", "top"}
    assert labels["low"] is labels["low"]
    assert labels["a"] is labels.shown[0]
    assert labels.get("else") is None
    assert "else" not in labels


SCORES = st.floats(0, 1, width=16)
MANIFESTS = [
    fake_manifest("a", (LabelSpec("x", "p", weight=2.0), LabelSpec("y", "p", threshold=0.3), LabelSpec("z"))),
    fake_manifest("b", (LabelSpec("x", threshold=0.7), LabelSpec("q", "p")), frame_fusion=FrameFusion.TOP_K_MEAN, top_k=3),
    fake_manifest("c", (LabelSpec("x", weight=0.1), LabelSpec("z", "r"))),
]


@st.composite
def videos(draw: st.DrawFn, manifests: Sequence[Manifest] = MANIFESTS) -> list[FrameScores]:
    names = {manifest.name: LabelNames.of(manifest) for manifest in manifests}

    def scores(manifest: Manifest) -> Mapping[str, float]:
        if draw(st.booleans()):
            return {label.name: draw(SCORES) for label in manifest.labels if draw(st.integers(0, 4))}
        labels = draw(
            st.sampled_from([names[manifest.name], LabelNames.of(manifest), LabelNames(sorted(names[manifest.name].names))])
        )
        return LabelScores(
            labels, np.array([draw(SCORES) for _ in manifest.labels], draw(st.sampled_from([np.float32, np.float64])))
        )

    times = draw(st.lists(st.floats(-5, 100, width=16) | st.sampled_from([0.0, 1.0, 2.0]), max_size=8))
    looks = [[manifest for manifest in manifests if draw(st.integers(0, 4))] for _ in times]
    return [
        FrameScores(time, draw(st.booleans()), {manifest.name: FrameResult(scores(manifest)) for manifest in looked})
        for time, looked in zip(times, looks, strict=True)
    ]


@st.composite
def families(draw: st.DrawFn) -> list[Manifest]:
    """Models of labels of few names, so that several give one, under parents that some give themselves."""
    parents = dict(zip("uvwxyz", draw(st.lists(st.sampled_from(["", "x", "y", "p", "q"]), min_size=6, max_size=6)), strict=True))
    parents |= {"x": draw(st.sampled_from(["", "p", "y"])), "y": draw(st.sampled_from(["", "q"]))}
    share = st.floats(2**-4, 1, width=16)

    def labels() -> list[LabelSpec]:
        chosen = draw(st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=6, unique=True))
        return [
            LabelSpec(name, parents[name] if draw(st.booleans()) else "", threshold=draw(share), weight=draw(share))
            for name in chosen
        ]

    return [
        fake_manifest(name, labels(), frame_fusion=draw(st.sampled_from(FrameFusion)), top_k=draw(st.integers(1, 4)))
        for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    ]


def near(label: VideoLabel) -> object:
    """Equal to `label` but for rounding."""
    return (
        label.name,
        label.parent,
        pytest.approx(label.score, abs=1e-12),
        label.threshold,
        label.passed,
        [(one.start, one.end, one.peak, pytest.approx(one.score, abs=1e-12)) for one in label.segments],
        [(one.model, pytest.approx(one.score, abs=1e-12)) for one in label.sources],
    )


@settings(max_examples=250, deadline=None)
@given(data=st.data(), least=st.sampled_from([0.0, 0.3, 0.6]))
def test_labels_are_those_of_the_reference(data, least):
    manifests = data.draw(families())
    video = data.draw(videos(manifests))
    every, shown = fusion_reference.fuse(video, manifests, least_score=least)
    labels = Fusion(manifests).fuse(video, least_score=least)
    assert list(labels) == [label.name for label in every]
    assert [astuple(label)[:5] for label in labels.shown] == [astuple(label)[:5] for label in shown]
    for label, expected in zip(labels.values(), every, strict=True):
        assert (*astuple(label)[:5], [astuple(one) for one in label.segments], [astuple(one) for one in label.sources]) == near(
            expected
        )


@settings(max_examples=150, deadline=None)
@given(video=videos(), seed=st.integers(0, 2**16))
def test_the_order_of_the_input_does_not_matter(video, seed):
    shuffled, manifests = list(video), list(MANIFESTS)
    random.Random(seed).shuffle(shuffled)
    random.Random(seed).shuffle(manifests)
    one, other = (Fusion(models).fuse(found, least_score=0.2) for models, found in ((manifests, shuffled), (MANIFESTS, video)))
    assert one.shown == other.shown
    assert list(one.items()) == list(other.items())


@settings(max_examples=150, deadline=None)
@given(video=videos())
def test_every_label_is_consistent(video):
    times = {frame.time for frame in video}
    labels = Fusion(MANIFESTS).fuse(video, least_score=0.2)
    assert set(labels.shown) == {label for label in labels.values() if label.passed or label.score >= 0.2}
    for name, label in labels.items():
        assert label.name == name
        own = [source.score for source in label.sources]
        assert min(own) <= label.score <= max(own)
        assert label.passed == (label.score >= label.threshold)
        assert bool(label.segments) or not label.passed
        assert sorted(label.segments, key=lambda segment: segment.start) == list(label.segments)
        for segment in label.segments:
            assert segment.start <= segment.peak <= segment.end
            assert {segment.start, segment.peak, segment.end} <= times
            assert segment.score >= label.threshold or (label.passed and len(label.segments) == 1)


@settings(max_examples=150, deadline=None)
@given(scores=st.lists(SCORES, min_size=1, max_size=12), threshold=st.floats(2**-7, 1, width=16))
def test_segments_hold_all_pictures_above_the_threshold_and_no_other(scores, threshold):
    label = one(frames(*scores), model("m", LabelSpec("x", threshold=threshold)))
    inside = [t for t in range(len(scores)) if any(segment.start <= t <= segment.end for segment in label.segments)]
    assert inside == [t for t, score in enumerate(scores) if score >= threshold]
    assert all(after.start - before.end >= 2 for before, after in zip(label.segments, label.segments[1:], strict=False))


@settings(max_examples=100, deadline=None)
@given(scores=st.lists(SCORES, min_size=1, max_size=8), place=st.integers(0, 7), more=SCORES, k=st.integers(1, 4))
def test_a_higher_score_on_a_picture_never_lowers_the_label(scores, place, more, k):
    manifest = model(frame_fusion=FrameFusion.TOP_K_MEAN, top_k=k)
    raised = list(scores)
    raised[place % len(scores)] = max(more, raised[place % len(scores)])
    assert one(frames(*raised), manifest).score >= one(frames(*scores), manifest).score - 1e-12
