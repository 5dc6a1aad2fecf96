"""The `onnx` backend: ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from models.backend import Outputs, warm_up
from models.manifest import Manifest


class OnnxBackend:
    """One model in one session of ONNX Runtime's CPU provider, with `threads` threads for each run.

    Several threads may call `run` at a time; the session's own threads are then shared by them.
    """

    def __init__(self, manifest: Manifest, weights: Path, *, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"model {manifest.name!r}: {threads} threads: at least 1 is needed")
        self.manifest = manifest
        self.weights = weights
        self.threads = threads
        self._session: ort.InferenceSession | None = None

    @property
    def device(self) -> str:
        """Always "cpu"."""
        return "cpu"

    def load(self) -> None:
        """Makes the session. Raises `FileNotFoundError`, or `ValueError` where the graph is not what the manifest says."""
        if not self.weights.is_file():
            raise FileNotFoundError(f"model {self.manifest.name!r}: no weights at {self.weights}")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # A spinning thread burns the core on which a decoding process could work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors: warnings about unused initialisers are the model's, not the operator's
        session = ort.InferenceSession(str(self.weights), options, providers=["CPUExecutionProvider"])
        self._check("input", [self.manifest.inputs.name], [node.name for node in session.get_inputs()], exactly=True)
        self._check("output", self.manifest.outputs, [node.name for node in session.get_outputs()], exactly=False)
        self._session = session

    def _check(self, kind: str, named: Sequence[str], present: Sequence[str], *, exactly: bool) -> None:
        if set(named) - set(present) or (exactly and set(present) - set(named)):
            raise ValueError(
                f"model {self.manifest.name!r}: the manifest names {kind} {', '.join(map(repr, named))}, "
                f"{self.weights.name} has {', '.join(map(repr, present))}"
            )

    def warm(self, batch_sizes: Sequence[int]) -> None:
        """Runs once with every canvas at each of `batch_sizes`: the arena has its size then."""
        warm_up(self, self.manifest, batch_sizes)

    def run(self, batch: NDArray[Any]) -> Outputs:
        """Infers [N, …]."""
        if self._session is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not loaded")
        names = list(self.manifest.outputs)
        values = self._session.run(names, {self.manifest.inputs.name: batch})
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        """Frees the session."""
        self._session = None

    def __repr__(self) -> str:
        return f"<OnnxBackend {self.manifest.name} threads={self.threads} {'loaded' if self._session else 'not loaded'}>"
