"""The page for Prometheus: names, exemplars, ports and sockets, and the pages of several processes joined."""

from __future__ import annotations

import contextlib
import http.client
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric as Family

from server.exposition import (
    Gathered,
    MetricsPort,
    Own,
    PrometheusReader,
    joined,
    parsed,
    prometheus_name,
    read_page,
)
from server.telemetry import Telemetry, TelemetryError

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
PROMTOOL = shutil.which("promtool")

#: A process of a server: counts `argv[2]` calls and serves its metrics on a Unix socket until its standard input ends.
CHILD = """
import sys
from server.telemetry import Telemetry
process, calls, path = sys.argv[1:]
telemetry = Telemetry.create(version="1", process=process, prometheus=f"unix:{path}")
for _ in range(int(calls)):
    with telemetry.tracer.start_as_current_span("call") as span:
        telemetry.metrics.call(0.03, method="a/b", status="OK", span=telemetry.exemplar(span))
print("ready", flush=True)
sys.stdin.read()
telemetry.shutdown()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="kg-") as name:
        yield Path(name)


def get(address: str, path: str = "/metrics", **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=10) as response:
        return response.read().decode()


def samples(page: str, name: str) -> list:
    return [sample for family in parsed(page) for sample in family.samples if sample.name == name]


@pytest.mark.parametrize(
    ("name", "unit", "gauge", "family"),
    [
        ("keyglance.step.duration", "s", False, "keyglance_step_duration_seconds"),
        ("keyglance.source.received", "By", False, "keyglance_source_received_bytes"),
        ("hw.gpu.utilization", "1", True, "hw_gpu_utilization_ratio"),
        ("some.parts", "1", False, "some_parts"),
        ("keyglance.calls.active", "{call}", True, "keyglance_calls_active"),
        ("a.seconds", "s", True, "a_seconds"),
    ],
)
def test_names(name, unit, gauge, family):
    assert prometheus_name(name, unit, gauge=gauge) == family


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry.create(version="1.2", prometheus="127.0.0.1:0")
    yield telemetry
    telemetry.shutdown()


def test_the_page_of_one_process(telemetry):
    metrics = telemetry.metrics
    metrics.source("data", received=5, size=50)
    metrics.source("data", received=5, size=50)
    with telemetry.tracer.start_as_current_span("call") as span:
        metrics.call(0.03, method="a/b", status="OK", span=telemetry.exemplar(span))
    metrics.call(400.0, method="a/b", status="OK")  # beyond all buckets, outside of any trace
    page = get(telemetry.prometheus, **OPENMETRICS)
    (received,) = samples(page, "keyglance_source_received_bytes_total")
    assert (received.value, received.labels["source"], received.labels["process"]) == (10, "data", "server")
    assert received.labels["service_instance_id"]
    buckets = {float(sample.labels["le"]): sample for sample in samples(page, "rpc_server_call_duration_seconds_bucket")}
    assert (buckets[0.025].value, buckets[0.05].value, buckets[10.0].value, buckets[math.inf].value) == (0, 1, 1, 2)
    exemplars = {bound: sample.exemplar for bound, sample in buckets.items() if sample.exemplar}
    assert set(exemplars) == {0.05}
    assert exemplars[0.05].labels["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert exemplars[0.05].value == 0.03
    (total,) = samples(page, "rpc_server_call_duration_seconds_sum")
    assert total.value == pytest.approx(400.03)
    (target,) = samples(page, "target_info")
    assert (target.labels["service_version"], target.labels["service_name"]) == ("1.2", "keyglance")
    assert target.labels["service_instance_id"] == received.labels["service_instance_id"]


def test_the_plain_format(telemetry):
    telemetry.metrics.expect_calls()
    telemetry.metrics.call(0.1, method="a/b", status="OK")
    page = get(telemetry.prometheus)
    assert "# TYPE keyglance_calls_failed_total counter" in page
    assert "# {" not in page
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_values_go_on_from_look_to_look(telemetry):
    for count in (1, 2, 3):
        telemetry.metrics.call(0.1, method="a/b", status="OK")
        assert samples(get(telemetry.prometheus, **OPENMETRICS), "rpc_server_call_duration_seconds_count")[0].value == count


def test_only_the_page_is_served(telemetry):
    for path in ("/", "/metrics/x", "/etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(telemetry.prometheus, path)
    assert "target_info" in get(telemetry.prometheus, "/metrics?name[]=whatever")


def test_an_address_that_is_taken(telemetry):
    with pytest.raises(TelemetryError, match=r"telemetry.prometheus: cannot serve on 127.0.0.1:\d+: Address already in use"):
        Telemetry.create(version="1", prometheus=telemetry.prometheus)


def test_ipv6():
    try:
        port = MetricsPort("[::1]:0", Own(PrometheusReader()))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert port.address.startswith("[::1]:")
    assert "# EOF" in get(port.address, **OPENMETRICS)
    port.close()
    port.close()


def test_a_socket_is_its_user_s_alone_and_goes_with_its_process(folder):
    path = folder / "a.sock"
    telemetry = Telemetry.create(version="1", prometheus=f"unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "target_info" in read_page(path)
    with pytest.raises(TelemetryError, match="another process serves"):
        Telemetry.create(version="1", prometheus=f"unix:{path}")
    telemetry.shutdown()
    assert not path.exists()


def test_the_socket_of_a_killed_process_is_taken_over(folder):
    path = folder / "a.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    assert path.exists()
    telemetry = Telemetry.create(version="1", prometheus=f"unix:{path}")
    assert "target_info" in read_page(path)
    telemetry.shutdown()


def test_a_file_in_the_way_stays(folder):
    path = folder / "precious"
    path.write_text("mine")
    with pytest.raises(TelemetryError, match="no socket"):
        Telemetry.create(version="1", prometheus=f"unix:{path}")
    assert path.read_text() == "mine"


def start(process: str, calls: int, path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, process, str(calls), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_several_processes_on_one_port(folder, caplog):
    sockets = {"front-1": folder / "front-1.sock", "engine-0": folder / "engine-0.sock"}
    children = [start(process, calls, path) for calls, (process, path) in enumerate(sockets.items(), 2)]
    supervisor = Telemetry.create(version="1", process="supervisor", prometheus="127.0.0.1:0", others=lambda: sockets)
    try:
        page = get(supervisor.prometheus, **OPENMETRICS)
        counts = {s.labels["process"]: s.value for s in samples(page, "rpc_server_call_duration_seconds_count")}
        assert counts == {"front-1": 2, "engine-0": 3}
        targets = samples(page, "target_info")
        assert {target.labels["process"] for target in targets} == {"supervisor", "front-1", "engine-0"}
        assert len({target.labels["service_instance_id"] for target in targets}) == 3
        assert page.count("# TYPE rpc_server_call_duration_seconds histogram") == 1
        assert sum(sample.exemplar is not None for sample in samples(page, "rpc_server_call_duration_seconds_bucket")) == 2
        assert {s.labels["process"]: s.value for s in samples(page, "keyglance_scrape_missing")} == {"front-1": 0, "engine-0": 0}

        children[0].kill()
        children[0].wait()
        page = get(supervisor.prometheus, **OPENMETRICS)
        assert {s.labels["process"] for s in samples(page, "rpc_server_call_duration_seconds_count")} == {"engine-0"}
        assert {s.labels["process"]: s.value for s in samples(page, "keyglance_scrape_missing")} == {"front-1": 1, "engine-0": 0}
        assert "no metrics of front-1" in caplog.text

        children[0] = start("front-1", 7, sockets["front-1"])  # as the supervisor would, on the same path
        counts = {
            s.labels["process"]: s.value
            for s in samples(get(supervisor.prometheus, **OPENMETRICS), "rpc_server_call_duration_seconds_count")
        }
        assert counts == {"front-1": 7, "engine-0": 3}
    finally:
        for child in children:
            child.communicate(timeout=20)
        supervisor.shutdown()
    assert not any(path.exists() for path in sockets.values())


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 500 no\r\n\r\n", b"HTTP/1.0 200 yes\r\n\r\nnonsense {\n# EOF\n", b"\xff\xff"])
def test_a_process_that_answers_nonsense_takes_no_other_with_it(folder, answer):
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(5)

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        families = list(Gathered(lambda: {"front-1": path}).collect())
        thread.join()
    (missing,) = families
    assert [(sample.labels["process"], sample.value) for sample in missing.samples] == [("front-1", 1)]


def test_processes_are_asked_at_once(folder):
    paths = {name: folder / name for name in ("front-0", "front-1", "engine-0")}
    all_asked = threading.Barrier(len(paths))

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(threading.BrokenBarrierError):
            connection.recv(1000)
            all_asked.wait(3)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n# EOF\n")

    with contextlib.ExitStack() as stack:
        threads = []
        for path in paths.values():
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(10)
            threads.append(threading.Thread(target=serve, args=(listener,)))
            threads[-1].start()
        (missing,) = Gathered(lambda: paths).collect()
        for thread in threads:
            thread.join()
    assert {sample.labels["process"]: sample.value for sample in missing.samples} == dict.fromkeys(paths, 0)


def test_families_of_one_name_are_joined():
    first, second, other = (Family(name, "Told.", "gauge") for name in ("a", "a", "b"))
    first.add_sample("a", {"process": "1"}, 1)
    second.add_sample("a", {"process": "2"}, 2)
    assert [(family.name, len(family.samples)) for family in joined([[first], [other, second]])] == [("a", 2), ("b", 0)]
    assert len(first.samples) == 1


def test_an_instance_named_by_the_environment_is_told_apart(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7")
    found = {
        process: Telemetry.create(version="1", process=process)._tracers.resource.attributes["service.instance.id"]
        for process in ("server", "front-1", "engine-0")
    }
    assert found == {"server": "pod-7", "front-1": "pod-7-front-1", "engine-0": "pod-7-engine-0"}


def test_no_one_at_a_socket(folder):
    with pytest.raises((OSError, http.client.HTTPException)):
        read_page(folder / "nobody.sock")
