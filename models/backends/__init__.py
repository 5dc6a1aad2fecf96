"""Backends by the names that manifests give them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.backend import Backend
from models.backends.device import BUCKETS, CudaBackend, Precision
from models.manifest import Manifest

#: Names that `create_backend` knows.
BACKENDS = ("onnx", "fake")


def create_backend(manifest: Manifest, weights: Path, *, threads: int = 1) -> Backend:
    """The backend that `manifest` asks for, not loaded yet; `threads` are those of one run, where the runtime has any."""
    match manifest.backend:
        case "onnx":
            from models.backends.onnx import OnnxBackend  # a runtime is imported only where a model needs it

            return OnnxBackend(manifest, weights, threads=threads)
        case "fake":
            from models.backends.fake import FakeBackend

            return FakeBackend(manifest)
    raise ValueError(f"model {manifest.name!r}: unknown backend {manifest.backend!r}, known are {', '.join(BACKENDS)}")


def create_cuda_backend(
    manifest: Manifest,
    weights: Path,
    *,
    precision: Precision = Precision.FLOAT32,
    buckets: Sequence[int] = BUCKETS,
    graphs: bool = True,
    results: int = 3,
    device_id: int = 0,
) -> CudaBackend:
    """The backend on a GPU that `manifest` asks for, not loaded yet. `models.backends.choice` finds the precision."""
    match manifest.backend:
        case "onnx":
            from models.backends.onnx_cuda import OnnxCudaBackend as Chosen
        case "torch" | "script":
            from models.backends.torch_export import TorchBackend as Chosen  # type: ignore[assignment]
        case _:
            raise ValueError(f"model {manifest.name!r}: backend {manifest.backend!r} does not run on a GPU")
    return Chosen(manifest, weights, precision=precision, buckets=buckets, graphs=graphs, results=results, device_id=device_id)
