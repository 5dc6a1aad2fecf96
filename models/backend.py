"""The `Backend` protocol: what runs a model's network. Nothing above it knows which runtime that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from keyglance.errors import ModelFailed
from models.manifest import Manifest

#: One array by name of a graph's output.
Outputs = Mapping[str, NDArray[Any]]


class Backend(Protocol):
    """One model in one runtime. Every method blocks.

    `load`, `warm`, `run` and `close` are called on the threads of one `RunSlots` and on no other: with a single thread they
    are all called on the same one, which is what a runtime that keeps state by thread (CUDA graphs) needs. With several
    threads `run` is called by more than one at a time. Each method may raise anything; the batcher makes `ModelFailed` of
    what is no `KeyglanceError`.
    """

    @property
    def device(self) -> str:
        """Where it runs: "cpu", or the GPU's name."""
        ...

    def load(self) -> None:
        """Reads the weights and makes the session. Raises where the file does not have the manifest's inputs and outputs."""
        ...

    def warm(self, batch_sizes: Sequence[int]) -> None:
        """Runs once with every canvas of the manifest at each of `batch_sizes`, so that nothing is created later."""
        ...

    def run(self, batch: NDArray[Any]) -> Outputs:
        """Infers a batch [N, …], laid out as the manifest's normalisation says; gives arrays [N, …]."""
        ...

    def close(self) -> None:
        """Frees the session. May be called before `load`, and twice."""
        ...


def canvas_shapes(manifest: Manifest) -> tuple[tuple[int, ...], ...]:
    """Shapes of one frame's tensor, without the batch axis, one for each canvas of the manifest."""
    chw = manifest.inputs.normalisation.layout == "nchw"
    return tuple((3, height, width) if chw else (height, width, 3) for height, width in manifest.inputs.geometry.canvases)


def warm_up(backend: Backend, manifest: Manifest, batch_sizes: Sequence[int]) -> None:
    """Runs `backend` with zeros at every canvas and batch size, largest first: an arena then grows once."""
    dtype = np.dtype(manifest.inputs.normalisation.dtype)
    for size in sorted(set(batch_sizes), reverse=True):
        for shape in canvas_shapes(manifest):
            check_outputs(manifest, backend.run(np.zeros((size, *shape), dtype)), size)


def check_outputs(manifest: Manifest, outputs: Outputs, size: int) -> None:
    """Raises `ModelFailed`, naming model and output, unless all outputs are there, have `size` rows and are finite."""

    def refuse(what: str) -> ModelFailed:
        return ModelFailed(f"model {manifest.name!r}: {what}", facts={"model": manifest.name})

    for name in manifest.outputs:
        if name not in outputs:
            raise refuse(f"no output {name!r} among {sorted(outputs)}")
        values = outputs[name]
        if values.ndim == 0 or values.shape[0] != size:
            raise refuse(f"output {name!r} has shape {list(values.shape)}, {size} rows were expected")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(values.size - np.isfinite(values).sum())
            raise refuse(f"output {name!r} has {bad:,} of {values.size:,} values that are not finite")
