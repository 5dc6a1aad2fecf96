"""Sources: a request's whole bytes or byte ranges as one file that can be read at any offset.

Of a file that came in ranges, reading what did not come raises RANGES_NEEDED. URIs are refused: nothing is configured that
this server could read from.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge, UriNotAllowed

#: Most parts of one file. A caller that follows a sampling plan sends a few for each picture, so this is far above any use.
_MOST_PARTS = 4096
#: Below this many bytes a copy is cheaper than a change of threads.
_INLINE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file from `offset` on."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class WholeBytes:
    """The whole file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Ranges:
    """Parts of a file of `file_size` bytes, in any order, without overlap."""

    file_size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Uri:
    """A place to read from."""

    uri: str


Given = WholeBytes | Ranges | Uri


class Source:
    """A file of `size` bytes, of which some or all are here: a `keyglance.mp4.RandomAccess`."""

    def __init__(self, size: int, parts: Sequence[Part]) -> None:
        self.size = size
        self._parts = [part for part in parts if part.data]
        self._offsets = [part.offset for part in self._parts]
        spans: list[tuple[int, int]] = []
        for part in self._parts:
            _join(spans, part.offset, part.offset + len(part.data))
        #: Where bytes begin to be here, and where they end.
        self._begins = np.array([begin for begin, _ in spans], np.int64)
        self._ends = np.array([end for _, end in spans], np.int64)

    @property
    def held(self) -> int:
        """Bytes that are here."""
        return sum(len(part.data) for part in self._parts)

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """`size` bytes from `offset`, fewer at the file's end. Raises `RangesNeeded` for all that the file lacks.

        A whole list because a reader asks for one piece after the other: a caller sends once what one answer names.
        """
        end = min(offset + size, self.size)
        at = bisect.bisect_right(self._offsets, offset) - 1
        if at >= 0 and offset < end <= (part := self._parts[at]).offset + len(part.data):  # as nearly always
            return memoryview(part.data)[offset - part.offset : end - part.offset]
        pieces = list(self._pieces(offset, end))
        if sum(map(len, pieces)) < end - offset:
            raise self.needs(self.missing([(0, self.size)]))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def holds(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the ranges, each (position, size), are here as far as the file has them."""
        if not len(self._begins):
            return np.zeros(len(positions), bool)
        last = np.searchsorted(self._begins, positions, "right") - 1
        held: NDArray[np.bool_] = (last >= 0) & (np.minimum(positions + sizes, self.size) <= self._ends[last])
        return held

    def missing(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """What is not here of the `wanted` ranges, each (offset, size), as such ranges, ascending and joined."""
        lacking: list[tuple[int, int]] = []
        for offset, size in sorted(wanted):
            at, end = offset, min(offset + size, self.size)
            for part in self._from(offset):
                if part.offset >= end:
                    break
                if part.offset > at:
                    _join(lacking, at, part.offset)
                at = max(at, part.offset + len(part.data))
            if at < end:
                _join(lacking, at, end)
        return [(begin, end - begin) for begin, end in lacking]

    def needs(self, ranges: Sequence[tuple[int, int]]) -> RangesNeeded:
        """The error that asks for `ranges`, each (offset, size)."""
        total = sum(size for _, size in ranges)
        return RangesNeeded(
            f"{total:,} bytes of the file of {self.size:,} bytes are missing, in {len(ranges)} ranges; {self.held:,} were sent",
            ranges=ranges,
        )

    async def shared(self) -> SharedBytes:
        """The whole file in shared memory, which the caller closes. Raises `RangesNeeded`."""
        if lacking := self.missing([(0, self.size)]):
            raise self.needs(lacking)
        payload = [part.data for part in self._parts]
        if self.size <= _INLINE_BYTES:
            return SharedBytes.of(payload, "source")
        copying = asyncio.ensure_future(asyncio.to_thread(SharedBytes.of, payload, "source"))
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:  # the thread goes on: what it makes is closed as soon as it is there
            copying.add_done_callback(_close)
            raise

    def __repr__(self) -> str:
        return f"<Source {self.held:,} of {self.size:,} bytes>"

    def _from(self, offset: int) -> Iterable[Part]:
        """The parts by offset, from the one that may hold `offset` on."""
        return itertools.islice(self._parts, max(0, bisect.bisect_right(self._offsets, offset) - 1), None)

    def _pieces(self, offset: int, end: int) -> Iterable[memoryview]:
        """Views of the bytes that lie behind one another from `offset` on, up to `end` or the first that is missing."""
        at = offset
        for part in self._from(offset):
            if part.offset > at or at >= end:
                break
            piece = memoryview(part.data)[at - part.offset : end - part.offset]
            at += len(piece)
            yield piece


def receive(given: Given, *, most_bytes: int) -> Source:
    """The source of a request. Nothing is copied.

    Raises `EmptySource`, `TooLarge` (more than `most_bytes`), `BadPolicy` (ranges that overlap or lie outside the file),
    `UriNotAllowed`.
    """
    match given:
        case WholeBytes(data):
            source = Source(len(data), [Part(0, data)])
        case Ranges(file_size, parts):
            source = Source(file_size, _in_order(parts, file_size))
        case Uri(uri):
            raise UriNotAllowed(f"this server reads no URIs, got {uri[:200]!r}; send the bytes")
    if source.size == 0:
        raise EmptySource("the source has 0 bytes")
    if source.size > most_bytes:
        raise TooLarge.over("bytes", source.size, most_bytes)
    return source


def _in_order(parts: Sequence[Part], file_size: int) -> list[Part]:
    """The parts by offset; refuses overlap, empty parts and bytes outside the file."""
    if len(parts) > _MOST_PARTS:
        raise BadPolicy(f"{len(parts):,} byte ranges, at most {_MOST_PARTS:,} allowed")
    ordered = sorted(parts, key=lambda part: part.offset)
    end = 0
    for part in ordered:
        if not part.data:
            raise BadPolicy(f"the byte range at {part.offset} is empty; each must hold at least 1 byte")
        if part.offset < end:
            raise BadPolicy(f"the byte range at {part.offset} overlaps the one before it, which ends at {end}")
        end = part.offset + len(part.data)
        if end > file_size:
            raise BadPolicy(f"the byte range {part.offset} to {end} lies outside the file of {file_size} bytes")
    return ordered


def _join(ranges: list[tuple[int, int]], begin: int, end: int) -> None:
    """Appends [begin, end) to ascending ranges, joined with the last one where they touch."""
    if ranges and begin <= ranges[-1][1]:
        ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
    else:
        ranges.append((begin, end))


def _close(copying: asyncio.Future[SharedBytes]) -> None:
    if copying.exception() is None:
        copying.result().close()
