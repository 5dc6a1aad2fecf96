"""CUDA calls that only enqueue something or ask whether it is over, made without giving the interpreter's lock away.

Such a call takes a few microseconds. CuPy releases the lock around each of them, and where dozens of decoders' threads want it,
getting it back takes many times as long: every handing over wakes a sleeping thread. Calls that wait for the GPU stay CuPy's.
"""

from __future__ import annotations

import ctypes
import functools
from types import ModuleType
from typing import Any, Protocol

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_ANY_DIRECTION = 4  # cudaMemcpyDefault


class CudaCalls(Protocol):
    """Streams and events are CuPy's, addresses are integers. For threads on which the device is current."""

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:
        """Enqueues the copy of `size` bytes, between any two memories of the GPU or pinned ones of the host."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """Puts the event behind all that was enqueued on the stream."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What is enqueued on the stream from now on waits for the event, on the GPU."""
        ...

    def finish(self, event: Any) -> None:
        """Returns once the event has happened: at once where it has."""
        ...


def cuda_calls(cupy: Any) -> CudaCalls:
    """By the driver's library; by CuPy where that library is not found or `cupy` stands in for the module."""
    library = _driver() if isinstance(cupy, ModuleType) else None
    return CupyCalls(cupy) if library is None else DriverCalls(library)


class CudaError(RuntimeError):
    """A call to the driver failed."""


class DriverCalls:
    """`CudaCalls` of the driver's library, which must be opened as `ctypes.PyDLL`: that keeps the lock.

    Source: CUDA Driver API, "Memory Management", "Event Management" and "Stream Management".
    """

    def __init__(self, library: Any) -> None:
        pointer = ctypes.c_void_p
        self._copy = library.cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, pointer)
        self._record = library.cuEventRecord
        self._record.argtypes = (pointer, pointer)
        self._wait = library.cuStreamWaitEvent
        self._wait.argtypes = (pointer, pointer, ctypes.c_uint)
        self._query = library.cuEventQuery
        self._query.argtypes = (pointer,)

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:
        """As `CudaCalls.copy`."""
        _check("cuMemcpyAsync", self._copy(target, source, size, stream.ptr))

    def record(self, event: Any, stream: Any) -> None:
        """As `CudaCalls.record`."""
        _check("cuEventRecord", self._record(event.ptr, stream.ptr))

    def wait(self, stream: Any, event: Any) -> None:
        """As `CudaCalls.wait`."""
        _check("cuStreamWaitEvent", self._wait(stream.ptr, event.ptr, 0))

    def finish(self, event: Any) -> None:
        """As `CudaCalls.finish`."""
        if self._query(event.ptr) != _SUCCESS:  # an error comes again in what follows
            event.synchronize()


class CupyCalls:
    """`CudaCalls` as CuPy makes them."""

    def __init__(self, cupy: Any) -> None:
        self._memcpy = cupy.cuda.runtime.memcpyAsync

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:
        """As `CudaCalls.copy`."""
        self._memcpy(target, source, size, _ANY_DIRECTION, stream.ptr)

    def record(self, event: Any, stream: Any) -> None:
        """As `CudaCalls.record`."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """As `CudaCalls.wait`."""
        stream.wait_event(event)

    def finish(self, event: Any) -> None:
        """As `CudaCalls.finish`."""
        event.synchronize()


def _check(call: str, status: int) -> None:
    if status != _SUCCESS:
        raise CudaError(f"{call} returned error {status}")


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.PyDLL(_LIBRARY)
    except OSError:
        return None
