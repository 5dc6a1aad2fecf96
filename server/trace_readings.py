"""What becomes of traces, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from server.metrics import SPANS_DROPPED, SPANS_EXPORTED, TRACES_KEPT, Reading
from server.span_export import SpanExport
from server.tail_sampler import TailSampler


class TraceReadings:
    """A process's traces, for `Metrics.observe`."""

    def __init__(self, sampler: TailSampler, export: SpanExport) -> None:
        self._sampler = sampler
        self._export = export

    def __call__(self) -> Iterator[Reading]:
        """How many were kept and sent, and what was lost."""
        for reason, count in self._sampler.kept.items():
            yield Reading(TRACES_KEPT, count, {"reason": reason})
        yield Reading(SPANS_EXPORTED, self._export.exported)
        yield Reading(SPANS_DROPPED, self._export.overflowed, {"reason": "queue"})
        yield Reading(SPANS_DROPPED, self._export.failed, {"reason": "export"})
        yield Reading(SPANS_DROPPED, self._sampler.overflowed, {"reason": "held"})
