"""Things and their boxes from a YOLOv8 detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.heads.batch import BatchHead, Output, settings
from models.heads.boxes import best_candidates, suppress, to_picture
from models.manifest import Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
from models.spec import Placement


class YoloHead(BatchHead):
    """One output of [4 + classes, places]: centre x, centre y, width, height in canvas pixels, then each class's score.

    A label's score is the best of its classes whose box's centre lies in the shown picture; its regions are those above
    `box_threshold` that no better one of the same label overlaps by more than `overlap` (intersection over union).
    """

    def __init__(self, manifest: Manifest) -> None:
        if not manifest.labels or any(not label.classes for label in manifest.labels):
            raise ValueError(f"model {manifest.name!r} has a label without classes")
        self._output = manifest.outputs[0]
        self.dimensions = {self._output: 2}
        self._labels = LabelNames.of(manifest)
        self._rows = [np.array(label.classes, np.intp) + 4 for label in manifest.labels]
        self._classes = np.concatenate(self._rows)
        self._starts = np.cumsum([0, *(rows.size for rows in self._rows)])[:-1]
        options = settings(manifest, {"box_threshold": 0.25, "overlap": 0.45})
        self._threshold = options["box_threshold"]
        self._overlap = options["overlap"]

    def _read(self, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> list[FrameResult]:
        values = outputs[self._output].values
        if values.shape[1] <= self._classes.max():
            least = self._classes.max() + 1
            raise ValueError(f"output {self._output!r} has shape {values.shape[1:]}, at least {least} rows expected")
        scores = np.zeros((len(placements), len(self._rows)), np.float32)
        found = [self._one(picture, placement, into) for picture, placement, into in zip(values, placements, scores, strict=True)]
        return [FrameResult(LabelScores(self._labels, row), regions) for row, regions in zip(scores, found, strict=True)]

    def _one(self, values: NDArray[np.float32], placement: Placement, scores: NDArray[np.float32]) -> tuple[Region, ...]:
        """The things of one picture; writes each label's score to `scores`."""
        x, y = values[:2]
        inside = (x >= placement.left) & (x < placement.left + placement.width)
        inside &= (y >= placement.top) & (y < placement.top + placement.height)
        by_class = (values[self._classes] * inside).max(axis=1)  # what lies outside scores 0
        np.clip(np.maximum.reduceat(by_class, self._starts), 0.0, 1.0, out=scores)
        regions: list[Region] = []
        for label in np.flatnonzero(scores >= self._threshold).tolist():
            regions += self._things(label, values, inside, placement)
        return tuple(regions)

    def _things(self, label: int, values: NDArray[np.float32], inside: NDArray[np.bool_], placement: Placement) -> list[Region]:
        """The things of one label; `inside` says of each column of `values` whether it lies in the picture."""
        found = np.where(inside, np.clip(values[self._rows[label]].max(axis=0), 0.0, 1.0), np.float32(-1))
        candidates = best_candidates(found, self._threshold)
        x, y, width, height = values[:4, candidates]
        corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
        boxes = to_picture(corners, placement)
        kept = suppress(boxes, found[candidates], self._overlap)
        name = self._labels.names[label]
        return [
            Region(name, score, left, top, right - left, bottom - top)
            for score, (left, top, right, bottom) in zip(found[candidates[kept]].tolist(), boxes[kept].tolist(), strict=True)
        ]
