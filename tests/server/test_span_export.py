"""Spans on their way out: all arrive, or are counted as lost."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from server.span_export import SpanExport


def spans(count: int) -> list[ReadableSpan]:
    provider = TracerProvider()
    made = []
    for number in range(count):
        span = provider.get_tracer("test").start_span(f"span {number}")
        span.end()
        made.append(span)
    return made


class Held(SpanExporter):
    """A collector that does not answer before `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.result = SpanExportResult.SUCCESS

    def export(self, spans):
        assert self.go.wait(10)
        if self.result is None:
            raise ConnectionError("gone")
        return self.result


def test_all_arrive_though_more_come_than_are_sent_at_once(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    out = InMemorySpanExporter()
    export = SpanExport(out)
    export.take(spans(105))
    export.shutdown()
    assert [span.name for span in out.get_finished_spans()] == [f"span {number}" for number in range(105)]
    assert (export.exported, export.overflowed, export.failed, export.pending) == (105, 0, 0, 0)


def test_what_has_no_room_is_counted(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    collector = Held()
    export = SpanExport(collector)
    export.take(spans(50))
    assert (export.pending, export.overflowed) == (20, 30)
    collector.go.set()
    export.shutdown()
    assert (export.exported, export.failed, export.pending) == (20, 0, 0)


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, None])
def test_what_the_collector_does_not_take_is_counted(result):
    collector = Held()
    collector.result = result
    collector.go.set()
    export = SpanExport(collector, queue=100)
    export.take(spans(7))
    export.shutdown()
    assert (export.exported, export.overflowed, export.failed, export.pending) == (0, 0, 7, 0)
    assert collector.go.is_set()
