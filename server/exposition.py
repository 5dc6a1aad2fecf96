"""Metrics for Prometheus: one process's own on a port or a Unix socket, and those of several processes on one port.

`PrometheusReader` turns what OpenTelemetry collected into Prometheus' families, by OpenTelemetry's compatibility rules (units and
`_total` in names, `target_info`), with exemplars, which the OpenTelemetry exporter for Python leaves out. Each sample carries
`service_instance_id` and `process`, so the samples of several processes can stand on one page: `Gathered` reads the pages of
other processes from their Unix sockets and joins them. Shared files (prometheus_client's multiprocess mode) would know neither
observed instruments nor exemplars, and would keep the values of processes that died.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import logging
import os
import socket
import socketserver
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter, ObservableUpDownCounter, UpDownCounter
from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import Attributes
from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from server.tally import HistogramCollection, Tallies

_log = logging.getLogger(__name__)

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_PATIENCE = 5.0  # seconds for another process's page; Prometheus gives up after 10

#: What Prometheus calls UCUM's units.
_UNITS = {"s": "seconds", "By": "bytes", "Hz": "hertz", "Cel": "celsius", "W": "watts"}


def prometheus_name(name: str, unit: str, *, gauge: bool) -> str:
    """The family of an OpenTelemetry metric: `keyglance.step.duration`, `s` is `keyglance_step_duration_seconds`.

    A ratio (unit `1`) says so only as a gauge; counters get `_total` on their samples, not on the family.
    """
    suffix = "ratio" if unit == "1" and gauge else _UNITS.get(unit, "")
    plain = _word(name)
    return f"{plain}_{suffix}" if suffix and not plain.endswith(f"_{suffix}") else plain


class CollectingReader(MetricReader):
    """A reader for a `MeterProvider` that collects when it is asked."""

    def __init__(self) -> None:
        kinds = (Counter, UpDownCounter, Histogram, ObservableCounter, ObservableUpDownCounter)
        super().__init__(preferred_temporality=dict.fromkeys(kinds, AggregationTemporality.CUMULATIVE))
        self._turn = threading.Lock()
        self._data: MetricsData | None = None
        self._histograms: HistogramCollection | None = None

    def complete_with(self, tallies: Tallies) -> None:
        """Has their histograms in what is collected."""
        self._histograms = HistogramCollection(tallies)

    def collected(self) -> MetricsData | None:
        """Everything as it stands; None where nothing is measured."""
        with self._turn:
            self._data = None
            super().collect(timeout_millis=_PATIENCE * 1e3)
            if self._data is None or self._histograms is None:
                return self._data
            return self._histograms.add_to(self._data)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Nothing waits here."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._data = metrics_data


class PrometheusReader(CollectingReader):
    """A reader for whoever serves its page."""

    def families(self) -> list[Family]:
        """Everything as it stands."""
        data = self.collected()
        found: dict[str, Family] = {}
        if data is None:
            return []
        for of_resource in data.resource_metrics:
            identity = _identity(of_resource.resource)
            _add_target(found, of_resource.resource, identity)
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    _add_metric(found, metric, identity)
        return list(found.values())


class Own(Collector):
    """The page of one process: what its reader has."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Family]:
        """Its families."""
        return self._reader.families()


class Gathered(Collector):
    """The pages of several processes as one: those that `sockets` names at that moment, and `own` families beside them.

    `sockets` gives the Unix sockets by process; a process that does not answer is left out, and `keyglance_scrape_missing`
    counts it, so that a dead or stuck one is not silence. All are asked at once: several stuck ones together take no longer
    than one, which is less than Prometheus' own patience.
    """

    def __init__(self, sockets: Callable[[], Mapping[str, Path]], own: Collector | None = None) -> None:
        self._sockets = sockets
        self._own = own

    def collect(self) -> Iterable[Family]:
        """All families, each once."""
        pages: list[Iterable[Family]] = [] if self._own is None else [self._own.collect()]
        missing = Family("keyglance_scrape_missing", "Processes whose metrics could not be read: 1 for each of them.", "gauge")
        sockets = self._sockets()
        with ThreadPoolExecutor(max(1, len(sockets)), thread_name_prefix="page") as threads:
            asked = {process: threads.submit(read_page, path) for process, path in sockets.items()}
        for process, page in asked.items():
            try:
                pages.append(parsed(page.result()))
            except (OSError, http.client.HTTPException, ValueError) as error:
                _log.warning("no metrics of %s: %s", process, error)
                missing.add_sample(missing.name, {"process": process}, 1)
            else:
                missing.add_sample(missing.name, {"process": process}, 0)
        return [*joined(pages), missing]


def joined(pages: Iterable[Iterable[Family]]) -> list[Family]:
    """One family of each name with the samples of all pages, in the order in which names appear."""
    found: dict[str, Family] = {}
    for page in pages:
        for family in page:
            held = found.setdefault(family.name, Family(family.name, family.documentation, family.type, family.unit))
            held.samples.extend(family.samples)
    return list(found.values())


