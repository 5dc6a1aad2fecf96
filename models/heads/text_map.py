"""How much of the picture is text, from a text probability map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from models.heads.checks import settings, take
from models.manifest import Manifest
from models.result import FrameResult, Region
from models.spec import Placement

_DEFAULTS: Mapping[str, float] = {
    "stride": 1.0,
    "threshold": 0.3,
    "box_threshold": 0.6,
    "least_pixels": 16,
    "half_coverage": 0.01,
    "grow": 1.5,
    "most_regions": 64,
}


class TextMapHead:
    """One output of [1, h, w], the probability of text at every canvas pixel (or, with option `stride`, every so many).

    Pixels of at least `threshold` that touch each other are a text; one whose mean probability is below `box_threshold` or that
    has fewer than `least_pixels` pixels is none. Coverage is the texts' share of the shown picture's area. The score of the one
    label is coverage / (coverage + `half_coverage`): 0 without text, one half at `half_coverage`, near 1 on a page.
    Regions are the texts' bounding boxes, the largest `most_regions`, grown as the map's training shrank them.
    Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization" (2020), section 3.5.
    """

    def __init__(self, manifest: Manifest) -> None:
        if len(manifest.labels) != 1 or len(manifest.outputs) != 1:
            raise ValueError(f"model {manifest.name!r} needs one label and one output")
        options = settings(manifest, _DEFAULTS)
        self._label = manifest.labels[0].name
        self._output = manifest.outputs[0]
        self._stride = options["stride"]
        self._threshold = options["threshold"]
        self._box_threshold = options["box_threshold"]
        self._least_pixels = options["least_pixels"]
        self._half_coverage = options["half_coverage"]
        self._grow = options["grow"]
        self._most_regions = int(options["most_regions"])
        if self._stride <= 0 or self._half_coverage <= 0:
            raise ValueError(f"model {manifest.name!r}: stride and half_coverage must be above 0")

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `models.heads.Head.read`."""
        maps = take(outputs, self._output, 3)
        if maps.shape[0] != 1:
            raise ValueError(f"output {self._output!r} has shape {maps.shape}, (1, height, width) expected")
        left, top = placement.left / self._stride, placement.top / self._stride
        width, height = placement.width / self._stride, placement.height / self._stride
        # The pixels whose centre lies in the shown picture.
        row, column = max(0, round(top)), max(0, round(left))
        probability = maps[0, row : max(0, round(top + height)), column : max(0, round(left + width))]
        if not probability.size:
            return FrameResult(scores={self._label: 0.0})
        labelled, count = ndimage.label(probability >= self._threshold)
        numbers = np.arange(1, count + 1)
        pixels = np.bincount(labelled.ravel(), minlength=count + 1)[1:]
        mean = np.bincount(labelled.ravel(), probability.ravel(), count + 1)[1:] / np.maximum(pixels, 1)
        texts = numbers[(pixels >= self._least_pixels) & (mean >= self._box_threshold)] - 1
        coverage = min(1.0, float(pixels[texts].sum()) / probability.size)
        boxes = ndimage.find_objects(labelled)
        largest = texts[np.argsort(-pixels[texts], kind="stable")][: self._most_regions]
        regions = tuple(
            self._region(boxes[number], float(mean[number]), int(pixels[number]), (column - left, row - top), (width, height))
            for number in largest
        )
        return FrameResult(scores={self._label: coverage / (coverage + self._half_coverage)}, regions=regions)

    def _region(
        self, box: tuple[slice, slice], score: float, pixels: int, origin: tuple[float, float], size: tuple[float, float]
    ) -> Region:
        """The bounding box grown by area * `grow` / perimeter (equation 10 of the source), as shares of the shown picture."""
        rows, columns = box
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        margin = pixels * self._grow / (2 * (high + wide))
        x0, x1 = ((edge + origin[0]) / size[0] for edge in (columns.start - margin, columns.stop + margin))
        y0, y1 = ((edge + origin[1]) / size[1] for edge in (rows.start - margin, rows.stop + margin))
        x0, x1, y0, y1 = (min(1.0, max(0.0, edge)) for edge in (x0, x1, y0, y1))
        return Region(self._label, min(1.0, max(0.0, score)), x0, y0, x1 - x0, y1 - y0)
