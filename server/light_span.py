"""Spans that cost little until their call turns out to be kept, which most are not.

OpenTelemetry's own cost about 50 µs each (locks, bounded and checked attributes, processors), a call has ten and its batches one.
A `LightSpan` has the same things in plain fields and is a `ReadableSpan`, so exporters take it; a `LaterSpan`, a step's, is
not even one before its call is kept. OpenTelemetry's limits of attributes and links are not applied to either.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes import exception_attributes as of_exception
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import Attributes, AttributeValue

from server.timing import StepTiming

#: Of one call: what is beyond is not kept.
MOST_SPANS = 256

# Seconds; what every queue takes when nothing is in it is no wait.
_LEAST_WAIT = 1e-4
_IDS = RandomIdGenerator()
# By whether it is sampled and has a random trace id (W3C Trace Context, level 2).
_FLAGS = {
    (sampled, random): TraceFlags(sampled * TraceFlags.SAMPLED | random * TraceFlags.RANDOM_TRACE_ID)
    for sampled in (False, True)
    for random in (False, True)
}


class LightSpan(ReadableSpan, Span):
    """A call's root span, one below it, or a batch's; `ended` is called once, with the span.

    `sampled`: its call is kept in any case. `kept` is None until that is decided. `later` are the steps of a root's call, and
    spans below the root that have ended. A root that is begun with links is a batch's. Only one thread at a time may write to it.
    """

    def __init__(
        self,
        ended: Callable[[LightSpan], None],
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        *,
        resource: Resource | None = None,
        scope: InstrumentationScope | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        start_time: int | None = None,
        root: LightSpan | None = None,
        sampled: bool = False,
    ) -> None:
        now = time.time_ns()
        super().__init__(
            name,
            context,
            parent,
            resource,
            dict(attributes or ()),
            links=links,
            kind=kind,
            start_time=now if start_time is None else start_time,
            instrumentation_scope=scope,
        )
        self._ended = ended
        self._now = now - time.monotonic_ns()
        self._root = root  # none of its own: what refers to itself only the collector frees
        self.sampled = sampled
        self.kept: bool | None = None
        self.is_batch = bool(links) and (parent is None or parent.is_remote)
        self.later: list[LaterSpan | LightSpan] = []
        #: Steps and spans that were too many.
        self.lost = 0

    @property
    def root(self) -> LightSpan:
        """The root of its call: this one, if there is none above."""
        return self if self._root is None else self._root

    def wall_ns(self, monotonic: float) -> int:
        """A time of `time.monotonic()` on the wall clock, nanoseconds."""
        return self._now + round(monotonic * 1e9)

    def take(self, span: LaterSpan | LightSpan) -> None:
        """Has one more below this root."""
        if len(self.later) < MOST_SPANS:
            self.later.append(span)
        else:
            self.lost += 1

    def taken(self) -> list[ReadableSpan]:
        """What it has taken since the last time, made."""
        taken, self.later = self.later, []
        return [each if isinstance(each, LightSpan) else each.made(self) for each in taken]

    def end(self, end_time: int | None = None) -> None:
        """Ends it; a second time does nothing."""
        if self._end_time is None:
            self._end_time = time.time_ns() if end_time is None else end_time
            self._ended(self)

    def get_span_context(self) -> SpanContext:
        """As of any span."""
        assert self._context is not None
        return self._context

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """As of any span."""
        self._attributes.update(attributes)  # type: ignore[union-attr]  # a dict of its own

    def set_attribute(self, key: str, value: object) -> None:
        """As of any span."""
        self._attributes[key] = value  # type: ignore[index]  # a dict of its own

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """As of any span."""
        self._events = [*self._events, Event(name, attributes, timestamp)]

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """As of any span."""
        self._links = [*self._links, Link(context, attributes)]

    def update_name(self, name: str) -> None:
        """As of any span."""
        self._name = name

    def is_recording(self) -> bool:
        """Until it has ended."""
        return self._end_time is None

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """As of any span."""
        self._status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """As of any span."""
        self.add_event("exception", {**_told(exception, escaped=escaped), **(attributes or {})}, timestamp)


#: The step within which the running task is.
INSIDE: ContextVar[LaterSpan | None] = ContextVar("keyglance_later_span", default=None)


class LaterSpan:
    """A step's span, as far as it is known before it is made: `timing` once it has ended."""

    __slots__ = ("_context", "_exceptions", "_facts", "_links", "_name", "_parent", "_status", "timing")

    def __init__(self, name: str, facts: dict[str, AttributeValue], links: Sequence[SpanContext] = ()) -> None:
        self._name = name
        self._facts = facts
        self._links = links
        self._parent = INSIDE.get()
        self._status: Status | None = None
        self._exceptions: tuple[tuple[BaseException, int], ...] = ()
        self._context: SpanContext | None = None
        self.timing: StepTiming | None = None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """As of a span, but for the key, which may be one of `attribute`'s."""
        self._facts[key] = value

    def set_status(self, status: StatusCode, description: str | None = None) -> None:
        """As of a span."""
        self._status = Status(status, description)

    def record_exception(self, exception: BaseException) -> None:
        """As of a span."""
        self._exceptions = (*self._exceptions, (exception, time.time_ns()))

    def context(self, root: LightSpan) -> SpanContext:
        """Its ids, made when they are asked for: the steps inside may be made before it."""
        if self._context is None:
            self._context = below(root.get_span_context())
        return self._context

    def made(self, root: LightSpan) -> ReadableSpan:
        """The span, below the step in which it was, else below `root`, which ends what has not ended itself."""
        timing = self.timing
        return ReadableSpan(
            self._name,
            self.context(root),
            root.get_span_context() if self._parent is None else self._parent.context(root),
            root.resource,
            {attribute(key): value for key, value in self._facts.items()} | ({} if timing is None else timing_facts(timing)),
            [Event("exception", _told(exception), at) for exception, at in self._exceptions],
            [Link(each) for each in self._links],
            status=self._status or Status(),
            start_time=root.end_time if timing is None else root.wall_ns(timing.begin),
            end_time=root.end_time if timing is None else root.wall_ns(timing.end),
            instrumentation_scope=root.instrumentation_scope,
        )


