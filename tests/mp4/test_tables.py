"""Sample tables against a slow and obvious model, and what broken ones give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.mp4 import tables
from tests.mp4 import build

counts = st.integers(0, 40)
rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=12)


def payload(box: bytes) -> bytes:
    return box[8:]


def expanded(table: list[tuple[int, int]], count: int) -> list[int]:
    values = [value for repeat, value in table for _ in range(repeat)]
    return values[:count]


@given(rows, counts)
def test_durations_are_the_runs_and_then_the_last_one(table: list[tuple[int, int]], count: int) -> None:
    values, covered = tables.durations(payload(build.table(b"stts", table)), count)
    told = expanded(table, count)
    assert covered == len(told)
    assert values.tolist() == told + [told[-1] if told else 0] * (count - len(told))


def test_a_negative_duration_is_none() -> None:
    values, _ = tables.durations(payload(build.table(b"stts", [(1, 100), (1, -50), (1, 100)])), 3)
    assert values.tolist() == [100, 0, 100]
    values, _ = tables.durations(payload(build.table(b"stts", [(3, -50)])), 3)
    assert values.tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(-5000, 5000)), max_size=12), counts, st.sampled_from([0, 1]))
def test_composition_offsets_are_signed_in_both_versions(table: list[tuple[int, int]], count: int, version: int) -> None:
    values = tables.composition_offsets(payload(build.table(b"ctts", table, version)), count)
    told = expanded([row for row in table if row[0] > 0], count)
    assert values is not None
    assert values.tolist() == told + [0] * (count - len(told))


def test_an_absurd_composition_offset_spoils_the_table_unless_it_is_one_of_the_last_two() -> None:
    far = (1, 1 << 29)
    assert tables.composition_offsets(payload(build.table(b"ctts", [far, (1, 0), (1, 0)])), 3) is None
    values = tables.composition_offsets(payload(build.table(b"ctts", [(1, 5), far, (1, 0)])), 3)
    assert values is not None
    assert values.tolist() == [5, 1 << 29, 0]


@given(st.lists(st.integers(0, 1 << 32), max_size=20).map(lambda sizes: [min(size, (1 << 32) - 1) for size in sizes]), counts)
def test_sizes_of_each(sizes: list[int], count: int) -> None:
    data = payload(build.full(b"stsz", 0, 0, build.u32(0, len(sizes), *sizes)))
    assert tables.sample_count(data) == len(sizes)
    assert tables.sizes(data, count, compact=False).tolist() == sizes[:count]


def test_one_size_for_all() -> None:
    data = payload(build.full(b"stsz", 0, 0, build.u32(7, 1_000_000)))
    assert tables.sizes(data, 3, compact=False).tolist() == [7, 7, 7]


@given(st.sampled_from([4, 8, 16]), st.data(), counts)
def test_compact_sizes(bits: int, data: st.DataObject, count: int) -> None:
    sizes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=20))
    track = build.Track([build.Sample(size) for size in sizes], compact=bits)
    moov = track.boxes(0)
    stz2 = moov[moov.index(b"stz2") + 4 :]
    end = 12 + (len(sizes) * bits + 7) // 8
    assert tables.sizes(stz2[:end], min(count, len(sizes)), compact=True).tolist() == sizes[:count]


def test_compact_sizes_of_unknown_width_are_none() -> None:
    assert not len(tables.sizes(payload(build.full(b"stz2", 0, 0, build.u32(5, 3), b"abc")), 3, compact=True))
    assert not len(tables.sizes(b"", 3, compact=True))


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=10))
def test_chunk_offsets(offsets: list[int]) -> None:
    wide = tables.chunk_offsets(payload(build.table(b"co64", [(offset,) for offset in offsets], pack=build.u64)), wide=True)
    assert wide.tolist() == [min(offset, 1 << 62) for offset in offsets]
    low = [offset & 0xFFFFFFFF for offset in offsets]
    narrow = tables.chunk_offsets(payload(build.table(b"stco", [(offset,) for offset in low])), wide=False)
    assert narrow.tolist() == low


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=8), st.integers(0, 30))
def test_samples_of_chunks(steps: list[tuple[int, int, int]], chunks: int) -> None:
    table, first = [], 1
    for step, samples, entry in steps:
        table.append((first, samples, entry))
        first += step
    expected = []
    for chunk in range(1, chunks + 1):
        _, samples, entry = next(row for row in reversed(table) if row[0] <= chunk)
        expected.append((samples, entry))
    found = tables.samples_of_chunks(payload(build.table(b"stsc", table)), chunks)
    assert found is not None
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected


@pytest.mark.parametrize(
    "table",
    [[], [(2, 1, 1)], [(1, 1, 1), (1, 1, 1)], [(1, 1, 1), (5, 1, 1), (3, 1, 1)], [(1, 0, 1)], [(1, 1, 0)]],
    ids=["empty", "begins late", "twice the same", "backwards", "no samples", "no description"],
)
def test_a_table_that_contradicts_itself(table: list[tuple[int, int, int]]) -> None:
    assert tables.samples_of_chunks(payload(build.table(b"stsc", table)), 5) is None


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 5)), max_size=8),
    st.lists(st.integers(0, 1 << 32), max_size=30),
)
def test_positions(chunks: list[tuple[int, int]], sizes: list[int]) -> None:
    sizes = sizes[: sum(count for _, count in chunks)]
    expected, left = [], list(sizes)
    for start, count in chunks:
        at = start
        for _ in range(count):
            if left:
                expected.append(at)
                at += left.pop(0)
    starts = np.array([start for start, _ in chunks], dtype=np.int64)
    per_chunk = np.array([count for _, count in chunks], dtype=np.int64)
    if chunks:
        assert tables.positions(starts, per_chunk, np.array(sizes, dtype=np.int64)).tolist() == expected


@given(st.lists(st.integers(0, 50)), counts)
def test_listed(numbers: list[int], count: int) -> None:
    mask = tables.listed(payload(build.table(b"stss", [(number,) for number in numbers])), count)
    assert np.flatnonzero(mask).tolist() == sorted({number - 1 for number in numbers if 1 <= number <= count})


def test_dependencies() -> None:
    data = payload(build.full(b"sdtp", 0, 0, bytes((0x20, 0x10, 0x04))))
    assert tables.dependencies(data, 9).tolist() == [2, 1, 0]


@pytest.mark.parametrize("version", [0, 1])
def test_groups(version: int) -> None:
    head = b"rap " + (build.u32(7) if version else b"")
    rap = payload(build.full(b"sbgp", version, 0, head, build.u32(2, 2, 0, 1, 1)))
    found = tables.group_indices([payload(build.full(b"sbgp", 0, 0, b"roll", build.u32(0))), rap], b"rap ", 5)
    assert found is not None
    assert found.tolist() == [0, 0, 1, 0, 0]
    assert tables.group_indices([rap], b"roll", 5) is None


@pytest.mark.parametrize(
    ("version", "head"), [(0, b""), (1, build.u32(2)), (2, build.u32(0))], ids=["version 0", "version 1", "version 2"]
)
def test_roll_distances(version: int, head: bytes) -> None:
    data = payload(build.full(b"sgpd", version, 0, b"roll", head, build.u32(2), build.u16(3, 0xFFFF)))
    assert tables.roll_distances([payload(build.full(b"sgpd", 0, 0, b"rap ")), data]).tolist() == [3, -1]


def test_roll_distances_of_unknown_length_are_none() -> None:
    assert not len(tables.roll_distances([payload(build.full(b"sgpd", 1, 0, b"roll", build.u32(0, 1), bytes(8)))]))
    assert not len(tables.roll_distances([]))


@given(st.binary(max_size=60), counts)
def test_anything_is_read_without_an_error(data: bytes, count: int) -> None:
    assert len(tables.durations(data, count)[0]) == count
    offsets = tables.composition_offsets(data, count)
    assert offsets is None or len(offsets) == count
    for compact in (False, True):
        assert len(tables.sizes(data, count, compact)) <= count
    for wide in (False, True):
        assert len(tables.chunk_offsets(data, wide)) <= len(data) // 4
    tables.samples_of_chunks(data, count)
    assert len(tables.listed(data, count)) == count
    assert len(tables.dependencies(data, count)) <= count
    tables.group_indices([data], bytes(data[4:8]), count)
    tables.roll_distances([data[:4] + b"roll" + data[8:]])
