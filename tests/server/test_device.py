"""Which device is chosen, and what is said where it is not the GPU."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from server.config import Config
from server.device import ChosenDevice, choose
from server.lifecycle import StartError
from tests.server.gpu_machine import GIB, GpuMachine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    return GpuMachine(monkeypatch)


def config(device: str, **gpu: object) -> Config:
    return Config.load(overrides={"engine": {"device": device}, "gpu": gpu})


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_a_gpu_that_can_do_all_is_taken(machine: GpuMachine, device: str) -> None:
    chosen = choose(config(device))
    assert chosen.gpu is not None
    assert (chosen.gpu.device, chosen.gpu.context) == (0, 1)
    assert (chosen.name, chosen.memory, chosen.reason) == ("NVIDIA Fake 0", 141 * GIB, "")


def test_who_asks_for_the_cpu_gets_it_without_a_look_at_the_gpu(machine: GpuMachine) -> None:
    assert choose(config("cpu")) == ChosenDevice()
    assert choose(config("cpu")).name == "cpu"
    assert machine.asked == []


def without(*names: str) -> Any:
    def change(machine: GpuMachine) -> None:
        for name in names:
            machine.remove(name)

    return change


def with_(**values: object) -> Any:
    def change(machine: GpuMachine) -> None:
        for name, value in values.items():
            setattr(machine, name, value)

    return change


def without_decoders(machine: GpuMachine) -> None:
    machine.install("PyNvVideoCodec", {**sys.modules["PyNvVideoCodec"].__dict__, "GetDecoderCaps": lambda *_: {"supported": 0}})


@pytest.mark.parametrize(
    ("change", "reason", "asked"),
    [
        (without("cupy", "PyNvVideoCodec"), "CuPy is not installed, there is no Python module cupy", []),
        (without("PyNvVideoCodec"), "PyNvVideoCodec is not installed, there is no Python module PyNvVideoCodec", []),
        (without("onnxruntime"), "onnxruntime-gpu is not installed, there is no Python module onnxruntime", []),
        (with_(driver=False), "there is no NVIDIA driver on this machine, no libcuda.so.1", ["libcuda.so.1"]),
        (
            with_(providers=["CPUExecutionProvider"]),
            "onnxruntime 1.99 is not built for CUDA, it has CPUExecutionProvider: onnxruntime-gpu is",
            ["libcuda.so.1"],
        ),
        (
            with_(device_error=RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")),
            "GPU 0 cannot be used for decoding: RuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected",
            ["libcuda.so.1", "context"],
        ),
        (
            without_decoders,
            "GPU 0 decodes no video: it has no decoder, or the driver's part for it is missing, "
            "which a container gets by NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
            ["libcuda.so.1", "context"],
        ),
        (
            with_(session_provider="CPUExecutionProvider"),
            "ONNX Runtime cannot use GPU 0: CUDAExecutionProvider does not load; CUDA's or cuDNN's libraries are missing or of "
            "another version",
            ["libcuda.so.1", "context", "session"],
        ),
        (
            with_(session_error=RuntimeError("CUDA failure 35")),
            "ONNX Runtime cannot use GPU 0: RuntimeError: CUDA failure 35",
            ["libcuda.so.1", "context", "session"],
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_is_not_and_the_reason_is_told(
    machine: GpuMachine, caplog: pytest.LogCaptureFixture, change: Any, reason: str, asked: list[str]
) -> None:
    change(machine)
    with caplog.at_level(logging.INFO):
        chosen = choose(config("auto"))
    assert chosen == ChosenDevice(reason=reason)
    assert chosen.name == f"cpu (no GPU: {reason})"
    assert caplog.messages == [f"no GPU is used: {reason}"]
    assert machine.asked == asked  # nothing further was tried
    with pytest.raises(StartError) as error:
        choose(config("gpu"))
    assert str(error.value) == f'engine.device = "gpu": {reason}'


def test_another_gpu_than_the_first(machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(machine.cupy.cuda, "Device", lambda number: SimpleNamespace(use=lambda: used.append(number)))
    monkeypatch.setattr(sys.modules["onnxruntime"], "InferenceSession", lambda model, providers: _session(providers, used))
    chosen = choose(config("gpu", index=3))
    assert chosen.name == "NVIDIA Fake 3"
    assert used == [3, "3"]


def _session(providers: Any, used: list[Any]) -> Any:
    used.append(providers[0][1]["device_id"])
    return SimpleNamespace(get_providers=lambda: [providers[0][0]], run=lambda *_: None)


def test_a_machine_without_the_gpus_modules_loads_nothing_for_the_question() -> None:
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "from server.config import Config; from server.device import choose\n"
        "before = set(sys.modules); chosen = choose(Config.load())\n"
        "assert chosen.gpu is None and 'CuPy' in chosen.reason, chosen\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
