"""As much of CuPy as `models.backends.device` uses, over numpy: streams run at once, events have happened."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class Array(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array with CuPy's methods."""

    def set(self, values: Any, stream: Any = None) -> None:
        self[...] = values


class _Device:
    def __init__(self, number: int = 0) -> None:
        self.number = number

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Stream:
    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.done = True
        self.recorded = 0

    def record(self, stream: Any) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        assert self.recorded


class _Runtime:
    memcpyDeviceToHost = 2

    def __init__(self) -> None:
        self.copied = 0

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": b"a GPU"}

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(target, source, size)
        self.copied += size


class _Cuda:
    Device, Stream, Event = _Device, _Stream, _Event

    def __init__(self) -> None:
        self.runtime = _Runtime()

    def alloc_pinned_memory(self, size: int) -> Any:
        return bytearray(size)


class FakeCupy:
    """Stands for the module."""

    def __init__(self) -> None:
        self.cuda = _Cuda()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype).view(Array)
