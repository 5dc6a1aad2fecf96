"""Which traces leave the process: decided at the end of each call, when it is known whether it failed, was degraded or slow.

All spans of a call are recorded and wait until its root span ends: below that if they are light ones, which is so where nobody
else wants spans, else here. Batches serve several calls and are roots of their own, linked to those calls' root spans: they wait
until one of these is kept. In an engine process, which has no calls of its own, the fronts say which are (`TailSampler.keep`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.semconv._incubating.attributes import rpc_attributes as rpc
from opentelemetry.trace import SpanContext, StatusCode

from server.light_span import MOST_SPANS, LightSpan
from server.slow_calls import SlowCalls
from server.span_export import SpanExport

#: Why traces are kept: the caller's flag or the ratio; else what became of the call.
REASONS = ("sampled", "failed", "refused", "degraded", "slow")
#: Attributes of a call's root span that are looked at, beside its status.
REASON, DEGRADATIONS = "keyglance.reason", "keyglance.degradations"

_USUAL = frozenset({"CANCELLED", "RANGES_NEEDED"})  # no failures: the caller left, or is asked for more of its file
_REFUSED = "OVERLOADED"
_MOST_REFUSED = 10  # of those kept a second: an overload has thousands, all alike, and metrics count each
_MOST_BATCHES = 4096  # that wait for their calls' ends
_MOST_EVICTED = 65536  # calls of batches that had no room
_MOST_KEPT = 8192  # calls whose batches may end later than they
_HOLD = 60.0  # seconds for which a batch waits


@dataclass(slots=True, eq=False)
class _Call:
    sampled: bool
    spans: list[ReadableSpan] = field(default_factory=list)
    kept: bool | None = None  # None: not decided


@dataclass(slots=True, eq=False)
class _Batch:
    since: float
    span: ReadableSpan
    calls: set[int]  # root spans of calls of which it is not known whether they are kept


class TailSampler(SpanProcessor):
    """Hands the spans of the calls that are kept to `export`, and drops the others.

    A call is kept where its caller's `traceparent` is sampled; one without a parent for the `ratio` of trace ids; and in any case
    where it failed, was degraded, or is slower than the `slow` quantile of the last minutes' calls of its method. For any thread.
    """

    def __init__(self, export: SpanExport, *, ratio: float = 1.0, slow: Callable[[], SlowCalls] = SlowCalls) -> None:
        self._export = export
        self._bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self._lock = threading.Lock()
        self._open: dict[int, _Call] = {}  # by the id of each span that has begun and not ended
        self._slow: defaultdict[str, SlowCalls] = defaultdict(slow)
        self._refused_second, self._refused = 0, 0
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        self._waiting: defaultdict[int, list[int]] = defaultdict(list)  # batches by the root spans of their undecided calls
        self._evicted: OrderedDict[int, int] = OrderedDict()  # batches that were too many, counted by those root spans
        self._kept: OrderedDict[int, None] = OrderedDict()
        #: Called with the id of the root span of each call that is kept, on the thread on which it ends.
        self.on_kept: Callable[[int], None] = lambda _: None
        #: Calls kept, by reason.
        self.kept = dict.fromkeys(REASONS, 0)
        #: Spans of calls that had too many, and of batches that were too many to wait for their calls.
        self.overflowed = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A call begins, or one of its spans."""
        context, parent = span.get_span_context(), span.parent
        if context is None:
            return
        if _is_root(parent):
            if span.links:  # a batch
                return
            self._open[context.span_id] = _Call(self.is_sampled(parent, context.trace_id))  # one step of the interpreter: no lock
        elif parent is not None and (call := self._open.get(parent.span_id)) is not None:
            self._open[context.span_id] = call

    def on_end(self, span: ReadableSpan) -> None:
        """A span ends; with a root span's end its call is decided."""
        context = span.get_span_context()
        if context is None:
            return
        if span.links and _is_root(span.parent):
            self._end_batch(span, context.span_id)
            return
        with self._lock:
            call = self._open.pop(context.span_id, None)
            if call is None:
                return
            if len(call.spans) < MOST_SPANS:
                call.spans.append(span)
            else:
                self.overflowed += 1
            if _is_root(span.parent):
                call.kept = self._is_kept(span, sampled=call.sampled)
            if call.kept is None:
                return
            if not call.kept and _is_root(span.parent):
                self._release(context.span_id)
            spans, call.spans = call.spans, []  # of a kept call, what ends after it leaves too
        if call.kept:
            self._export.take(spans)
            if _is_root(span.parent):
                self.keep(context.span_id)
                self.on_kept(context.span_id)

    def is_sampled(self, parent: SpanContext | None, trace_id: int) -> bool:
        """Whether a call is kept in any case: by the caller's flag, else for the ratio of trace ids."""
        if parent is not None:
            return parent.trace_flags.sampled
        return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound

    def light_ended(self, span: LightSpan) -> None:
        """As `on_end`, of a light span, which has with it what there is of its call."""
        own, root = span.get_span_context().span_id, span.root
        if span.is_batch:
            self._end_batch(span, own)
        elif span is not root:
            if root.kept is None:
                root.take(span)
            elif root.kept:
                self._export.take([span])
        else:
            with self._lock:
                root.kept = self._is_kept(root, sampled=root.sampled)
                if not root.kept:
                    self._release(own)
                    return
                self.overflowed += root.lost
            self._export.take([root, *root.taken()])
            self.keep(own)
            self.on_kept(own)

    def keep(self, root: int) -> None:
        """The call whose root span has this id is kept, here or in another process: its batches are, those still to end too."""
        with self._lock:
            self._kept[root] = None
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            self.overflowed += self._evicted.pop(root, 0)
            batches = [self._forget(number) for number in tuple(self._waiting.get(root, ()))]
        self._export.take(batches)

    def will_keep(self, span: trace.Span, *, ending: bool) -> bool:
        """Whether the call of a span that has not ended is kept, as far as is known; `ending`: all is said of the call by now."""
        if isinstance(span, LightSpan):
            sampled = span.root.sampled
        else:
            call = self._open.get(span.get_span_context().span_id)
            sampled = call is not None and call.sampled
            ending = ending and call is not None
        if sampled or not ending or not isinstance(span, ReadableSpan):
            return sampled
        return self._why(span, time.time_ns()) not in (None, "refused")

    def shutdown(self) -> None:
        """Sends what is kept; what is not decided is dropped."""
        self._export.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here for time to pass."""
        return True

    def _is_kept(self, root: ReadableSpan, *, sampled: bool) -> bool:
        """Decides a call that has ended, and counts it."""
        why = "sampled" if sampled else self._why(root, root.end_time or 0)
        self._slow[root.name].add(((root.end_time or 0) - (root.start_time or 0)) / 1e9)
        if why is None or (why == "refused" and not self._may_keep_refused()):
            return False
        self.kept[why] += 1
        return True

    def _why(self, root: ReadableSpan, now_ns: int) -> str | None:
        attributes = root.attributes or {}
        failure = attributes.get(REASON) or attributes.get(rpc.RPC_RESPONSE_STATUS_CODE, "OK")
        if failure == _REFUSED:
            return "refused"
        if root.status.status_code is StatusCode.ERROR or (failure != "OK" and failure not in _USUAL):
            return "failed"
        if attributes.get(DEGRADATIONS):
            return "degraded"
        slow = self._slow.get(root.name)
        return "slow" if slow is not None and slow.is_slow((now_ns - (root.start_time or 0)) / 1e9) else None

    def _may_keep_refused(self) -> bool:
        second = int(time.monotonic())
        if second != self._refused_second:
            self._refused_second, self._refused = second, 0
        self._refused += 1
        return self._refused <= _MOST_REFUSED

    def _end_batch(self, span: ReadableSpan, number: int) -> None:
        calls = {link.context.span_id for link in span.links}
        with self._lock:
            kept = not self._kept.keys().isdisjoint(calls)
            if not kept:
                self._batches[number] = _Batch(time.monotonic(), span, calls)
                for call in calls:
                    self._waiting[call].append(number)
                self._make_room()
        if kept:
            self._export.take([span])

    def _make_room(self) -> None:
        now = time.monotonic()
        while self._batches:
            number, oldest = next(iter(self._batches.items()))
            expired = now - oldest.since > _HOLD
            if not expired and len(self._batches) <= _MOST_BATCHES:
                return
            if not expired:  # lost, if one of its calls is kept after all
                for call in oldest.calls:
                    self._evicted[call] = self._evicted.pop(call, 0) + 1
                while len(self._evicted) > _MOST_EVICTED:
                    self._evicted.popitem(last=False)
            self._forget(number)

    def _release(self, root: int) -> None:
        """A call is not kept: its batches are not either, unless another call of theirs may be."""
        for number in tuple(self._waiting.pop(root, ())):
            batch = self._batches[number]
            batch.calls.discard(root)
            if not batch.calls:
                del self._batches[number]

    def _forget(self, number: int) -> ReadableSpan:
        batch = self._batches.pop(number)
        for call in batch.calls:
            self._waiting[call].remove(number)
            if not self._waiting[call]:
                del self._waiting[call]
        return batch.span


def _is_root(parent: SpanContext | None) -> bool:
    return parent is None or parent.is_remote
