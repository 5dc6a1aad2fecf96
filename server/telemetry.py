"""OpenTelemetry: providers, exporters, and the caller's context.

Nothing is global: `Telemetry.create` builds the providers, and whoever needs a tracer or a meter gets it handed down. OTLP
exporters follow OpenTelemetry's own environment variables; with none of them set nothing leaves the process, but trace ids exist.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_ATTRIBUTE_COUNT_LIMIT,
    OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT,
    OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT,
    OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT,
    OTEL_SPAN_LINK_COUNT_LIMIT,
)
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server.deadline import Deadline
from server.exposition import CollectingReader, Gathered, MetricsPort, Own, PrometheusReader
from server.light_tracer import IdTracer, LightTracer
from server.metrics import Metrics
from server.process_readings import process_readings
from server.profile import Profile, ProfileRecorder
from server.span_export import SpanExport
from server.steps import Steps
from server.tail_sampler import TailSampler
from server.tally import Tallies, WithHistograms
from server.trace_readings import TraceReadings

SCOPE = "keyglance"

# A batch is linked to every call in it: as many as the largest that can be configured has frames. The SDK would keep 128.
_MOST_LINKS = 1024
# What has OpenTelemetry's own spans used, which keep to these.
_LIMITS = (
    OTEL_ATTRIBUTE_COUNT_LIMIT,
    OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT,
    OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT,
    OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT,
    OTEL_SPAN_LINK_COUNT_LIMIT,
)


class TelemetryError(Exception):
    """Telemetry cannot be had as asked: OpenTelemetry's variables name what is not there, or the metrics' address is taken."""


class Telemetry:
    """One process's tracer and meter, until `shutdown`."""

    def __init__(
        self,
        tracers: TracerProvider,
        meters: MeterProvider,
        tracer: Tracer,
        metrics: Metrics,
        port: MetricsPort | None = None,
        sampler: TailSampler | None = None,
    ) -> None:
        self._tracers = tracers
        self._meters = meters
        self._port = port
        self._sampler = sampler
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = tracer
        self.metrics = metrics
        self.metrics.observe(process_readings)

    @classmethod
    def create(
        cls,
        *,
        version: str,
        console: TextIO | None = None,
        span_processors: Sequence[SpanProcessor] = (),
        span_exporter: SpanExporter | None = None,
        trace_ratio: float = 1.0,
        metric_readers: Sequence[CollectingReader] = (),
        process: str = "server",
        prometheus: str = "",
        others: Callable[[], Mapping[str, Path]] | None = None,
        profile: Profile | None = None,
    ) -> Telemetry:
        """Providers with the exporters that the environment names and those given; `console` gets each trace as a tree.

        `span_processors` get every span; what is exported, to `span_exporter` too, `TailSampler` chooses, by `trace_ratio` where
        nothing else decides. Where nobody wants spans none are recorded, though trace ids exist.
        `process` is this one's part among several (`front-1`, `engine-0`). `prometheus`, HOST:PORT or unix:PATH, is where its
        metrics can be read, together with those of `others`: by process the Unix sockets on which they serve theirs. `profile`
        is what this process records its part of.
        Raises `TelemetryError` for variables that name an exporter or a protocol that is not installed, and for an address that
        cannot be used.
        """
        exports_traces, exports_metrics = _exports("TRACES"), _exports("METRICS")
        described = {
            "service.name": "keyglance",
            "service.version": version,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
            "keyglance.process": process,
        }
        resource = Resource.create(described).merge(_detected(process))
        processors = list(span_processors)
        if profile is not None:
            processors.append(ProfileRecorder(profile, process))
        scope = InstrumentationScope(SCOPE, version)
        asked, tallies = list(metric_readers), Tallies(scope)
        sampler = None
        if exports_traces and span_exporter is None:
            span_exporter = OTLPSpanExporter()
        if span_exporter is not None:
            export = SpanExport(span_exporter)
            processors.append(sampler := TailSampler(export, ratio=trace_ratio))
        port = None
        if prometheus:
            asked.append(reader := PrometheusReader())
            own = Own(reader)
            try:
                port = MetricsPort(prometheus, own if others is None else Gathered(others, own))
            except OSError as error:
                raise TelemetryError(f"telemetry.prometheus: cannot serve on {prometheus}: {error.strerror or error}") from None
        if console is not None:
            processors.append(SimpleSpanProcessor(TreeExporter(console)))
        # Recorded is what anybody wants; what is sent is decided at the end of a call.
        limits = SpanLimits(max_links=None if OTEL_SPAN_LINK_COUNT_LIMIT in os.environ else _MOST_LINKS)
        tracers = TracerProvider(
            ALWAYS_ON if processors else ALWAYS_OFF, resource=resource, shutdown_on_exit=False, span_limits=limits
        )
        for processor in processors:
            tracers.add_span_processor(processor)
        tracer = tracers.get_tracer(SCOPE, version)
        if not _is_disabled():
            if not processors:
                tracer = IdTracer()
            elif sampler is not None and processors == [sampler] and not any(os.environ.get(limit) for limit in _LIMITS):
                tracer = LightTracer(sampler, resource, scope)
        for each in asked:
            each.complete_with(tallies)
        readers: list[MetricReader] = [*asked]
        if exports_metrics:
            readers.append(PeriodicExportingMetricReader(WithHistograms(OTLPMetricExporter(), tallies)))
        meters = MeterProvider(readers, resource=resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
        metrics = Metrics(meters.get_meter(SCOPE, version), tallies, recorded=bool(readers) and not _is_disabled())
        telemetry = cls(tracers, meters, tracer, metrics, port, sampler)
        if sampler is not None:
            telemetry.metrics.observe(TraceReadings(sampler, export))
        return telemetry

    @property
    def prometheus(self) -> str:
        """Where the metrics can be read, as bound; empty for nowhere."""
        return "" if self._port is None else self._port.address

    def keep(self, root: int) -> None:
        """Another process keeps the call whose root span has this id: so does this one, of its batches."""
        if self._sampler is not None:
            self._sampler.keep(root)

    def tell_kept(self, told: Callable[[int], None]) -> None:
        """Has `told` called with the id of the root span of each call that is kept, on the thread on which it ends."""
        if self._sampler is not None:
            self._sampler.on_kept = told

    def extract(self, metadata: Sequence[tuple[str, str | bytes]]) -> Context:
        """The context that a caller sent (`traceparent`, `tracestate`), else an empty one."""
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        return self._propagator.extract(carrier, context=Context())

    def steps(self, deadline: Deadline) -> Steps:
        """The steps of one call; its spans become children of the current one."""
        return Steps(self.tracer, self.metrics, deadline, self.exemplar(trace.get_current_span()))

    def exemplar(self, span: Span, *, ending: bool = False) -> SpanContext | None:
        """What leads from the records of a call to its trace, where there will be one: `span`'s context, or None.

        Where no traces are sent all calls have one, because logs have their ids. `ending`: all is said of the call by now.
        """
        context = span.get_span_context()
        kept = context.is_valid if self._sampler is None else self._sampler.will_keep(span, ending=ending)
        return context if kept else None

    def shutdown(self) -> None:
        """Sends what waits and ends the exporters; may block for as long as their timeouts (10 seconds by default)."""
        self._tracers.shutdown()
        if self._port is not None:
            self._port.close()
        self._meters.shutdown()


def _detected(process: str) -> Resource:
    """What OTEL_RESOURCE_ATTRIBUTES says; an instance that it names is every process's, so each adds its part to the name."""
    detected = OTELResourceDetector().detect()
    instance = detected.attributes.get("service.instance.id")
    if instance is None or process == "server":
        return detected
    return detected.merge(Resource({"service.instance.id": f"{instance}-{process}"}))


def _is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _exports(signal: str) -> bool:
    """Whether the environment asks for OTLP of `TRACES` or `METRICS`."""
    if _is_disabled():
        return False
    endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    variable = f"OTEL_{signal}_EXPORTER"
    name = os.environ.get(variable, "").strip().lower() or ("otlp" if endpoint else "none")
    if name == "none":
        return False
    if name != "otlp":
        raise TelemetryError(f"{variable} is {name!r}; allowed are otlp and none (telemetry.console prints traces)")
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := os.environ.get(variable, "").strip().lower()) not in ("", "grpc"):
            raise TelemetryError(f"{variable} is {protocol!r}; only grpc is installed")
    return True


