"""Spans on their way to a collector: a bounded queue in front of the exporter, in which every span that is lost is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

#: Spans that wait at the most (about 2 kB each), where OTEL_BSP_MAX_QUEUE_SIZE does not say: some seconds of a full server.
QUEUE = 16384
_BATCH = 2048  # spans sent at once: a message's fixed cost is that of some dozen spans
_DELAY = 1000  # milliseconds


class SpanExport:
    """OpenTelemetry's batch processor, which neither says how full it is nor counts what is lost, within a count of its own.

    `queue`, else OTEL_BSP_MAX_QUEUE_SIZE, bounds the spans that wait or are being sent. For any thread.
    """

    def __init__(self, exporter: SpanExporter, *, queue: int | None = None) -> None:
        self._exporter = exporter
        self._queue = queue or _number(OTEL_BSP_MAX_QUEUE_SIZE, QUEUE)
        self._lock = threading.Lock()
        self._pending = 0
        #: Spans that the collector has taken.
        self.exported = 0
        #: Spans lost because too many waited.
        self.overflowed = 0
        #: Spans that the collector did not take, after the exporter's retries.
        self.failed = 0
        self._batches = BatchSpanProcessor(
            _Counting(self),
            max_queue_size=self._queue,
            schedule_delay_millis=_number(OTEL_BSP_SCHEDULE_DELAY, _DELAY),
            max_export_batch_size=min(self._queue, _number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, _BATCH)),
        )

    @property
    def pending(self) -> int:
        """Spans that wait or are being sent."""
        return self._pending

    def take(self, spans: Iterable[ReadableSpan]) -> None:
        """Queues ended spans; those for which there is no room are lost."""
        all_spans = tuple(spans)
        with self._lock:
            room = min(len(all_spans), self._queue - self._pending)
            self._pending += room
            self.overflowed += len(all_spans) - room
        for span in all_spans[:room]:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Sends what waits and ends the exporter; what cannot be sent counts as failed."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]
        with self._lock:
            self.failed += self._pending
            self._pending = 0

    def send(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """On the batch processor's thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                self._pending = max(0, self._pending - len(spans))
                if result is SpanExportResult.SUCCESS:
                    self.exported += len(spans)
                else:
                    self.failed += len(spans)
        return result

    def end(self) -> None:
        """Ends the exporter."""
        self._exporter.shutdown()


class _Counting(SpanExporter):
    def __init__(self, export: SpanExport) -> None:
        self._export = export

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._export.send(spans)

    def shutdown(self) -> None:
        self._export.end()


def _number(variable: str, usual: int) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) else usual
