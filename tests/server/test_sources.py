from __future__ import annotations

import asyncio
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge, UriNotAllowed
from server.sources import Part, Ranges, Source, Uri, WholeBytes, receive

MOST = 1 << 20


def received(source: Source, most_bytes: int = MOST) -> bytes:
    with asyncio.run(receive(source, most_bytes=most_bytes)) as shared:
        return shared.read(0, shared.size)


@given(st.binary(min_size=1, max_size=5000))
def test_whole_bytes_arrive_unchanged(data: bytes) -> None:
    assert received(WholeBytes(data)) == data


def test_large_sources_arrive_unchanged() -> None:
    data = os.urandom(MOST)
    assert received(WholeBytes(data)) == data


@given(st.binary(min_size=1, max_size=300), st.sets(st.integers(1, 299)), st.randoms())
def test_ranges_in_any_order_are_put_together(data: bytes, cuts: set[int], random: object) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parts = [Part(a, data[a:b]) for a, b in itertools.pairwise(edges)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert received(Ranges(len(data), tuple(parts))) == data


@given(st.binary(min_size=2, max_size=300), st.data())
def test_missing_bytes_are_named_exactly(data: bytes, draw: st.DataObject) -> None:
    begin = draw.draw(st.integers(0, len(data) - 1))
    end = draw.draw(st.integers(begin + 1, len(data)))
    parts = tuple(Part(a, data[a:b]) for a, b in ((0, begin), (end, len(data))) if a < b)
    with pytest.raises(RangesNeeded) as caught:
        received(Ranges(len(data), parts))
    assert caught.value.facts["ranges"] == f"{begin}-{end - 1}"


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (WholeBytes(b""), EmptySource, "0 bytes"),
        (Ranges(0, ()), EmptySource, "0 bytes"),
        (WholeBytes(b"x" * 11), TooLarge, "bytes: 11, at most 10"),
        (Ranges(1 << 50, ()), TooLarge, "at most 10"),
        (Ranges(9, (Part(0, b"abcde"), Part(3, b"xy"))), BadPolicy, "overlaps"),
        (Ranges(9, (Part(8, b"ab"),)), BadPolicy, "outside"),
        (Ranges(9, (Part(1, b""),)), BadPolicy, "empty"),
        (Uri("file:///etc/passwd"), UriNotAllowed, "passwd"),
    ],
)
def test_refusals_say_what_is_wrong(source: Source, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        received(source, most_bytes=10)


async def test_cancelling_a_large_copy_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    task = asyncio.create_task(receive(WholeBytes(b"x" * (64 << 20)), most_bytes=1 << 30))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(200):
        if len(os.listdir("/proc/self/fd")) <= before:
            break
        await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
