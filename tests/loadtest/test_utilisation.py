import itertools
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.utilisation import Utilisation, gpus
from tests.server.fake_nvml import FakeNvml


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def watched(*, interval: float = 0.2) -> dict:
    with Utilisation(interval=interval) as utilisation:
        time.sleep(0.1)
    (figures,) = utilisation.figures()
    return figures


def test_nothing_to_ask(nothing: Path) -> None:
    assert watched() == {"source": "none", "samples": 0}
    assert gpus() == 0


def test_nvml(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    assert gpus() == 1
    told = watched(interval=0.01)
    assert told.pop("samples") > 2
    assert told == {
        "source": "NVML",
        "gpu_percent": 40,
        "decoder_percent": 75,
        "memory_mib": 0,
        "celsius": 55,
        "power_w": 350,
        "sm_mhz": 1000,
        "video_mhz": 3000,
        "sm_activity_percent": 62.5,
        "sm_occupancy_percent": 31,
    }
    assert (nvml.initialised, nvml.samples) == (0, 0), "all is given back"


def test_several_gpus_are_asked_by_one_thread(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(gpus=3)
    asking = set()

    def rates(_: object) -> SimpleNamespace:
        asking.add(threading.get_ident())
        return SimpleNamespace(gpu=20)

    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", rates, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    with Utilisation(gpus(), interval=0.01) as utilisation:
        time.sleep(0.1)
    told = utilisation.figures()
    assert [gpu["gpu_percent"] for gpu in told] == [20, 20, 20]
    assert all(gpu["samples"] > 2 for gpu in told)
    assert len(asking) == 1
    assert (nvml.initialised, nvml.samples) == (0, 0), "all is given back"


def test_a_gpu_without_activity(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(lacks=("nvmlGpmQueryDeviceSupport", "nvmlDeviceGetPowerUsage"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    told = watched(interval=0.01)
    assert told["gpu_percent"] == 40
    assert not {"sm_activity_percent", "power_w"} & set(told)


def test_what_changes_is_averaged(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    shares = itertools.cycle([10, 30])
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=next(shares)), raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    assert 10 < watched(interval=0.005)["gpu_percent"] < 30


def test_nvidia_smi_where_that_is_all_there_is(nothing: Path) -> None:
    program = nothing / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "87, 40, 3000, 351.25, [N/A], 1980, 1755"\n')
    program.chmod(0o755)
    told = watched(interval=0.01)
    assert told["source"] == "nvidia-smi"
    assert told["gpu_percent"] == 87
    assert (told["sm_mhz"], told["video_mhz"], told["memory_mib"]) == (1980, 1755, 3000)
    assert "celsius" not in told
    assert told["power_w"] == 351.2


def test_a_gpu_that_stops_answering_ends_nothing(nothing: Path) -> None:
    program = nothing / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert watched(interval=0.01) == {"source": "nvidia-smi", "samples": 0}
