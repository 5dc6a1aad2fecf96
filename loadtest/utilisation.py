"""How busy GPUs are while something runs: asked of NVML a few times a second, of nvidia-smi where that is all there is.

NVML is asked as the server asks it for its metrics (`server.gpu_readings`), activity of the multiprocessors (GPM) included.
"""

from __future__ import annotations

import importlib
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from server.gpu_readings import GpuReadings
from server.metrics import (
    GPU_CLOCK,
    GPU_MEMORY,
    GPU_POWER,
    GPU_SM_ACTIVITY,
    GPU_SM_OCCUPANCY,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    Reading,
)

#: By instrument, and task or clock: the figure's name, and its unit in the instrument's.
_FIGURES = {
    (GPU_UTILIZATION.name, "general"): ("gpu_percent", 0.01),
    (GPU_UTILIZATION.name, "decoder"): ("decoder_percent", 0.01),
    (GPU_SM_ACTIVITY.name, ""): ("sm_activity_percent", 0.01),
    (GPU_SM_OCCUPANCY.name, ""): ("sm_occupancy_percent", 0.01),
    (GPU_MEMORY.name, ""): ("memory_mib", 2.0**20),
    (GPU_POWER.name, ""): ("power_w", 1.0),
    (GPU_TEMPERATURE.name, ""): ("celsius", 1.0),
    (GPU_CLOCK.name, "sm"): ("sm_mhz", 1e6),
    (GPU_CLOCK.name, "video"): ("video_mhz", 1e6),
}
_QUERY = {
    "gpu_percent": "utilization.gpu",
    "decoder_percent": "utilization.decoder",
    "memory_mib": "memory.used",
    "power_w": "power.draw",
    "celsius": "temperature.gpu",
    "sm_mhz": "clocks.sm",
    "video_mhz": "clocks.video",
}
_PATIENCE = 5.0  # seconds for one answer of nvidia-smi

#: Asks once: figures by name.
Ask = Callable[[], Mapping[str, float]]
_NOTHING: tuple[str, Ask | None] = ("none", None)


class Utilisation:
    """Samples of the first `count` GPUs from entering to leaving, every `interval` seconds.

    NVML counts all GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says. One thread asks for all of them, so that no two
    are in the driver's GPM functions at once. GPM wants 0.1 s or more between two samples.
    """

    def __init__(self, count: int = 1, *, interval: float = 0.2) -> None:
        self._interval = interval
        self._gpus = [_Gpu(index) for index in range(count)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="utilisation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * _PATIENCE)
        for gpu in self._gpus:
            gpu.close()

    def figures(self) -> list[dict[str, Any]]:
        """By GPU: means of all samples, but for the first and the last where there are enough; without a GPU it says so."""
        return [gpu.figures() for gpu in self._gpus]

    def _work(self) -> None:
        asked = [gpu for gpu in self._gpus if gpu.is_there]
        while asked and not self._ended.wait(self._interval):
            asked = [gpu for gpu in asked if gpu.ask()]


class _Gpu:
    """One of them, and its samples."""

    def __init__(self, index: int) -> None:
        self._readings = _nvml(index)
        self._source, self._ask = _told(self._readings) if self._readings else _nvidia_smi(index) or _NOTHING
        self._samples: list[Mapping[str, float]] = []

    @property
    def is_there(self) -> bool:
        return self._ask is not None

    def ask(self) -> bool:
        """One sample more. Returns whether there was one: the run is worth more than a figure that a driver does not give."""
        assert self._ask is not None
        try:
            self._samples.append(self._ask())
        except Exception:
            return False
        return True

    def figures(self) -> dict[str, Any]:
        samples = self._samples[1:-1] if len(self._samples) > 4 else self._samples
        names = dict.fromkeys(name for sample in samples for name in sample)
        means = {name: round(statistics.fmean(sample[name] for sample in samples if name in sample), 1) for name in names}
        return {"source": self._source, "samples": len(samples), **means}

    def close(self) -> None:
        if self._readings is not None:
            self._readings.close()


def gpus() -> int:
    """How many GPUs this machine has, as far as NVML knows; 1 where nvidia-smi alone can be asked."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return int(shutil.which("nvidia-smi") is not None)
    try:
        return int(nvml.nvmlDeviceGetCount())
    finally:
        nvml.nvmlShutdown()


def _nvml(index: int) -> GpuReadings | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return GpuReadings(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except Exception:  # not installed, no driver, or no such GPU
        return None


def _told(readings: GpuReadings) -> tuple[str, Ask]:
    def named(reading: Reading) -> tuple[str, float] | None:
        of = reading.labels.get("hw.gpu.task") or reading.labels.get("clock") or ""
        if (figure := _FIGURES.get((reading.instrument.name, of))) is None:
            return None
        name, unit = figure
        return name, reading.value / unit

    def ask() -> Mapping[str, float]:
        return dict(found for reading in readings() if (found := named(reading)) is not None)

    return "NVML", ask


def _nvidia_smi(index: int) -> tuple[str, Ask] | None:
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    command = [program, f"--id={index}", f"--query-gpu={','.join(_QUERY.values())}", "--format=csv,noheader,nounits"]

    def ask() -> Mapping[str, float]:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout
        told = [value.strip() for value in answer.splitlines()[0].split(",")]
        return {name: float(value) for name, value in zip(_QUERY, told, strict=True) if value.replace(".", "", 1).isdigit()}

    return "nvidia-smi", ask
