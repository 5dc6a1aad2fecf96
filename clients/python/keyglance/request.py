"""From the caller's arguments to a `LabelRequest`, with what can be checked before a byte is sent.

How the video travels is decided in `_put_source`, and there alone: as the byte ranges that matter where the index can be read
on this side (`keyglance.selection`), else as its whole bytes. Where the ranges do not suffice, the server names what it lacks
and `Prepared.complete` adds that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge
from keyglance.v1 import keyglance_pb2 as pb

_UINT32_MAX = 2**32 - 1
#: More than all of a message but the video's bytes usually has; larger ones are measured, or gRPC's to refuse.
_ENVELOPE = 1 << 20


#: How urgent a call is beside others, for a server that is busy.
Priority = Literal["interactive", "normal", "bulk"]

#: The metadata with the priority's name: it is read before the message.
PRIORITY_KEY = "keyglance-priority"

_PRIORITIES: dict[str, pb.Priority] = {
    "interactive": pb.PRIORITY_INTERACTIVE,
    "normal": pb.PRIORITY_NORMAL,
    "bulk": pb.PRIORITY_BULK,
}
_NAMES: dict[pb.Priority, str] = {number: name for name, number in _PRIORITIES.items()}


class Readable(Protocol):
    """A file object, open in binary mode."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


