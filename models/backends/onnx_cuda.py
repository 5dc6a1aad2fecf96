"""The `onnx` backend on a GPU: ONNX Runtime's CUDA provider with I/O binding and CUDA graphs.

One session for each canvas and batch bucket, its shapes fixed, so that every node runs on the GPU, which a graph needs and
which is checked. The provider keeps a captured graph by thread: what `models.backends.device` says of threads holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from models.backends.device import BUCKETS, CudaBackend, DeviceArray, Network, Precision
from models.backends.onnx_graph import KEPT, to_half, with_input_shape, with_outputs
from models.manifest import Manifest

_PROVIDER = "CUDAExecutionProvider"
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}


class OnnxCudaBackend(CudaBackend):
    """One model in ONNX Runtime's CUDA provider.

    `keep_float32`: operator types, or first outputs of nodes, that stay float32 where the precision is float16.
    `provider_options` are added to the provider's.
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
        keep_float32: Sequence[str] = KEPT,
        provider_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(manifest, buckets=buckets, precision=precision, graphs=graphs, results=results, device_id=device_id)
        self.weights = weights
        self.keep_float32 = tuple(keep_float32)
        self.provider_options = dict(provider_options or {})
        self._ort: Any = None
        self._model: onnx.ModelProto | None = None

    def _open(self) -> None:
        if not self.weights.is_file():
            raise FileNotFoundError(f"model {self.manifest.name!r}: no weights at {self.weights}")
        self._ort = importlib.import_module("onnxruntime")
        providers = self._ort.get_available_providers()
        if _PROVIDER not in providers:
            raise RuntimeError(f"onnxruntime {self._ort.__version__} has no {_PROVIDER}, only {', '.join(providers)}")
        # cuDNN's refusals of fused float16 convolutions, after which others are taken, are errors in the log, hundreds a session,
        # and of the process' logger: 4, fatal, is the only level that leaves them out.
        self._ort.set_default_logger_severity(4)
        self._ort.preload_dlls()  # CUDA and cuDNN out of NVIDIA's Python packages, where they are installed as such
        model = onnx.load(self.weights)
        weights = {tensor.name for tensor in model.graph.initializer}
        self._check(
            "input", [self.manifest.inputs.name], [v.name for v in model.graph.input if v.name not in weights], exactly=True
        )
        self._check("output", self.manifest.outputs, [value.name for value in model.graph.output], exactly=False)
        model = with_outputs(model, self.manifest.outputs)
        self._model = to_half(model, keep=self.keep_float32) if self.precision is Precision.FLOAT16 else model

    def _check(self, kind: str, named: Sequence[str], present: Sequence[str], *, exactly: bool) -> None:
        if set(named) - set(present) or (exactly and set(present) - set(named)):
            raise ValueError(
                f"model {self.manifest.name!r}: the manifest names {kind} {', '.join(map(repr, named))}, "
                f"{self.weights.name} has {', '.join(map(repr, present))}"
            )

    def _prepare(self, tensor: Any) -> Network:
        if self._model is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not loaded")
        model = with_input_shape(self._model, self.manifest.inputs.name, tensor.shape)
        session = self._ort.InferenceSession(
            model.SerializeToString(),
            self._session_options(),
            providers=[(_PROVIDER, self._options())],
        )
        if session.get_providers()[0] != _PROVIDER:
            raise RuntimeError(f"model {self.manifest.name!r}: ONNX Runtime fell back to {session.get_providers()[0]}")
        return _Session(self._ort, self._cupy, session, self.manifest, tensor, self.device_id)

    def _session_options(self) -> Any:
        options = self._ort.SessionOptions()
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = 1  # nothing computes on the CPU
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.log_severity_level = 3  # errors: warnings about unused initialisers are the model's, not the operator's
        return options

    def _options(self) -> dict[str, str]:
        return {
            "device_id": str(self.device_id),
            "user_compute_stream": str(self.stream.ptr),
            # Trying all algorithms at start makes float32 a twentieth quicker, and leaves out what float16 has fused kernels for.
            "cudnn_conv_algo_search": "EXHAUSTIVE" if self.precision is Precision.FLOAT32 else "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
            "use_tf32": str(int(self.precision is Precision.TF32)),
            # Tensor cores want channels last: in float16 a sixth to a quarter quicker (loadtest/results/gpu_networks.json).
            "prefer_nhwc": str(int(self.precision is Precision.FLOAT16)),
            "enable_cuda_graph": str(int(self.graphs)),
            **self.provider_options,
        }

    def _shut(self) -> None:
        self._model = None


class _Session:
    """One session, bound to its input and outputs."""

    def __init__(self, ort: Any, cupy: Any, session: Any, manifest: Manifest, tensor: Any, device_id: int) -> None:
        self._session = session
        self._options = ort.RunOptions()
        # The stream's order is all that is needed: whoever wants results waits for an event.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._tensor = tensor
        self._binding = session.io_binding()
        self._binding.bind_input(manifest.inputs.name, "cuda", device_id, tensor.dtype.type, tuple(tensor.shape), tensor.data.ptr)
        outputs: dict[str, DeviceArray] = {}
        for value in session.get_outputs():
            array = outputs[value.name] = _output(cupy, manifest, value)
            self._binding.bind_output(value.name, "cuda", device_id, array.dtype.type, array.shape, array.address)
        self.outputs: Mapping[str, DeviceArray] = outputs

    def enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)


def _output(cupy: Any, manifest: Manifest, value: Any) -> DeviceArray:
    shape = tuple(value.shape)
    if not all(isinstance(length, int) for length in shape):
        raise ValueError(f"model {manifest.name!r}: output {value.name!r} has no fixed shape: {list(shape)}")
    if value.type not in _TYPES:
        raise ValueError(f"model {manifest.name!r}: output {value.name!r} is a {value.type}, known are {', '.join(_TYPES)}")
    array = cupy.zeros(shape, _TYPES[value.type])
    cupy.cuda.get_current_stream().synchronize()
    return DeviceArray(array.data.ptr, shape, np.dtype(_TYPES[value.type]), array)
