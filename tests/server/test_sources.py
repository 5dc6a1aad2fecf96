from __future__ import annotations

import asyncio
import itertools
import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge, UriNotAllowed
from server.sources import Given, Part, Ranges, Source, Uri, WholeBytes, receive

MOST = 1 << 20


def whole(source: Source) -> bytes:
    with asyncio.run(source.shared()) as shared:
        return shared.read(0, shared.size)


@st.composite
def torn(draw: st.DrawFn) -> tuple[bytes, list[Part], set[int]]:
    """A file, parts of it in any order, and the offsets of bytes that no part holds."""
    data = draw(st.binary(min_size=1, max_size=200))
    cuts = draw(st.sets(st.integers(1, 199)))
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parts = [Part(a, data[a:b]) for a, b in itertools.pairwise(edges)]
    kept = [part for part in parts if draw(st.booleans())]
    present = {n for part in kept for n in range(part.offset, part.offset + len(part.data))}
    random.Random(draw(st.integers())).shuffle(kept)
    return data, kept, set(range(len(data))) - present


def test_large_sources_arrive_unchanged() -> None:
    data = os.urandom(MOST)
    assert whole(receive(WholeBytes(data), most_bytes=MOST)) == data


@given(torn(), st.integers(0, 220), st.integers(0, 220))
def test_reading_gives_the_files_bytes_or_asks_for_all_that_is_missing(
    file: tuple[bytes, list[Part], set[int]], offset: int, size: int
) -> None:
    data, parts, absent = file
    source = receive(Ranges(len(data), tuple(parts)), most_bytes=MOST)
    if absent.isdisjoint(range(offset, min(offset + size, len(data)))):
        assert bytes(source.read(offset, size)) == data[offset : offset + size]
    else:
        with pytest.raises(RangesNeeded) as caught:
            source.read(offset, size)
        assert {n for begin, length in caught.value.ranges for n in range(begin, begin + length)} == absent
    if absent:
        with pytest.raises(RangesNeeded):
            whole(source)
    else:
        assert whole(source) == data


@given(torn(), st.lists(st.tuples(st.integers(0, 220), st.integers(1, 60)), max_size=6))
def test_missing_ranges_are_exact_ascending_and_joined(
    file: tuple[bytes, list[Part], set[int]], wanted: list[tuple[int, int]]
) -> None:
    data, parts, absent = file
    lacking = receive(Ranges(len(data), tuple(parts)), most_bytes=MOST).missing(wanted)
    asked = {n for begin, size in wanted for n in range(begin, begin + size)}
    assert {n for begin, size in lacking for n in range(begin, begin + size)} == asked & absent
    assert all(a + size < b for (a, size), (b, _) in itertools.pairwise(lacking))


@pytest.mark.parametrize(
    ("given_source", "error", "words"),
    [
        (WholeBytes(b""), EmptySource, "0 bytes"),
        (Ranges(0, ()), EmptySource, "0 bytes"),
        (WholeBytes(b"x" * 11), TooLarge, "bytes: 11, at most 10"),
        (Ranges(1 << 50, ()), TooLarge, "at most 10"),
        (Ranges(9, (Part(0, b"abcde"), Part(3, b"xy"))), BadPolicy, "overlaps"),
        (Ranges(9, (Part(8, b"ab"),)), BadPolicy, "outside"),
        (Ranges(9, (Part(1, b""),)), BadPolicy, "empty"),
        (Ranges(9000, tuple(Part(2 * n, b"x") for n in range(4500))), BadPolicy, "4,500 byte ranges"),
        (Uri("file:///etc/passwd"), UriNotAllowed, "passwd"),
    ],
)
def test_refusals_say_what_is_wrong(given_source: Given, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        receive(given_source, most_bytes=10 if "4,500" not in words else MOST)


async def test_cancelling_a_large_copy_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    task = asyncio.create_task(receive(WholeBytes(b"x" * (64 << 20)), most_bytes=1 << 30).shared())
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(200):
        if len(os.listdir("/proc/self/fd")) <= before:
            break
        await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before


@given(st.data())
def test_what_a_source_holds_is_what_it_does_not_miss(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 60))
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    spans = [span for span in itertools.pairwise([0, *cuts, size]) if span[0] < span[1] and data.draw(st.booleans())]
    source = receive(Ranges(size, tuple(Part(begin, bytes(end - begin)) for begin, end in spans)), most_bytes=MOST)
    wanted = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 20)), max_size=8))
    held = source.holds(np.array([p for p, _ in wanted], np.int64), np.array([s for _, s in wanted], np.int64))
    assert held.tolist() == [not source.missing([each]) for each in wanted]
