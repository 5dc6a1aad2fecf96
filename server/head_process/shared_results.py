"""Memory that the GPU copies results to and another process reads them from."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder_pool.shared_bytes import SharedBytes

#: Pins memory at an address (bytes from there), and takes that back: CUDA's cudaHostRegister and cudaHostUnregister.
Pin = Callable[[int, int], object]
Unpin = Callable[[int], object]


class SharedResults:
    """Parts of shared memory, pinned. `close` once the GPU copies nothing more to it."""

    def __init__(self, pin: Pin = lambda address, size: None, unpin: Unpin = lambda address: None) -> None:
        self._pin = pin
        self._unpin = unpin
        self._parts: list[tuple[SharedBytes, int]] = []  # and where each begins

    def allocate(self, size: int) -> memoryview:
        """One more part of at least `size` bytes. Raises what pinning raises."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        part = SharedBytes.allocate(size, "results")
        try:
            view = part.view()
            address = np.frombuffer(view, np.uint8).ctypes.data
            self._pin(address, size)
        except BaseException:
            part.close()
            raise
        self._parts.append((part, address))
        return view

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Descriptor and bytes of each, in the order of their numbers."""
        return tuple((part.fd, part.size) for part, _ in self._parts)

    def find(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """In which part a contiguous array lies, and at which offset; None where in none."""
        address = array.ctypes.data
        if array.flags.c_contiguous:
            for number, (part, begin) in enumerate(self._parts):
                if begin <= address and address + array.nbytes <= begin + part.size:
                    return number, address - begin
        return None

    def close(self) -> None:
        """Gives all back."""
        parts, self._parts = self._parts, []
        for part, address in parts:
            try:
                self._unpin(address)
            finally:
                part.close()
