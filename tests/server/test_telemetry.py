"""Steps, exporters, the trace tree, and logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, StatusCode, set_span_in_context

from keyglance.errors import CorruptVideo
from server import logs
from server.deadline import Deadline
from server.telemetry import Telemetry, TelemetryError, TreeExporter
from server.timing import StepTiming

FAR = Deadline(time.monotonic() + 1e6, 1e6)  # farther than any run of all tests lasts, whose import this is


def test_a_step_leaves_a_span_a_record_and_a_timing(observed):
    with observed.telemetry.tracer.start_as_current_span("call") as call:
        steps = observed.telemetry.steps(FAR)
        with steps.step("decode", codec="h264") as step:
            step.set("frames", 16)
            step.set("other.key", True)
            step.waited(0.25)
            step.made(2)
    span = observed.span("decode")
    assert span.parent.span_id == call.get_span_context().span_id
    assert dict(span.attributes) == {
        "keyglance.codec": "h264",
        "keyglance.frames": 16,
        "other.key": True,
        "keyglance.wait": 0.25,
        "keyglance.created": 2,
    }
    (timing,) = steps.timings
    assert (timing.step, timing.wait, timing.created) == ("decode", 0.25, 2)
    assert steps.begin <= timing.begin <= timing.end
    (point,) = observed.points("keyglance.step.duration")
    assert dict(point.attributes) == {"step": "decode"}
    assert point.sum == pytest.approx(timing.end - timing.begin)


def test_a_step_measured_elsewhere(observed):
    with observed.telemetry.tracer.start_as_current_span("call") as call:
        steps = observed.telemetry.steps(FAR)
    steps.add(StepTiming("infer", steps.begin + 1.0, steps.begin + 3.0, wait=0.5), {"batch": 8})
    span = observed.span("infer")
    assert span.parent.span_id == call.get_span_context().span_id
    assert span.end_time - span.start_time == pytest.approx(2e9, abs=1e3)
    assert span.start_time == pytest.approx(time.time_ns() + 1e9, abs=1e9)
    assert span.attributes["keyglance.batch"] == 8
    assert steps.timings[0].wait == 0.5


def test_pieces_of_one_step_are_joined(observed):
    steps = observed.telemetry.steps(FAR)
    for piece in (StepTiming("decode", 2, 4, 0.5, 1), StepTiming("infer", 3, 9), StepTiming("decode", 1, 3, 0.25, 2)):
        steps.add(piece)
    assert steps.timings == (StepTiming("decode", 1, 4, 0.75, 3), StepTiming("infer", 3, 9))


def test_a_batch_is_linked_to_every_call_in_it(observed):
    callers = [observed.telemetry.tracer.start_span("call").get_span_context() for _ in range(1024)]
    observed.telemetry.tracer.start_span("infer_batch", links=[Link(caller) for caller in callers]).end()
    assert [link.context for link in observed.span("infer_batch").links] == callers


def test_a_lower_limit_of_links_can_be_had(monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "3")
    spans = InMemorySpanExporter()
    tracer = Telemetry.create(version="1", span_processors=[SimpleSpanProcessor(spans)]).tracer
    callers = [tracer.start_span("call").get_span_context() for _ in range(5)]
    tracer.start_span("infer_batch", links=[Link(caller) for caller in callers]).end()
    (span,) = spans.get_finished_spans()
    assert len(span.links) == 3


async def test_steps_of_concurrent_tasks_keep_their_parents(observed):
    with observed.telemetry.tracer.start_as_current_span("call"):
        steps = observed.telemetry.steps(FAR)

        async def one(name: str) -> None:
            with steps.step(name):
                await asyncio.sleep(0)
                with steps.step(f"{name}.inner"):
                    await asyncio.sleep(0)

        await asyncio.gather(one("a"), one("b"))
    for name in ("a", "b"):
        assert observed.span(f"{name}.inner").parent.span_id == observed.span(name).context.span_id
        assert observed.span(name).parent.span_id == observed.span("call").context.span_id


@pytest.mark.parametrize(
    ("error", "deadline", "status", "kind"),
    [
        (CorruptVideo("no picture"), FAR, StatusCode.ERROR, "CORRUPT_VIDEO"),
        (ZeroDivisionError("x"), FAR, StatusCode.ERROR, "ZeroDivisionError"),
        (asyncio.CancelledError(), FAR, StatusCode.UNSET, None),
        (asyncio.CancelledError(), Deadline(0.0, 1.0), StatusCode.ERROR, "DEADLINE_EXCEEDED"),
    ],
)
def test_a_step_that_fails(observed, error, deadline, status, kind):
    with observed.telemetry.tracer.start_as_current_span("call"):
        steps = observed.telemetry.steps(deadline)
        with pytest.raises(type(error)), steps.step("decode"):
            raise error
    span = observed.span("decode")
    assert span.status.status_code is status
    assert span.attributes.get("error.type") == kind
    (point,) = observed.points("keyglance.step.duration")
    assert point.attributes.get("error.type") == kind
    assert [timing.step for timing in steps.timings] == ["decode"]


def test_the_callers_context(observed):
    sent = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("blob-bin", b"\x00")]
    with observed.telemetry.tracer.start_as_current_span("call", context=observed.telemetry.extract(sent)):
        pass
    assert f"{observed.span('call').context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert observed.telemetry.extract([("traceparent", "nonsense")]) == Context()


def test_what_describes_the_process(observed):
    with observed.telemetry.tracer.start_as_current_span("x"):
        pass
    resource = observed.span("x").resource.attributes
    assert resource["service.name"] == "keyglance"
    assert resource["service.version"] == "0.0.test"
    assert resource["service.instance.id"]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


def processors(telemetry: Telemetry) -> int:
    return len(telemetry._tracers._active_span_processor._span_processors)


def test_no_exporter_unless_the_environment_says_so(clean):
    assert processors(Telemetry.create(version="0")) == 0
    clean.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    clean.setenv("OTEL_METRICS_EXPORTER", "none")
    telemetry = Telemetry.create(version="0")
    assert processors(telemetry) == 1
    telemetry.shutdown()
    clean.setenv("OTEL_SDK_DISABLED", "true")
    assert processors(Telemetry.create(version="0")) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "jaeger"), ("OTEL_METRICS_EXPORTER", "prometheus"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
)
def test_exporters_that_are_not_there(clean, name, value):
    clean.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    clean.setenv(name, value)
    with pytest.raises(TelemetryError, match=name):
        Telemetry.create(version="0")


def test_traces_and_metrics_reach_a_collector(clean):
    traces, metrics = [], []

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):
            traces.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request, context):
            metrics.append(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    collector = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), collector)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    clean.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    telemetry = Telemetry.create(version="1")
    with telemetry.tracer.start_as_current_span("call"), telemetry.steps(FAR).step("decode"):
        pass
    telemetry.shutdown()
    collector.stop(None)
    names = {
        span.name for request in traces for found in request.resource_spans for scope in found.scope_spans for span in scope.spans
    }
    assert names == {"call", "decode"}
    assert {
        metric.name
        for request in metrics
        for found in request.resource_metrics
        for scope in found.scope_metrics
        for metric in scope.metrics
    } >= {"keyglance.step.duration"}


def test_the_environment_may_name_the_service(clean):
    clean.setenv("OTEL_SERVICE_NAME", "mine")
    clean.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    attributes = Telemetry.create(version="1")._tracers.resource.attributes
    assert (attributes["service.name"], attributes["service.version"]) == ("mine", "1")
    assert attributes["deployment.environment.name"] == "test"


@pytest.fixture
def tree() -> tuple[Telemetry, io.StringIO]:
    out = io.StringIO()
    return Telemetry.create(version="0", console=out), out


def test_the_tree(tree):
    telemetry, out = tree
    with telemetry.tracer.start_as_current_span("call") as call:
        steps = telemetry.steps(FAR)
        with steps.step("index", codec="h264"), steps.step("inner"):
            pass
        with pytest.raises(CorruptVideo), steps.step("decode"):
            raise CorruptVideo("no picture")
        batch = telemetry.tracer.start_span("batch open-nsfw", context=Context(), links=[Link(call.get_span_context())])
        batch.end()
        assert out.getvalue() == "", "a trace is printed when it is finished"
    lines = out.getvalue().splitlines()
    assert lines[0] == f"trace {call.get_span_context().trace_id:032x}"
    names = [line.split("  ")[0] for line in lines[1:]]
    assert [line.lstrip("│├└─ ").split("  ")[0] for line in lines[1:]] == [
        "call",
        "index",
        "inner",
        "decode",
        "batch open-nsfw",
    ], names
    assert "codec=h264" in lines[2]
    assert lines[3].startswith("│  └─ inner")
    assert "ERROR: no picture" in lines[4]
    assert lines[5].startswith("└─ ")
    assert "calls=1" in lines[5]


def test_the_tree_of_a_trace_that_began_elsewhere(tree):
    telemetry, out = tree
    context = telemetry.extract([("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
    with telemetry.tracer.start_as_current_span("call", context=context):
        pass
    assert out.getvalue().startswith("trace 0af7651916cd43dd8448eb211c80319c\ncall")


def test_the_tree_exporter_forgets_traces_that_never_end(observed):
    exporter = TreeExporter(io.StringIO())
    observed.telemetry._tracers.add_span_processor(SimpleSpanProcessor(exporter))
    for _ in range(TreeExporter.MOST_TRACES + 50):
        root = observed.telemetry.tracer.start_span("root", context=Context())
        observed.telemetry.tracer.start_span("child", context=set_span_in_context(root)).end()
    assert len(exporter._open) == TreeExporter.MOST_TRACES


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO, list[str]]]:
    out, formats = io.StringIO(), ["json"]
    root = logging.getLogger()
    level = root.level
    yield logging.getLogger("keyglance.test"), out, formats
    for handler in [h for h in root.handlers if h.get_name() == "keyglance"]:
        root.removeHandler(handler)
    root.setLevel(level)


def test_json_logs_carry_the_trace(log, observed):
    logger, out, _ = log
    logs.configure("json", "info", out)
    logs.configure("json", "info", out)  # twice leaves one handler
    with observed.telemetry.tracer.start_as_current_span("call") as span:
        logger.info("hello %s", "you", extra={"request_id": "r\n1"})
    logger.debug("not this")
    (line,) = out.getvalue().splitlines()
    record = json.loads(line)
    assert list(record)[:4] == ["time", "level", "logger", "message"]
    assert (record["level"], record["logger"], record["message"], record["request_id"]) == (
        "INFO",
        "keyglance.test",
        "hello you",
        "r\n1",
    )
    assert record["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert record["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert record["time"].endswith("Z")


def test_text_logs_stay_on_their_line(log):
    logger, out, _ = log
    logs.configure("text", "warning", out)
    logger.warning("careful", extra={"request_id": "a\nb\x1b[31m"})
    (line,) = out.getvalue().splitlines()
    assert "WARNING keyglance.test: careful request_id='a\\nb\\x1b[31m'" in line


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_logs_of_several_processes_tell_them_apart(log, log_format):
    logger, out, _ = log
    logs.configure(log_format, "info", out, process="front-1")
    logger.info("hello")
    (line,) = out.getvalue().splitlines()
    if log_format == "json":
        assert list(json.loads(line).items())[1] == ("process", "front-1")
    else:
        assert " INFO    [front-1] keyglance.test: hello" in line


def test_what_a_cancellation_means():
    assert Deadline.after(10).status_of_cancellation().name == "CANCELLED"
    assert Deadline(time.monotonic() + 0.09, 10).status_of_cancellation().name == "DEADLINE_EXCEEDED", "rounding of grpc-timeout"
    assert Deadline(time.monotonic() - 1, 10).status_of_cancellation().name == "DEADLINE_EXCEEDED"
    assert Deadline(time.monotonic() - 1, 10).remaining == 0
