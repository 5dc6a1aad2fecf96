"""Fusion once more, label by label: what the fusion over arrays is compared with."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.fusion import FrameScores, ModelScore, Segment, VideoLabel, parents_of
from models.manifest import FrameFusion, Manifest

Scores = NDArray[np.float64]


def fuse(
    frames: Iterable[FrameScores], manifests: Iterable[Manifest], *, least_score: float
) -> tuple[tuple[VideoLabel, ...], tuple[VideoLabel, ...]]:
    """All labels and those shown, each those that passed first, then by score, then by name."""
    frames = tuple(frames)
    manifests = [one for one in manifests if any(one.name in frame.results for frame in frames)]
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
    return tuple(labels), tuple(label for label in labels if label.passed or label.score >= least_score)


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
    mean = plain_sum(value * weight for value, weight in terms) / plain_sum(weight for _, weight in terms)
    return min(max(mean, min(values)), max(values))


def plain_sum(values: Iterable[float]) -> float:
    """From left to right; `sum` itself rounds differently from Python 3.12 on."""
    return functools.reduce(operator.add, values)


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
