"""A span that is made only when its call turns out to be kept: most are not, and making one costs more than a step's rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

#: The one within which the running task is.
INSIDE: ContextVar[LaterSpan | None] = ContextVar("keyglance_later_span", default=None)


class LaterSpan:
    """What `Span` takes, kept for `make`."""

    __slots__ = ("_attributes", "_begin", "_end", "_exceptions", "_links", "_name", "_parent", "_status", "made")

    def __init__(
        self, name: str, attributes: dict[str, AttributeValue], begin_ns: int, links: Sequence[SpanContext] = ()
    ) -> None:
        self._name = name
        self._attributes = attributes
        self._begin = begin_ns
        self._end: int | None = None
        self._links = links
        self._parent = INSIDE.get()
        self._status: tuple[StatusCode, str | None] | None = None
        self._exceptions: list[tuple[BaseException, int]] = []
        self.made: Span | None = None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """As of a span."""
        self._attributes[key] = value

    def set_status(self, status: StatusCode, description: str | None = None) -> None:
        """As of a span."""
        self._status = (status, description)

    def record_exception(self, exception: BaseException) -> None:
        """As of a span."""
        self._exceptions.append((exception, time.time_ns()))

    def end(self, end_time: int) -> None:
        """As of a span."""
        self._end = end_time

    def make(self, tracer: Tracer, context: Context) -> None:
        """Makes the span, in `context` or below the one in which it was, which is to be made first and closed last."""
        if self._parent is not None and self._parent.made is not None:
            context = set_span_in_context(self._parent.made, context)
        self.made = span = tracer.start_span(
            self._name,
            context=context,
            attributes=self._attributes,
            links=[Link(each) for each in self._links],
            start_time=self._begin,
        )
        for exception, at in self._exceptions:
            span.record_exception(exception, timestamp=at)
        if self._status is not None:
            span.set_status(*self._status)

    def close(self) -> None:
        """Ends the span that was made, at the time of `end`."""
        if self.made is not None:
            self.made.end(self._end)
