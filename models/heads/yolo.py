"""Things and their boxes from a YOLOv8 detector."""

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


class YoloHead:
    """One output of [4 + classes, places]: centre x, centre y, width, height in canvas pixels, then each class's score.

    A label's score is the best of its classes whose box's centre lies in the shown picture; its regions are those above
    `box_threshold` that no better one of the same label overlaps by more than `overlap` (intersection over union).
    """

    def __init__(self, manifest: Manifest) -> None:
        if not manifest.labels or any(not label.classes for label in manifest.labels):
            raise ValueError(f"model {manifest.name!r} has a label without classes")
        self._output = manifest.outputs[0]
        self._labels = [(label.name, np.array(label.classes, np.intp) + 4) for label in manifest.labels]
        self._rows = max(int(rows.max()) for _, rows in self._labels) + 1
        options = settings(manifest, {"box_threshold": 0.25, "overlap": 0.45})
        self._threshold = options["box_threshold"]
        self._overlap = options["overlap"]

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `models.heads.Head.read`."""
        values = take(outputs, self._output, 2)
        if values.shape[0] < self._rows:
            raise ValueError(f"output {self._output!r} has shape {values.shape}, at least {self._rows} rows expected")
        x, y, width, height = values[:4]
        inside = (x >= placement.left) & (x < placement.left + placement.width)
        inside &= (y >= placement.top) & (y < placement.top + placement.height)
        corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)[inside]
        scores: dict[str, float] = {}
        regions: list[Region] = []
        for name, rows in self._labels:
            found = np.clip(values[rows][:, inside].max(axis=0), 0.0, 1.0)
            scores[name] = float(found.max(initial=0.0))
            candidates = best_candidates(found, self._threshold)
            boxes = to_picture(corners[candidates], placement)
            for number in suppress(boxes, found[candidates], self._overlap):
                left, top, right, bottom = boxes[number].tolist()
                regions.append(Region(name, float(found[candidates[number]]), left, top, right - left, bottom - top))
        return FrameResult(scores=scores, regions=tuple(regions))
