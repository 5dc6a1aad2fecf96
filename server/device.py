"""Which device an engine uses: the GPU where there is one that can do all of it, else the CPU, and why.

It is asked in the order of what the answer costs, so that a machine without a GPU loads nothing for it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
from dataclasses import dataclass

from decoder_pool.nvdec.decoder import capabilities
from decoder_pool.nvdec.gpu import Gpu, GpuUnusable
from server.config import Config
from server.lifecycle import StartError

#: Python modules that the GPU's path needs, and the packages that bring them.
_MODULES = {"cupy": "CuPy", "PyNvVideoCodec": "PyNvVideoCodec", "onnxruntime": "onnxruntime-gpu"}
_DRIVER = "libcuda.so.1"  # comes with the driver, never with a Python package
_PROVIDER = "CUDAExecutionProvider"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The CPU, or an opened GPU with its product name and its memory in bytes.

    `reason` is why a GPU that was looked for is not used, in one sentence without a full stop; else empty.
    """

    gpu: Gpu | None = None
    gpu_name: str = ""
    memory: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """What the server says that it runs on."""
        if self.gpu is not None:
            return self.gpu_name
        return f"cpu (no GPU: {self.reason})" if self.reason else "cpu"


def choose(config: Config) -> ChosenDevice:
    """The device that `engine.device` asks for. Raises `StartError` where that is a GPU and none can be used."""
    wanted = config.engine.device
    if wanted == "cpu":
        return ChosenDevice()
    try:
        gpu = _usable(config.gpu.index)
    except GpuUnusable as error:
        if wanted == "gpu":
            raise StartError(f'engine.device = "gpu": {error}') from None
        _log.info("no GPU is used: %s", error)
        return ChosenDevice(reason=str(error))
    runtime = gpu.cupy.cuda.runtime
    told = runtime.getDeviceProperties(gpu.device)["name"]
    name = told.decode() if isinstance(told, bytes) else str(told)
    memory = int(runtime.memGetInfo()[1])
    _log.info("GPU %d is used: %s with %.1f GiB", gpu.device, name, memory / (1 << 30))
    return ChosenDevice(gpu, name, memory)


def _usable(index: int) -> Gpu:
    """The GPU, opened. Raises `GpuUnusable` with the first thing that is missing."""
    for module, package in _MODULES.items():
        if importlib.util.find_spec(module) is None:
            raise GpuUnusable(f"{package} is not installed, there is no Python module {module}")
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        raise GpuUnusable(f"there is no NVIDIA driver on this machine, no {_DRIVER}") from None
    ort = importlib.import_module("onnxruntime")
    if _PROVIDER not in (providers := ort.get_available_providers()):
        raise GpuUnusable(
            f"onnxruntime {ort.__version__} is not built for CUDA, it has {', '.join(providers)}: onnxruntime-gpu is"
        )
    gpu = Gpu.open(index)
    if not capabilities(gpu):
        raise GpuUnusable(
            f"GPU {index} decodes no video: it has no decoder, or the driver's part for it is missing, "
            "which a container gets by NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        )
    if (wrong := _does_not_infer(index)) is not None:
        raise GpuUnusable(f"ONNX Runtime cannot use GPU {index}: {wrong}")
    return gpu


def _does_not_infer(index: int) -> str | None:
    """Tries a graph of one node: that the provider was built in says nothing of CUDA's and cuDNN's libraries."""
    ort, onnx = importlib.import_module("onnxruntime"), importlib.import_module("onnx")
    one = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "probe",
        [one("x", onnx.TensorProto.FLOAT, [1])],
        [one("y", onnx.TensorProto.FLOAT, [1])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    try:
        ort.set_default_logger_severity(4)  # it warns of plugins that nobody asked for; what is wrong is raised
        ort.preload_dlls()  # out of NVIDIA's Python packages, where they are installed as such
        session = ort.InferenceSession(model.SerializeToString(), providers=[(_PROVIDER, {"device_id": str(index)})])
        if session.get_providers()[0] != _PROVIDER:
            return f"{_PROVIDER} does not load; CUDA's or cuDNN's libraries are missing or of another version"
        session.run(None, {"x": importlib.import_module("numpy").ones(1, "float32")})
    except Exception as error:  # the runtime raises whatever it likes
        return f"{type(error).__name__}: {error}"
    return None
