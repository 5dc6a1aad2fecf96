"""Fusion: from every model's scores on every picture to the labels of a video.

The way of one label:

1. over pictures: each model's scores become one, by the manifest's `frame_fusion` (the best, or the mean of the k best);
2. over models: the mean of these, weighted by the label's `weight` in each manifest, is the label's score;
3. a parent that no model gives itself has its best child's score, and the lowest of its children's thresholds;
4. a label passes from its threshold on; where models name several, the lowest counts.

By time: a label's score on one picture is the weighted mean over the models that looked at it. Neighbouring pictures at or
above the threshold, with none below between them, are one segment. A segment begins and ends at the times of pictures that were
looked at: it is evidence, and says nothing of the time between its last picture and the next. Pictures outside the edit list,
which no player shows, count like the others but are neighbours only of one another: their segments stand apart.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.manifest import FrameFusion, Manifest
from models.result import FrameResult, LabelNames, LabelScores

Scores = NDArray[np.float64]
Numbers = NDArray[np.intp]

#: Layouts are kept for the sets of models that answered last: callers choose models, and some fail.
_LAYOUTS_KEPT = 64


@dataclass(frozen=True, slots=True)
class FrameScores:
    """One picture that was looked at: its time in seconds, whether it lies outside the edit list, results by model."""

    time: float
    outside_edit: bool
    results: Mapping[str, FrameResult]


@dataclass(frozen=True, slots=True)
class Segment:
    """Times in seconds of the first, the last and the best of neighbouring pictures that show a label; the best one's score."""

    start: float
    end: float
    peak: float
    score: float


@dataclass(frozen=True, slots=True)
class ModelScore:
    """One model's score of a label, fused over pictures only."""

    model: str
    score: float


@dataclass(frozen=True, slots=True)
class VideoLabel:
    """A label of a video. A label that passed has a segment: its best picture where no picture alone reaches the threshold."""

    name: str
    parent: str
    score: float
    threshold: float
    passed: bool
    segments: tuple[Segment, ...]
    sources: tuple[ModelScore, ...]


