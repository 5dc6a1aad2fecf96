import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from loadtest.utilisation import Utilisation


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def watched(**options: float) -> dict:
    with Utilisation(**options) as utilisation:
        time.sleep(0.1)
    return utilisation.figures()


def test_nothing_to_ask(nothing: Path) -> None:
    assert watched() == {"source": "none", "samples": 0}


def test_nvml(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ModuleType("pynvml")
    asked = []

    def rates(device: str) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(gpu=90, memory=len(asked))

    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetDecoderUtilization=lambda device: [55, 1000],
        nvmlDeviceGetPowerUsage=lambda device: 350_000,
        nvmlDeviceGetClockInfo=lambda device, kind: 1980,
        NVML_CLOCK_SM=1,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    told = watched(interval=0.01)
    assert told["source"] == "NVML"
    assert told["samples"] > 0
    assert (told["gpu_percent"], told["decoder_percent"], told["power_w"], told["sm_mhz"]) == (90, 55, 350, 1980)
    assert asked[0] == "gpu 0"


def test_nvidia_smi_where_that_is_all_there_is(nothing: Path) -> None:
    program = nothing / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "87, 40, [N/A], 351.25, 1980"\n')
    program.chmod(0o755)
    told = watched(interval=0.01)
    assert told["source"] == "nvidia-smi"
    assert told["gpu_percent"] == 87
    assert "memory_percent" not in told
    assert told["power_w"] == 351.2


def test_a_gpu_that_stops_answering_ends_nothing(nothing: Path) -> None:
    program = nothing / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert watched(interval=0.01) == {"source": "nvidia-smi", "samples": 0}