class _File(Protocol):
    """A file that can be read at any offset: a `keyglance.mp4.RandomAccess`, which is not loaded for this alone."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes | memoryview: ...


#: A path, the bytes themselves, or a binary file object, which is read from where it stands to its end.
Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable


class Prepared:
    """A request with the file that it is about, which stays open until `close` (or the end of a `with`)."""

    def __init__(self, message: pb.LabelRequest, file: _File, limit: int) -> None:
        self.message = message
        self._file = file
        self._limit = limit
        self._completed = False

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What has to be known of the request before it is read."""
        return ((PRIORITY_KEY, _NAMES[self.message.priority]),) if self.message.priority else ()

    def complete(self, needed: RangesNeeded) -> None:
        """Adds the bytes that a server lacked; raises `needed` where that was done before, or cannot be.

        Raises `OSError` where the file cannot be read, `TooLarge` where the message grows too large.
        """
        sent = self.message.ranges
        if self._completed or not needed.ranges or self.message.WhichOneof("source") != "ranges":
            raise needed
        self._completed = True
        lacking = [(offset, size) for offset, size in needed.ranges if 0 <= offset < offset + size <= self._file.size]
        if len(lacking) < len(needed.ranges):
            raise needed
        held = [(part.offset, part.offset + len(part.data)) for part in sent.ranges]
        for offset, size in lacking:
            for begin, end in _outside(offset, offset + size, held):
                sent.ranges.add(offset=begin, data=bytes(self._file.read(begin, end - begin)))
        _check_size(self.message, self._limit)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        close = getattr(self._file, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def label_request(
    source: Source,
    *,
    frames: int | None,
    largest_gap: float | None,
    add_non_keyframes: bool | None,
    models: Sequence[str],
    least_score: float | None,
    frame_scores: bool,
    thumbnails: bool,
    thumbnail_size: int | None,
    request_id: str,
    whole: bool,
    max_message_bytes: int,
    priority: Priority | None = None,
) -> Prepared:
    """The request for `source`; None leaves a field to the server's default. Whether values make sense is the server's to judge.

    Raises `OSError` where a path cannot be read, `EmptySource`, `TooLarge` where the message would have more than
    `max_message_bytes`, `BadPolicy` for a number that the message cannot carry, `ValueError` for a priority that there is not,
    and `TypeError`.
    """
    message = pb.LabelRequest(
        sampling=pb.SamplingPolicy(
            frames=_unsigned("frames", frames), largest_gap=largest_gap, add_non_keyframes=add_non_keyframes
        ),
        models=[models] if isinstance(models, str) else models,
        least_score=least_score,
        returns=pb.ReturnOptions(
            frame_scores=frame_scores, thumbnails=thumbnails, thumbnail_size=_unsigned("thumbnail_size", thumbnail_size)
        ),
        request_id=request_id,
        priority=_priority(priority),
    )
    prepared = Prepared(message, _file(source, max_message_bytes), max_message_bytes)
    try:
        _put_source(message, prepared._file, whole, max_message_bytes)
        _check_size(message, max_message_bytes)
    except BaseException:
        prepared.close()
        raise
    return prepared


def _put_source(message: pb.LabelRequest, file: _File, whole: bool, limit: int) -> None:
    if file.size == 0:
        raise EmptySource("the source has no bytes")
    ranges = None if whole else _ranges(file, message.sampling)
    if ranges is None:
        if file.size > limit:
            raise TooLarge.over("bytes", file.size, limit)
        message.data = bytes(file.read(0, file.size))
        return
    message.ranges.file_size = file.size
    for offset, size in ranges:
        message.ranges.ranges.add(offset=offset, data=bytes(file.read(offset, size)))


def _ranges(file: _File, asked: pb.SamplingPolicy) -> list[tuple[int, int]] | None:
    """The ranges that matter, None for the whole file. What the request leaves open is taken as servers have it by default."""
    from keyglance.sampling import SamplingPolicy  # numpy comes with it
    from keyglance.selection import select

    usual = SamplingPolicy()
    try:
        policy = SamplingPolicy(
            frames=asked.frames or usual.frames,
            largest_gap=asked.largest_gap if asked.HasField("largest_gap") else usual.largest_gap,
            add_non_keyframes=asked.add_non_keyframes if asked.HasField("add_non_keyframes") else usual.add_non_keyframes,
        )
    except BadPolicy:  # the server's to refuse, with the limits that it has
        return None
    return select(file, policy)


def _file(source: Source, limit: int) -> _File:
    """The source as a file that can be read at any offset; never reads much more than `limit` bytes of a stream."""
    from keyglance.mp4 import BytesSource, FileSource

    if isinstance(source, bytes | bytearray | memoryview):
        return BytesSource(source)
    if isinstance(source, str | os.PathLike):
        mode = os.stat(source).st_mode
        if stat.S_ISREG(mode):
            return FileSource(source)
        with open(source, "rb") as stream:
            return BytesSource(_read_all(stream, limit))
    if not callable(getattr(source, "read", None)):
        raise TypeError(f"source is a {type(source).__name__}; a path, bytes or a binary file object is wanted")
    return BytesSource(_read_all(source, limit))


def _check_size(message: pb.LabelRequest, limit: int) -> None:
    # Protobuf serialises a message to learn its size, and gRPC does it again: usually the sum of the video's bytes says enough.
    video = len(message.data) + sum(len(part.data) for part in message.ranges.ranges)
    if video + _ENVELOPE > limit and (size := message.ByteSize()) > limit:
        raise TooLarge.over("bytes", size, limit)


def _outside(begin: int, end: int, held: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of [begin, end) lies in none of the half-open ranges of `held`: a server refuses bytes that come twice."""
    left = []
    for start, stop in sorted(held):
        if stop <= begin or start >= end:
            continue
        if start > begin:
            left.append((begin, start))
        begin = max(begin, stop)
    return [*left, (begin, end)] if begin < end else left


def _read_all(file: Readable, limit: int) -> bytes:
    data = bytearray()
    while chunk := file.read(1024 * 1024):
        if not isinstance(chunk, bytes | bytearray):
            raise TypeError(f"the file object gives {type(chunk).__name__}; it must be open in binary mode")
        data += chunk
        if len(data) > limit:
            raise TooLarge(f"too many bytes: more than the {limit:,} allowed", facts={"what": "bytes", "limit": str(limit)})
    return bytes(data)


def _priority(name: str | None) -> pb.Priority | None:
    if name is not None and name not in _PRIORITIES:
        raise ValueError(f"priority is {name!r}; {', '.join(_PRIORITIES)} or None is allowed")
    return None if name is None else _PRIORITIES[name]


def _unsigned(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _UINT32_MAX:
        raise BadPolicy(f"{name} is {value}; 0 (the default) to the server's limit is allowed")
    return value