class Fusion:
    """The fusion of models with `manifests`; what depends on these alone is worked out once.

    Raises `ValueError` for manifests that contradict one another (`parents_of`).
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._manifests = {one.name: one for one in sorted(manifests, key=lambda manifest: manifest.name)}
        parents_of(self._manifests.values())
        self._layout = functools.lru_cache(_LAYOUTS_KEPT)(self._lay_out)

    def _lay_out(self, *models: str) -> _Layout:
        return _Layout.of([self._manifests[name] for name in models])

    def fuse(self, frames: Iterable[FrameScores], *, least_score: float) -> Labels:
        """The labels of a video, in no way dependent on the order of the input.

        Shown are labels that passed or have `least_score` (0 to 1) or more. A label of a manifest that a result lacks has score 0
        on that picture; a model without a result for a picture did not look at it, and one without any is as if it were not
        there. Raises `ValueError` for a score of a label that the model's manifest does not have.
        """
        ordered = sorted(frames, key=lambda frame: frame.time)
        rows = {name: [row for row, frame in enumerate(ordered) if name in frame.results] for name in self._manifests}
        layout = self._layout(*(name for name, looked in rows.items() if looked))
        looks = [_Look.of(model, rows[model.name], ordered) for model in layout.models]
        return Labels(layout, ordered, looks, least_score)


class Labels(Mapping[str, VideoLabel]):
    """All labels that any model looked for, by name, whatever their score, which is what a policy judges; made when asked for.

    In order those that passed come first, then by score, then by name. `shown` are those to be shown, in the same order.
    """

    def __init__(self, layout: _Layout, frames: Sequence[FrameScores], looks: Sequence[_Look], least_score: float) -> None:
        self._layout = layout
        self._looks = looks
        self._times = [frame.time for frame in frames]
        self._sides = [[row for row, frame in enumerate(frames) if frame.outside_edit is side] for side in (False, True)]
        self._at_one_time = len(set(self._times)) < len(self._times)
        given = layout.total_weight.size
        #: By model and given label, fused over pictures; NaN where the model does not give the label.
        self._sources = np.full((len(looks), given), np.nan)
        total, peak = np.zeros(given), np.zeros(given)
        for look, sources in zip(looks, self._sources, strict=True):
            its = look.model.given
            sources[its] = look.fused
            total[its] += look.fused * look.model.weights
            peak[its] = np.maximum(peak[its], look.scores.max(axis=0))
        # Within the models' own scores in spite of rounding.
        score = np.clip(total / layout.total_weight, *_span(self._sources))
        self._score = layout.with_derived(score)
        self._peak = layout.with_derived(peak)
        self._passed = self._score >= layout.thresholds
        self._made: dict[int, VideoLabel] = {}
        self.shown = self._make(self._ordered(np.flatnonzero(self._passed | (self._score >= least_score))))

    def __getitem__(self, name: str) -> VideoLabel:
        number = self._layout.number[name]
        return self._made.get(number) or self._make([number])[0]

    def __iter__(self) -> Iterator[str]:
        return (self._layout.names[number] for number in self._ordered(np.arange(len(self))))

    def __len__(self) -> int:
        return len(self._layout.names)

    def _ordered(self, numbers: Numbers) -> list[int]:
        keys = (self._layout.rank[numbers], -self._score[numbers], ~self._passed[numbers])
        ordered: list[int] = numbers[np.lexsort(keys)].tolist()
        return ordered

    def _make(self, numbers: Sequence[int]) -> tuple[VideoLabel, ...]:
        """The labels of `numbers`, which are kept."""
        if not numbers:
            return ()
        layout = self._layout
        names = [model.name for model in layout.models]
        by_model = layout.best_of(numbers, lambda given: self._sources[:, given])
        # Most of a thousand labels are nowhere near: no mean over models reaches what none of them reached.
        near = [number for number in numbers if self._peak[number] >= layout.thresholds[number]]
        tracks = dict(zip(near, layout.best_of(near, self._by_frame), strict=True)) if near else {}
        for number, scores in zip(numbers, by_model, strict=True):
            threshold, passed = float(layout.thresholds[number]), bool(self._passed[number])
            self._made[number] = VideoLabel(
                layout.names[number],
                layout.parents[number],
                float(self._score[number]),
                threshold,
                passed,
                self._segments(tracks[number], threshold, passed) if number in tracks else (),
                tuple([ModelScore(name, score) for name, score in zip(names, scores, strict=True) if not math.isnan(score)]),
            )
        return tuple([self._made[number] for number in numbers])

    def _by_frame(self, given: Numbers) -> Scores:
        """The weighted mean of the models that looked, [pictures, labels]; NaN where none did."""
        columns = np.full((len(self._looks), len(self._times), given.size), np.nan)
        for look, its, own in zip(self._looks, columns, self._layout.columns, strict=True):
            has = np.flatnonzero(own[given] >= 0)
            its[look.rows[:, None], has] = look.scores[:, own[given[has]]]
        weights = np.where(np.isnan(columns), 0.0, self._layout.weights[:, given][:, None])
        total = weights.sum(axis=0)
        mean = np.divide((np.nan_to_num(columns) * weights).sum(axis=0), total, out=np.full(total.shape, np.nan), where=total > 0)
        held: Scores = np.clip(mean, *_span(columns))
        return held

    def _segments(self, scores: Sequence[float], threshold: float, passed: bool) -> tuple[Segment, ...]:
        """The segments of a label, from its score on each picture, NaN where nobody looked."""
        found: list[Segment] = []
        for rows in self._sides:
            pictures = [(self._times[row], scores[row]) for row in rows if not math.isnan(scores[row])]
            if self._at_one_time:  # the best comes first, whatever order they came in
                pictures.sort(key=lambda one: (one[0], -one[1]))
            for above, neighbours in itertools.groupby(pictures, key=lambda one: one[1] >= threshold):
                if above:
                    found.append(_segment(list(neighbours)))
        if passed and not found:
            best = max(score for score in scores if not math.isnan(score))
            found.append(_segment([(self._times[scores.index(best)], best)]))
        return tuple(sorted(found, key=lambda segment: (segment.start, segment.end, segment.peak, segment.score)))


def _segment(pictures: Sequence[tuple[float, float]]) -> Segment:
    peak, score = max(pictures, key=lambda one: (one[1], -one[0]))
    return Segment(pictures[0][0], pictures[-1][0], peak, score)


def _span(values: Scores) -> tuple[Scores, Scores]:
    """The least and the largest along the first axis, which may be empty; NaN where all are."""
    return np.fmin.reduce(values, initial=np.nan), np.fmax.reduce(values, initial=np.nan)


def parents_of(manifests: Iterable[Manifest]) -> Mapping[str, str]:
    """Parent by label. Raises `ValueError` where models name two parents for one label, or a label is above itself."""
    parents: dict[str, str] = {}
    for manifest in manifests:
        for label in manifest.labels:
            if label.parent and (other := parents.setdefault(label.name, label.parent)) != label.parent:
                raise ValueError(
                    f"label {label.name!r} has parent {label.parent!r} in model {manifest.name!r}, {other!r} in another"
                )
    settled: set[str] = set()
    for name in parents:
        path: list[str] = []
        while name in parents and name not in settled:
            if name in path:
                raise ValueError(f"label {name!r} is above itself")
            path.append(name)
            name = parents[name]
        settled.update(path)
    return parents


@dataclass(frozen=True, slots=True)
class _Model:
    """One model's place among the labels: the number, among those given, of each of its own, and their weights."""

    manifest: Manifest
    labels: LabelNames
    given: Numbers
    weights: Scores

    @property
    def name(self) -> str:
        return self.manifest.name


