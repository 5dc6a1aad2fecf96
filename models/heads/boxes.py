"""Boxes of detectors: from canvas pixels to shares of the picture, and one box for each thing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.spec import Placement

#: Of more candidates only the best are looked at, so that a hostile picture costs no more than a crowd.
MOST_CANDIDATES = 2000


def best_candidates(scores: NDArray[np.float32], least: float) -> NDArray[np.intp]:
    """The numbers of the scores of at least `least`, the best `MOST_CANDIDATES` of them."""
    found = np.flatnonzero(scores >= least)
    if found.size > MOST_CANDIDATES:
        found = found[np.argpartition(-scores[found], MOST_CANDIDATES)[:MOST_CANDIDATES]]
    return found


def to_picture(boxes: NDArray[np.floating], placement: Placement) -> NDArray[np.float64]:
    """Boxes (left, top, right, bottom) from canvas pixels to shares of the shown picture, cut to it."""
    origin = np.array([placement.left, placement.top, placement.left, placement.top])
    shares: NDArray[np.float64] = (boxes - origin) / np.array([placement.width, placement.height] * 2)
    return np.clip(shares, 0.0, 1.0, out=shares)


def suppress(boxes: NDArray[np.float64], scores: NDArray[np.float32], overlap: float) -> NDArray[np.intp]:
    """Non-maximum suppression: the numbers of the boxes that stay, best first; boxes without area go.

    A box goes where a better one overlaps it by more than `overlap` (intersection over union).
    """
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0)  # a detector may give sides of less than nothing
    area = sides.prod(axis=1)
    waiting = np.argsort(-scores, kind="stable")
    waiting = waiting[area[waiting] > 0]
    kept: list[int] = []
    while waiting.size:
        best, rest = waiting[0], waiting[1:]
        kept.append(int(best))
        if not rest.size:
            break
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.prod(np.maximum(high - low, 0.0), axis=1)
        waiting = rest[common <= overlap * (area[best] + area[rest] - common)]
    return np.array(kept, np.intp)
