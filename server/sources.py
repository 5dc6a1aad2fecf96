"""Sources: from a request's bytes, byte ranges or URI to the whole file in shared memory.

Byte ranges are accepted where together they hold the whole file; what is missing is named by RANGES_NEEDED. URIs are
refused: nothing is configured that this server could read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge, UriNotAllowed

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


Source = WholeBytes | Ranges | Uri


async def receive(source: Source, *, most_bytes: int) -> SharedBytes:
    """Brings the source's whole file into shared memory, which the caller closes.

    Raises `EmptySource`, `TooLarge` (more than `most_bytes`), `BadPolicy` (ranges that overlap or lie outside the file),
    `RangesNeeded`, `UriNotAllowed`.
    """
    match source:
        case WholeBytes(data):
            size, parts = len(data), [Part(0, data)]
        case Ranges(file_size, given):
            size, parts = file_size, _in_order(given, file_size)
        case Uri(uri):
            raise UriNotAllowed(f"this server reads no URIs, got {uri[:200]!r}; send the bytes")
    if size == 0:
        raise EmptySource("the source has 0 bytes")
    if size > most_bytes:
        raise TooLarge.over("bytes", size, most_bytes)
    missing = _missing(parts, size)
    if missing:
        listed = ",".join(f"{begin}-{end - 1}" for begin, end in missing[:64])
        raise RangesNeeded(
            f"{sum(end - begin for begin, end in missing)} of {size} bytes are missing: bytes {listed}",
            facts={"ranges": listed, "file_size": str(size)},
        )
    payload = [part.data for part in parts]
    if size <= _INLINE_BYTES:
        return SharedBytes.of(payload, "source")
    copying = asyncio.ensure_future(asyncio.to_thread(SharedBytes.of, payload, "source"))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:  # the thread goes on: what it makes is closed as soon as it is there
        copying.add_done_callback(_close)
        raise


def _close(copying: asyncio.Future[SharedBytes]) -> None:
    if copying.exception() is None:
        copying.result().close()


def _in_order(parts: Sequence[Part], file_size: int) -> list[Part]:
    """The parts by offset; refuses overlap, empty parts and bytes outside the file."""
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


def _missing(parts: Sequence[Part], size: int) -> list[tuple[int, int]]:
    """The stretches (begin, end) of a file of `size` bytes that no part holds; `parts` in order."""
    gaps: list[tuple[int, int]] = []
    at = 0
    for part in parts:
        if part.offset > at:
            gaps.append((at, part.offset))
        at = part.offset + len(part.data)
    if at < size:
        gaps.append((at, size))
    return gaps