@dataclass(frozen=True, slots=True)
class _Look:
    """What one model says: of the pictures with numbers `rows`, `scores` [rows, labels], and `fused` over them [labels]."""

    model: _Model
    rows: Numbers
    scores: Scores
    fused: Scores

    @classmethod
    def of(cls, model: _Model, rows: list[int], frames: Sequence[FrameScores]) -> _Look:
        """Raises `ValueError` for a score of a label that the model does not have."""
        name, known = model.name, model.labels
        arrays: list[NDArray[np.floating]] = []
        for row in rows:
            scores = frames[row].results[name].scores
            if isinstance(scores, LabelScores) and scores.labels == known:
                known = scores.labels  # of the next ones it is the same object, and a thousand names need no comparison
                arrays.append(scores.array)
                continue
            try:
                arrays.append(model.labels.array_of(scores))
            except ValueError as error:
                raise ValueError(f"model {name!r} gave {error}") from None
        stacked = np.stack(arrays, dtype=np.float64)
        return cls(model, np.array(rows), stacked, _over_frames(stacked, model.manifest))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The labels of some models: first those that a model gives, then parents that none gives, derived from those below.

    `rank` is a label's place by name. `columns` [models, given] are the place of a label among a model's own, -1 where it
    does not give it, and `weights` its weight, 0 there. `below` are the given labels that each derived one is the best of.
    """

    models: tuple[_Model, ...]
    names: tuple[str, ...]
    parents: tuple[str, ...]
    number: Mapping[str, int]
    rank: Numbers
    thresholds: Scores
    columns: Numbers
    weights: Scores
    total_weight: Scores
    below: tuple[Numbers, ...]

    @classmethod
    def of(cls, manifests: Sequence[Manifest]) -> _Layout:
        """Raises `ValueError` for manifests that contradict one another."""
        parents = parents_of(manifests)
        given = {
            name: number for number, name in enumerate(dict.fromkeys(label.name for one in manifests for label in one.labels))
        }
        models = tuple(
            _Model(
                manifest,
                LabelNames.of(manifest),
                np.array([given[label.name] for label in manifest.labels], np.intp),
                np.array([label.weight for label in manifest.labels]),
            )
            for manifest in manifests
        )
        columns = np.full((len(models), len(given)), -1)
        weights = np.zeros(columns.shape)
        thresholds = np.full(len(given), np.inf)
        for model, own, share in zip(models, columns, weights, strict=True):
            own[model.given] = np.arange(model.given.size)
            share[model.given] = model.weights
            its = [label.threshold for label in model.manifest.labels]
            thresholds[model.given] = np.minimum(thresholds[model.given], its)
        below: dict[str, list[int]] = defaultdict(list)
        for name, number in given.items():
            if (parent := parents.get(name)) and parent not in given:
                below[parent].append(number)
        names = (*given, *below)
        leaves = tuple(np.array(numbers, np.intp) for numbers in below.values())
        return cls(
            models=models,
            names=names,
            parents=tuple(parents.get(name, "") for name in names),
            number={name: number for number, name in enumerate(names)},
            rank=np.argsort(np.argsort(np.array(names, object), kind="stable"), kind="stable"),
            thresholds=np.concatenate([thresholds, [thresholds[of].min() for of in leaves]]),
            columns=columns,
            weights=weights,
            total_weight=weights.sum(axis=0),
            below=leaves,
        )

    def best_of(self, numbers: Sequence[int], values: Callable[[Numbers], Scores]) -> list[list[float]]:
        """For each label, given or derived, its column of `values` [n, given labels], or the largest of those below it."""
        derived_from = self.total_weight.size
        givers = [self.below[number - derived_from] if number >= derived_from else np.array([number]) for number in numbers]
        starts = [0, *itertools.accumulate([one.size for one in givers[:-1]])]
        best: list[list[float]] = np.fmax.reduceat(values(np.concatenate(givers)), starts, axis=1).T.tolist()
        return best

    def with_derived(self, values: Scores) -> Scores:
        """Values of the given labels, and behind them those of the derived ones: the largest below each."""
        if not self.below:
            return values
        starts = np.cumsum([0, *(of.size for of in self.below[:-1])])
        return np.concatenate([values, np.maximum.reduceat(values[np.concatenate(self.below)], starts)])


def _over_frames(seen: Scores, manifest: Manifest) -> Scores:
    """One score a label of [pictures, labels]."""
    if manifest.frame_fusion is FrameFusion.MAX:
        best: Scores = seen.max(axis=0)
        return best
    top = np.sort(seen, axis=0)[-manifest.top_k :]  # sorted, so that the sum does not depend on the pictures' order
    mean: Scores = np.clip(top.mean(axis=0), top[0], top[-1])
    return mean