def parsed(page: str) -> list[Family]:
    """The families of a page in OpenMetrics. Raises `ValueError`."""
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]


def read_page(path: Path) -> str:
    """The page, in OpenMetrics, that a process serves on a Unix socket. Raises `OSError` or `http.client.HTTPException`."""
    with contextlib.closing(_UnixConnection(path)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": _OPENMETRICS})
        response = connection.getresponse()
        body = response.read()
    if response.status != 200:
        raise http.client.HTTPException(f"{path} answered with {response.status} {response.reason}")
    return body.decode()


class MetricsPort:
    """Serves a collector's page over HTTP on `HOST:PORT` (port 0: any free one) or `unix:PATH`, on threads of its own.

    So a page can be read while the event loop is stuck, which is when it is wanted most. `address` is the bound one. Raises
    `OSError` where the address cannot be used. A Unix socket is for the process's own user alone.
    """

    def __init__(self, address: str, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        handler = type("Handler", (_Handler,), {"registry": registry})
        self._path: Path | None = None
        if address.startswith("unix:"):
            self._path = Path(address.removeprefix("unix:"))
            _remove_stale(self._path)
            self._server: ThreadingHTTPServer = _UnixServer(self._path, handler)
            self.address = address
        else:
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            server = _Server6 if ":" in host else _Server
            self._server = server((host, int(port)), handler)
            self.address = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serves no more. May be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<MetricsPort {self.address}>"


class _Handler(MetricsHandler):
    timeout = 10.0  # seconds; a client that says nothing keeps no thread

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        self.path = "/metrics"  # the base's name[] needs collectors that know all names before they collect
        super().do_GET()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a reader of metrics went away", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def __init__(self, path: Path, handler: type[MetricsHandler]) -> None:
        super().__init__(str(path), handler)  # type: ignore[arg-type]  # a path is an address of this family
        self.server_name, self.server_port = "localhost", 0

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's wants a host and a port
        os.chmod(str(self.server_address), stat.S_IRUSR | stat.S_IWUSR)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _remove_stale(path: Path) -> None:
    """The socket of a process that was killed; `OSError` where one still listens."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(f"{path} is there and no socket")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise OSError(f"another process serves {path}")


def _identity(resource: Resource) -> dict[str, str]:
    attributes = resource.attributes
    return {
        "service_instance_id": str(attributes.get("service.instance.id", "")),
        "process": str(attributes.get("keyglance.process", "")),
    }


def _add_target(found: dict[str, Family], resource: Resource, identity: Mapping[str, str]) -> None:
    target = found.setdefault("target", Family("target", "What the samples of an instance speak of.", "info"))
    described = {_word(key): str(value) for key, value in resource.attributes.items()}
    target.add_sample("target_info", {**described, **identity}, 1)


def _add_metric(found: dict[str, Family], metric: Metric, identity: Mapping[str, str]) -> None:
    points: Sequence[object] = metric.data.data_points
    if not points:
        return
    monotonic = isinstance(metric.data, Sum) and metric.data.is_monotonic
    kind = "histogram" if isinstance(points[0], HistogramDataPoint) else "counter" if monotonic else "gauge"
    name = prometheus_name(metric.name, metric.unit or "", gauge=kind == "gauge")
    unit = next((unit for unit in (*_UNITS.values(), "ratio") if name.endswith(f"_{unit}")), "")
    family = found.setdefault(name, Family(name, metric.description or "", kind, unit))
    for point in points:
        if isinstance(point, HistogramDataPoint):
            _add_histogram(family, point, _labels(point.attributes, identity))
        elif isinstance(point, NumberDataPoint):
            sample = f"{name}_total" if monotonic else name
            family.add_sample(sample, _labels(point.attributes, identity), point.value)


def _add_histogram(family: Family, point: HistogramDataPoint, labels: dict[str, str]) -> None:
    bounds = [*point.explicit_bounds, float("inf")]
    exemplars = dict(_placed(point.exemplars, bounds))
    count = 0
    for place, (bound, more) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
        count += more
        le = "+Inf" if bound == float("inf") else repr(float(bound))
        family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, count, exemplar=exemplars.get(place))
    family.add_sample(f"{family.name}_count", labels, count)
    family.add_sample(f"{family.name}_sum", labels, point.sum)


def _placed(exemplars: Iterable[OtelExemplar], bounds: Sequence[float]) -> Iterator[tuple[int, Exemplar]]:
    """Exemplars that lead to a trace, each with the place of its bucket."""
    for exemplar in exemplars:
        if exemplar.trace_id and exemplar.span_id:
            place = next(place for place, bound in enumerate(bounds) if exemplar.value <= bound)
            ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
            yield place, Exemplar(ids, exemplar.value, exemplar.time_unix_nano / 1e9)


def _labels(attributes: Attributes, identity: Mapping[str, str]) -> dict[str, str]:
    return {**{_word(key): str(value) for key, value in (attributes or {}).items()}, **identity}


@functools.lru_cache(1024)  # they are few, and each has its place on every line of a page
def _word(name: str) -> str:
    """A name in the characters that every version of Prometheus takes."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
