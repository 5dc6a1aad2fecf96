"""Bytes in anonymous shared memory, handed to other processes by file descriptor.

A memfd on Linux; elsewhere an unlinked temporary file. Nothing has a name, so nothing outlives the processes that hold it
(named segments leak after `kill -9`, and containers give them 64 MB).
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

#: Bytes that are copied under the interpreter's lock: giving it away and getting it back from other decoders' threads takes
#: longer than copying as many.
_COPIED_HERE = 1 << 18
#: Pages that are mapped one by one cost a fault each; systems without MAP_POPULATE have no other way.
_AT_ONCE = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class SharedBytes:
    """`size` bytes behind a file descriptor that this object owns; `close` (or the end of a `with`) gives them back."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size
        self._map: mmap.mmap | None = None
        self._held: tuple[Sequence[bytes | memoryview], Sequence[int]] | None = None  # parts, and where each begins
        self._closed = fd < 0
        self._lock = threading.Lock()
        self._name = ""

    @classmethod
    def allocate(cls, size: int, name: str = "keyglance") -> SharedBytes:
        """`size` zero bytes (0 or more), sealed against shrinking, so that no holder can take mapped pages away."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            os.ftruncate(fd, size)
        return cls(fd, size)

    @classmethod
    def of(cls, parts: Iterable[bytes | memoryview], name: str = "keyglance") -> SharedBytes:
        """The parts, one behind the other."""
        held = [memoryview(part).cast("B") for part in parts]
        shared = cls.allocate(sum(len(part) for part in held), name)
        try:
            offset = 0
            for part in held:
                while part:
                    written = os.pwrite(shared._fd, part, offset)
                    offset += written
                    part = part[written:]
        except BaseException:
            shared.close()
            raise
        return shared

    @classmethod
    def held(cls, parts: Sequence[bytes | memoryview], name: str = "keyglance") -> SharedBytes:
        """The parts, one behind the other, in this process' own memory until another one asks for the descriptor."""
        offsets = list(itertools.accumulate((len(part) for part in parts), initial=0))
        held = cls(-1, offsets.pop())
        held._held, held._name, held._closed = (parts, offsets), name, False
        return held

    @property
    def fd(self) -> int:
        """The descriptor, -1 after `close`."""
        with self._lock:
            if self._fd < 0 and self._held is not None:
                shared = SharedBytes.of(self._held[0], self._name)
                self._fd, shared._fd, shared._closed = shared._fd, -1, True
            return self._fd

    def view(self, *, at_once: bool = False) -> memoryview:
        """All bytes, mapped, page by page as they are used or all `at_once`; valid until `close`."""
        if self.size == 0:
            return memoryview(b"")
        fd = self.fd
        with self._lock:
            if self._map is None:
                if fd < 0:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                self._map = mmap.mmap(fd, self.size, flags=_AT_ONCE if at_once else mmap.MAP_SHARED)
            return memoryview(self._map)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer at the end. For any thread."""
        held = self._held  # `close` may come in between
        if held is None:
            return os.pread(self._fd, size, offset)
        if offset >= self.size:
            return b""
        parts, offsets = held
        at = bisect.bisect_right(offsets, offset) - 1
        inside, part = offset - offsets[at], parts[at]
        if inside + size > len(part):
            part = b"".join(parts[at:])
        return bytes(part[inside : inside + size])  # the same object where that is all of bytes

    def read_into(self, target: memoryview, offset: int) -> int:
        """As `read`, as many bytes as `target` has, into it; how many there were. For any thread."""
        data: bytes | memoryview
        if self._held is not None:
            data = self.read(offset, len(target))
        elif len(target) <= _COPIED_HERE:
            data = self.view(at_once=True)[offset : offset + len(target)]
        else:
            return os.preadv(self._fd, (target,), offset)
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Gives the memory back as soon as no view of it is left. May be called twice."""
        with self._lock:
            fd, self._fd, self._closed = self._fd, -1, True
            mapped, self._map = self._map, None
        self._held = None
        if fd < 0:
            return
        os.close(fd)
        if mapped is not None:
            with contextlib.suppress(BufferError):  # a view is still out: the map goes with it
                mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SharedBytes({self.size} bytes, {'closed' if self._closed else f'fd {self._fd}' if self._fd >= 0 else 'held'})"
