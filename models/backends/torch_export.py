"""The `torch` and `script` backends on a GPU: an exported program (`torch.export`) or TorchScript.

Input tensors are those of `models.backends.device`, taken over by DLPack: the same memory, which is checked. A run can be a CUDA
graph, captured on the thread that warms. PyTorch is imported by `load`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.backends.device import BUCKETS, CudaBackend, DeviceArray, Network, Precision
from models.manifest import Manifest

_RUNS_BEFORE_CAPTURE = 3  # libraries set themselves up in the first runs, TorchScript specialises


class TorchBackend(CudaBackend):
    """One model in PyTorch.

    `weights` are what `torch.export.save` wrote (manifest's backend "torch") or `torch.jit.save` ("script"), with a batch axis of
    any length. The module takes the input tensor and gives the manifest's outputs in their order: a tensor, or several. A traced
    script keeps the choice between float32 and TF32 of its tracing, whatever `precision` says: `loadtest.torch_graph.save_script`
    makes one in full float32.
    """

    def __init__(
        self,
        manifest: Manifest,
        weights: Path,
        *,
        buckets: Sequence[int] = BUCKETS,
        precision: Precision = Precision.FLOAT32,
        graphs: bool = True,
        results: int = 3,
        device_id: int = 0,
    ) -> None:
        super().__init__(manifest, buckets=buckets, precision=precision, graphs=graphs, results=results, device_id=device_id)
        if manifest.backend not in ("torch", "script"):
            raise ValueError(f"model {manifest.name!r} has backend {manifest.backend!r}: torch or script is needed")
        self.weights = weights
        self._torch: Any = None
        self._module: Any = None

    def _open(self) -> None:
        if not self.weights.is_file():
            raise FileNotFoundError(f"model {self.manifest.name!r}: no weights at {self.weights}")
        self._torch = torch = importlib.import_module("torch")
        device = torch.device("cuda", self.device_id)
        if self.manifest.backend == "script":
            module = torch.jit.load(str(self.weights), map_location=device).eval()
        else:
            module = torch.export.load(str(self.weights)).module()
        self._module = module.to(device)
        if self.precision is Precision.FLOAT16:
            self._module = self._module.to(torch.float16)

    def _prepare(self, tensor: Any) -> Network:
        if self._module is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not loaded")
        return _Module(self._torch, self._module, self.manifest, tensor, self.stream, self.precision, graph=self.graphs)

    def _shut(self) -> None:
        self._module = None


class _Module:
    """The module at one batch size: its results are copied to outputs that stay where they are."""

    def __init__(
        self, torch: Any, module: Any, manifest: Manifest, tensor: Any, stream: Any, precision: Precision, *, graph: bool
    ) -> None:
        self._torch = torch
        self._module = module
        self._names = manifest.outputs
        self._precision = precision
        self._stream = torch.cuda.ExternalStream(stream.ptr, device=f"cuda:{tensor.device.id}")
        self._graph: Any = None
        self._fixed: list[Any] = []
        with self._stream_and_modes():
            self._input = torch.from_dlpack(tensor)
            if self._input.data_ptr() != tensor.data.ptr:
                raise RuntimeError(f"model {manifest.name!r}: PyTorch copied the input instead of sharing its memory")
            results = self._results()
            if len(results) != len(self._names):
                raise ValueError(
                    f"model {manifest.name!r} gives {len(results)} outputs, its manifest names {', '.join(self._names)}"
                )
            self._fixed = [torch.zeros_like(result, dtype=_wide(torch, result.dtype)).contiguous() for result in results]
            for _ in range(_RUNS_BEFORE_CAPTURE):
                self._run()
        if graph:
            self._stream.synchronize()
            captured = torch.cuda.CUDAGraph()
            with self._modes(), torch.cuda.graph(captured, stream=self._stream):
                self._run()
            self._graph = captured
        self.outputs: Mapping[str, DeviceArray] = {
            name: DeviceArray(fixed.data_ptr(), tuple(fixed.shape), np.dtype(str(fixed.dtype).removeprefix("torch.")), fixed)
            for name, fixed in zip(self._names, self._fixed, strict=True)
        }

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        """Inference, with float32 as precise as asked for: PyTorch's own choice is TF32 in convolutions."""
        backends = self._torch.backends
        kinds = (backends.cudnn.conv, backends.cuda.matmul)
        before = [kind.fp32_precision for kind in kinds]
        try:
            for kind in kinds:
                kind.fp32_precision = "tf32" if self._precision is Precision.TF32 else "ieee"
            with self._torch.inference_mode():
                yield
        finally:
            for kind, precision in zip(kinds, before, strict=True):
                kind.fp32_precision = precision

    @contextlib.contextmanager
    def _stream_and_modes(self) -> Iterator[None]:
        with self._torch.cuda.stream(self._stream), self._modes():
            yield

    def _results(self) -> list[Any]:
        results = self._module(self._input)
        return [results] if isinstance(results, self._torch.Tensor) else list(results)

    def _run(self) -> None:
        for fixed, result in zip(self._fixed, self._results(), strict=True):
            fixed.copy_(result)

    def enqueue(self) -> None:
        if self._graph is None:
            with self._stream_and_modes():
                self._run()
        else:
            with self._torch.cuda.stream(self._stream):
                self._graph.replay()


def _wide(torch: Any, dtype: Any) -> Any:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
