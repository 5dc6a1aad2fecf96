"""Faces from CenterFace's maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.heads.boxes import best_candidates, suppress, to_picture
from models.heads.checks import settings, take
from models.manifest import Manifest
from models.result import FrameResult, Region
from models.spec import Placement

_STRIDE = 4


class CenterFaceHead:
    """Outputs [1, h, w] heatmap, [2, h, w] log of height and width, [2, h, w] offset down and right, at a quarter of the canvas.

    The score of the one label is the best heatmap value inside the picture; regions are the faces above `box_threshold`
    that overlap no better one by more than `overlap` (intersection over union), best first.
    Source: Xu et al., "CenterFace: Joint Face Detection and Alignment Using Face as Point" (2019), section 3, and its decoder.
    """

    def __init__(self, manifest: Manifest) -> None:
        if len(manifest.labels) != 1 or len(manifest.outputs) != 3:
            raise ValueError(f"model {manifest.name!r} needs one label and three outputs (heatmap, scale, offset)")
        self._label = manifest.labels[0].name
        self._outputs = manifest.outputs
        options = settings(manifest, {"box_threshold": 0.5, "overlap": 0.3})
        self._threshold = options["box_threshold"]
        self._overlap = options["overlap"]

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `models.heads.Head.read`."""
        heat, scale, offset = (take(outputs, name, 3) for name in self._outputs)
        if heat.shape[0] != 1 or scale.shape != (2, *heat.shape[1:]) or offset.shape != scale.shape:
            raise ValueError(f"maps of shapes {heat.shape}, {scale.shape}, {offset.shape} do not belong together")
        heatmap = _inside(heat[0], placement)
        rows, columns = np.unravel_index(best_candidates(heatmap.ravel(), self._threshold), heatmap.shape)
        scores = heatmap[rows, columns]
        # A size is at most a canvas' side: e^20 would already be one, and float32 overflows at e^88.
        height, width = np.exp(np.minimum(scale[:, rows, columns], 20.0)) * _STRIDE
        y = (rows + offset[0, rows, columns] + 0.5) * _STRIDE - height / 2
        x = (columns + offset[1, rows, columns] + 0.5) * _STRIDE - width / 2
        boxes = to_picture(np.stack([x, y, x + width, y + height], axis=1), placement)
        kept = suppress(boxes, scores, self._overlap)
        regions = tuple(
            Region(self._label, min(1.0, float(scores[number])), float(x0), float(y0), float(x1 - x0), float(y1 - y0))
            for number, (x0, y0, x1, y1) in zip(kept, boxes[kept], strict=True)
        )
        return FrameResult(scores={self._label: float(np.clip(heatmap.max(), 0.0, 1.0))}, regions=regions)


def _inside(heatmap: NDArray[np.float32], placement: Placement) -> NDArray[np.float32]:
    """The heatmap with the cells whose centre lies outside the shown picture set to 0."""
    y = (np.arange(heatmap.shape[0]) + 0.5) * _STRIDE
    x = (np.arange(heatmap.shape[1]) + 0.5) * _STRIDE
    rows = (y >= placement.top) & (y < placement.top + placement.height)
    columns = (x >= placement.left) & (x < placement.left + placement.width)
    return np.where(rows[:, None] & columns, heatmap, np.float32(0))
