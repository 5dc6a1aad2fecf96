"""NVML without a GPU."""

from __future__ import annotations

from types import SimpleNamespace


class FakeNvml:
    """As much of pynvml as is used: `gpus` that are busy for 40 %; `lacks` names functions that they do not support."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO = 0, 1, 2, 3
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRICS_GET_VERSION, NVML_SUCCESS = 2, 3, 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, lacks: tuple[str, ...] = (), gpus: int = 1) -> None:
        self.lacks = lacks
        self.gpus = gpus
        self.samples = self.initialised = 0

    def __getattribute__(self, name: str):
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):
            raise FakeNvml.NVMLError(f"{name}: not supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.initialised += 1

    def nvmlShutdown(self):
        self.initialised -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        assert bus == b"0000:4B:00.0"
        return "gpu"

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        assert 0 <= index < self.gpus
        return "gpu"

    def nvmlDeviceGetUUID(self, handle):
        return "GPU-1"

    def nvmlDeviceGetName(self, handle):
        return b"H200"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=40, memory=10)

    def nvmlDeviceGetDecoderUtilization(self, handle):
        return [75, 1000]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=3, total=4)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 55

    def nvmlDeviceGetPowerUsage(self, handle):
        return 350_000

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1000 * kind

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self):
        self.samples += 1
        return object()

    def nvmlGpmSampleFree(self, sample):
        self.samples -= 1

    def nvmlGpmSampleGet(self, handle, sample):
        return sample

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(5)])

    def nvmlGpmMetricsGet(self, request):
        assert request.sample1 is not request.sample2
        assert (request.version, request.numMetrics) == (1, 2)
        for metric in request.metrics[: request.numMetrics]:
            metric.value = {2: 62.5, 3: 31.0}[metric.metricId]