class TreeExporter(SpanExporter):
    """Prints each finished trace as an indented tree with milliseconds and attributes, for people.

    A trace is finished when its local root ends. A root that links to spans of other traces (a batch that served several calls)
    is shown below each span that it links to.
    """

    MOST_TRACES = 256
    MOST_SPANS = 512
    _HIDDEN = ("rpc.system.name", "rpc.method", "network.", "server.", "client.")

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._open: OrderedDict[int, list[ReadableSpan]] = OrderedDict()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Takes ended spans; prints the traces that end with them."""
        with self._lock:
            for span in spans:
                self._take(span)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Forgets unfinished traces."""
        with self._lock:
            self._open.clear()

    def _take(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None:
            return
        held = self._open.pop(context.trace_id, [])
        is_root = span.parent is None or span.parent.is_remote
        if len(held) < self.MOST_SPANS or is_root:
            held.append(span)
        if not is_root:
            self._hold(context.trace_id, held)
            return
        linked = {link.context.trace_id for link in span.links} - {context.trace_id}
        if not linked:
            self._out.write(self._tree(span, held))
            self._out.flush()
            return
        for trace_id in linked:
            others = self._open.pop(trace_id, [])
            self._hold(trace_id, [*others, *held][: self.MOST_SPANS])

    def _hold(self, trace_id: int, spans: list[ReadableSpan]) -> None:
        self._open[trace_id] = spans
        while len(self._open) > self.MOST_TRACES:
            self._open.popitem(last=False)

    def _tree(self, root: ReadableSpan, spans: list[ReadableSpan]) -> str:
        children: dict[int, list[ReadableSpan]] = {}
        known = {context.span_id for span in spans if (context := span.get_span_context())}
        root_context = root.get_span_context()
        assert root_context is not None
        for span in spans:
            if span is root:
                continue
            parents = [span.parent.span_id] if span.parent else []
            parents = parents or [link.context.span_id for link in span.links if link.context.trace_id == root_context.trace_id]
            # What hangs on something that ended later or was dropped is shown below the root.
            for parent in parents[:1] or [root_context.span_id]:
                children.setdefault(parent if parent in known else root_context.span_id, []).append(span)
        lines = [f"trace {trace.format_trace_id(root_context.trace_id)}", self._line(root, root)]
        self._branches(root, root, children, "", lines)
        return "\n".join(lines) + "\n"

    def _branches(
        self, span: ReadableSpan, root: ReadableSpan, children: dict[int, list[ReadableSpan]], indent: str, lines: list[str]
    ) -> None:
        context = span.get_span_context()
        below = sorted(children.pop(context.span_id, []) if context else [], key=lambda child: child.start_time or 0)
        for number, child in enumerate(below, 1):
            last = number == len(below)
            lines.append(f"{indent}{'└─ ' if last else '├─ '}{self._line(child, root)}")
            self._branches(child, root, children, indent + ("   " if last else "│  "), lines)

    def _line(self, span: ReadableSpan, root: ReadableSpan) -> str:
        start, end = span.start_time or 0, span.end_time or 0
        facts = [
            _fact(key.removeprefix("keyglance.").removeprefix("rpc.response."), value)
            for key, value in (span.attributes or {}).items()
            if not key.startswith(self._HIDDEN)
        ]
        if span.links:
            facts.append(f"calls={len(span.links)}")
        failed = (
            ["ERROR" + (f": {span.status.description}" if span.status.description else "")]
            if span.status.status_code is StatusCode.ERROR
            else []
        )
        at = [] if span is root else [f"+{(start - (root.start_time or 0)) / 1e6:.1f}"]
        kind = {SpanKind.SERVER: ["server"]}.get(span.kind, [])
        return "  ".join([span.name, *kind, f"{(end - start) / 1e6:.1f} ms", *at, *([" ".join(facts)] if facts else []), *failed])


def _fact(key: str, value: object) -> str:
    return f"wait={float(value) * 1e3:.1f} ms" if key == "wait" and isinstance(value, float) else f"{key}={_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return ",".join(_short(item) for item in value)
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
