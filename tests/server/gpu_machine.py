"""A machine with a GPU, as far as choosing and building an engine goes: Python modules and a driver that are not there."""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from decoder_pool.nvdec.gpu import Gpu
from tests.decoder_pool.fake_gpu import FakeStream, fake_gpu

GIB = 1 << 30
PROVIDER = "CUDAExecutionProvider"


class _Event:
    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing

    def record(self, stream: Any) -> None: ...


@dataclass
class GpuMachine:
    """What a test changes before it asks. `memory` is (free, total) in bytes; `loaded` counts imports that cost time."""

    monkeypatch: pytest.MonkeyPatch
    memory: tuple[int, int] = (140 * GIB, 141 * GIB)
    providers: list[str] = field(default_factory=lambda: [PROVIDER, "CPUExecutionProvider"])
    driver: bool = True
    session_provider: str = PROVIDER
    session_error: Exception | None = None
    device_error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.library: Any = fake_gpu().codec
        self.cupy = self._cupy()
        self.install("cupy", self.cupy.__dict__)
        self.install("PyNvVideoCodec", {name: getattr(self.library, name) for name in dir(self.library) if name[0] != "_"})
        self.install(
            "onnxruntime",
            {
                "__version__": "1.99",
                "get_available_providers": lambda: self.providers,
                "preload_dlls": lambda: None,
                "set_default_logger_severity": lambda level: None,
                "InferenceSession": self._session,
            },
        )
        real = ctypes.CDLL

        def load(name: str | None, *rest: Any, **named: Any) -> Any:
            if name != "libcuda.so.1":
                return real(name, *rest, **named)
            self.asked.append(name)
            if not self.driver:
                raise OSError(f"{name}: cannot open shared object file")
            return object()

        self.monkeypatch.setattr(ctypes, "CDLL", load)

    def install(self, name: str, content: dict[str, Any]) -> None:
        module = ModuleType(name)
        module.__dict__.update(content, __spec__=importlib.machinery.ModuleSpec(name, None))
        self.monkeypatch.setitem(sys.modules, name, module)

    def remove(self, name: str) -> None:
        self.monkeypatch.setitem(sys.modules, name, None)

    @property
    def gpu(self) -> Gpu:
        return Gpu(0, self.library, self.cupy, 1)

    def _cupy(self) -> Any:
        fake = fake_gpu().cupy
        fake.cuda.runtime.memGetInfo = lambda: self.memory
        fake.cuda.runtime.getDeviceProperties = lambda number: {"name": f"NVIDIA Fake {number}".encode()}
        fake.cuda.runtime.free = self._free
        fake.cuda.driver = SimpleNamespace(ctxGetCurrent=lambda: 1)
        fake.cuda.Event = _Event
        fake.cuda.Stream = FakeStream
        return fake

    def _free(self, address: int) -> None:
        self.asked.append("context")
        if self.device_error is not None:
            raise self.device_error

    def _session(self, model: bytes, providers: list[tuple[str, dict[str, str]]]) -> Any:
        assert providers == [(PROVIDER, {"device_id": "0"})]
        self.asked.append("session")
        if self.session_error is not None:
            raise self.session_error
        return SimpleNamespace(get_providers=lambda: [self.session_provider], run=lambda outputs, inputs: [inputs["x"]])
