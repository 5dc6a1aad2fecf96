"""Scores of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from models.heads.batch import BatchHead, Output, settings
from models.manifest import Manifest
from models.result import FrameResult, LabelNames, LabelScores
from models.spec import Placement


class ClassificationHead(BatchHead):
    """One output of [classes]: logits where the option `softmax` is 1, else probabilities.

    A label's score is the sum of its classes' probabilities, at most 1.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not manifest.labels or any(not label.classes for label in manifest.labels):
            raise ValueError(f"model {manifest.name!r} has a label without classes")
        self._output = manifest.outputs[0]
        self.dimensions = {self._output: 1}
        self._softmax = bool(settings(manifest, {"softmax": 0})["softmax"])
        self._labels = LabelNames.of(manifest)
        # Most labels of a thousand have one class, and picking is many times quicker than summing: only the others are summed.
        self._first = np.array([label.classes[0] for label in manifest.labels], np.intp)
        several = [(place, label.classes) for place, label in enumerate(manifest.labels) if len(label.classes) > 1]
        self._several = np.array([place for place, _ in several], np.intp)
        self._classes = np.array([number for _, classes in several for number in classes], np.intp)
        self._starts = np.cumsum([0, *(len(classes) for _, classes in several)])[:-1]
        named = [number for label in manifest.labels for number in label.classes]
        self._least, self._most = min(named), max(named)

    def _read(self, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> list[FrameResult]:
        output = outputs[self._output]
        values = output.values
        if self._least < 0 or self._most >= values.shape[1]:
            raise ValueError(f"output {self._output!r} has {values.shape[1]} classes, the labels name class {self._most}")
        if self._softmax:
            values = np.exp(values - output.highest[:, None])
            values /= values.sum(axis=1, keepdims=True)
        scores = values.take(self._first, axis=1)
        if self._several.size:
            scores[:, self._several] = np.add.reduceat(values.take(self._classes, axis=1), self._starts, axis=1)
        np.clip(scores, 0.0, 1.0, out=scores)
        return [FrameResult(LabelScores(self._labels, row)) for row in scores]
