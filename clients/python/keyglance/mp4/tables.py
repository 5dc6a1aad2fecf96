"""Sample tables (ISO/IEC 14496-12, 8.6 to 8.9) as arrays of numbers, one per sample or chunk.

Every function takes the payload of a box as it lies in the file, of any length and content. What a table claims beyond
its bytes is not there; what the sample count does not cover is cut off. Nothing is longer than the payload or the
sample count, and no loop runs over entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Data = bytes | memoryview

#: Composition offsets beyond this are no offsets; FFmpeg drops the whole table then.
_LARGEST_OFFSET = 1 << 28


def _words(data: Data, offset: int, count: int, kind: str, width: int = 1) -> npt.NDArray[np.generic]:
    """Up to `count` rows of `width` numbers of type `kind`, as many as there are bytes for."""
    row = np.dtype(kind).itemsize * width
    rows = max(0, min(count, (len(data) - offset) // row))
    words = np.frombuffer(data, dtype=kind, count=rows * width, offset=offset if rows else 0)
    return words if width == 1 else words.reshape(rows, width)


def u32_at(data: Data, offset: int) -> int:
    """An unsigned number of four bytes; 0 where the data end before."""
    return int.from_bytes(data[offset : offset + 4], "big") if len(data) >= offset + 4 else 0


def stretch(values: Ints, counts: Ints, total: int) -> tuple[Ints, int]:
    """Each value as often as its count says, at most `total` in all; and how many that are."""
    ends = np.cumsum(counts)  # at most 2**32 times 2**24 entries: no overflow
    if not len(ends) or ends[-1] <= total:
        covered = int(ends[-1]) if len(ends) else 0
        return np.repeat(values, counts), covered
    counts = np.minimum(ends, total)
    counts[1:] -= counts[:-1].copy()
    return np.repeat(values, counts), total


def durations(data: Data, count: int) -> tuple[Ints, int]:
    """`stts`: ticks from each of `count` samples to the next in decoding order, and how many samples the table covers.

    Those behind the table have the last duration that it tells. A negative number (some writers store one to come back
    from a too long sample before) is taken for 0.
    """
    table = _words(data, 8, u32_at(data, 4), ">u4", 2).astype(np.int64)
    if len(table) == 1 and table[0, 0] >= count:
        return np.full(count, table[0, 1] if table[0, 1] < 1 << 31 else 0, dtype=np.int64), count
    ticks = np.where(table[:, 1] < 1 << 31, table[:, 1], 0)
    values, covered = stretch(ticks, table[:, 0], count)
    return _pad(values, count, int(values[-1]) if covered else 0), covered


def composition_offsets(data: Data, count: int) -> Ints | None:
    """`ctts`, versions 0 and 1: ticks from decoding to presentation of `count` samples; None for an unbelievable table.

    Version 0 is read as signed too: writers of QuickTime files store negative numbers in it.
    """
    table = _words(data, 8, u32_at(data, 4), ">i4", 2).astype(np.int64)
    table = table[table[:, 0] > 0]
    # The last two entries of some writers hold rubbish.
    if (np.abs(table[:-2, 1]) > _LARGEST_OFFSET).any():
        return None
    values, _ = stretch(table[:, 1], table[:, 0], count)
    return _pad(values, count, 0)


def sample_count(data: Data) -> int:
    """`stsz` and `stz2`: how many samples the table claims; `data` are its first 12 bytes or more."""
    return u32_at(data, 8)


def sizes(data: Data, count: int, compact: bool) -> Ints:
    """`stsz`, or `stz2` if `compact`: bytes of each of the first `count` samples; fewer where the table is shorter."""
    if not compact:
        if constant := u32_at(data, 4):
            return np.full(count, constant, dtype=np.int64)
        return _words(data, 12, count, ">u4").astype(np.int64)
    bits = data[7] if len(data) > 7 else 0
    if bits == 4:
        pairs = _words(data, 12, (count + 1) // 2, ">u1").astype(np.int64)
        return np.stack((pairs >> 4, pairs & 15), axis=1).reshape(-1)[:count]
    if bits in (8, 16):
        return _words(data, 12, count, f">u{bits // 8}").astype(np.int64)
    return np.zeros(0, dtype=np.int64)


def chunk_offsets(data: Data, wide: bool) -> Ints:
    """`stco`, or `co64` if `wide`: where each chunk begins; 2**62 stands for whatever is beyond it."""
    words = _words(data, 8, u32_at(data, 4), ">u8" if wide else ">u4")
    return np.minimum(words, np.uint64(1 << 62)).astype(np.int64) if wide else words.astype(np.int64)


def samples_of_chunks(data: Data, chunks: int) -> tuple[Ints, Ints] | None:
    """`stsc`: for each of `chunks` chunks its number of samples and their sample description, counted from 1.

    None where the table contradicts itself: chunks that do not follow each other, no samples, no description.
    """
    table: Ints = _words(data, 8, u32_at(data, 4), ">u4", 3).astype(np.int64)
    if not len(table) or table[0, 0] != 1 or (table[1:, 0] <= table[:-1, 0]).any() or (table[:, 1:] < 1).any():
        return None
    table = table[table[:, 0] <= chunks]
    if not len(table):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    repeats = np.diff(table[:, 0], append=chunks + 1)
    return np.repeat(table[:, 1], repeats), np.repeat(table[:, 2], repeats)


def positions(chunk_starts: Ints, per_chunk: Ints, size: Ints) -> Ints:
    """Where each sample begins: those of a chunk lie one behind the other."""
    count = len(size)
    ends = np.cumsum(size)  # at most 2**32 times the limit on samples: no overflow
    last = np.minimum(np.cumsum(per_chunk), count)
    first = np.concatenate((np.zeros(1, dtype=np.int64), last[:-1]))
    before = np.concatenate((np.zeros(1, dtype=np.int64), ends))
    shift = chunk_starts[: len(first)] - before[first]
    starts: Ints = ends - size + np.repeat(shift, last - first)
    return starts


def listed(data: Data, count: int) -> Mask:
    """`stss`, `stps`: a mask of the samples whose numbers, counted from 1, are in the list."""
    numbers = _words(data, 8, u32_at(data, 4), ">u4").astype(np.int64) - 1
    mask = np.zeros(count, dtype=np.bool_)
    mask[numbers[(numbers >= 0) & (numbers < count)]] = True
    return mask


def dependencies(data: Data, count: int) -> Ints:
    """`sdtp`: `sample_depends_on` of up to `count` samples: 0 unknown, 1 on others, 2 on none, 3 reserved."""
    depends: Ints = (_words(data, 4, count, ">u1").astype(np.int64) >> 4) & 3
    return depends


def group_indices(boxes: Sequence[Data], kind: bytes, count: int) -> Ints | None:
    """`sbgp`: for each of `count` samples its group description of one grouping type, 0 for none; None without a table."""
    for data in boxes:
        if bytes(data[4:8]) != kind:
            continue
        offset = 12 if data[:1] == b"\x01" else 8
        table = _words(data, offset + 4, u32_at(data, offset), ">u4", 2).astype(np.int64)
        values, _ = stretch(table[:, 1], table[:, 0], count)
        return _pad(values, count, 0)
    return None


def roll_distances(boxes: Sequence[Data]) -> Ints:
    """`sgpd` of grouping type 'roll': the roll distance of each description, in order (ISO/IEC 14496-12, 10.1)."""
    for data in boxes:
        if bytes(data[4:8]) != b"roll":
            continue
        version = data[0] if len(data) else 0
        # Version 1 tells the length of all entries, 0 has entries of their own length; version 2 adds a default.
        if version == 1 and u32_at(data, 8) != 2:
            break
        offset = 8 if version == 0 else 12
        return _words(data, offset + 4, u32_at(data, offset), ">i2").astype(np.int64)
    return np.zeros(0, dtype=np.int64)


def _pad(values: Ints, count: int, fill: int) -> Ints:
    missing = count - len(values)
    return np.concatenate((values, np.full(missing, fill, dtype=np.int64))) if missing > 0 else values
