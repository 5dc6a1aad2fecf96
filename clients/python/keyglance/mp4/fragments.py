"""Movie fragments (ISO/IEC 14496-12, 8.8): the samples of `moof` boxes on the media's own clock."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from keyglance.mp4.boxes import Box, Boxes, boxes_of
from keyglance.mp4.limits import Budget
from keyglance.mp4.media import Media
from keyglance.mp4.movie import Defaults

#: Flags of `tfhd` (8.8.7.1) …
_BASE_OFFSET, _ENTRY, _DURATION, _SIZE, _FLAGS = 0x1, 0x2, 0x8, 0x10, 0x20
_BASE_IS_MOOF = 0x20000
#: … and of `trun` (8.8.8.1).
_RUN_OFFSET, _RUN_FIRST_FLAGS, _RUN_DURATION, _RUN_SIZE, _RUN_FLAGS, _RUN_COMPOSITION = 0x1, 0x4, 0x100, 0x200, 0x400, 0x800
#: Sample flags of a sample that cannot be decoded alone (8.8.3.1): not a sync sample, or it depends on others.
_NOT_KEY = 0x00010000 | 0x01000000
_LARGEST_TIME = 1 << 62
_TWO = struct.Struct(">II")
_NO_DEFAULTS = Defaults()
#: 'senc' as PIFF 1.1 spells it (5.3.2).
_PIFF_SENC = bytes.fromhex("a2394f525a9b4f14a2446c427c648df4")


class _Run(NamedTuple):
    """One `trun` box with what it inherits."""

    flags: int
    samples: int
    first_flags: int  # -1: none of its own
    position: int
    rows: bytes
    defaults: Defaults

    @property
    def width(self) -> int:
        """Numbers that it stores for each sample."""
        return (self.flags & 0xF00).bit_count()

    def total(self) -> int:
        """Bytes of all its samples."""
        if not self.flags & _RUN_SIZE:
            return self.samples * self.defaults.size
        column = 1 if self.flags & _RUN_DURATION else 0
        return int(np.frombuffer(self.rows, dtype=">u4").reshape(self.samples, self.width)[:, column].sum(dtype=np.int64))


@dataclass(slots=True)
class _Runs:
    """The runs of one track in the order of the file; the lists of one length belong together."""

    runs: list[_Run] = field(default_factory=list)
    starts: list[int | None] = field(default_factory=list)  # decoding time that the fragment tells; None: it goes on
    encrypted: list[bool] = field(default_factory=list)
    missing: int = 0  # samples that runs claim but have no bytes for


class _Header(NamedTuple):
    """What a `traf` box says but for its runs."""

    start: int
    end: int
    track: int
    flags: int
    base: int
    defaults: Defaults


def read_fragments(boxes: Boxes, moofs: Sequence[Box], defaults: Mapping[int, Defaults], tracks: set[int]) -> dict[int, Media]:
    """The samples of the tracks with the given ids, by id; tracks without samples are left out."""
    found = {track: _Runs() for track in tracks}
    for moof in moofs:
        _fragment(bytes(boxes.read(moof)), moof.start, boxes.budget, defaults, found)
    return {track: _media(runs) for track, runs in found.items() if runs.runs}


def _fragment(data: bytes, start: int, budget: Budget, defaults: Mapping[int, Defaults], found: dict[int, _Runs]) -> None:
    headers: list[_Header] = []
    for kind, body, end in boxes_of(data, 0, len(data), budget):
        if kind == b"traf" and (header := _header(data, body, end, start, budget, defaults)) is not None:
            headers.append(header)
    # Without a base of its own a track fragment begins where the one before ends, whichever track that belongs to.
    chained = any(not header.flags & (_BASE_OFFSET | _BASE_IS_MOOF) for header in headers[1:])
    position = start
    for header in headers:
        wanted = found.get(header.track)
        if wanted is None and not chained:
            continue
        if header.flags & (_BASE_OFFSET | _BASE_IS_MOOF):
            position = header.base
        last = _track_fragment(data, header, position, budget, wanted if wanted is not None else _Runs())
        if chained and last is not None:
            position = last.position + last.total()


def _header(data: bytes, start: int, end: int, moof: int, budget: Budget, all_defaults: Mapping[int, Defaults]) -> _Header | None:
    # It is the first box, but for hostile files.
    size = int.from_bytes(data[start : start + 4], "big")
    if data[start + 4 : start + 8] == b"tfhd" and 16 <= size <= end - start:
        at, stop = start + 8, start + size
    else:
        found = [(at, stop) for kind, at, stop in boxes_of(data, start, end, budget) if kind == b"tfhd" and stop - at >= 8]
        if not found:
            return None
        at, stop = found[0]
    flags, track = _TWO.unpack_from(data, at)
    at += 8
    base = moof
    if flags & _BASE_OFFSET:
        base, at = min(int.from_bytes(data[at : min(at + 8, stop)], "big"), _LARGEST_TIME), at + 8
    usual = all_defaults.get(track, _NO_DEFAULTS)
    if flags & (_ENTRY | _DURATION | _SIZE | _FLAGS):
        values = []
        for flag, value in ((_ENTRY, usual.entry), (_DURATION, usual.duration), (_SIZE, usual.size), (_FLAGS, usual.flags)):
            if flags & flag:
                value, at = int.from_bytes(data[at : min(at + 4, stop)], "big"), at + 4
            values.append(value)
        usual = Defaults(*values)
    return _Header(start, end, track, flags, base, usual)


def _track_fragment(data: bytes, header: _Header, base: int, budget: Budget, into: _Runs) -> _Run | None:
    """Reads the runs of a `traf` box; gives the last."""
    start, last, marked = None, None, False
    added = 0
    for kind, body, end in boxes_of(data, header.start, header.end, budget):
        if kind == b"trun":
            run = _run(data, body, end, base, last, header.defaults, into)
            if run is not None:
                budget.samples(run.samples)
                into.runs.append(run)
                last, added = run, added + 1
        elif kind == b"tfdt" and end - body >= 8:
            start = int.from_bytes(data[body + 4 : min(end, body + (12 if data[body] == 1 else 8))], "big")
            start = start if start < _LARGEST_TIME else None
        elif kind == b"senc" or (kind == b"uuid" and data[body : body + 16] == _PIFF_SENC):
            marked = True
    if added:
        into.encrypted += [marked] * added
        into.starts += [start] + [None] * (added - 1)
    return last


def _run(data: bytes, at: int, end: int, base: int, last: _Run | None, defaults: Defaults, into: _Runs) -> _Run | None:
    if end - at < 8:
        return None
    flags, count = _TWO.unpack_from(data, at)
    at += 8
    if flags & _RUN_OFFSET:
        # `base` is at most 2**62 and the offset 32 bits: all fits.
        position, at = base + int.from_bytes(data[at : at + 4], "big", signed=True), at + 4
    else:
        position = base if last is None else last.position + last.total()
    first_flags = -1
    if flags & _RUN_FIRST_FLAGS:
        first_flags, at = int.from_bytes(data[at : at + 4], "big"), at + 4
    if width := (flags & 0xF00).bit_count():
        present = max(0, end - at) // (4 * width)
        if present < count:
            into.missing += count - present
            count = present
    return _Run(flags, count, first_flags, position, data[at : at + 4 * width * count], defaults) if count else None


def _media(found: _Runs) -> Media:
    runs = found.runs
    counts = np.array([run.samples for run in runs], dtype=np.int64)
    total = int(counts.sum())
    widths = np.array([run.width for run in runs], dtype=np.int64)
    flags = np.array([run.flags for run in runs], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    cells = counts * widths
    # Each sample's row in the numbers of all runs; a few more at the end, for columns that a run does not have.
    numbers = np.concatenate(
        [np.frombuffer(b"".join(run.rows for run in runs), dtype=">u4").astype(np.int64), np.zeros(4, dtype=np.int64)]
    )
    inside = np.arange(total) - np.repeat(firsts, counts)
    row = np.repeat(np.cumsum(cells) - cells, counts) + inside * np.repeat(widths, counts)

    def column(flag: int, fallback: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        has = (flags & flag) != 0
        default = np.array(fallback, dtype=np.int64)
        if not has.any():
            return np.repeat(default, counts)
        place = np.array([(each & 0xF00 & (flag - 1)).bit_count() for each in flags.tolist()], dtype=np.int64)
        stored = numbers[row + np.repeat(place, counts)]
        return stored if has.all() else np.where(np.repeat(has, counts), stored, np.repeat(default, counts))

    duration = column(_RUN_DURATION, [run.defaults.duration for run in runs])
    size = column(_RUN_SIZE, [run.defaults.size for run in runs])
    sample_flags = column(_RUN_FLAGS, [run.defaults.flags for run in runs])
    own = np.array([run.first_flags for run in runs], dtype=np.int64)
    sample_flags[firsts] = np.where(own >= 0, own, sample_flags[firsts])
    # Signed in version 0 too: writers store negative offsets there.
    offset = column(_RUN_COMPOSITION, [0] * len(runs)).astype(np.int32).astype(np.int64)

    clock = np.cumsum(duration) - duration
    origins, at = [], 0
    lengths = np.add.reduceat(duration, firsts).tolist()
    for start, length in zip(found.starts, lengths, strict=True):
        at = at if start is None else start
        origins.append(at)
        at += length
    decoding = clock + np.repeat(np.array(origins, dtype=np.int64) - clock[firsts], counts)
    hidden = np.zeros(total, dtype=np.bool_)
    if len(runs) > 1:
        # A run that begins before the last sample of the one before overlays what is there already.
        last = decoding[firsts[1:] - 1]
        if (decoding[firsts[1:]] <= last).any():
            hidden[firsts[1] :] = decoding[firsts[1] :] <= np.repeat(last, counts[1:])
    ends = np.cumsum(size)
    position = ends - size + np.repeat(np.array([run.position for run in runs], dtype=np.int64) - (ends - size)[firsts], counts)
    return Media(
        position=position,
        size=size,
        decoding=decoding,
        presentation=decoding + offset,
        duration=duration,
        key=(sample_flags & _NOT_KEY) == 0,
        entry=np.repeat(np.array([run.defaults.entry for run in runs], dtype=np.int64), counts),
        encrypted=np.repeat(np.array(found.encrypted, dtype=np.bool_), counts),
        hidden=hidden,
        declared=total + found.missing,
    )
