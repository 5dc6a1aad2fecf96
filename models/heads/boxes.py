"""Boxes of detectors: from canvas pixels to shares of the picture, and one box for each thing. Of a whole batch at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.result import Region
from models.spec import Placement

#: Of more candidates for one label on one picture only the best are looked at: a hostile picture costs no more than a crowd.
MOST_CANDIDATES = 2000


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes that may be things, of the pictures of a batch, each element one.

    `picture` and `label` are numbers, `score` is 0 to 1 (more counts as 1), `boxes` [candidates, 4] are left, top, right and
    bottom in canvas pixels.
    """

    picture: NDArray[np.intp]
    label: NDArray[np.intp]
    score: NDArray[np.float32]
    boxes: NDArray[np.float64]

    def regions(self, names: Sequence[str], placements: Sequence[Placement], overlap: float) -> list[tuple[Region, ...]]:
        """The things on each picture, by label, best first: a box goes where a better one of its label overlaps it too much."""
        group = self.picture * len(names) + self.label
        best = best_candidates(self.score, group)
        shares = to_picture(self.boxes[best], placements, self.picture[best])
        kept = suppress(shares, self.score[best], group[best], overlap)
        chosen, shares = best[kept], shares[kept]
        shares[:, 2:] -= shares[:, :2]
        labels = [names[label] for label in self.label[chosen].tolist()]
        scores = np.minimum(self.score[chosen], 1.0).tolist()
        found = [Region(*one, *box) for *one, box in zip(labels, scores, shares.tolist(), strict=True)]
        ends = np.searchsorted(self.picture[chosen], np.arange(len(placements) + 1)).tolist()
        return [tuple(found[begin:end]) for begin, end in itertools.pairwise(ends)]


def best_candidates(scores: NDArray[np.float32], group: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers of the scores, by group, in each the best first and `MOST_CANDIDATES` at most; of equal ones the first."""
    order = np.lexsort((-scores, group))
    ordered = group[order]
    rank = np.arange(order.size) - np.searchsorted(ordered, ordered)
    found: NDArray[np.intp] = order[rank < MOST_CANDIDATES]
    return found


def to_picture(boxes: NDArray[np.floating], placements: Sequence[Placement], picture: NDArray[np.intp]) -> NDArray[np.float64]:
    """Boxes (left, top, right, bottom) from canvas pixels to shares of their shown pictures, cut to them."""
    origin = np.array([(one.left, one.top) * 2 for one in placements])
    size = np.array([(one.width, one.height) * 2 for one in placements])
    shares: NDArray[np.float64] = (boxes - origin[picture]) / size[picture]
    return np.clip(shares, 0.0, 1.0, out=shares)


def suppress(
    boxes: NDArray[np.float64], scores: NDArray[np.float32], group: NDArray[np.intp], overlap: float
) -> NDArray[np.intp]:
    """Non-maximum suppression in each group: the numbers of the boxes that stay, by group, best first; boxes without area go.

    A box goes where a better one of its group overlaps it by more than `overlap` (intersection over union). Every round keeps
    the best box of each group, so there are as many as the largest group keeps.
    """
    order = np.lexsort((-scores, group))
    boxes, group = boxes[order], group[order]
    area = np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0).prod(axis=1)  # a detector may give sides of less than nothing
    waiting = np.flatnonzero(area > 0)
    kept: list[NDArray[np.intp]] = []
    while waiting.size:
        first = np.flatnonzero(np.diff(group[waiting], prepend=-1))
        kept.append(waiting[first])
        best = np.repeat(waiting[first], np.diff(first, append=waiting.size))
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        common = np.maximum(high - low, 0.0).prod(axis=1)
        stay = common <= overlap * (area[best] + area[waiting] - common)
        stay[first] = False
        waiting = waiting[stay]
    return order[np.sort(np.concatenate(kept))] if kept else order[:0]
