"""Backends by the names that manifests give them."""

from __future__ import annotations

from pathlib import Path

from models.backend import Backend
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
