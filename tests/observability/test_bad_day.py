"""A real Prometheus watches a server of two fronts and an engine through its worst day: each thing that goes wrong is an alert.

Broken clips, blind spots, many more callers than can be answered, callers that give up or have no time, a collector that takes
too little, an engine that pauses, then dies again and again, a front that is killed, one that hangs. What cannot go wrong here (a
GPU that is full, hot, or lost) comes from a process of its own through the same code. Four alerts are left to others: of a front
that takes a whole core, which two cores cannot promise, and of calls and queues at their limits, which they are for the three
seconds in which overload is not seen yet, so that Prometheus may look or not, to promtool (`test_alerts.py`); and of a server
that is not there (`test_prometheus.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

from keyglance import AsyncClient
from keyglance.errors import KeyglanceError
from keyglance.metrics_page import look
from loadtest.mix_clips import clip
from loadtest.otlp_sink import OtlpSink
from loadtest.server_process import ServerProcess
from server.engine_stats import BatchStats, EngineStats, PoolStats
from server.gpu_readings import GpuReadings
from server.readings import engine_readings
from server.telemetry import Telemetry
from tests.observability.real_prometheus import FOLDER, PROMETHEUS, WHY_NOT, Prometheus
from tests.server.fake_nvml import FakeNvml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.models,
    pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT),
    pytest.mark.timeout(300),
]

_CALLERS = 40
_LONGEST = 90.0  # seconds of each part; it ends as soon as its alerts have fired
_EACH = 3  # broken calls of each kind
_ENGINE_DEATHS = 5  # each is replaced later than the one before
_HEARTBEAT = 6.0  # seconds after which a process that stands still is replaced
_PAUSE = 3.5  # seconds: longer than answers may take, shorter than that

#: Alerts by what is to cause them.
OVERLOAD = {
    *("KeyglanceRefusing", "KeyglanceDeadlines", "KeyglanceSlow", "KeyglanceDegraded", "KeyglanceBlindSpots"),
    *("KeyglanceReceiveBudgetFull", "KeyglanceDecodersExhausted", "KeyglanceSpansDropped"),
}
SLOW = {"KeyglanceSlow"}
DEATHS = {"KeyglanceFaults", "KeyglanceWorkersMissing", "KeyglanceWorkersRestarting", "KeyglanceProcessSilent"}
SICK_GPU = {
    *("KeyglanceEngineLost", "KeyglanceModelFailing", "KeyglanceDecodersCreated"),
    *("KeyglanceGpuMemory", "KeyglanceGpuHot", "KeyglanceNvdecSaturated"),
}
ELSEWHERE = {"KeyglanceFrontBusy", "KeyglanceDown", "KeyglanceCallsNearLimit", "KeyglanceQueueFull"}


class HotNvml(FakeNvml):
    """A GPU at all its limits."""

    def nvmlDeviceGetDecoderUtilization(self, handle):
        return [100, 1000]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=97, total=100)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 91


@dataclass
class Day:
    """What was started, what was done to it, what callers saw, and what was known after the quiet part and after the overload."""

    prometheus: Prometheus
    server: ServerProcess
    sick: str
    outcomes: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    quiet: dict[str, float] = field(default_factory=dict)
    loaded: dict[str, float] = field(default_factory=dict)

    def fired(self) -> set[str]:
        """The alerts that fired at any time."""
        found = self.prometheus.query('max_over_time(ALERTS{alertstate="firing"}[30m])')
        return {labels["alertname"] for labels, _ in found}

    async def until_fired(self, alerts: set[str]) -> None:
        """Waits until all have fired, or for as long as a part may take."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):  # Prometheus has the same processors as what is overloaded
                if alerts <= await asyncio.to_thread(self.fired):
                    return
            await asyncio.sleep(1)

    async def pause(self, process: str) -> None:
        """The process of that name stands still for a while."""
        found = self.process(process)
        assert found is not None
        found.suspend()
        await asyncio.sleep(_PAUSE)
        found.resume()

    def process(self, name: str) -> psutil.Process | None:
        for child in psutil.Process(self.server.pid).children():
            try:
                command = child.cmdline()
            except psutil.Error:
                continue
            if "--name" in command and command[command.index("--name") + 1] == name:
                return child
        return None

    async def when(self, check: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, f"{what}\n{self.server.log()}"
            await asyncio.sleep(0.1)

    async def send(self, number: int, process: str) -> None:
        """A signal to the process of that name, and waits until another has its place."""
        await self.when(lambda: self.process(process), f"{process} lives")
        found = self.process(process)
        assert found is not None
        found.send_signal(number)
        self.killed[process.partition("-")[0]] += 1

        def replaced() -> bool:
            now = self.process(process)
            return now is not None and now.pid != found.pid

        await self.when(replaced, f"{process} is replaced")


async def broken(client: AsyncClient, good: bytes) -> None:
    """While nothing else goes on: clips that cannot be answered, or not in full."""
    bad = {clip("text"): "NOT_A_VIDEO", clip("no-video"): "NO_VIDEO_STREAM", good.replace(b"moov", b"m00v"): "NOT_A_VIDEO"}
    for _ in range(_EACH):
        for content, reason in bad.items():
            with pytest.raises(KeyglanceError) as caught:
                await client.label(content, whole=True)
            assert caught.value.reason == reason
        await client.label(clip("cut-short"), frames=2)
        await client.label(good, frames=1, largest_gap=0.2, add_non_keyframes=False)


async def overload(day: Day, client: AsyncClient, good: bytes) -> None:
    """More callers than can be answered; some give up, some have no time, some leave blind spots."""
    ended = asyncio.Event()

    async def ask(**options: object) -> None:
        try:
            await client.label(good, whole=True, **options)  # type: ignore[arg-type]
            day.outcomes["OK"] += 1
        except KeyglanceError as error:
            day.outcomes[error.reason] += 1
            await asyncio.sleep(0.2)

    async def caller(number: int) -> None:
        while not ended.is_set():
            match number % 4:
                case 0:
                    await ask(frames=8, timeout=30.0)
                case 1:
                    await ask(frames=8, largest_gap=0.3, add_non_keyframes=False, timeout=30.0)
                case 2:
                    await ask(frames=8, largest_gap=0.3, timeout=0.8)
                case _:
                    late = asyncio.ensure_future(ask(frames=8, largest_gap=0.3, timeout=30.0))
                    await asyncio.sleep(0.5)
                    late.cancel()
                    await asyncio.gather(late, return_exceptions=True)

    async with asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            group.create_task(caller(number))
        await day.until_fired(OVERLOAD - SLOW)
        await day.pause("engine-0")
        await day.until_fired(OVERLOAD)
        ended.set()


async def deaths(day: Day, client: AsyncClient, good: bytes) -> None:
    """The engine dies again and again, a front is killed, one hangs, while calls come."""
    ended = asyncio.Event()

    async def caller() -> None:
        while not ended.is_set():
            try:
                await client.label(good, whole=True, frames=2, timeout=10.0)
                day.outcomes["OK"] += 1
            except KeyglanceError as error:
                day.outcomes[error.reason] += 1
                await asyncio.sleep(0.05)

    callers = [asyncio.ensure_future(caller()) for _ in range(4)]
    for _ in range(_ENGINE_DEATHS):
        await day.send(signal.SIGKILL, "engine-0")
        await asyncio.sleep(0.3)
    await day.send(signal.SIGKILL, "front-0")
    await day.send(signal.SIGSTOP, "front-1")
    await day.until_fired(DEATHS)
    ended.set()
    await asyncio.gather(*callers)


@pytest.fixture(scope="module")
def day(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("day")
    good = clip("h264-1080p")
    environment = {
        "KEYGLANCE_MODELS__FOLDER": str(models_folder),
        "KEYGLANCE_MODELS__ENABLED": json.dumps(["efficientnet-lite0"]),
        "KEYGLANCE_SERVER__FRONTS": "2",
        "KEYGLANCE_SERVER__HEARTBEAT": str(_HEARTBEAT),
        "KEYGLANCE_SERVER__CONCURRENT_CALLS": "8",
        # Four requests fill a front's share of the budget.
        "KEYGLANCE_SERVER__LARGEST_MESSAGE": str(len(good) + 1000),
        "KEYGLANCE_RECEIVE__BUDGET": str(2 * round(4.2 * len(good))),
        "KEYGLANCE_RECEIVE__QUEUE_LIMIT": "4",
        "KEYGLANCE_OVERLOAD__LEAST_CALLS": "2",
        "KEYGLANCE_OVERLOAD__MOST_CALLS": "2",
        "KEYGLANCE_OVERLOAD__STEPS": json.dumps([{"load": 0.3, "frames": 2}]),
        "KEYGLANCE_DECODERS__LIMIT": "1",
        "KEYGLANCE_DECODERS__WARM": json.dumps([{"size_class": 2048, "count": 1}]),
        "KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0",
        "KEYGLANCE_TELEMETRY__TRACE_RATIO": "1.0",
        "OTEL_BSP_MAX_QUEUE_SIZE": "4",
    }
    sick = Telemetry.create(version="1", process="engine-9", prometheus="127.0.0.1:0")
    gpu = GpuReadings.open("0000:4B:00.0", HotNvml())
    assert gpu is not None
    sick.metrics.observe(gpu)
    began = time.monotonic()

    def lost() -> Iterator[object]:
        batches = round((time.monotonic() - began) * 10)
        model = BatchStats("m", largest_batch=8, in_flight=0, failed=batches // 10, fill={4: batches})
        pool = PoolStats("nvdec", limit=4, waiting=0, states={"idle": 4}, leases={"created": batches}, evicted=0, broken=0)
        yield from engine_readings(EngineStats(healthy=False, pools=(pool,), batches=(model,)))

    sick.metrics.observe(lost)  # type: ignore[arg-type]
    with (
        OtlpSink() as sink,
        ServerProcess(folder, environment={**environment, **sink.environment()}) as server,
        Prometheus(folder, {"keyglance": [server.metrics, sick.prometheus]}, interval=2) as prometheus,
    ):
        prometheus.eventually(lambda: prometheus.value("sum(up)") == 2, "both targets are read")
        day = Day(prometheus, server, sick.prometheus)

        async def live() -> None:
            async with AsyncClient(server.address, retries=0, connections=8) as client:
                await broken(client, good)
                await asyncio.sleep(4.5)
                day.quiet = counts(server)
                await overload(day, client, good)
                day.loaded = counts(server)
                await deaths(day, client, good)

        asyncio.run(live())
        for worker, count in (("engine", 1), ("front", 2)):
            there = f'sum(keyglance_workers{{worker="{worker}"}})'
            prometheus.eventually(lambda there=there, count=count: prometheus.value(there) == count, f"{worker} is back")
        prometheus.eventually(lambda: prometheus.value("count(keyglance_calls_active)") == 2, "both fronts are read")
        yield day
    sick.shutdown()


def counts(server: ServerProcess) -> dict[str, float]:
    """Failures and degradations by reason, refusals, answers and skipped pictures, over all fronts, as its port tells."""
    page = look(server.metrics, timeout=20)
    found = {
        key[0]: value
        for name in ("calls_failed", "degradations")
        for key, value in page.sums(f"keyglance_{name}_total", "reason").items()
    }
    found |= {f"refused: {key[0]}": value for key, value in page.sums("keyglance_calls_refused_total", "refused").items()}
    skipped = page.sums("keyglance_frames_total", "outcome").get(("skipped",), 0.0)
    return {**found, "answered": page.total("keyglance_verdicts_total"), "skipped": skipped}


@pytest.mark.parametrize("alert", sorted(OVERLOAD | DEATHS | SICK_GPU))
def test_each_thing_that_went_wrong_was_an_alert(day, alert):
    assert alert in day.fired(), (day.outcomes, day.loaded)


def test_no_alert_is_left_out():
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == OVERLOAD | DEATHS | SICK_GPU | ELSEWHERE


def test_alerts_name_who_is_ill(day):
    found = day.prometheus.query('max_over_time(ALERTS{alertstate="firing"}[30m])')
    by_instance = {labels["instance"] for labels, _ in found if labels["alertname"] in SICK_GPU - {"KeyglanceDecodersCreated"}}
    assert by_instance == {day.sick}
    assert {labels.get("worker") for labels, _ in found if labels["alertname"] == "KeyglanceWorkersRestarting"} == {"engine"}


def test_broken_clips_and_blind_spots_are_counted_one_by_one(day):
    expected = {"NOT_A_VIDEO": 2 * _EACH, "NO_VIDEO_STREAM": _EACH, "TRUNCATED": _EACH, "GAP_EXCEEDED": _EACH}
    assert {reason: day.quiet[reason] for reason in expected} == expected
    assert day.quiet["answered"] == 2 * _EACH
    assert day.quiet["skipped"] == day.quiet["FRAME_UNDECODABLE"] == _EACH
    assert {day.quiet[reason] for reason in ("OVERLOADED", "DEADLINE_EXCEEDED", "CANCELLED", "WORKER_LOST", "FEWER_FRAMES")} == {
        0
    }


def test_the_overload_is_told_by_reason(day):
    more = {name: value - day.quiet.get(name, 0.0) for name, value in day.loaded.items()}
    for reason in ("OVERLOADED", "DEADLINE_EXCEEDED", "CANCELLED", "FEWER_FRAMES", "GAP_EXCEEDED", "answered"):
        assert more[reason] > 0, reason
    assert more["NOT_A_VIDEO"] == more["WORKER_LOST"] == more["INTERNAL"] == 0
    assert sum(value for name, value in more.items() if name.startswith("refused: ")) > 0


def test_each_death_is_counted(day):
    assert day.outcomes["WORKER_LOST"] > 0
    for worker, count in day.killed.items():
        assert day.prometheus.value(f'sum(keyglance_worker_restarts_total{{worker="{worker}"}})') == count, worker
    assert day.killed == {"engine": _ENGINE_DEATHS, "front": 2}


def test_nothing_is_held_when_it_is_over(day):
    for expression in (
        "sum(keyglance_calls_active)",
        "sum(keyglance_calls_serving)",
        "sum(keyglance_queue_depth)",
        "sum(keyglance_receive_reserved_bytes)",
        'sum(keyglance_decoders{state="leased"})',
    ):
        day.prometheus.eventually(lambda expression=expression: day.prometheus.value(expression) == 0, expression)
