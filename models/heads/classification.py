"""Scores of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.heads.checks import settings, take
from models.manifest import Manifest
from models.result import FrameResult
from models.spec import Placement


class ClassificationHead:
    """One output of [classes]: logits where the option `softmax` is 1, else probabilities.

    A label's score is the sum of its classes' probabilities, at most 1.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not manifest.labels or any(not label.classes for label in manifest.labels):
            raise ValueError(f"model {manifest.name!r} has a label without classes")
        self._output = manifest.outputs[0]
        self._softmax = bool(settings(manifest, {"softmax": 0})["softmax"])
        self._names = [label.name for label in manifest.labels]
        self._classes = np.array([number for label in manifest.labels for number in label.classes], np.intp)
        self._starts = np.cumsum([0, *(len(label.classes) for label in manifest.labels)])[:-1]

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `models.heads.Head.read`."""
        values = take(outputs, self._output, 1).astype(np.float64)
        if self._classes.min() < 0 or self._classes.max() >= values.size:
            raise ValueError(f"output {self._output!r} has {values.size} classes, the labels name class {self._classes.max()}")
        if self._softmax:
            values = np.exp(values - values.max())
            values /= values.sum()
        scores = np.clip(np.add.reduceat(values[self._classes], self._starts), 0.0, 1.0)
        return FrameResult(scores=dict(zip(self._names, scores.tolist(), strict=True)))
