"""How much of the picture is text, from a text probability map."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.heads.batch import BatchHead, Output, settings
from models.heads.components import Components, components
from models.heads.masks import Inside
from models.manifest import Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
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


class TextMapHead(BatchHead):
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
        self._labels = LabelNames.of(manifest)
        self._output = manifest.outputs[0]
        self.dimensions = {self._output: 3}
        self._stride = options["stride"]
        self._threshold = options["threshold"]
        self._box_threshold = options["box_threshold"]
        self._least_pixels = options["least_pixels"]
        self._half_coverage = options["half_coverage"]
        self._grow = options["grow"]
        self._most_regions = int(options["most_regions"])
        if self._stride <= 0 or self._half_coverage <= 0:
            raise ValueError(f"model {manifest.name!r}: stride and half_coverage must be above 0")

    def _read(self, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> list[FrameResult]:
        output = outputs[self._output]
        if output.values.shape[1] != 1:
            raise ValueError(f"output {self._output!r} has shape {output.values.shape[1:]}, (1, height, width) expected")
        maps = output.values[:, 0]
        coverage = np.zeros(len(maps))
        regions: list[tuple[Region, ...]] = [()] * len(maps)
        if (maybe := np.flatnonzero(output.highest >= self._threshold)).size:
            coverage, regions = self._texts(maps, maybe, placements)
        scores = (coverage / (coverage + self._half_coverage)).astype(np.float32)[:, None]
        return [FrameResult(LabelScores(self._labels, score), found) for score, found in zip(scores, regions, strict=True)]

    def _texts(
        self, maps: NDArray[np.float32], maybe: NDArray[np.intp], placements: Sequence[Placement]
    ) -> tuple[NDArray[np.float64], list[tuple[Region, ...]]]:
        """Coverage and regions of each of `maps` [n, h, w], of which only those with numbers in `maybe` may have texts."""
        pictures = np.array([(one.left, one.top, one.width, one.height) for one in placements]) / self._stride
        insides = [_inside(picture, maps.shape[1:]) for picture in pictures[maybe].tolist()]
        found = components(maps, maybe, insides, self._threshold)
        texts = np.flatnonzero((found.pixels >= self._least_pixels) & (found.mean >= self._box_threshold))
        areas = np.ones(len(maps))
        areas[maybe] = [max(1, inside.area) for inside in insides]
        coverage = np.bincount(found.number[texts], found.pixels[texts], len(maps)) / areas
        # By map, the largest first, of equal ones the first.
        texts = texts[np.lexsort((-found.pixels[texts], found.number[texts]))]
        label, scores = self._labels.names[0], np.clip(found.mean[texts], 0.0, 1.0).tolist()
        boxes = self._boxes(found, texts, pictures).tolist()
        ends = np.searchsorted(found.number[texts], np.arange(len(maps) + 1)).tolist()
        return coverage, [
            tuple(Region(label, scores[place], *boxes[place]) for place in range(begin, min(end, begin + self._most_regions)))
            for begin, end in itertools.pairwise(ends)
        ]

    def _boxes(self, found: Components, texts: NDArray[np.intp], pictures: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bounding boxes (x, y, width, height), as shares of the shown picture.

        Each is grown by area * `grow` / perimeter (equation 10 of the source) to every side, and cut to the picture.
        """
        low = np.stack([found.left[texts], found.top[texts]], axis=1)
        high = np.stack([found.right[texts], found.bottom[texts]], axis=1)
        margin = (found.pixels[texts] * self._grow / (2 * (high - low).sum(axis=1)))[:, None]
        origin, size = np.split(pictures[found.number[texts]], 2, axis=1)
        low, high = (np.clip((edge - origin) / size, 0.0, 1.0) for edge in (low - margin, high + margin))
        return np.concatenate([low, high - low], axis=1)


def _inside(picture: Sequence[float], shape: tuple[int, ...]) -> Inside:
    """Rows and columns of a map of `shape` whose pixels' centres lie in `picture` (left, top, width, height in pixels)."""
    left, top, width, height = picture
    return Inside(*_pixels(top, top + height, shape[0]), *_pixels(left, left + width, shape[1]))


def _pixels(begin: float, end: float, count: int) -> tuple[int, int]:
    first = min(max(0, round(begin)), count)
    return first, min(max(first, round(end)), count)
