"""What C code prints on standard output, heard by the thread that made it print.

NVIDIA's decoding library tells of a damaged picture by nothing but a `printf` inside the call that decodes it. glibc lets a
program replace `stdout` (The GNU C Library, 12.2 "Standard Streams") by a stream of its own making (12.21 "Custom
Streams"); the function that such a stream writes with runs on the printing thread, so several decoders can be told apart.
File descriptor 1 stays as it is: Python's own output and whatever nobody listens to goes there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading

_UNBUFFERED = 2  # _IONBF
_LOCKED_BY_CALLER = 2  # FSETLOCKING_BYCALLER
_STDOUT = 1

_Write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Functions(ctypes.Structure):
    """cookie_io_functions_t."""

    _fields_ = [
        ("read", ctypes.c_void_p),
        ("write", _Write),
        ("seek", ctypes.c_void_p),
        ("close", ctypes.c_void_p),
    ]


class StdoutWatch:
    """C's standard output of this process, from `install` until `close`; there can be one at a time.

    OSError where the C library is not glibc.
    """

    def __init__(self) -> None:
        self._listeners = threading.local()
        self._write = _Write(self._heard)
        self._stream: int | None = None
        self._before: int | None = None

    def install(self) -> None:
        """Takes the place of C's `stdout`; RuntimeError where another watch has it."""
        libc = ctypes.CDLL(None)
        try:
            slot = ctypes.c_void_p.in_dll(libc, "stdout")
            usual = ctypes.addressof(ctypes.c_char.in_dll(libc, "_IO_2_1_stdout_"))
            make, buffering, locking = libc.fopencookie, libc.setvbuf, libc["__fsetlocking"]
        except (ValueError, AttributeError) as error:
            raise OSError(f"damaged pictures cannot be heard of with this C library, only with glibc: {error}") from None
        if slot.value != usual:
            raise RuntimeError("C's standard output is already replaced: one StdoutWatch serves all decoders of a process")
        make.restype = ctypes.c_void_p
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Functions]
        stream = make(None, b"w", _Functions(None, self._write, None, None))
        if not stream:
            raise OSError("no memory for a C stream")
        buffering.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        buffering(stream, None, _UNBUFFERED, 0)
        # A thread that prints with the stream's lock waits in `_heard` for the interpreter's, which another one that prints
        # may hold: without the first lock there is no deadlock, and an unbuffered stream has no state to be protected.
        locking.argtypes = [ctypes.c_void_p, ctypes.c_int]
        locking(stream, _LOCKED_BY_CALLER)
        # Some thread may print through it even after `close`: stream and callback live as long as the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._write))
        self._before, self._stream = slot.value, stream
        slot.value = stream
        atexit.register(self.close)

    def close(self) -> None:
        """Gives C its own standard output back. May be called twice."""
        if self._stream is None:
            return
        slot = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout")
        if slot.value == self._stream:
            slot.value = self._before
        self._stream = None
        atexit.unregister(self.close)

    def listen(self) -> list[str]:
        """From now on what C code prints on this thread is gathered, piece by piece, instead of printed; until `ignore`."""
        said: list[str] = []
        self._listeners.said = said
        return said

    def ignore(self) -> None:
        """What C code prints on this thread is printed again."""
        self._listeners.said = None

    def __repr__(self) -> str:
        return f"StdoutWatch({'installed' if self._stream else 'not installed'})"

    def _heard(self, _: object, text: int, size: int) -> int:
        """Runs inside `printf`, so it may neither raise nor take a lock that is held while C code prints."""
        with contextlib.suppress(Exception):
            data = ctypes.string_at(text, size)
            said = getattr(self._listeners, "said", None)
            if said is not None:
                said.append(data.decode("utf-8", "replace"))
            else:
                os.write(_STDOUT, data)
        return size
