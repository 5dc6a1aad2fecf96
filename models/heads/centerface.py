"""Faces from CenterFace's maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.heads.batch import BatchHead, Output, settings
from models.heads.boxes import best_candidates, suppress, to_picture
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
        for row, inside in enumerate(insides):
            scores[row, 0] = heat[row, 0, *inside].max(initial=0.0)
        found = {
            row: self._faces(heat[row, 0], scale[row], offset[row], insides[row], placements[row])
            for row in np.flatnonzero(scores[:, 0] >= self._threshold).tolist()
        }
        np.minimum(scores, 1.0, out=scores)
        return [FrameResult(LabelScores(self._labels, score), found.get(row, ())) for row, score in enumerate(scores)]

    def _faces(
        self,
        heat: NDArray[np.float32],
        scale: NDArray[np.float32],
        offset: NDArray[np.float32],
        inside: tuple[slice, slice],
        placement: Placement,
    ) -> tuple[Region, ...]:
        """The faces of one picture, from maps of [h, w], [2, h, w] and [2, h, w]."""
        shown = heat[inside]
        rows, columns = np.unravel_index(best_candidates(shown.ravel(), self._threshold), shown.shape)
        scores = shown[rows, columns]
        rows, columns = rows + inside[0].start, columns + inside[1].start
        # A size is at most a canvas' side: e^20 would already be one, and float32 overflows at e^88.
        height, width = np.exp(np.minimum(scale[:, rows, columns], 20.0)) * _STRIDE
        down, right = offset[:, rows, columns]
        y = (rows + down + 0.5) * _STRIDE - height / 2
        x = (columns + right + 0.5) * _STRIDE - width / 2
        boxes = to_picture(np.stack([x, y, x + width, y + height], axis=1), placement)
        kept = suppress(boxes, scores, self._overlap)
        (label,) = self._labels.names
        return tuple(
            Region(label, min(1.0, score), x0, y0, x1 - x0, y1 - y0)
            for score, (x0, y0, x1, y1) in zip(scores[kept].tolist(), boxes[kept].tolist(), strict=True)
        )


def _inside(placement: Placement, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Rows and columns of a map of `shape` whose cells' centres lie in the shown picture."""
    return (
        _cells(placement.top, placement.top + placement.height, shape[0]),
        _cells(placement.left, placement.left + placement.width, shape[1]),
    )


def _cells(begin: float, end: float, count: int) -> slice:
    """The cells, of `count`, whose centres lie at `begin` or later and before `end`, both in canvas pixels."""
    first = min(max(0, math.ceil(begin / _STRIDE - 0.5)), count)
    return slice(first, min(max(first, math.ceil(end / _STRIDE - 0.5)), count))