def attribute(key: str) -> str:
    """The name of a step's fact as an attribute: without a dot it becomes `keyglance.<key>`."""
    return key if "." in key else f"keyglance.{key}"


def timing_facts(timing: StepTiming) -> dict[str, AttributeValue]:
    """What a step's timing says beside begin and end, as attributes."""
    facts: dict[str, AttributeValue] = {}
    if timing.wait >= _LEAST_WAIT:
        facts["keyglance.wait"] = round(timing.wait, 6)
    if timing.created:
        facts["keyglance.created"] = timing.created
    return facts


def below(parent: SpanContext | None, *, sampled: bool = True) -> SpanContext:
    """Ids of a new span in the trace of `parent`, else in a new one."""
    if parent is None:
        return SpanContext(_IDS.generate_trace_id(), _IDS.generate_span_id(), False, _FLAGS[sampled, True])
    flags = _FLAGS[sampled, parent.trace_flags.random_trace_id]
    return SpanContext(parent.trace_id, _IDS.generate_span_id(), False, flags, parent.trace_state)


def _told(exception: BaseException, *, escaped: bool = False) -> dict[str, AttributeValue]:
    """An exception by OpenTelemetry's semantic conventions, as its SDK has it."""
    kind = type(exception)
    module = "" if kind.__module__ in ("builtins", "") else f"{kind.__module__}."
    return {
        of_exception.EXCEPTION_TYPE: f"{module}{kind.__qualname__}",
        of_exception.EXCEPTION_MESSAGE: str(exception),
        of_exception.EXCEPTION_STACKTRACE: "".join(traceback.format_exception(exception)),
        of_exception.EXCEPTION_ESCAPED: str(escaped),
    }
