"""A real Collector with the configuration of deploy/observability: traces go on, metrics are told under the same names."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from server.degradation import DegradationReason
from server.telemetry import Telemetry
from tests.observability.real_prometheus import FOLDER

BUILT = FOLDER.parent.parent / ".tools" / "otelcol" / "otelcol"
COLLECTOR = shutil.which("otelcol") or (str(BUILT) if BUILT.is_file() else None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(COLLECTOR is None, reason="no Collector here; `make collector` builds one")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@dataclass
class Store:
    """Keeps the traces that it gets, as a trace store would."""

    spans: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        store = self

        class Traces(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request, context):
                store.spans |= {s.name for r in request.resource_spans for scope in r.scope_spans for s in scope.spans}
                return trace_service_pb2.ExportTraceServiceResponse()

        self.server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()


@dataclass
class Collector:
    otlp: int
    metrics: int
    store: Store

    def page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as response:
            return response.read().decode()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    store, otlp, metrics, own = Store(), free_port(), free_port(), free_port()
    text = (FOLDER / "collector.yaml").read_text()
    for usual, port in ((4317, otlp), (8889, metrics)):
        assert f"127.0.0.1:{usual}" in text
        text = text.replace(f"127.0.0.1:{usual}", f"127.0.0.1:{port}")
    assert "port: 8888" in text
    (tmp_path / "collector.yaml").write_text(text.replace("port: 8888", f"port: {own}"))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(COLLECTOR), f"--config={tmp_path / 'collector.yaml'}"],
            stdout=log,
            stderr=log,
            env={**os.environ, "TRACES_ENDPOINT": f"127.0.0.1:{store.port}"},
        )
    try:
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", otlp), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.1)
        yield Collector(otlp, metrics, store)
    finally:
        process.terminate()
        process.wait(20)
        store.server.stop(None)


def test_the_versions_are_those_of_the_compose_file():
    built = yaml.safe_load((FOLDER / "collector-build.yaml").read_text())
    modules = [entry["gomod"] for part in ("receivers", "processors", "exporters") for entry in built[part]]
    image = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["collector"]["image"]
    assert {module.rpartition("v")[2] for module in modules} == {image.rpartition(":")[2]}


def test_traces_go_on_and_metrics_have_the_names_of_the_server_s_own_port(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.otlp}")
    telemetry = Telemetry.create(version="1", process="front-1", prometheus="127.0.0.1:0")
    metrics = telemetry.metrics
    metrics.expect_calls()
    with telemetry.tracer.start_as_current_span("a call"):
        metrics.call(0.03, method="a/b", status="UNAVAILABLE", reason="WORKER_LOST", fault=True)
    metrics.step("decode", 0.1, waited=0.05)
    metrics.source("ranges", received=10, size=100)
    metrics.answer(verdict="pass", seen=7, skipped=2, largest_gap=3.5, degradations=[DegradationReason.TRUNCATED])
    with urllib.request.urlopen(f"http://{telemetry.prometheus}/metrics", timeout=5) as response:
        own = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    telemetry.shutdown()
    end = time.monotonic() + 20
    while "keyglance_verdicts_total" not in (page := collector.page()) or "a call" not in collector.store.spans:
        assert time.monotonic() < end, (page, collector.store.spans)
        time.sleep(0.2)
    pushed = {family.name: family for family in text_string_to_metric_families(page)}
    for name, family in own.items():
        assert pushed[name].type == family.type, name
        asked = {key for sample in family.samples for key in sample.labels} - {"process", "service_instance_id", "instance"}
        if name != "target_info":  # its service.name is the label `job` there
            assert asked <= {key for sample in pushed[name].samples for key in sample.labels}, name
    (lost,) = [
        sample
        for sample in pushed["keyglance_calls_failed"].samples
        if sample.labels["reason"] == "WORKER_LOST" and sample.name.endswith("_total")
    ]
    assert lost.value == 1
    assert lost.labels["service_instance_id"]
