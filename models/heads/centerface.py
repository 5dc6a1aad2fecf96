"""Faces from CenterFace's maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.heads.batch import BatchHead, Output, settings
from models.heads.boxes import Candidates
from models.heads.masks import Inside, alike, places
from models.manifest import Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
from models.spec import Placement

_STRIDE = 4


class CenterFaceHead(BatchHead):
    """Outputs [1, h, w] heatmap, [2, h, w] log of height and width, [2, h, w] offset down and right, at a quarter of the canvas.

    The score of the one label is the best heatmap value inside the picture; regions are the faces above `box_threshold`
    that overlap no better one by more than `overlap` (intersection over union), best first.
    Source: Xu et al., "CenterFace: Joint Face Detection and Alignment Using Face as Point" (2019), section 3, and its decoder.
    """

    def __init__(self, manifest: Manifest) -> None:
        if len(manifest.labels) != 1 or len(manifest.outputs) != 3:
            raise ValueError(f"model {manifest.name!r} needs one label and three outputs (heatmap, scale, offset)")
        self._labels = LabelNames.of(manifest)
        self._outputs = manifest.outputs
        self.dimensions = dict.fromkeys(manifest.outputs, 3)
        options = settings(manifest, {"box_threshold": 0.5, "overlap": 0.3})
        self._threshold = options["box_threshold"]
        self._overlap = options["overlap"]

    def _read(self, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> list[FrameResult]:
        heat, scale, offset = (outputs[name].values for name in self._outputs)
        shape = heat.shape[2:]
        if heat.shape[1] != 1 or scale.shape[1:] != (2, *shape) or offset.shape != scale.shape:
            shapes = f"{heat.shape[1:]}, {scale.shape[1:]}, {offset.shape[1:]}"
            raise ValueError(f"maps of shapes {shapes} do not belong together")
        insides = [_inside(placement, shape) for placement in placements]
        scores = np.zeros((len(placements), 1), np.float32)
        for here, _, inside in alike(range(len(placements)), insides):
            scores[here, 0] = inside.of(heat[here, 0]).max(axis=(1, 2), initial=0.0)
        faces: list[tuple[Region, ...]] = [()] * len(placements)
        if (some := np.flatnonzero(scores[:, 0] >= self._threshold)).size:
            found = self._candidates(heat[:, 0], scale, offset, some, insides)
            faces = found.regions(self._labels.names, placements, self._overlap)
        np.minimum(scores, 1.0, out=scores)
        return [FrameResult(LabelScores(self._labels, score), found) for score, found in zip(scores, faces, strict=True)]

    def _candidates(
        self,
        heat: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        pictures: NDArray[np.intp],
        insides: Sequence[Inside],
    ) -> Candidates:
        """The cells above the threshold inside `pictures`, of maps of [n, h, w], [n, 2, h, w] and [n, 2, h, w]."""
        mask = np.zeros((pictures.size, *heat.shape[1:]), np.bool_)
        numbers = pictures.tolist()
        for here, there, inside in alike(numbers, [insides[number] for number in numbers]):
            np.greater_equal(inside.of(heat[there]), self._threshold, out=inside.of(mask[here]))
        place, rows, columns = np.unravel_index(places(mask.reshape(-1)), mask.shape)
        picture = pictures[place]
        # A size is at most a canvas' side: e^20 would already be one, and float32 overflows at e^88.
        height, width = np.exp(np.minimum(scale[picture, :, rows, columns].T, 20.0)) * _STRIDE
        down, right = offset[picture, :, rows, columns].T
        y = (rows + down + 0.5) * _STRIDE - height / 2
        x = (columns + right + 0.5) * _STRIDE - width / 2
        boxes = np.stack([x, y, x + width, y + height], axis=1)
        return Candidates(picture, np.zeros_like(picture), heat[picture, rows, columns], boxes)


def _inside(placement: Placement, shape: tuple[int, ...]) -> Inside:
    """Rows and columns of a map of `shape` whose cells' centres lie in the shown picture."""
    return Inside(
        *_cells(placement.top, placement.top + placement.height, shape[0]),
        *_cells(placement.left, placement.left + placement.width, shape[1]),
    )


def _cells(begin: float, end: float, count: int) -> tuple[int, int]:
    """The cells, of `count`, whose centres lie at `begin` or later and before `end`, both in canvas pixels."""
    first = min(max(0, math.ceil(begin / _STRIDE - 0.5)), count)
    return first, min(max(first, math.ceil(end / _STRIDE - 0.5)), count)
