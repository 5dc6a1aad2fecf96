"""Connected components of probability maps, of a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from models.heads.masks import Inside, alike, places

Integers = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Components:
    """Pixels that touch by an edge, one element a component: by the number of its map, then by its first pixel, row by row.

    `top`, `bottom`, `left`, `right` are its bounding box in pixels (`bottom` and `right` are the first outside), `mean` is the
    mean value of its `pixels`.
    """

    number: Integers
    pixels: Integers
    mean: NDArray[np.float64]
    top: Integers
    bottom: Integers
    left: Integers
    right: Integers


def components(maps: NDArray[np.float32], numbers: Integers, insides: Sequence[Inside], threshold: float) -> Components:
    """The components of what is at least `threshold` in those `maps` [n, h, w], each in its own inside alone.

    `numbers` are of one map or more, ascending; `insides` one for each of them.

    Works on runs of pixels in rows instead of single ones, and on all maps together: both make it many times quicker than a
    labelled picture of each.
    """
    _, height, width = maps.shape
    # A blank element in front, a blank column on the right and a blank row below end every run and part the maps.
    stride, rows = width + 1, height + 1
    blank_and_mask = np.zeros(1 + numbers.size * rows * stride, np.bool_)
    mask = blank_and_mask[1:].reshape(-1, rows, stride)
    for here, there, inside in alike(numbers.tolist(), insides):
        np.greater_equal(inside.of(maps[there]), threshold, out=inside.of(mask[here]))
    edges = places(blank_and_mask[1:] != blank_and_mask[:-1])
    start, stop = edges[::2], edges[1::2]
    component = _joined(start, stop, stride)
    size = int(component.max(initial=-1)) + 1

    length = stop - start
    row, left = np.divmod(start, stride)
    place, row = np.divmod(row, rows)
    number = numbers[place]
    pixels = np.bincount(component, length, size).astype(np.intp)
    values = maps.reshape(-1).take(_ranges((number * height + row) * width + left, length)).astype(np.float64)
    sums = np.add.reduceat(values, np.cumsum(length) - length) if length.size else values
    found = Components(
        number=np.zeros(size, np.intp),
        pixels=pixels,
        mean=np.bincount(component, sums, size) / pixels,
        top=np.full(size, height),
        bottom=np.zeros(size, np.intp),
        left=np.full(size, width),
        right=np.zeros(size, np.intp),
    )
    found.number[component] = number
    np.minimum.at(found.top, component, row)
    np.maximum.at(found.bottom, component, row + 1)
    np.minimum.at(found.left, component, left)
    np.maximum.at(found.right, component, left + length)
    return found


def _joined(start: Integers, stop: Integers, stride: int) -> Integers:
    """The component of each run [start, stop) of a mask with rows of `stride`: runs that overlap in neighbouring rows are one."""
    first = np.searchsorted(stop, start + stride, side="right")
    below = np.searchsorted(start, stop + stride, side="left") - first
    pointers = np.concatenate([[0], np.cumsum(below)])
    neighbours = _ranges(first, below)
    graph = csr_array((np.ones(neighbours.size, np.int8), neighbours, pointers), shape=(start.size, start.size))
    joined: Integers = connected_components(graph, directed=False)[1].astype(np.intp)
    return joined


def _ranges(first: Integers, length: Integers) -> Integers:
    """[first, first + length) of each pair, one after the other."""
    before = np.cumsum(length) - length
    whole: Integers = np.repeat(first - before, length) + np.arange(int(length.sum()))
    return whole
