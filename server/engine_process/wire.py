"""Frames over a Unix stream socket, descriptors beside them: the one way in which a server's own processes speak.

A frame is a header (bytes of body, kind, number of descriptors, and a number whose meaning is the kind's), then the body.
Descriptors travel as SCM_RIGHTS with the header's first byte.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoder_pool.worker_frames import close_all

_log = logging.getLogger(__name__)

#: Largest body of one frame, in bytes: more than any answer that fits into a message of the API.
MAX_BODY = 128 << 20
#: Most descriptors of one frame.
MAX_FDS = 4

_HEADER = struct.Struct("<IHHQ")
_FD_SIZE = array.array("i").itemsize
_CHUNK = 256 << 10  # bytes read at once
_READS = 16  # of them before other work has a turn
_RETRY = 0.02  # seconds until descriptors are sent again of which too many were on their way


class BrokenProtocol(Exception):
    """The other side does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. Whoever takes it closes the descriptors."""

    kind: int
    number: int = 0
    body: bytes = b""
    fds: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Outgoing:
    number: int
    left: memoryview
    fds: Sequence[int] = ()  # lent at first, this side's own duplicates once it is queued
    begun: bool = False


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends. Nothing has a name, so nothing has to be removed and nobody else can connect."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Connection:
    """One end, on the running event loop, which must not be blocked by the other side: nothing here waits.

    `on_frame` gets each frame; where it raises `BrokenProtocol` or `ValueError` the connection ends. `on_lost` is called once,
    with the reason, unless `close` was called before. `send` on a connection that is gone does nothing: `on_lost` has said so.
    """

    def __init__(
        self, sock: socket.socket, *, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None], name: str = ""
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._sock: socket.socket | None = sock
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._out: deque[_Outgoing] = deque()
        self._writing = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    @property
    def open(self) -> bool:
        """False once it was lost or closed."""
        return self._sock is not None

    def send(self, kind: int, number: int = 0, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Sends a frame now or as soon as the other side takes it. Descriptors are only lent, and may be closed afterwards.

        Raises `ValueError` for more than a frame may hold.
        """
        if len(body) > MAX_BODY or len(fds) > MAX_FDS:
            raise ValueError(
                f"a frame of {len(body):,} bytes and {len(fds)} descriptors, at most {MAX_BODY:,} and {MAX_FDS} allowed"
            )
        if self._sock is None:
            return
        item = _Outgoing(number, memoryview(_HEADER.pack(len(body), kind, len(fds), number) + body), tuple(fds))
        if not self._out and self._push(item):
            return
        if self._sock is not None:
            item.fds = () if item.begun else tuple(os.dup(fd) for fd in item.fds)
            self._out.append(item)

    def withdraw(self, number: int) -> bool:
        """Takes back the unsent frame of that number; False where its first byte has gone, or there is none."""
        for item in self._out:
            if item.number == number and not item.begun:
                self._out.remove(item)
                close_all(item.fds)
                return True
        return False

    def close(self) -> None:
        """Ends the connection from this side. May be called twice."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._sock = None
        close_all(self._fds)
        for item in self._out:
            close_all(item.fds)
        self._fds = []
        self._out.clear()
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"<Connection {self.name} {'open' if self.open else 'closed'}>"

    def _lose(self, why: str) -> None:
        if self._sock is not None:
            self.close()
            self._on_lost(why)

    def _readable(self) -> None:
        for _ in range(_READS):
            if self._sock is None:
                return
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(
                    _CHUNK, socket.CMSG_SPACE(MAX_FDS * _FD_SIZE), socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(error.strerror or str(error))
                return
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % _FD_SIZE])
                    self._fds.extend(fds)
            if flags & socket.MSG_CTRUNC:
                self._lose("descriptors were lost on the way: this process has too many open")
                return
            if not data:
                self._lose("the other side is gone")
                return
            self._buffer += data
            self._hand_on()
            if len(data) < _CHUNK and not ancillary:
                return

    def _hand_on(self) -> None:
        """Gives the whole frames that have come to their taker."""
        try:
            while self._sock is not None and (frame := self._take()) is not None:
                self._on_frame(frame)
        except (BrokenProtocol, ValueError) as error:
            self._lose(f"the other side broke the protocol: {error}")
        except Exception:
            _log.exception("a frame from %s could not be handled", self.name)
            self._lose("a frame could not be handled")

    def _take(self) -> Frame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        size, kind, count, number = _HEADER.unpack_from(self._buffer)
        if size > MAX_BODY or count > MAX_FDS:
            raise BrokenProtocol(f"a frame of {size:,} bytes and {count} descriptors")
        end = _HEADER.size + size
        if len(self._buffer) < end:
            return None
        if count > len(self._fds):
            raise BrokenProtocol(f"{count} descriptors announced, {len(self._fds)} came")
        with memoryview(self._buffer) as view:
            body = bytes(view[_HEADER.size : end])
        del self._buffer[:end]
        fds, self._fds = tuple(self._fds[:count]), self._fds[count:]
        return Frame(kind, number, body, fds)

    def _push(self, item: _Outgoing) -> bool:
        """Sends what the socket takes; True where that was all."""
        while item.left and self._sock is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", item.fds))] if item.fds and not item.begun else []
            try:
                sent = self._sock.sendmsg([item.left], rights)
            except (BlockingIOError, InterruptedError):
                self._await_room()
                return False
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # the kernel bounds descriptors on their way; they will be taken
                    self._loop.call_later(_RETRY, self._flush)
                    return False
                self._lose(error.strerror or str(error))
                return False
            item.begun = True
            item.left = item.left[sent:]
        return not item.left

    def _await_room(self) -> None:
        if not self._writing and self._sock is not None:
            self._writing = True
            self._loop.add_writer(self._sock, self._flush)

    def _flush(self) -> None:
        if self._writing and self._sock is not None:
            self._loop.remove_writer(self._sock)
        self._writing = False
        while self._out and self._sock is not None:
            item = self._out[0]
            if not self._push(item):
                return
            self._out.popleft()
            close_all(item.fds)


def adopt_socket(fd: int) -> socket.socket:
    """The Unix socket behind a descriptor that came in a frame; raises `BrokenProtocol`, and closes it, for anything else."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise BrokenProtocol(f"a descriptor that is no socket: {error.strerror}") from None
    if sock.family != socket.AF_UNIX:
        sock.close()
        raise BrokenProtocol(f"a socket of {sock.family!r}")
    return sock
