"""Which traces are kept, with all of their spans and batches, and that nothing of the others stays."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
import weakref
from collections.abc import Iterator

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, set_span_in_context

from keyglance.errors import CorruptVideo
from server import light_span, tail_sampler
from server.deadline import Deadline
from server.engine_process.engine_host import EngineHost
from server.engine_process.remote_engine import RemoteEngine
from server.engine_process.wire import pair
from server.exposition import CollectingReader
from server.light_tracer import LightTracer
from server.slow_calls import SlowCalls
from server.steps import Steps
from server.telemetry import Telemetry
from server.timing import StepTiming
from tests.server.engine_fakes import ScriptedEngine

SAMPLED = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
NOT_SAMPLED = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")]


class World:
    """One process's telemetry over an exporter in memory. `light`: nobody else wants spans, so that they are light ones."""

    def __init__(self, ratio: float = 0.0, *, light: bool = True) -> None:
        self.out = InMemorySpanExporter()
        self.reader = CollectingReader()
        self.light = light
        self.telemetry = Telemetry.create(
            version="0",
            span_exporter=self.out,
            span_processors=[] if light else [SpanProcessor()],
            trace_ratio=ratio,
            metric_readers=[self.reader],
            process="test",
        )
        assert isinstance(self.telemetry.tracer, LightTracer) is light
        sampler = self.telemetry._sampler
        assert sampler is not None
        self.sampler = sampler

    def call(self, *, batches: int = 0, sent: list[tuple[str, str]] | None = None, **facts: str) -> Span:
        """A call of two steps, and batches that end within it."""
        tracer = self.telemetry.tracer
        root = tracer.start_span("call", context=self.telemetry.extract(sent or []), kind=SpanKind.SERVER)
        inside = set_span_in_context(root)
        step = tracer.start_span("step", context=inside)
        tracer.start_span("inner", context=set_span_in_context(step)).end()
        step.end()
        for _ in range(batches):
            self.batch(root)
        for key, value in facts.items():
            root.set_attribute({"reason": "keyglance.reason", "degradations": "keyglance.degradations"}[key], value)
        root.end()
        return root

    def batch(self, *calls: Span) -> Span:
        links = [Link(call.get_span_context()) for call in calls]
        span = self.telemetry.tracer.start_span("batch", context=Context(), links=links)
        span.end()
        return span

    def names(self) -> list[str]:
        """Of what was sent so far."""
        self.sampler._export._batches.force_flush()
        return sorted(span.name for span in self.out.get_finished_spans())

    def is_empty(self) -> bool:
        return not self.sampler._open and self.sampler._export.pending == 0


@pytest.fixture(params=[True, False], ids=["light", "of the SDK"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = World(light=request.param)
    yield made
    made.telemetry.shutdown()


WHOLE = ["batch", "call", "inner", "step"]


def test_the_callers_flag_decides(world):
    world.call(batches=1, sent=NOT_SAMPLED)
    assert world.names() == []
    world.call(batches=1, sent=SAMPLED)
    assert world.names() == WHOLE
    assert world.sampler.kept["sampled"] == 1
    assert world.is_empty()


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 20, 80), (1.0, 200, 200)])
@pytest.mark.parametrize("light", [True, False])
def test_without_one_a_ratio_does(ratio, least, most, light):
    world = World(ratio, light=light)
    for _ in range(200):
        world.call()
    assert least <= world.sampler.kept["sampled"] <= most
    assert world.names().count("call") >= world.sampler.kept["sampled"]
    world.telemetry.shutdown()


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"reason": "CORRUPT_VIDEO"}, "failed"),
        ({"reason": "WORKER_LOST"}, "failed"),
        ({"degradations": "FEWER_FRAMES"}, "degraded"),
        ({"reason": "OVERLOADED"}, "refused"),
        ({"reason": "CANCELLED"}, None),
        ({"reason": "RANGES_NEEDED"}, None),
        ({}, None),
    ],
)
def test_what_became_of_the_call_decides_too(world, facts, why):
    world.call(batches=1, sent=NOT_SAMPLED, **facts)
    assert world.names() == (WHOLE if why else [])
    assert [reason for reason, count in world.sampler.kept.items() if count] == ([why] if why else [])
    assert world.is_empty()


