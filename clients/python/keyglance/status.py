"""From a gRPC status back to the error that the server raised: one table for the synchronous and the asynchronous client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar, cast

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from keyglance.errors import (
    ERROR_DOMAIN,
    ERRORS,
    Cancelled,
    DeadlineExceeded,
    InternalError,
    KeyglanceError,
    NotPermitted,
    Overloaded,
    RangesNeeded,
    RequestError,
    ServerUnreachable,
    ServiceError,
    TooLarge,
    Unauthenticated,
    Unimplemented,
)
from keyglance.v1 import keyglance_pb2 as pb

_Detail = TypeVar("_Detail", error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, pb.MissingRanges)

#: The trailer in which a server names the call's trace, on errors too.
TRACE_ID_KEY = "keyglance-trace-id"

#: What a status without Keyglance's details means: it comes from gRPC itself or from something on the way.
_BY_STATUS: Mapping[grpc.StatusCode, type[KeyglanceError]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: ServerUnreachable,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotPermitted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.INVALID_ARGUMENT: RequestError,
    grpc.StatusCode.FAILED_PRECONDITION: RequestError,
    grpc.StatusCode.OUT_OF_RANGE: RequestError,
    grpc.StatusCode.NOT_FOUND: RequestError,
    grpc.StatusCode.ALREADY_EXISTS: RequestError,
}

#: gRPC tells of messages over its limits by text alone.
_MESSAGE_TOO_LARGE = re.compile(r"(CLIENT|SERVER): (Sent|Received) message larger than max \((\d+) vs\. (\d+)\)")
#: What gRPC for Python says of calls that this process itself cancelled. Others that end as cancelled were dropped by a server
#: that stops: gRPC has no better word for calls that it holds then.
_CANCELLED_HERE = frozenset({"Locally cancelled by application!", "Channel closed!"})
_LAST_CONNECTION_ERROR = re.compile(r"last error: (?:[A-Z_]+: )?(?:(?:ipv4|ipv6|unix):\S+: )?(.*)", re.DOTALL)


def error_from(failure: grpc.RpcError, *, target: str, timeout: float | None) -> KeyglanceError:
    """The error that `failure` stands for, with `failure` as its cause.

    `target` and `timeout` (seconds) are those of the call, for messages. A reason that this client does not know becomes a
    plain `RequestError` or `ServiceError`, by its status, with the word in `facts['reason']`. `facts['trace_id']` is the call's
    W3C trace id where the server gave it.
    """
    code, text = failure.code(), failure.details() or ""
    details = _details(failure)
    info = _unpacked(details, error_details_pb2.ErrorInfo())
    if info is not None and info.domain == ERROR_DOMAIN:
        error = _from_info(info, code, text)
    else:
        error = _from_status(code, text, target, timeout)
    retry = _unpacked(details, error_details_pb2.RetryInfo())
    if retry is not None:
        error.retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    missing = _unpacked(details, pb.MissingRanges())
    if missing is not None and isinstance(error, RangesNeeded):
        error.ranges = tuple((part.offset, part.size) for part in missing.ranges)
    trace_id = _trace_id(failure)
    if trace_id is not None:
        error.facts.setdefault("trace_id", trace_id)
    error.__cause__ = failure
    return error


def _trace_id(failure: grpc.RpcError) -> str | None:
    for key, value in cast(grpc.Call, failure).trailing_metadata() or ():
        if key == TRACE_ID_KEY and isinstance(value, str):
            return value
    return None


def _details(failure: grpc.RpcError) -> status_pb2.Status | None:
    try:
        return rpc_status.from_call(cast(grpc.Call, failure))
    except Exception:  # Whatever stands in the trailers, it must not hide the failure itself.
        return None


def _unpacked(details: status_pb2.Status | None, into: _Detail) -> _Detail | None:
    for detail in details.details if details is not None else ():
        if detail.Is(into.DESCRIPTOR) and detail.Unpack(into):
            return into
    return None


def _from_info(info: error_details_pb2.ErrorInfo, code: grpc.StatusCode, text: str) -> KeyglanceError:
    facts = dict(info.metadata)
    known = ERRORS.get(info.reason)
    if known is not None:
        return known(text, facts=facts)
    branch = RequestError if issubclass(_BY_STATUS.get(code, InternalError), RequestError) else ServiceError
    return branch(f"{text} ({info.reason})", facts={**facts, "reason": info.reason})


def _from_status(code: grpc.StatusCode, text: str, target: str, timeout: float | None) -> KeyglanceError:
    facts = {"target": target, "status": code.name}
    too_large = _MESSAGE_TOO_LARGE.search(text)
    if too_large is not None:
        side, way, size, limit = too_large[1], too_large[2], int(too_large[3]), int(too_large[4])
        if (side, way) in {("CLIENT", "Sent"), ("SERVER", "Received")}:
            return TooLarge.over("bytes", size, limit)
        return TooLarge(
            f"the answer has {size:,} bytes, at most {limit:,} are allowed; ask for fewer or smaller thumbnails",
            facts={"what": "answer bytes", "value": str(size), "limit": str(limit)},
        )
    cls = _BY_STATUS.get(code, InternalError)
    if cls is Cancelled and text not in _CANCELLED_HERE:
        return ServerUnreachable(f"{target} broke the call off", facts=facts)
    if cls is ServerUnreachable:
        last = _LAST_CONNECTION_ERROR.search(text)
        message = f"no server answers at {target}: {last[1].strip() if last else text or 'unavailable'}"
    elif cls is DeadlineExceeded:
        message = f"no answer from {target}" + ("" if timeout is None else f" within {timeout:g} s")
    elif cls is Unimplemented:
        message = f"the server at {target} does not know this call ({text or 'unimplemented'}); is it a Keyglance server?"
    else:
        message = f"{target} answered {code.name}: {text}" if text else f"{target} answered {code.name}"
    return cls(" ".join(message.split()), facts=facts)
