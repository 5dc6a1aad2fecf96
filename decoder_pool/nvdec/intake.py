"""Memory in which a decoder's packets are made ready, so that a usual packet is copied once, outside the interpreter's lock."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

from decoder_pool.shared_bytes import SharedBytes

_BEGIN = 4096  # where payloads lie: in front of them is room for parameter sets
_SEARCHED_HERE = 1024  # bytes; a call of the C library would cost more than looking through as many


@dataclass(frozen=True, slots=True)
class Ready:
    """A packet as the decoder takes it, in an `Intake`, until that takes in the next one."""

    address: int
    size: int

    def __len__(self) -> int:
        return self.size


class Intake:
    """Holds one packet at a time, of `capacity` bytes at most. Belongs to the decoder's thread."""

    def __init__(self, capacity: int = 1 << 21) -> None:
        self.capacity = capacity
        #: With the packet from `begin` to `end`.
        self.memory = bytearray(_BEGIN + capacity)  # the system gives it page by page, as it is used
        self.begin = self.end = _BEGIN
        self._view = memoryview(self.memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def load(self, source: SharedBytes, offset: int, size: int) -> int:
        """Takes a packet of `size` bytes, at most `capacity`, out of `source`; returns how many there were."""
        got = source.read_into(self._view[_BEGIN : _BEGIN + size], offset)
        self.end = _BEGIN + got
        return got

    def payload(self) -> bytes:
        """A copy of the packet."""
        return bytes(self._view[_BEGIN : self.end])

    def ready(self, head: bytes) -> Ready:
        """The packet with `head`, of at most 4096 bytes, in front of it."""
        size = len(head)
        self.memory[_BEGIN - size : _BEGIN] = head
        return Ready(self._address + _BEGIN - size, self.end - _BEGIN + size)

    def has(self, pattern: bytes, begin: int, end: int) -> bool:
        """Whether `pattern` lies in `memory` between the two."""
        if end - begin <= _SEARCHED_HERE:
            return self.memory.find(pattern, begin, end) >= 0
        return memmem()(self._address + begin, end - begin, pattern, len(pattern)) is not None


@functools.cache
def memmem() -> Callable[[int, int, bytes, int], int | None]:
    """The C library's `memmem`: `bytes.find` is twice as slow on large packets.

    It keeps the interpreter's lock: ten microseconds, where getting the lock back from other decoders' threads took hundreds.
    """
    find = ctypes.PyDLL(None).memmem
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    return find
