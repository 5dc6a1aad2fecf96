"""Tracers that cost little: of light spans, where nobody but a tail sampler wants any, and of mere ids, where nobody does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes

from server.light_span import LightSpan, below


class Decides(Protocol):
    """What a tracer asks, and tells of what ends; see `TailSampler`."""

    def is_sampled(self, parent: SpanContext | None, trace_id: int) -> bool:
        """Whether a call is kept in any case."""

    def light_ended(self, span: LightSpan) -> None:
        """A span has ended."""


class _CheapTracer(Tracer):
    """OpenTelemetry's interface; what kind of span is begun the subclass says."""

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """As of any tracer."""
        current = get_current_span(context)
        found = current.get_span_context()
        told = {"kind": kind, "attributes": attributes, "links": links or (), "start_time": start_time}
        return self._begun(name, current, found if found.is_valid else None, told)

    def start_as_current_span(  # type: ignore[override]  # theirs is a decorator too
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> AbstractContextManager[Span]:
        """As of any tracer."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        return _Current(span, records=record_exception, sets_status=set_status_on_exception, ends=end_on_exit)

    @abstractmethod
    def _begun(self, name: str, current: Span, parent: SpanContext | None, told: Mapping[str, Any]) -> Span:
        """A span below `parent`, the ids of `current` where it has some; `told` as `LightSpan` takes it."""


class LightTracer(_CheapTracer):
    """A tracer of light spans."""

    def __init__(self, sampler: Decides, resource: Resource, scope: InstrumentationScope) -> None:
        self._sampler = sampler
        self._resource = _Hashed(resource.attributes, resource.schema_url)
        self._scope = scope

    def _begun(self, name: str, current: Span, parent: SpanContext | None, told: Mapping[str, Any]) -> LightSpan:
        own = below(parent)
        return LightSpan(
            self._sampler.light_ended,
            name,
            own,
            parent,
            resource=self._resource,
            scope=self._scope,
            root=current.root if isinstance(current, LightSpan) else None,
            sampled=self._sampler.is_sampled(parent, own.trace_id),
            **told,
        )


class _Hashed(Resource):
    """A resource that is hashed once: an exporter does it for every span, and OpenTelemetry's writes JSON for it."""

    def __init__(self, attributes: Attributes, schema_url: str | None = None) -> None:
        super().__init__(attributes or {}, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    __eq__ = Resource.__eq__


class IdTracer(_CheapTracer):
    """A tracer of spans that nobody wants, for their trace ids, which logs and answers have."""

    def _begun(self, name: str, current: Span, parent: SpanContext | None, told: Mapping[str, Any]) -> NonRecordingSpan:
        return NonRecordingSpan(below(parent, sampled=False))


class _Current:
    """A span while it is the current one."""

    def __init__(self, span: Span, *, records: bool, sets_status: bool, ends: bool) -> None:
        self._span = span
        self._records, self._sets_status, self._ends = records, sets_status, ends

    def __enter__(self) -> Span:
        self._token = attach(set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        detach(self._token)
        if isinstance(error, Exception):
            if self._records:
                self._span.record_exception(error)
            if self._sets_status:
                self._span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        if self._ends:
            self._span.end()
