"""Random access to bytes wherever they lie, and how much of them was touched."""

from __future__ import annotations

import os
import threading
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
    """A file, read at offsets, by several threads at once if need be; `close` closes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 (closed by `close`)
        self._lock = threading.Lock()
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, size: int) -> bytes:
        """See `RandomAccess`."""
        if offset >= self.size:
            return b""
        size = min(size, self.size - offset)
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, offset)
        with self._lock:  # Windows has no pread
            self._file.seek(offset)
            return self._file.read(size)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        self._file.close()

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
