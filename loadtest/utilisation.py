"""How busy a GPU is while something runs: asked of NVML a few times a second, of nvidia-smi where that is all there is."""

from __future__ import annotations

import importlib
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

_QUERY = {
    "gpu_percent": "utilization.gpu",
    "decoder_percent": "utilization.decoder",
    "memory_percent": "utilization.memory",
    "power_w": "power.draw",
    "sm_mhz": "clocks.sm",
}
_PATIENCE = 5.0  # seconds for one answer of nvidia-smi

#: Asks once: figures by name.
Ask = Callable[[], Mapping[str, float]]
_NOTHING: tuple[str, Ask | None] = ("none", None)


class Utilisation:
    """Samples from entering to leaving, every `interval` seconds; without a GPU there are none, and `figures` says so."""

    def __init__(self, index: int = 0, *, interval: float = 0.2) -> None:
        self._interval = interval
        self._source, self._ask = _nvml(index) or _nvidia_smi(index) or _NOTHING
        self._samples: list[Mapping[str, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="utilisation", daemon=True)

    def __enter__(self) -> Self:
        if self._ask is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _PATIENCE)

    def figures(self) -> dict[str, Any]:
        """Medians of all samples, but for the first and the last where there are enough."""
        samples = self._samples[1:-1] if len(self._samples) > 4 else self._samples
        names = dict.fromkeys(name for sample in samples for name in sample)
        medians = {name: round(statistics.median(sample[name] for sample in samples if name in sample), 1) for name in names}
        return {"source": self._source, "samples": len(samples), **medians}

    def _work(self) -> None:
        assert self._ask is not None
        while not self._ended.wait(self._interval):
            try:
                self._samples.append(self._ask())
            except Exception:  # a figure that a driver does not give; the run is worth more
                return


def _nvml(index: int) -> tuple[str, Ask] | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetUtilizationRates(device)
    except Exception:  # not installed, or no driver
        return None

    def ask() -> Mapping[str, float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(device)
        return {
            "gpu_percent": float(rates.gpu),
            "decoder_percent": float(nvml.nvmlDeviceGetDecoderUtilization(device)[0]),
            "memory_percent": float(rates.memory),
            "power_w": nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            "sm_mhz": float(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
        }

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
