"""The wire between a process and its workers: length-prefixed JSON frames over a stream socket, descriptors beside them.

A frame is an 8-byte header (two unsigned 32-bit big-endian numbers: bytes of JSON, number of descriptors), then the JSON of
one object. Descriptors travel as SCM_RIGHTS with the header's first byte. Never pickle: one side parses hostile bytes.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

#: Largest JSON of one frame, in bytes. Bulk data travels in shared memory.
MAX_FRAME = 4 << 20
#: Most descriptors of one frame.
MAX_FDS = 16

#: Environment variables by which a worker learns its socket, its limit of address space, and whose child it is.
ENV_SOCKET = "KEYGLANCE_WORKER_SOCKET"
ENV_MEMORY = "KEYGLANCE_WORKER_MEMORY"
ENV_PARENT = "KEYGLANCE_WORKER_PARENT"
#: Exit status of a worker that met its memory limit.
EXIT_MEMORY = 86

_HEADER = struct.Struct(">II")
_FD_SIZE = array.array("i").itemsize


class BrokenFrame(Exception):
    """The other side does not keep to the protocol."""


def encode(value: dict[str, Any], fds: Sequence[int] = ()) -> bytes:
    """A frame's bytes; raises ValueError where it is larger than a frame may be."""
    body = json.dumps(value, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME or len(fds) > MAX_FDS:
        raise ValueError(
            f"a frame of {len(body):,} bytes and {len(fds)} descriptors, at most {MAX_FRAME:,} and {MAX_FDS} allowed"
        )
    return _HEADER.pack(len(body), len(fds)) + body


def send_some(sock: socket.socket, data: memoryview, fds: Sequence[int] = ()) -> int:
    """One `sendmsg`: the number of bytes that went; the descriptors went with the first of them."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary)


class FrameReader:
    """Puts frames together from what arrives; survives an interrupted wait."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fds: list[int] = []

    def receive(self, sock: socket.socket) -> bool:
        """One `recvmsg` (may raise BlockingIOError); False at the end of the stream."""
        data, ancillary, flags, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(MAX_FDS * _FD_SIZE), socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % _FD_SIZE])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC or len(self._fds) > MAX_FDS:
            raise BrokenFrame(f"more than {MAX_FDS} descriptors at once")
        self._buffer += data
        return bool(data)

    def take(self) -> tuple[dict[str, Any], tuple[int, ...]] | None:
        """The next whole frame, None if more bytes are needed. The descriptors belong to the caller from here on."""
        if len(self._buffer) < _HEADER.size:
            return None
        size, count = _HEADER.unpack_from(self._buffer)
        if size > MAX_FRAME or count > MAX_FDS:
            raise BrokenFrame(f"a frame of {size:,} bytes and {count} descriptors, at most {MAX_FRAME:,} and {MAX_FDS} allowed")
        if len(self._buffer) < _HEADER.size + size:
            return None
        if count > len(self._fds):
            raise BrokenFrame(f"{count} descriptors announced, {len(self._fds)} came")
        body = bytes(self._buffer[_HEADER.size : _HEADER.size + size])
        del self._buffer[: _HEADER.size + size]
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BrokenFrame(f"no JSON: {error}") from None
        if not isinstance(value, dict):
            raise BrokenFrame(f"a JSON {type(value).__name__}, not an object")
        fds, self._fds = tuple(self._fds[:count]), self._fds[count:]
        return value, fds

    def close(self) -> None:
        """Closes descriptors that came but were not taken."""
        close_all(self._fds)
        self._fds = []


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors, whatever has become of them."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
