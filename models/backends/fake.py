"""The `fake` backend: scores from pixels, delays and failures on demand: the whole service runs without weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.backend import Outputs, warm_up
from models.manifest import LabelSpec, Manifest
from models.result import FrameResult
from models.spec import Filter, Fit, Geometry, InputSpec, Layout, Normalisation, Placement

_COLOURS = tuple(LabelSpec(channel) for channel in ("red", "green", "blue"))


def fake_manifest(
    name: str = "colours",
    labels: Sequence[LabelSpec] = _COLOURS,
    *,
    canvases: tuple[tuple[int, int], ...] = ((32, 32),),
    **overrides: Any,
) -> Manifest:
    """A manifest for `FakeBackend` and `FakeHead`; `overrides` are fields of `Manifest`."""
    fields: dict[str, Any] = {
        "version": "1",
        "digest": "0" * 64,
        "licence": "Apache-2.0",
        "source": "mean colours, no weights",
        "backend": "fake",
        "head": "fake",
        "inputs": InputSpec("input", Geometry(canvases, Fit.STRETCH, Filter.BILINEAR), Normalisation(scale=(1 / 255,) * 3)),
        "outputs": ("scores",),
    }
    return Manifest(name=name, labels=tuple(labels), **(fields | overrides))


class FakeBackend:
    """Scores [N, labels] for each output of the manifest: label k has the frame's mean of RGB channel k mod 3, 0 to 1.

    Every `fail_every`-th batch raises, every `nan_every`-th has a value that is not finite (0: never). A batch takes `delay`
    seconds and `frame_delay` more for each frame; with a `gate` it waits until that is set. `batches` are the shapes
    that were run, warming left out, `calls` the names of the methods called, each with its thread's identifier.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        delay: float = 0.0,
        frame_delay: float = 0.0,
        fail_every: int = 0,
        nan_every: int = 0,
        gate: threading.Event | None = None,
    ) -> None:
        self.manifest = manifest
        self.delay = delay
        self.frame_delay = frame_delay
        self.fail_every = fail_every
        self.nan_every = nan_every
        self.gate = gate
        self.batches: list[tuple[int, ...]] = []
        self.calls: list[tuple[str, int]] = []
        self._warming = False

    @property
    def device(self) -> str:
        """Always "cpu"."""
        return "cpu"

    def load(self) -> None:
        """Nothing to do."""
        self._note("load")

    def warm(self, batch_sizes: Sequence[int]) -> None:
        """Runs every canvas at every size; not counted as batches."""
        self._note("warm")
        self._warming = True
        try:
            warm_up(self, self.manifest, batch_sizes)
        finally:
            self._warming = False

    def run(self, batch: NDArray[Any]) -> Outputs:
        """Mean colours as scores."""
        self._note("run")
        if not self._warming:
            self.batches.append(batch.shape)
            if self.gate is not None:
                self.gate.wait()
            time.sleep(self.delay + self.frame_delay * len(batch))
            if self.fail_every and len(self.batches) % self.fail_every == 0:
                raise RuntimeError(f"batch {len(self.batches)} fails, as asked for")
        scores = mean_colours(batch, self.manifest.inputs.normalisation)[:, np.arange(len(self.manifest.labels)) % 3]
        if not self._warming and self.nan_every and len(self.batches) % self.nan_every == 0:
            scores[-1, -1] = np.nan
        return dict.fromkeys(self.manifest.outputs, scores)

    def close(self) -> None:
        """Nothing to do."""
        self._note("close")

    def _note(self, method: str) -> None:
        self.calls.append((method, threading.get_ident()))


class FakeHead:
    """Reads `FakeBackend`'s scores: label k of the manifest has column k of the first output."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """Scores by label; no regions."""
        scores = outputs[self.manifest.outputs[0]]
        return FrameResult({label.name: float(scores[place]) for place, label in enumerate(self.manifest.labels)})

    def read_batch(self, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        """As `read`, of each picture."""
        return [
            self.read({name: values[row] for name, values in outputs.items()}, placement)
            for row, placement in enumerate(placements)
        ]


def mean_colours(batch: NDArray[Any], normalisation: Normalisation) -> NDArray[np.float32]:
    """Mean red, green and blue of each frame of a normalised batch, [N, 3], 0 to 1."""
    axes = (2, 3) if normalisation.layout is Layout.NCHW else (1, 2)
    means = batch.astype(np.float64).mean(axis=axes) / np.asarray(normalisation.scale) + np.asarray(normalisation.mean)
    rgb = means if normalisation.order == "rgb" else means[:, ::-1]
    shares: NDArray[np.float32] = np.clip(rgb / 255.0, 0.0, 1.0).astype(np.float32)
    return shares
