"""A GPU as NVML sees it: utilisation, memory, temperature, power, clocks, and how busy its multiprocessors are (GPM).

NVML comes with the driver, its binding `nvidia-ml-py` with the GPU's requirements; without either there is nothing to read. What
a GPU or a virtual machine does not give is left out. NVML is documented in NVIDIA's "NVML API Reference", GPM in its section
"GPM Metric API": Hopper and later.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from server.metrics import (
    GPU_CLOCK,
    GPU_MEMORY,
    GPU_MEMORY_LIMIT,
    GPU_POWER,
    GPU_SM_ACTIVITY,
    GPU_SM_OCCUPANCY,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    Instrument,
    Reading,
)

_log = logging.getLogger(__name__)


class GpuReadings:
    """Readings of one GPU; make one with `open`. To be called by one thread at a time (`Metrics` does)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._device = {"hw.id": _text(nvml.nvmlDeviceGetUUID(handle)), "hw.name": _text(nvml.nvmlDeviceGetName(handle))}
        self._before: Any = None  # the last GPM sample: what it tells is between two of them
        self._gpm = self._has_gpm()

    @classmethod
    def open(cls, pci_bus_id: str, nvml: Any = None) -> GpuReadings | None:
        """The GPU at a PCI bus address (as CUDA names it: `0000:4B:00.0`), which holds whatever CUDA_VISIBLE_DEVICES says.

        None, with a line in the log, where NVML cannot be used.
        """
        try:
            nvml = importlib.import_module("pynvml") if nvml is None else nvml
        except ImportError:
            _log.warning("no metrics of the GPU: nvidia-ml-py is not installed")
            return None
        try:
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode()))
        except nvml.NVMLError as error:
            _log.warning("no metrics of the GPU at %s: %s", pci_bus_id, error)
            return None

    def __call__(self) -> Iterator[Reading]:
        """What the GPU gives now."""
        nvml, handle, device = self._nvml, self._handle, self._device
        gpu = {**device, "hw.type": "gpu"}
        for instrument, labels, read in (
            (GPU_UTILIZATION, {**device, "hw.gpu.task": "general"}, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            (
                GPU_UTILIZATION,
                {**device, "hw.gpu.task": "decoder"},
                lambda: nvml.nvmlDeviceGetDecoderUtilization(handle)[0] / 100,
            ),
            (GPU_MEMORY, device, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            (GPU_MEMORY_LIMIT, device, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            (GPU_TEMPERATURE, gpu, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            (GPU_POWER, gpu, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            (GPU_CLOCK, {**device, "clock": "sm"}, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6),
            (GPU_CLOCK, {**device, "clock": "memory"}, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6),
            (GPU_CLOCK, {**device, "clock": "video"}, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_VIDEO) * 1e6),
        ):
            yield from self._one(instrument, labels, read)
        if self._gpm:
            yield from self._activity()

    def close(self) -> None:
        """Gives NVML back."""
        if self._before is not None:
            self._nvml.nvmlGpmSampleFree(self._before)
            self._before = None
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _one(self, instrument: Instrument, labels: dict[str, str], read: Callable[[], float]) -> Iterator[Reading]:
        with contextlib.suppress(self._nvml.NVMLError):  # NotSupported is told anew at every look
            yield Reading(instrument, read(), labels)

    def _has_gpm(self) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (self._nvml.NVMLError, AttributeError):  # a binding or a driver from before GPM
            return False

    def _activity(self) -> Iterator[Reading]:
        nvml, before = self._nvml, self._before
        self._before = sample = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(self._handle, sample)
            if before is not None:
                yield from self._between(before, sample)
        except nvml.NVMLError as error:
            _log.warning("the GPU gives no activity of its multiprocessors: %s", error)
            self._gpm = False
        finally:
            if before is not None:
                nvml.nvmlGpmSampleFree(before)

    def _between(self, before: Any, sample: Any) -> Iterator[Reading]:
        nvml = self._nvml
        wanted = {nvml.NVML_GPM_METRIC_SM_UTIL: GPU_SM_ACTIVITY, nvml.NVML_GPM_METRIC_SM_OCCUPANCY: GPU_SM_OCCUPANCY}
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = before, sample
        for place, metric in enumerate(wanted):
            request.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        for place, instrument in enumerate(wanted.values()):
            found = request.metrics[place]
            if found.nvmlReturn == nvml.NVML_SUCCESS:
                yield Reading(instrument, found.value / 100, self._device)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
