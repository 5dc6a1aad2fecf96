"""Requests that were serialised by hand are those that protobuf reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyglance.v1 import keyglance_pb2 as pb
from keyglance.wire import serialise

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
ranges = st.builds(
    pb.ByteRanges,
    file_size=numbers,
    ranges=st.lists(st.builds(pb.ByteRange, offset=numbers, data=st.one_of(st.binary(max_size=9), st.just(bytes(20_000))))),
)
small = {
    "sampling": st.one_of(st.none(), st.builds(pb.SamplingPolicy, frames=st.integers(0, 9), largest_gap=st.floats(0, 9))),
    "models": st.lists(st.text(max_size=4), max_size=3),
    "least_score": st.one_of(st.none(), st.floats(0, 1, width=32)),
    "returns": st.one_of(st.none(), st.builds(pb.ReturnOptions, thumbnails=st.booleans())),
    "request_id": st.text(max_size=5),
}
messages = st.one_of(
    st.builds(pb.LabelRequest, ranges=ranges, **small),
    st.builds(pb.LabelRequest, data=st.binary(max_size=9), **small),
    st.builds(pb.LabelRequest, uri=st.text(max_size=9), **small),
    st.builds(pb.LabelRequest, **small),
)


@given(messages)
def test_what_is_serialised_here_is_the_same_message(message: pb.LabelRequest) -> None:
    data = serialise(message)
    assert pb.LabelRequest.FromString(data) == message
    assert len(data) == message.ByteSize()
