"""Things and their boxes from a YOLOv8 detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.heads.batch import BatchHead, Output, settings
from models.heads.boxes import Candidates
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
        x, y = values[:, 0], values[:, 1]
        left, top, wide, high = np.array([(one.left, one.top, one.width, one.height) for one in placements]).T[:, :, None]
        inside = (x >= left) & (x < left + wide) & (y >= top) & (y < top + high)
        # One picture at a time stays in the cache; what lies outside scores 0.
        by_class = np.array([(one[self._classes] * cells).max(axis=1) for one, cells in zip(values, inside, strict=True)])
        scores = np.clip(np.maximum.reduceat(by_class, self._starts, axis=1), 0.0, 1.0)
        things: list[tuple[Region, ...]] = [()] * len(placements)
        if (pairs := np.argwhere(scores >= self._threshold)).size:
            found = self._candidates(values, inside, pairs)
            things = found.regions(self._labels.names, placements, self._overlap)
        return [FrameResult(LabelScores(self._labels, row), regions) for row, regions in zip(scores, things, strict=True)]

    def _candidates(self, values: NDArray[np.float32], inside: NDArray[np.bool_], pairs: NDArray[np.intp]) -> Candidates:
        """The places above the threshold, of each of `pairs` [pairs, 2] of a picture's number and a label's."""
        columns: list[NDArray[np.intp]] = []
        scores: list[NDArray[np.float32]] = []
        for picture, label in pairs.tolist():
            best = values[picture, self._rows[label]].max(axis=0)
            columns.append(np.flatnonzero((best >= self._threshold) & inside[picture]))
            scores.append(best[columns[-1]])
        pair = np.repeat(np.arange(len(pairs)), [found.size for found in columns])
        picture, label = pairs[pair].T
        x, y, width, height = values[picture, :4, np.concatenate(columns)].T
        boxes = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
        return Candidates(picture, label, np.concatenate(scores), boxes)
