"""The steps of a call: a span, a histogram record and a `StepTiming` each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Self

import grpc
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from keyglance.errors import KeyglanceError
from server.deadline import Deadline
from server.light_span import INSIDE, LaterSpan, LightSpan, attribute, timing_facts
from server.metrics import Metrics
from server.timing import StepTiming


class Steps:
    """The steps of one call, whose root span is the current one. They may overlap and nest.

    `with steps.step("decode") as step:` measures a step here; `add` takes one that was measured elsewhere. `metrics` are there
    for whatever else the call has to count; `priority` is the call's, for its waits. `exemplar` is the call's span, if its
    records are to lead to it.
    """

    def __init__(self, tracer: Tracer, metrics: Metrics, deadline: Deadline, exemplar: SpanContext | None = None) -> None:
        self.metrics = metrics
        self.exemplar = exemplar
        self.priority = "normal"
        self.begin = time.monotonic()
        self._tracer = tracer
        self._deadline = deadline
        self._timings: list[StepTiming] = []
        self._root = get_current_span()
        self._records = self._root.is_recording()
        self._context = get_current()
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def step(self, name: str, **facts: AttributeValue) -> Step:
        """Measures the block as step `name`; an exception sets the span's status and goes on."""
        return Step(self, name, facts)

    def add(
        self,
        timing: StepTiming,
        facts: Mapping[str, AttributeValue] | None = None,
        *,
        error: BaseException | None = None,
        links: Sequence[SpanContext] = (),
    ) -> None:
        """Takes a step that was measured elsewhere (an engine): a child of the call's span with the timing's begin and end.

        `error` is what ended it, if anything did; `links` are the spans of others that did its work.
        """
        span = self.start(timing.step, dict(facts or ()), links, begin=timing.begin, context=self._context)
        self.ended(span, timing, error)

    @property
    def timings(self) -> tuple[StepTiming, ...]:
        """One timing a step, by begin; pieces of one step are joined: first begin, last end, waits and creations added."""
        joined: dict[str, StepTiming] = {}
        for timing in self._timings:
            held = joined.get(timing.step)
            joined[timing.step] = (
                timing
                if held is None
                else StepTiming(
                    timing.step,
                    min(held.begin, timing.begin),
                    max(held.end, timing.end),
                    held.wait + timing.wait,
                    held.created + timing.created,
                )
            )
        return tuple(sorted(joined.values(), key=lambda timing: (timing.begin, timing.end)))

    def start(
        self,
        name: str,
        facts: dict[str, AttributeValue],
        links: Sequence[SpanContext] = (),
        *,
        begin: float,
        context: Context | None = None,
    ) -> Span | LaterSpan:
        """A step's span, as cheap as can be: made later if the call is kept, at once if somebody wants all, else none."""
        if isinstance(self._root, LightSpan):
            later = LaterSpan(name, facts, links)
            self._root.take(later)
            return later
        if not self._records:
            return INVALID_SPAN
        return self._tracer.start_span(
            name,
            context=context,
            attributes={attribute(key): value for key, value in facts.items()},
            links=[Link(each) for each in links],
            start_time=self._wall_ns(begin),
        )

    def ended(self, span: Span | LaterSpan, timing: StepTiming, error: BaseException | None) -> None:
        """A step has ended."""
        failure = None if error is None else _describe(span, error, self._deadline)
        if isinstance(span, LaterSpan):
            span.timing = timing
        elif span is not INVALID_SPAN:
            span.set_attributes(timing_facts(timing))
            span.end(self._wall_ns(timing.end))
        self._timings.append(timing)
        self.metrics.step(
            timing.step,
            timing.end - timing.begin,
            waited=timing.wait,
            priority=self.priority,
            error=failure,
            span=self.exemplar,
        )

    def _wall_ns(self, monotonic: float) -> int:
        return self._epoch_ns + round(monotonic * 1e9)


class Step:
    """One step while it runs."""

    __slots__ = ("_begin", "_facts", "_inside", "_name", "_span", "_steps", "_token", "created", "wait")

    def __init__(self, steps: Steps, name: str, facts: dict[str, AttributeValue]) -> None:
        self._steps = steps
        self._name = name
        self._facts = facts
        self._inside: Token[LaterSpan | None] | None = None
        self._token: Token[Context] | None = None
        self.wait = 0.0
        self.created = 0

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        self._span = span = self._steps.start(self._name, self._facts, begin=self._begin)
        if isinstance(span, LaterSpan):
            self._inside = INSIDE.set(span)
        elif span is not INVALID_SPAN:
            self._token = attach(set_span_in_context(span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._inside is not None:
            INSIDE.reset(self._inside)
        elif self._token is not None:
            detach(self._token)
        timing = StepTiming(self._name, self._begin, time.monotonic(), self.wait, self.created)
        self._steps.ended(self._span, timing, error)

    def set(self, key: str, value: AttributeValue) -> None:
        """Notes a fact of this step; `key` without a dot becomes `keyglance.<key>`."""
        if self._inside is not None:
            self._facts[key] = value
        elif self._token is not None:
            self._span.set_attribute(attribute(key), value)

    def waited(self, seconds: float) -> None:
        """Adds time in which the step waited for a decoder, a batch or a worker."""
        self.wait += seconds

    def made(self, count: int = 1) -> None:
        """Adds things created on the way that are usually there already."""
        self.created += count


def _describe(span: Span | LaterSpan, error: BaseException, deadline: Deadline) -> str | None:
    """Sets a span's status for an exception and returns `error.type`; None for the caller's cancellation, which is no error."""
    if isinstance(error, asyncio.CancelledError):
        if deadline.status_of_cancellation() is grpc.StatusCode.CANCELLED:
            span.set_attribute("keyglance.cancelled", True)
            return None
        kind, text = grpc.StatusCode.DEADLINE_EXCEEDED.name, "the deadline passed"
    elif isinstance(error, KeyglanceError):
        kind, text = error.reason, error.message
    else:
        kind, text = type(error).__qualname__, str(error)
        span.record_exception(error)
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(StatusCode.ERROR, text)
    return kind
