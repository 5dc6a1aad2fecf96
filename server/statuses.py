"""Errors as rich gRPC statuses: `google.rpc.Status` with `ErrorInfo`, and `RetryInfo` where asking again later makes sense."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from keyglance.errors import ERROR_DOMAIN, KeyglanceError, RangesNeeded
from keyglance.v1 import keyglance_pb2 as pb

# Status and details travel in HTTP/2 trailers, of which many peers take 8 KiB in all (gRPC's soft limit). The message travels
# twice, percent-encoded (3 bytes for one) and within the details, and the details as base64: so these bounds, in bytes of UTF-8.
_LONGEST_MESSAGE = 1024
_LONGEST_FACT = 512
_ALL_FACTS = 1536
_MOST_RANGES = 120  # about 2 KiB
_FRAMING = 8  # of one fact in the message


def to_status(error: KeyglanceError) -> status_pb2.Status:
    """The error as `google.rpc.Status`, its texts cut to what fits into trailers."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    room = _ALL_FACTS
    for key, value in error.facts.items():
        name, fact = _cut(key, _LONGEST_FACT), _cut(value, _LONGEST_FACT)
        room -= len(name.encode()) + len(fact.encode()) + _FRAMING
        if room < 0:
            break
        info.metadata[name] = fact
    details: list[Message] = [info]
    if isinstance(error, RangesNeeded):
        details.append(_missing(error.ranges))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(math.ceil(max(0.0, error.retry_after) * 1e9))
        details.append(retry)
    return status_pb2.Status(
        code=error.status.value[0], message=_cut(error.message, _LONGEST_MESSAGE), details=[_packed(detail) for detail in details]
    )


def to_grpc_status(error: KeyglanceError) -> grpc.Status:
    """The error as what `ServicerContext.abort_with_status` takes."""
    return rpc_status.to_status(to_status(error))


def _missing(ranges: Sequence[tuple[int, int]]) -> pb.MissingRanges:
    """The ranges, those nearest to one another joined until they are few enough: a caller may send more than is missing."""
    spans = [(offset, offset + size) for offset, size in ranges]
    if (surplus := len(spans) - _MOST_RANGES) > 0:
        gaps = sorted(range(1, len(spans)), key=lambda n: spans[n][0] - spans[n - 1][1])
        joined = set(gaps[:surplus])
        starts = [n for n in range(len(spans)) if n not in joined]
        spans = [(spans[a][0], spans[b - 1][1]) for a, b in itertools.pairwise([*starts, len(spans)])]
    return pb.MissingRanges(ranges=[pb.MissingRange(offset=begin, size=end - begin) for begin, end in spans])


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _cut(text: str, size: int) -> str:
    data = text.encode(errors="replace")  # file names may hold lone surrogates
    return data.decode() if len(data) <= size else data[: size - 3].decode(errors="ignore") + "…"
