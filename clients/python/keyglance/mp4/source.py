"""Random access to bytes wherever they lie, and how much of them was touched."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self


class RandomAccess(Protocol):
    """Bytes that can be read at any offset."""

    @property
    def size(self) -> int:
        """All bytes there are."""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """`size` bytes from `offset` (both 0 or more), fewer where the source ends before, none behind its end."""


class BytesSource:
    """Bytes in memory. What `read` gives are views of them, nothing is copied."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        """See `RandomAccess`."""
        return self._view[offset : offset + size]


class FileSource:
    """A file, read at offsets (`pread`), so that its own position does not matter; `close` closes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(Path(path), os.O_RDONLY | getattr(os, "O_BINARY", 0) | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        """See `RandomAccess`."""
        if offset >= self.size:
            return b""
        return os.pread(self._fd, min(size, self.size - offset), offset)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(slots=True)
class CountingSource:
    """Another source, and every range that was read of it, in the order of reading."""

    source: RandomAccess
    reads: list[tuple[int, int]] = field(default_factory=list)  # offset and number of bytes given

    @property
    def size(self) -> int:
        """All bytes there are."""
        return self.source.size

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """See `RandomAccess`."""
        data = self.source.read(offset, size)
        if len(data):
            self.reads.append((offset, len(data)))
        return data

    def touched(self, gap: int = 0) -> list[tuple[int, int]]:
        """Half-open ranges that were read, by offset; those with at most `gap` bytes between them are joined."""
        ranges: list[tuple[int, int]] = []
        for offset, size in sorted(self.reads):
            if ranges and offset <= ranges[-1][1] + gap:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], offset + size))
            else:
                ranges.append((offset, offset + size))
        return ranges