def test_an_errors_status_is_enough(world):
    with world.telemetry.tracer.start_as_current_span("call", context=Context()) as root:
        root.set_status(StatusCode.ERROR)
    assert world.names() == ["call"]


def test_of_an_overload_some_refusals_are_kept(world, monkeypatch):
    monkeypatch.setattr(tail_sampler.time, "monotonic", lambda: 1000.0)
    for _ in range(100):
        world.call(reason="OVERLOADED")
    assert world.names().count("call") == 10


def test_the_slowest_are_kept(world):
    world.sampler._slow["call"] = slow = SlowCalls()
    for _ in range(200):
        slow.add(1e-5)
    tracer = world.telemetry.tracer
    begin = 10**18
    for microseconds in (5, 400_000):
        tracer.start_span("call", context=Context(), start_time=begin).end(begin + microseconds * 1000)
    assert [span.end_time - span.start_time for span in world.out.get_finished_spans()] == []
    world.names()
    assert [span.end_time - span.start_time for span in world.out.get_finished_spans()] == [400_000_000]
    assert world.sampler.kept["slow"] == 1


def test_a_batch_leaves_once_with_the_first_of_its_calls_that_is_kept(world):
    tracer = world.telemetry.tracer
    calls = [tracer.start_span("call", context=Context()) for _ in range(3)]
    world.batch(*calls)
    calls[0].end()
    assert world.names() == []
    for call in calls[1:]:
        call.set_attribute("keyglance.reason", "CORRUPT_VIDEO")
        call.end()
    assert world.names() == ["batch", "call", "call"]
    assert not world.sampler._waiting
    assert not world.sampler._batches


def test_what_ends_after_its_call_shares_its_fate(world):
    for sent, names in ((NOT_SAMPLED, []), (SAMPLED, ["batch", "call", "late"])):
        root = world.telemetry.tracer.start_span("call", context=world.telemetry.extract(sent))
        late = world.telemetry.tracer.start_span("late", context=set_span_in_context(root))
        root.end()
        late.end()
        world.batch(root)
        assert world.names() == names
        assert world.is_empty()


def test_memory_is_bounded(world, monkeypatch):
    monkeypatch.setattr(tail_sampler, "_MOST_BATCHES", 5)
    for module in (light_span, tail_sampler):
        monkeypatch.setattr(module, "MOST_SPANS", 5)
    monkeypatch.setattr(tail_sampler, "_MOST_KEPT", 5)
    root, other = (world.telemetry.tracer.start_span("call", context=Context()) for _ in range(2))
    for _ in range(12):
        world.batch(root)
    world.batch(other)
    other.end()
    assert len(world.sampler._batches) == len(world.sampler._waiting[root.get_span_context().span_id]) == 4
    assert world.sampler.overflowed == 0, "nobody knows yet that they are wanted"
    for _ in range(12):
        world.telemetry.tracer.start_span("step", context=set_span_in_context(root)).end()
    root.set_attribute("keyglance.reason", "CORRUPT_VIDEO")
    root.end()
    assert world.names() == ["batch"] * 4 + ["call"] * world.light + ["step"] * 5  # OpenTelemetry's root is a span as others
    assert world.sampler.overflowed == 8 + 8 - world.light
    for _ in range(20):
        world.call(sent=SAMPLED)
    assert len(world.sampler._kept) == 5


def test_batches_of_calls_that_are_not_kept_are_forgotten(world, monkeypatch):
    calls = [world.telemetry.tracer.start_span("call", context=Context()) for _ in range(2)]
    world.batch(*calls)
    calls[0].end()
    assert len(world.sampler._batches) == 1
    calls[1].end()
    assert not world.sampler._batches
    assert not world.sampler._waiting
    # In an engine process nobody says so; there it is a matter of time.
    world.batch(calls[0])
    assert len(world.sampler._batches) == 1
    monkeypatch.setattr(tail_sampler, "_HOLD", 0.0)
    world.batch(calls[0])
    assert len(world.sampler._batches) <= 1
    assert world.sampler.overflowed == 0, "nobody asked for them"


