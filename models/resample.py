"""Resampling of one plane to a canvas as two small sparse operators, one for rows and one for columns.

The weights are Pillow's (`Resample.c`): filter kernels widened by the reduction ratio, evaluated at sample centres, normalised
over the samples that exist. An operator composes crop, scale, mirroring and the siting of a subsampled plane in one step, so
nothing is rounded or resampled twice. Applying one is `scipy.sparse` times a dense block, which runs without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from models.spec import Filter

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def _box(x: Float64) -> Float64:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: Float64) -> Float64:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: Float64) -> Float64:
    a = -0.5  # Keys 1981; Pillow's choice
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


_KERNELS: dict[Filter, tuple[float, Callable[[Float64], Float64]]] = {
    Filter.BOX: (0.5, _box),
    Filter.BILINEAR: (1.0, _bilinear),
    Filter.BICUBIC: (2.0, _bicubic),
}


@dataclass(frozen=True, slots=True)
class Span:
    """How one side of a picture, `source` samples long, lies along one side of a canvas, `canvas` pixels long.

    The whole side is resampled to `size` pixels of which the first lies at canvas pixel `start`, which may be negative;
    what falls outside the canvas is never computed. `reverse` runs the side backwards, as mirroring and half turns need.
    """

    source: int
    size: int
    start: int
    canvas: int
    reverse: bool = False

    @property
    def window(self) -> slice:
        """The canvas pixels that the picture covers."""
        first = min(max(0, self.start), self.canvas)
        return slice(first, max(first, min(self.canvas, self.start + self.size)))


@dataclass(frozen=True, slots=True)
class Operator:
    """A linear map along the first axis of an array: from the rows [`low`, `high`), its reach, to as many as `weights` has."""

    low: int
    high: int
    weights: Any  # scipy.sparse.csr_array of float32, (outputs, high - low)

    @property
    def outputs(self) -> int:
        """How many rows come out."""
        return int(self.weights.shape[0])

    @property
    def inputs(self) -> int:
        """How many rows are read."""
        return self.high - self.low

    @property
    def reach(self) -> slice:
        """Which rows are read."""
        return slice(self.low, self.high)

    def part(self, outputs: slice) -> Operator:
        """The operator of some of the outputs, with the reach of these alone."""
        weights = self.weights[outputs]
        first, last = int(weights.indices.min()), int(weights.indices.max()) + 1
        return Operator(self.low + first, self.low + last, weights[:, first:last])


def operator(span: Span, kind: Filter, *, samples: int, factor: int = 1, siting: float = 0.0) -> Operator:
    """The operator of one side of one plane.

    `samples` is the plane's length along this side, `factor` its subsampling (1, 2 or 4), `siting` the place of its first
    sample in full-resolution samples (0: on the first of them, (factor - 1) / 2: in their middle).
    """
    window = span.window
    pixel = np.arange(window.start - span.start, window.stop - span.start, dtype=np.float64)
    if span.reverse:
        pixel = span.size - 1 - pixel
    centre = (pixel + 0.5) * (span.source / span.size)
    centre = (centre - 0.5 - siting) / factor + 0.5
    radius, kernel = _KERNELS[kind]
    reduction = max(span.source / span.size / factor, 1.0)
    support = radius * reduction
    low = np.clip(np.trunc(centre - support + 0.5), 0, None).astype(np.int64)
    high = np.clip(np.trunc(centre + support + 0.5), None, samples).astype(np.int64)
    # A chroma sample's siting can place a centre beyond the last sample by more than a small kernel reaches.
    beyond = high <= low
    low[beyond] = np.clip(np.floor(centre[beyond]), 0, samples - 1).astype(np.int64)
    high[beyond] = low[beyond] + 1

    count = high - low
    tap = np.arange(int(count.max(initial=1)))
    used = tap < count[:, None]
    index = low[:, None] + tap
    weight = np.where(used, kernel((index - centre[:, None] + 0.5) * (1.0 / reduction)), 0.0)
    weight[beyond, 0] = 1.0
    weight /= weight.sum(axis=1, keepdims=True)

    begin, end = int(low.min(initial=samples)), int(high.max(initial=0))
    pointers = np.concatenate(([0], np.cumsum(count))).astype(np.int32)
    columns = (index[used] - begin).astype(np.int32)
    shape = (len(centre), max(0, end - begin))
    weights = scipy.sparse.csr_array((weight[used].astype(np.float32), columns, pointers), shape=shape)
    return Operator(begin, max(begin, end), weights)


def resample(plane: npt.NDArray[Any], first: Operator, second: Operator) -> Float32:
    """Resample a plane of any real type along its first axis, then its second: float32, (`second.outputs`, `first.outputs`).

    The result is turned because the second pass leaves it so; only samples within both operators' reach are converted.
    """
    reach = np.ascontiguousarray(plane[first.reach, second.reach], np.float32)
    turned: Float32 = second.weights @ (first.weights @ reach).T
    return turned
