"""Fusion: from every model's scores on every picture to the labels of a video. Pure functions.

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

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.manifest import FrameFusion, Manifest
from models.result import FrameResult

Scores = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class Labels:
    """`all` labels that any model looked for, whatever their score, which is what a policy judges; and those to be `shown`."""

    all: tuple[VideoLabel, ...]
    shown: tuple[VideoLabel, ...]


def fuse(frames: Iterable[FrameScores], manifests: Iterable[Manifest], *, least_score: float) -> Labels:
    """The labels of a video, those that passed first, then by score, then by name; in no way dependent on the order of the input.

    Shown are labels that passed or have `least_score` (0 to 1) or more. A label of a manifest that a result lacks has score 0
    on that picture; a model without a result for a picture did not look at it. Raises `ValueError` for a score of a label
    that the model's manifest does not have, and for manifests that contradict one another (`parents_of`).
    """
    frames = sorted(frames, key=lambda frame: frame.time)
    manifests = sorted(manifests, key=lambda manifest: manifest.name)
    parents = parents_of(manifests)
    tracks = _tracks(frames, manifests)
    children = defaultdict(list)
    for name in sorted(parents):
        children[parents[name]].append(name)
    scored: dict[str, _Given | _Derived] = {name: _Given(says) for name, says in tracks.items()}

    def derive(name: str) -> _Given | _Derived | None:
        if name not in scored:
            below = [found for child in children.get(name, ()) if (found := derive(child)) is not None]
            if not below:
                return None
            scored[name] = _Derived(below)
        return scored[name]

    for parent in children:
        derive(parent)
    times = np.array([frame.time for frame in frames])
    outside = np.array([frame.outside_edit for frame in frames], bool)
    labels = [_label(name, parents.get(name, ""), track, times, outside) for name, track in scored.items()]
    labels.sort(key=lambda label: (not label.passed, -label.score, label.name))
    return Labels(tuple(labels), tuple(label for label in labels if label.passed or label.score >= least_score))


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
class _Say:
    """What one model says of one label: fused over pictures, and by picture (NaN where it did not look)."""

    model: str
    weight: float
    threshold: float
    score: float
    peak: float
    by_frame: Scores


class _Given:
    """A label that models give."""

    def __init__(self, says: Sequence[_Say]) -> None:
        self._says = says
        self.threshold = min(say.threshold for say in says)
        self.score = _weighted([(say.score, say.weight) for say in says])
        self.peak = max(say.peak for say in says)
        self.sources = {say.model: say.score for say in says}

    def by_frame(self) -> Scores:
        """The weighted mean of the models that looked, for each picture; NaN where none did."""
        if len(self._says) == 1:
            return self._says[0].by_frame
        columns = np.stack([say.by_frame for say in self._says])
        weights = np.where(np.isnan(columns), 0.0, np.array([[say.weight] for say in self._says]))
        total = weights.sum(axis=0)
        mean = np.divide(
            (np.nan_to_num(columns) * weights).sum(axis=0), total, out=np.full(columns.shape[1], np.nan), where=total > 0
        )
        held: Scores = np.clip(mean, np.fmin.reduce(columns), np.fmax.reduce(columns))
        return held


class _Derived:
    """A parent that no model gives: as good as its best child."""

    def __init__(self, children: Sequence[_Given | _Derived]) -> None:
        self._children = children
        self.threshold: float = min(child.threshold for child in children)
        self.score: float = max(child.score for child in children)
        self.peak: float = max(child.peak for child in children)
        self.sources: dict[str, float] = {}
        for model, score in itertools.chain.from_iterable(child.sources.items() for child in children):
            self.sources[model] = max(score, self.sources.get(model, 0.0))

    def by_frame(self) -> Scores:
        """The best child's score on each picture; NaN where nobody looked."""
        best: Scores = np.fmax.reduce([child.by_frame() for child in self._children])
        return best


def _tracks(frames: Sequence[FrameScores], manifests: Sequence[Manifest]) -> dict[str, list[_Say]]:
    """By label, what each model says that looked at one picture at least."""
    tracks: dict[str, list[_Say]] = defaultdict(list)
    for manifest in manifests:
        rows = [row for row, frame in enumerate(frames) if manifest.name in frame.results]
        if not rows:
            continue
        names = [label.name for label in manifest.labels]
        scores = [frames[row].results[manifest.name].scores for row in rows]
        if unknown := set().union(*scores).difference(names):
            raise ValueError(f"model {manifest.name!r} gave labels that its manifest does not have: {', '.join(sorted(unknown))}")
        seen = np.array([[of.get(name, 0.0) for name in names] for of in scores], np.float64)
        by_frame = np.full((len(frames), len(names)), np.nan)
        by_frame[rows] = seen
        fused, peaks = _over_frames(seen, manifest).tolist(), seen.max(axis=0).tolist()
        for column, label in enumerate(manifest.labels):
            tracks[label.name].append(
                _Say(manifest.name, label.weight, label.threshold, fused[column], peaks[column], by_frame[:, column])
            )
    return tracks


def _over_frames(seen: Scores, manifest: Manifest) -> Scores:
    """One score a label of [pictures, labels]."""
    if manifest.frame_fusion is FrameFusion.MAX:
        best: Scores = seen.max(axis=0)
        return best
    top = np.sort(seen, axis=0)[-manifest.top_k :]  # sorted, so that the sum does not depend on the pictures' order
    mean: Scores = np.clip(top.mean(axis=0), top[0], top[-1])
    return mean


def _weighted(terms: Sequence[tuple[float, float]]) -> float:
    """The mean of (value, weight), within the values in spite of rounding."""
    values = [value for value, _ in terms]
    mean = sum(value * weight for value, weight in terms) / sum(weight for _, weight in terms)
    return min(max(mean, min(values)), max(values))


def _label(name: str, parent: str, track: _Given | _Derived, times: Scores, outside: NDArray[np.bool_]) -> VideoLabel:
    passed = track.score >= track.threshold
    # Most of a thousand labels are nowhere near: no mean over models reaches what none of them reached.
    segments = _segments(times, outside, track.by_frame(), track.threshold, passed) if track.peak >= track.threshold else ()
    sources = tuple(ModelScore(model, score) for model, score in sorted(track.sources.items()))
    return VideoLabel(name, parent, track.score, track.threshold, passed, segments, sources)


def _segments(times: Scores, outside: NDArray[np.bool_], scores: Scores, threshold: float, passed: bool) -> tuple[Segment, ...]:
    seen = ~np.isnan(scores)
    found: list[Segment] = []
    for side in (seen & ~outside, seen & outside):
        # Of pictures at one time the best comes first, whatever order they came in.
        pictures = sorted(zip(times[side].tolist(), scores[side].tolist(), strict=True), key=lambda one: (one[0], -one[1]))
        for above, neighbours in itertools.groupby(pictures, key=lambda one: one[1] >= threshold):
            if above:
                found.append(_segment(neighbours))
    if passed and not found:
        best = np.nanmax(scores)
        found.append(_segment([(min(times[scores == best].tolist()), float(best))]))
    return tuple(sorted(found, key=lambda segment: (segment.start, segment.end, segment.peak, segment.score)))


def _segment(pictures: Iterable[tuple[float, float]]) -> Segment:
    pictures = list(pictures)
    peak, score = max(pictures, key=lambda one: (one[1], -one[0]))
    return Segment(pictures[0][0], pictures[-1][0], peak, score)