async def test_light_spans_are_as_those_of_the_sdk(monkeypatch):
    """The same call in both worlds, sampled from its beginning and kept at its end."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = []
    for light, sent in itertools.product((True, False), (SAMPLED, NOT_SAMPLED)):
        world = World(light=light)
        telemetry = world.telemetry
        with telemetry.tracer.start_as_current_span(
            "call", context=telemetry.extract(sent), kind=SpanKind.SERVER, attributes={"a": 1}
        ) as root:
            batch = world.batch(root)
            steps = telemetry.steps(Deadline.after(100))

            async def one(name: str, steps: Steps) -> None:
                with steps.step(name, codec="h264") as step:
                    await asyncio.sleep(0.01)
                    step.set("frames", 3)
                    step.set("other.key", "x")
                    step.made()
                    with steps.step(f"{name}.inner"):
                        await asyncio.sleep(0)

            await asyncio.gather(one("a", steps), one("b", steps))
            steps.add(StepTiming("infer", steps.begin, steps.begin + 1, 0.5), {"n": 1}, links=[batch.get_span_context()])
            for error in (ZeroDivisionError("x"), CorruptVideo("no picture"), asyncio.CancelledError()):
                with pytest.raises(type(error)), steps.step(type(error).__name__):
                    raise error
            root.add_event("something", {"b": 2})
            root.set_attributes({"keyglance.reason": "INTERNAL"})
            root.set_status(StatusCode.ERROR, "broken")
            root.record_exception(ValueError("y"))
        world.names()
        spans = {span.context.span_id: span for span in world.out.get_finished_spans()}
        assert {span.context.trace_id for span in spans.values() if span.name != "batch"} == {root.get_span_context().trace_id}
        assert all(9e6 < span.end_time - span.start_time < 5e9 for span in spans.values() if span.name in ("a", "b", "infer"))
        assert all(abs(span.start_time - time.time_ns()) < 60e9 for span in spans.values())
        made.append({span.name: _shape(span, spans) for span in spans.values()})
        assert world.is_empty()
        telemetry.shutdown()
    assert made[0] == made[1] == made[2] == made[3]
    failed = {"ZeroDivisionError", "CorruptVideo", "CancelledError"}
    assert set(made[0]) == {"a", "a.inner", "b", "b.inner", "batch", "call", "infer"} | failed
    assert made[0]["a.inner"][0] == "a"


def test_a_span_that_is_current_has_what_is_raised_in_it(world):
    with pytest.raises(ValueError, match="x"), world.telemetry.tracer.start_as_current_span("call", context=Context()):
        raise ValueError("x")
    world.names()
    (span,) = world.out.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: x")
    assert [event.attributes["exception.type"] for event in span.events] == ["ValueError"]


def test_a_link_that_is_added_makes_no_batch():
    world = World(ratio=1.0)
    with world.telemetry.tracer.start_as_current_span("call", context=Context()) as root:
        root.add_link(world.batch(root).get_span_context())
        root.update_name("other")
    assert world.names() == ["batch", "other"]
    assert [len(span.links) for span in world.out.get_finished_spans()] == [1, 1]
    assert not root.is_recording()
    root.end()
    assert world.names() == ["batch", "other"]
    world.telemetry.shutdown()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_call_that_has_ended_leaves_the_collector_nothing(ratio):
    world = World(ratio=ratio)
    gc.collect()
    gc.disable()
    try:
        with world.telemetry.tracer.start_as_current_span("call", context=Context()) as root:
            world.batch(root)
            with world.telemetry.steps(Deadline.after(1)).step("decode"):
                pass
        told = weakref.ref(root)
        del root
        world.names()
        world.out.clear()
        assert told() is None
    finally:
        gc.enable()
        world.telemetry.shutdown()


def test_a_step_that_goes_on_ends_with_its_call():
    world = World(ratio=1.0)
    with world.telemetry.tracer.start_as_current_span("call", context=Context()):
        step = world.telemetry.steps(Deadline.after(1)).step("decode")
        step.__enter__()
    assert world.names() == ["call", "decode"]
    call, decode = sorted(world.out.get_finished_spans(), key=lambda span: span.name)
    assert decode.end_time == call.end_time
    world.telemetry.shutdown()


@pytest.mark.parametrize(
    "limit", ["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"]
)
def test_limits_are_kept_by_spans_that_know_them(limit, monkeypatch):
    monkeypatch.setenv(limit, "1")
    world = World(ratio=1.0, light=False)
    with world.telemetry.tracer.start_as_current_span("call", context=Context(), attributes={"a": "long"}):
        pass
    assert world.names() == ["call"]
    world.telemetry.shutdown()
    telemetry = Telemetry.create(version="0", span_exporter=InMemorySpanExporter())
    assert not isinstance(telemetry.tracer, LightTracer)
    telemetry.shutdown()


def _shape(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> tuple[object, ...]:
    parent = spans.get(span.parent.span_id) if span.parent else None
    return (
        parent and parent.name,
        dict(span.attributes),
        (span.status.status_code, span.status.description),
        span.kind,
        span.context.trace_flags,
        span.resource.attributes["keyglance.process"],
        (span.instrumentation_scope.name, span.instrumentation_scope.version),
        [(event.name, {**event.attributes, "exception.stacktrace": None}) for event in span.events],
        [spans[link.context.span_id].name for link in span.links],
    )


async def test_a_front_and_an_engine_process_agree(world):
    """The engine's own telemetry has the batches; the front's decides."""
    theirs = World()
    host = EngineHost(ScriptedEngine(), keep=theirs.telemetry.keep)
    ours, other = pair()
    host.attach(other, "front-0")
    remote = RemoteEngine("engine-0")
    remote.attach(ours)
    world.telemetry.tell_kept(remote.keep)
    try:
        tracer = world.telemetry.tracer
        for reason in ("CANCELLED", "CORRUPT_VIDEO"):
            root = tracer.start_span("call", context=Context())
            theirs.batch(root)
            root.set_attribute("keyglance.reason", reason)
            root.end()
        theirs.batch(root)  # of a call that is over
        for _ in range(500):
            if theirs.names() == ["batch", "batch"]:
                break
            await asyncio.sleep(0.01)
        assert theirs.names() == ["batch", "batch"]
        assert {span.links[0].context.span_id for span in theirs.out.get_finished_spans()} == {root.get_span_context().span_id}
        assert world.names() == ["call"]
    finally:
        await remote.close()
        await host.close()
        theirs.telemetry.shutdown()


def test_exemplars_lead_to_traces_that_are_kept(world):
    telemetry = world.telemetry
    seen = {}
    for reason in ("", "CORRUPT_VIDEO"):
        with telemetry.tracer.start_as_current_span("call", context=Context()) as root:
            if reason:
                root.set_attribute("keyglance.reason", reason)
            telemetry.metrics.call(0.2, method=f"a/{reason}", status="OK", span=telemetry.exemplar(root, ending=True))
            seen[f"a/{reason}"] = root.get_span_context().trace_id
    data = world.reader.collected()
    (duration,) = [
        metric for metric in data.resource_metrics[0].scope_metrics[0].metrics if metric.name == "rpc.server.call.duration"
    ]
    found = {point.attributes["rpc.method"]: [each.trace_id for each in point.exemplars] for point in duration.data.data_points}
    assert found == {"a/": [], "a/CORRUPT_VIDEO": [seen["a/CORRUPT_VIDEO"]]}


def test_where_nobody_wants_spans_none_are_recorded_though_ids_exist(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    telemetry = Telemetry.create(version="0")
    with telemetry.tracer.start_as_current_span("call") as span:
        assert span.get_span_context().is_valid
        assert not span.is_recording()
