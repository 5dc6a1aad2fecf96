"""Errors as rich statuses."""

from __future__ import annotations

import base64
import itertools

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from keyglance.errors import ERRORS, NotAVideo, Overloaded, RangesNeeded, TooLarge
from keyglance.v1 import keyglance_pb2 as pb
from server.statuses import to_grpc_status, to_status


def unpack(status, kind):
    for detail in status.details:
        message = kind()
        if detail.Unpack(message):
            return message
    return None


@pytest.mark.parametrize("reason", sorted(ERRORS))
def test_every_error_has_its_reason_and_status(reason):
    error = ERRORS[reason]("what was wrong")
    status = to_status(error)
    info = unpack(status, error_details_pb2.ErrorInfo)
    assert (info.domain, info.reason) == ("keyglance", reason)
    assert status.code == error.status.value[0]
    assert status.message == "what was wrong"
    sent = to_grpc_status(error)
    assert sent.code is error.status
    assert dict(sent.trailing_metadata)["grpc-status-details-bin"] == status.SerializeToString()


def test_facts_travel():
    info = unpack(to_status(TooLarge.over("pixels", 2, 1)), error_details_pb2.ErrorInfo)
    assert dict(info.metadata) == {"what": "pixels", "value": "2", "limit": "1"}


@pytest.mark.parametrize(("seconds", "nanos"), [(0.0, 0), (1.5, 1_500_000_000), (-1.0, 0)])
def test_when_to_come_back(seconds, nanos):
    retry = unpack(to_status(Overloaded("busy", retry_after=seconds)), error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToNanoseconds() == nanos
    assert unpack(to_status(Overloaded("busy")), error_details_pb2.RetryInfo) is None


@example(
    "\N{COLLISION SYMBOL}" * 3000, {str(key) + "\N{COLLISION SYMBOL}" * 30: "\N{COLLISION SYMBOL}" * 3000 for key in range(40)}
)
@example("a" * 3000, {str(key): "" for key in range(4000)})
@given(st.text(max_size=3000), st.dictionaries(st.text(max_size=40), st.text(max_size=3000), max_size=40))
def test_whatever_the_texts_are_the_status_fits_into_trailers(message, facts):
    status = to_grpc_status(NotAVideo(message, facts=facts))
    assert status.code is grpc.StatusCode.INVALID_ARGUMENT
    # 8 KiB of metadata is gRPC's soft limit; the message travels twice (percent-encoded, and inside the details).
    details = dict(status.trailing_metadata)["grpc-status-details-bin"]
    assert len(details) * 4 / 3 + len(status.details.encode()) * 3 < 8 << 10


def test_texts_that_are_no_unicode():
    assert to_status(NotAVideo("\udcff.mp4")).message == "?.mp4"


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=600))
def test_missing_ranges_travel_whole_in_few_pieces(steps):
    ranges, at = [], 0
    for gap, size in steps:
        ranges.append((at + gap, size))
        at += gap + size
    status = to_status(RangesNeeded("more", ranges=ranges))
    sent = [(part.offset, part.offset + part.size) for part in unpack(status, pb.MissingRanges).ranges]
    assert all(any(begin <= offset and offset + size <= end for begin, end in sent) for offset, size in ranges)
    assert all(a < b for (_, a), (b, _) in itertools.pairwise(sent))
    assert {begin for begin, _ in sent} <= {offset for offset, _ in ranges}
    assert len(sent) == min(len(ranges), 120)
    assert len(base64.b64encode(status.SerializeToString())) < 4096  # of the 8 KiB that trailers may have
