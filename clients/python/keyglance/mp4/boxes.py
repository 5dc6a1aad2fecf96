"""Boxes of ISO base media files and atoms of QuickTime files (ISO/IEC 14496-12, 4.2)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from keyglance.mp4.limits import Budget
from keyglance.mp4.source import RandomAccess

_HEAD = struct.Struct(">I4s")


class Box(NamedTuple):
    """Where a box lies; offsets in its source."""

    kind: bytes
    start: int  # of its header
    body: int  # behind its header
    end: int  # not behind its parent's
    overrun: int  # bytes by which it claims to be longer than its parent; 0: none

    @property
    def size(self) -> int:
        """Bytes of its payload."""
        return self.end - self.body


class Boxes:
    """The boxes of one source, read one at a time and within a budget."""

    def __init__(self, source: RandomAccess, budget: Budget) -> None:
        self.source = source
        self.budget = budget

    def children(self, start: int, end: int) -> Iterator[Box]:
        """The boxes that lie from `start` to `end`, until one is malformed."""
        read, spend = self.source.read, self.budget.box
        while end - start >= 8:
            spend()
            head = read(start, 16)
            if len(head) < 8:
                return
            size, kind = _HEAD.unpack_from(head)
            body = start + 8
            if size == 1:
                if len(head) < 16:
                    return
                size, body = int.from_bytes(head[8:16], "big"), start + 16
            elif size == 0:
                size = end - start
            stop = start + size
            if stop < body or body > end:
                return
            yield Box(kind, start, body, min(stop, end), max(0, stop - end))
            start = stop

    def inside(self, box: Box) -> Iterator[Box]:
        """The boxes in a box that holds nothing else."""
        return self.children(box.body, box.end)

    def read(self, box: Box, most: int | None = None) -> bytes | memoryview:
        """The payload of a box, at most its first `most` bytes."""
        size = box.size if most is None else min(box.size, most)
        self.budget.read(size)
        return self.source.read(box.body, size)


def boxes_of(data: bytes, start: int, end: int, budget: Budget) -> list[tuple[bytes, int, int]]:
    """The boxes in a payload that is in memory already: kind, and begin and end of each one's own payload."""
    found: list[tuple[bytes, int, int]] = []
    unpack = _HEAD.unpack_from
    while end - start >= 8:
        size, kind = unpack(data, start)
        body = start + 8
        if size == 1:
            size, body = int.from_bytes(data[body : body + 8], "big"), body + 8
        elif size == 0:
            size = end - start
        stop = start + size
        if stop < body or body > end:
            break
        found.append((kind, body, stop if stop < end else end))
        start = stop
    budget.box(len(found))
    return found
