"""The interceptor around every call of Keyglance's own services: span, metric, deadline, admission, receiving, errors, access.

A unary handler is replaced by one that reads its request itself (for gRPC: a client-streaming one), because gRPC would read the
message before the handler runs. Only so can a call be refused, or wait for its place, before its bytes are read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import rpc_attributes as rpc
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.network_attributes import NETWORK_PEER_ADDRESS, NETWORK_PEER_PORT
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from keyglance.errors import BadPolicy, DeadlineExceeded, EmptySource, InternalError, KeyglanceError
from server.admission import Admission
from server.call import Call
from server.deadline import Deadline
from server.engine import Priority
from server.logs import ACCESS
from server.receive_budget import ReceiveBudget
from server.statuses import to_grpc_status
from server.telemetry import Telemetry
from server.urgency import Urgency

#: Trailing metadata of every call: the W3C trace id, 32 hexadecimal digits.
TRACE_ID_KEY = "keyglance-trace-id"

#: Bytes that a message may have beyond the largest one configured, for the fields around the largest video.
ENVELOPE = 64 << 10

#: Statuses that are the server's fault (OpenTelemetry's semantic conventions for gRPC server spans); others leave the span unset.
_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)

#: Methods that decode and infer, and need a place for it.
_WORK = frozenset({"Label"})

_log = logging.getLogger(__name__)
_access = logging.getLogger(ACCESS)


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: grpc.StatusCode
    reason: str = ""
    message: str = ""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """For the unary methods of `services` (full names); everything else (health, reflection) passes untouched."""

    def __init__(
        self,
        telemetry: Telemetry,
        admission: Admission,
        budget: ReceiveBudget,
        *,
        services: Sequence[str],
        default_deadline: float,
        receive_timeout: float,
        largest_message: int,
    ) -> None:
        self._telemetry = telemetry
        self._admission = admission
        self._budget = budget
        self._services = frozenset(services)
        self._default_deadline = default_deadline
        self._receive_timeout = receive_timeout
        telemetry.metrics.expect_calls()
        self._reservation = min(budget.total, largest_message + ENVELOPE)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Puts `_call` around the method's handler."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.removeprefix("/")
        if handler is None or handler.unary_unary is None or method.rpartition("/")[0] not in self._services:
            return handler

        async def call(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            return await self._call(method, handler, context)

        return grpc.stream_unary_rpc_method_handler(call)

    async def _call(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        begin = time.monotonic()
        remaining = context.time_remaining()
        deadline = Deadline.after(self._default_deadline if remaining is None else remaining)
        metadata = tuple(context.invocation_metadata() or ())
        peer = unquote(context.peer())
        attributes: dict[str, AttributeValue] = {
            rpc.RPC_SYSTEM_NAME: rpc.RpcSystemNameValues.GRPC.value,
            rpc.RPC_METHOD: method,
            **_peer_attributes(peer),
        }
        response, failure = b"", None
        with self._telemetry.tracer.start_as_current_span(
            method,
            context=self._telemetry.extract(metadata),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            trace_id = trace.format_trace_id(span.get_span_context().trace_id)
            call = Call(method, peer, deadline, trace_id, self._telemetry.steps(deadline))
            call.urgency = Urgency.announced(metadata, deadline.at, self._admission.overload.settings.caller_key)
            call.enter()
            context.set_trailing_metadata(((TRACE_ID_KEY, trace_id),))
            outcome = _Outcome(grpc.StatusCode.UNKNOWN)
            try:
                response = await self._answer(handler, context, call)
                code = context.code()
                outcome = _Outcome(code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK)
            except KeyglanceError as error:
                failure = error
            except grpc.aio.AbortError:  # the servicer has sent a status itself
                code = context.code()
                outcome = _Outcome(
                    code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN, message=context.details()
                )
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    code = deadline.status_of_cancellation()
                    missed = code is grpc.StatusCode.DEADLINE_EXCEEDED
                    outcome = _Outcome(code, code.name, "the deadline passed" if missed else "cancelled by the caller")
                    raise
                # Something inside was cancelled, not this call; gRPC would send no status at all.
                failure = self._unexpected(span, call, error)
            except Exception as error:
                failure = self._unexpected(span, call, error)
            finally:
                if failure is not None:
                    outcome = _Outcome(failure.status, failure.reason, failure.message)
                self._finish(span, call, outcome, time.monotonic() - begin)
        if failure is not None:
            status = to_grpc_status(failure)
            await context.abort(status.code, status.details, (*(status.trailing_metadata or ()), (TRACE_ID_KEY, trace_id)))
        return response

    async def _answer(self, handler: grpc.RpcMethodHandler[Any, Any], context: Any, call: Call) -> bytes:
        timeout = asyncio.timeout(call.deadline.remaining)
        try:
            async with timeout, AsyncExitStack() as held:
                call.timeout = timeout
                assert handler.unary_unary is not None
                # The servicer alone holds the request, whose memory is freed with the object only (not by `Clear`).
                response = await handler.unary_unary(await self._receive(handler, context, call, held), context)
                serializer = handler.response_serializer
                answer: bytes = response if serializer is None else serializer(response)
                call.response_bytes = len(answer)
                return answer
        except TimeoutError:
            if not timeout.expired():
                raise
            raise call.cut or DeadlineExceeded(f"no answer within the call's deadline of {call.deadline.timeout:.3g} s") from None

    async def _receive(
        self,
        handler: grpc.RpcMethodHandler[Any, Any],
        context: grpc.aio.ServicerContext[Any, Any],
        call: Call,
        held: AsyncExitStack,
    ) -> Any:
        """The request, parsed; the call stays admitted, its size reserved and its place taken until `held` is left.

        What can be refused without it is refused before it is read. The call waits for its place afterwards, in memory that the
        budget bounds: only the request tells how urgent it is, and a slow sender must not hold a place.
        """
        works = call.method.rpartition("/")[2] in _WORK
        with call.steps.step("receive") as step:
            asked = time.monotonic()
            await held.enter_async_context(self._admission.admit(call))
            if works:
                self._admission.overload.come(call.urgency, self._budget.waiting)
            reservation = await held.enter_async_context(self._budget.reserve(self._reservation))
            step.waited(time.monotonic() - asked)
            if works and reservation.waited:
                self._admission.overload.check(call.urgency)
            try:
                async with asyncio.timeout(self._receive_timeout) as timeout:
                    message = await context.read()
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise DeadlineExceeded(f"the request did not arrive within {self._receive_timeout:g} s") from None
            if not isinstance(message, bytes):
                # No message: the caller is gone (its cancellation arrives now), sent none, or sent one that gRPC has
                # already refused as too large.
                await asyncio.sleep(0.01)
                raise EmptySource("the call carries no request message, or one that is too large")
            call.request_bytes = len(message)
            reservation.shrink(len(message))
            step.set("bytes", len(message))
            deserializer = handler.request_deserializer
            try:
                request = message if deserializer is None else deserializer(message)
            except Exception as error:
                raise BadPolicy(f"the {len(message):,} bytes received are no request of {call.method}: {error}") from None
            del message  # the request is waited with, not both
            if works:
                call.urgency = call.urgency.of_request(request)
                call.steps.priority = call.urgency.priority.name.lower()
                if call.urgency.priority is not Priority.NORMAL:
                    call.facts["priority"] = call.steps.priority
                asked = time.monotonic()
                call.place = await held.enter_async_context(self._admission.overload.place(call.urgency))
                step.waited(time.monotonic() - asked)
            return request

    def _unexpected(self, span: Span, call: Call, error: BaseException) -> InternalError:
        _log.exception("unexpected error in %s", call.method, extra={"peer": call.peer, **call.facts})
        span.record_exception(error)
        return InternalError(f"internal error; the server's log has more under trace id {call.trace_id}")

    def _finish(self, span: Span, call: Call, outcome: _Outcome, seconds: float) -> None:
        span.set_attribute(rpc.RPC_RESPONSE_STATUS_CODE, outcome.status.name)
        if outcome.reason:
            span.set_attribute("keyglance.reason", outcome.reason)
        for key, value in call.facts.items():
            span.set_attribute(f"keyglance.{key}", value)
        fault = outcome.status in _FAULTS
        if fault:
            span.set_attribute(ERROR_TYPE, outcome.status.name)
            span.set_status(StatusCode.ERROR, outcome.message or None)
        self._telemetry.metrics.call(
            seconds,
            method=call.method,
            status=outcome.status.name,
            reason=outcome.reason,
            fault=fault,
            span=self._telemetry.exemplar(span, ending=True),
        )
        facts = {
            "method": call.method,
            "status": outcome.status.name,
            **({"reason": outcome.reason} if outcome.reason else {}),
            "duration_ms": round(seconds * 1e3, 1),
            "request_bytes": call.request_bytes,
            "response_bytes": call.response_bytes,
            "peer": call.peer,
            **call.facts,
        }
        _access.log(logging.WARNING if fault else logging.INFO, outcome.message or "answered", extra=facts)


def _peer_attributes(peer: str) -> dict[str, AttributeValue]:
    """`ipv4:127.0.0.1:50412`, `ipv6:[::1]:50412`, `unix:…` as network.peer attributes."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return {NETWORK_PEER_ADDRESS: rest} if rest else {}
    address, _, port = rest.rpartition(":")
    return {NETWORK_PEER_ADDRESS: address.strip("[]"), **({NETWORK_PEER_PORT: int(port)} if port.isdecimal() else {})}
