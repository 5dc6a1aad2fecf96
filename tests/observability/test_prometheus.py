"""A real Prometheus reads a real server under a mixed load: metrics, dashboard and alerts tell what happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import runpy
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from keyglance import AsyncClient
from keyglance.errors import KeyglanceError
from loadtest.otlp_sink import OtlpSink
from loadtest.server_process import ServerProcess
from server.exposition import prometheus_name
from server.gpu_readings import GpuReadings
from server.metrics import INSTRUMENTS, Kind
from server.telemetry import Telemetry
from tests.observability.real_prometheus import FOLDER, PROMETHEUS, WHY_NOT, Prometheus
from tests.server.fake_nvml import FakeNvml

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT), pytest.mark.timeout(300)]

_LIMIT = 4  # calls at once
_LOADED = 15.0  # seconds of load


@dataclass
class Watched:
    """What was started, and what the callers saw."""

    prometheus: Prometheus
    server: ServerProcess
    metrics: str
    outcomes: Counter[str]
    killed: int
    began: float
    ended: float
    sink: OtlpSink


def where_metrics_are(server: ServerProcess) -> str:
    found = re.search(r"metrics on (127\.0\.0\.1:\d+)", server.errors.read_text() + server.output.read_text())
    assert found, server.log()
    return found[1]


def decoders(server: ServerProcess) -> list[psutil.Process]:
    """The server's decoder processes, by what they were told to run; one that was killed may still be there."""
    found = []
    for child in psutil.Process(server.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # gone, or not yet waited for
            if "decoder_pool.cpu_worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def load(server: ServerProcess, clip: bytes, outcomes: Counter[str]) -> int:
    """Callers of every kind for `_LOADED` seconds; returns how many decoder processes were killed meanwhile."""
    end = time.monotonic() + _LOADED

    async def ask(data: bytes, timeout: float = 20.0, models: tuple[str, ...] = ()) -> None:
        try:
            await client.label(data, timeout=timeout, frames=2, models=list(models))
            outcomes["OK"] += 1
        except KeyglanceError as error:
            outcomes[error.reason] += 1
            await asyncio.sleep(0.3 if error.reason == "OVERLOADED" else 0)

    async def caller(number: int) -> None:
        while time.monotonic() < end:
            await ask(clip)
            match number:
                case 0:
                    await ask(b"no video " * 100)
                    await ask(clip, models=("no-such-model",))
                case 1:
                    await ask(clip, timeout=0.02)
                case 2:
                    late = asyncio.ensure_future(ask(clip))
                    await asyncio.sleep(0.05)
                    late.cancel()
                    await asyncio.gather(late, return_exceptions=True)
                case _:
                    await asyncio.sleep(0.2)

    async def killer() -> int:
        killed = 0
        while time.monotonic() < end - 3:
            await asyncio.sleep(1.2)
            for process in decoders(server)[:1]:
                process.send_signal(signal.SIGKILL)
                killed += 1
        return killed

    async with AsyncClient(server.address, retries=0) as client:
        killing = asyncio.ensure_future(killer())
        await asyncio.gather(*(caller(number) for number in range(3 * _LIMIT)))
        return await killing


@pytest.fixture(scope="module")
def watched(models_folder: Path, clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("observability")
    environment = {
        "KEYGLANCE_MODELS__FOLDER": str(models_folder),
        "KEYGLANCE_MODELS__ENABLED": json.dumps(["open-nsfw", "efficientnet-lite0"]),
        "KEYGLANCE_SERVER__CONCURRENT_CALLS": str(_LIMIT),
        "KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0",
    }
    # There is no GPU here: its metrics come from a process of their own, through the same code with another NVML below it.
    gpu = Telemetry.create(version="1", process="engine-0", prometheus="127.0.0.1:0")
    readings = GpuReadings.open("0000:4B:00.0", FakeNvml())
    assert readings is not None
    gpu.metrics.observe(readings)
    outcomes: Counter[str] = Counter()
    with OtlpSink() as sink, ServerProcess(folder, environment={**environment, **sink.environment()}) as server:
        metrics = where_metrics_are(server)
        with Prometheus(folder, {"keyglance": [metrics, gpu.prometheus]}) as prometheus:
            prometheus.eventually(lambda: prometheus.value("sum(up)") == 2, "both targets are read")
            began = time.time()
            killed = asyncio.run(load(server, (clips_folder / "bikes.mp4").read_bytes(), outcomes))
            time.sleep(2.5)  # the last look is of the end
            yield Watched(prometheus, server, metrics, outcomes, killed, began, time.time(), sink)
    gpu.shutdown()


def test_the_callers_saw_what_the_test_is_about(watched):
    assert watched.outcomes["OK"] > 5, watched.outcomes
    assert watched.killed >= 4
    assert {"NOT_A_VIDEO", "UNKNOWN_MODEL", "OVERLOADED", "DEADLINE_EXCEEDED"} <= set(watched.outcomes), watched.outcomes


def test_every_metric_is_there(watched):
    names = set(watched.prometheus.get("label/__name__/values"))
    for each in INSTRUMENTS:
        gauge = each.kind in (Kind.OBSERVED_GAUGE, Kind.OBSERVED_SUM)
        name = prometheus_name(each.name, each.unit, gauge=gauge)
        suffix = {Kind.HISTOGRAM: "_bucket", Kind.COUNTER: "_total", Kind.OBSERVED_COUNTER: "_total"}.get(each.kind, "")
        assert name + suffix in names


def test_counts_are_those_of_the_callers(watched):
    value, outcomes = watched.prometheus.value, watched.outcomes
    for reason in ("NOT_A_VIDEO", "UNKNOWN_MODEL"):
        assert value(f'sum(keyglance_calls_failed_total{{reason="{reason}"}})') == outcomes[reason], reason
    for reason in ("OVERLOADED", "WORKER_LOST"):  # some callers had gone by then
        assert value(f'sum(keyglance_calls_failed_total{{reason="{reason}"}})') >= outcomes[reason], reason
    assert value('sum(keyglance_calls_failed_total{reason="CANCELLED"})') > 0
    assert value("sum(keyglance_verdicts_total)") >= outcomes["OK"] > 0  # some answers came too late for their callers
    answered = value("sum(keyglance_verdicts_total)")
    assert value('sum(keyglance_frames_total{outcome="seen"})') == pytest.approx(2 * answered, rel=0.5)
    assert value('sum(keyglance_worker_restarts_total{worker="cpu"})') >= watched.killed
    assert value('sum(keyglance_batch_frames_total{model="open-nsfw"})') >= value('sum(keyglance_frames_total{outcome="seen"})')
    assert value("sum(keyglance_source_received_bytes_total) / sum(keyglance_source_size_bytes_total)") <= 1
    assert value("sum(keyglance_calls_active)") == 0
    assert value('sum(keyglance_decoders{state="leased"})') == 0


def test_exemplars_lead_to_traces(watched):
    found = watched.prometheus.get(
        "query_exemplars", query="rpc_server_call_duration_seconds_bucket", start=watched.began, end=watched.ended
    )
    ids = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
    assert len(ids) > 3
    assert ids <= {span.span.trace_id.hex() for span in watched.sink.spans}


def test_failed_calls_are_traced_whatever_the_ratio(watched):
    reasons = Counter(span.attributes.get("keyglance.reason") for span in watched.sink.spans if span.name == "Label")
    value = watched.prometheus.value
    for reason in ("NOT_A_VIDEO", "UNKNOWN_MODEL", "WORKER_LOST", "DEADLINE_EXCEEDED"):
        assert reasons[reason] == value(f'sum(keyglance_calls_failed_total{{reason="{reason}"}})') > 0, reason
    assert 0 < reasons[None] < value("sum(keyglance_verdicts_total)")
    assert value("sum(keyglance_spans_exported_total)") == len(watched.sink.spans)
    assert value("sum(keyglance_spans_dropped_total)") == 0


DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "keyglance.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[f"{title} {n}" for n, (title, _) in enumerate(QUERIES)])
def test_each_query_of_the_dashboard_has_data(watched, title, expression):
    expression = expression.replace("$__rate_interval", "10s").replace("$instance", ".*")
    data = watched.prometheus.get("query_range", query=expression, start=watched.began, end=watched.ended, step=1)
    values = [float(value) for series in data["result"] for _, value in series["values"]]
    assert any(value == value for value in values), expression  # not only NaN


def test_the_dashboard_s_variable_finds_the_servers(watched):
    (variable,) = DASHBOARD["templating"]["list"]
    series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
    assert watched.metrics in {metric[label] for metric, _ in watched.prometheus.query(series)}


def test_the_dashboard_is_the_one_that_is_written():
    made = runpy.run_path(str(FOLDER / "make_dashboard.py"))
    assert (FOLDER / "grafana" / "dashboards" / "keyglance.json").read_text() == made["text"](), (
        "run `python deploy/observability/make_dashboard.py` and commit what it writes"
    )


def test_alerts_told_of_the_load(watched):
    def had_fired() -> set[str]:
        found = watched.prometheus.query('max_over_time(ALERTS{alertstate="firing"}[10m])')
        return {metric["alertname"] for metric, _ in found}

    # An alert fires some evaluations after what it is about: on a busy machine, after the load.
    wanted = {"KeyglanceRefusing", "KeyglanceDeadlines", "KeyglanceWorkersRestarting", "KeyglanceFaults"}
    watched.prometheus.eventually(lambda: wanted <= had_fired(), f"{', '.join(sorted(wanted))} fire")
    fired = had_fired()
    assert "KeyglanceDown" not in fired
    assert not {name for name in fired if "Gpu" in name or "Engine" in name}, fired


def test_a_killed_server_is_an_alert(watched):
    psutil.Process(watched.server.pid).kill()
    watched.prometheus.eventually(lambda: "KeyglanceDown" in watched.prometheus.firing(), "KeyglanceDown fires")
