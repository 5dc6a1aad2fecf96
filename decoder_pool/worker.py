"""A worker process for untrusted bytes, seen from the serving process, which trusts nothing that it says."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from decoder_pool import worker_frames
from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.worker_frames import ENV_MEMORY, ENV_PARENT, ENV_SOCKET, EXIT_MEMORY, BrokenFrame, FrameReader

_KIND_LENGTH, _MESSAGE_LENGTH = 64, 2000
_NICEST = 19


class WorkerDied(Exception):
    """The worker is gone: it crashed, ran out of memory or time, or broke the protocol and was killed."""


class WorkerRefused(Exception):
    """The worker's own controlled error; it goes on working. `kind` and `message` are bounded and printable."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call gave. The values are whatever JSON the child chose: check each. The descriptors are the caller's to close."""

    values: dict[str, Any]
    fds: tuple[int, ...] = ()


class Worker:
    """One process that runs `module`, which ends in `decoder_pool.worker_main.serve(…)`.

    `memory_limit` is in bytes of address space (RLIMIT_AS), 0 for none. Calls are served one at a time, in the order they
    came. All methods belong to the event loop in which `start` was awaited; the process dies with that loop's thread.
    `niceness`, 0 to 19, is by how much it stands back behind this process where there is more to do than processors.
    """

    def __init__(self, module: str, *, memory_limit: int, name: str, niceness: int = 0) -> None:
        self.name = name
        self.niceness = niceness
        self.memory_limit = memory_limit
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._reader = FrameReader()
        self._lock = asyncio.Lock()
        self._waiter: asyncio.Future[None] | None = None
        self._reaper: asyncio.Future[Any] | None = None
        self._sent = 0  # number of the last request sent
        self._received = 0  # number of the last reply received; fewer than sent: a cancelled call's reply is still to come
        self._killed = ""  # why this side killed it

    @property
    def pid(self) -> int | None:
        """The process id, None before `start`."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the process runs and may be called."""
        return self._process is not None and self._sock is not None and self._process.poll() is None

    @property
    def settled(self) -> bool:
        """Whether no cancelled call's reply is still to come."""
        return self._sent == self._received

    async def start(self, timeout: float = 60.0) -> None:
        """Starts the process and waits until it is ready; `timeout` in seconds. Raises WorkerDied if it does not get there."""
        if self._process is not None:
            raise RuntimeError(f"{self!r} was started before")
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        with theirs:
            # In the loop's own thread: PR_SET_PDEATHSIG fires when the thread that made the child ends.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=self._environment(theirs.fileno()),
                start_new_session=True,
            )
            if self.niceness:  # before it has threads, which inherit it
                niceness = os.getpriority(os.PRIO_PROCESS, 0) + self.niceness
                os.setpriority(os.PRIO_PROCESS, self._process.pid, min(niceness, _NICEST))
        try:
            async with self._lock:
                hello, fds = await self._within(time.monotonic() + timeout, "start", self._receive())
        except asyncio.CancelledError:
            self.kill("cancelled while it started")
            raise
        worker_frames.close_all(fds)
        if hello != {"ready": True}:
            raise self._broken(f"first words {str(hello)[:100]!r}")

    def _environment(self, sock: int) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR") if name in os.environ}
        return kept | {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "PYTHONNOUSERSITE": "1",
            "OPENBLAS_NUM_THREADS": "1",  # its idle threads' stacks would count against the address space
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            ENV_SOCKET: str(sock),
            ENV_MEMORY: str(self.memory_limit),
            ENV_PARENT: str(os.getpid()),
        }

    async def call(self, method: str, arguments: Mapping[str, Any], *, fds: Sequence[int] = (), timeout: float) -> Reply:
        """Calls `method` in the child; the descriptors are lent (the child gets duplicates).

        `timeout` is in seconds and holds for everything, a cancelled call's remains too; past it the worker is killed.
        Raises WorkerDied or WorkerRefused. A cancelled call leaves the worker in sync: its reply is thrown away later.
        """
        deadline = time.monotonic() + timeout
        async with self._lock:
            if not self.alive:
                raise self._died()
            number = self._sent + 1
            frame = worker_frames.encode({"id": number, "method": method, "arguments": dict(arguments)}, fds)
            await self._within(deadline, "finish a cancelled call", self._discard())
            try:
                await self._within(deadline, method, self._send(frame, fds))
            except asyncio.CancelledError:
                self.kill("cancelled in the middle of a request")
                raise
            self._sent = number
            values, given = await self._within(deadline, method, self._receive())
            self._received = number
        error = values.get("error")
        answer = values.get("values")
        if values.get("id") != number or (error is None) == (answer is None) or not isinstance(error or answer or {}, dict):
            worker_frames.close_all(given)
            raise self._broken(f"a reply {str(values)[:100]!r} to call {number}")
        if error is not None:
            worker_frames.close_all(given)
            raise WorkerRefused(_text(error.get("kind"), _KIND_LENGTH), _text(error.get("message"), _MESSAGE_LENGTH))
        return Reply(dict(answer or {}), given)

    async def settle(self, timeout: float) -> None:
        """Waits for a cancelled call's reply and throws it away; kills the worker past `timeout` seconds (WorkerDied)."""
        async with self._lock:
            if not self.alive:
                raise self._died()
            await self._within(time.monotonic() + timeout, "finish a cancelled call", self._discard())

    def kill(self, reason: str = "closed") -> None:
        """Kills the process now, in the middle of whatever it does; a waiting call raises WorkerDied. May be called twice."""
        self._killed = self._killed or reason
        if self._sock is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._sock)
                asyncio.get_running_loop().remove_writer(self._sock)
            self._sock.close()
            self._sock = None
            self._reader.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)  # the wait goes on, and meets the closed socket
        if self._process is not None and self._reaper is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            if self._process.poll() is None:
                with contextlib.suppress(RuntimeError):  # no loop any more: the interpreter ends, and init reaps
                    self._reaper = asyncio.get_running_loop().run_in_executor(None, self._process.wait)

    async def close(self) -> None:
        """Kills the process and waits until it is gone. Never raises, may be called twice."""
        self.kill()
        if self._reaper is not None:
            await asyncio.shield(self._reaper)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "not started" if self._process is None else "alive" if self.alive else "dead"
        return f"Worker({self.name}, pid {self.pid}, {state}{'' if self.settled else ', busy'})"

    async def _within(self, deadline: float, what: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await work
        except TimeoutError:
            self.kill(f"over its time ({what})")
            raise self._died() from None

    async def _send(self, frame: bytes, fds: Sequence[int]) -> None:
        data = memoryview(frame)
        while data:
            if self._sock is None:
                raise self._died()
            try:
                sent = worker_frames.send_some(self._sock, data, fds)
            except BlockingIOError:
                await self._wait(writing=True)
                continue
            except OSError:
                raise await self._gone() from None
            data, fds = data[sent:], ()

    async def _receive(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        while self._sock is not None:
            try:
                if (frame := self._reader.take()) is not None:
                    return frame
                if not self._reader.receive(self._sock):
                    break
            except BlockingIOError:
                await self._wait()
            except BrokenFrame as error:
                raise self._broken(str(error)) from None
            except OSError:
                break
        raise await self._gone()

    async def _discard(self) -> None:
        while self._received < self._sent:
            _, fds = await self._receive()
            worker_frames.close_all(fds)
            self._received += 1

    async def _wait(self, *, writing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        sock = self._sock
        assert sock is not None
        waiter = self._waiter = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        (loop.add_writer if writing else loop.add_reader)(sock, wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if self._sock is not None:
                (loop.remove_writer if writing else loop.remove_reader)(sock)

    async def _gone(self) -> WorkerDied:
        """The error for a process whose end of the socket is closed, with the status that it leaves behind."""
        patience = 0 if self._killed or self._process is None else 200
        while patience and self._process is not None and self._process.poll() is None:
            await asyncio.sleep(0.005)  # it is dying, or has closed its socket and goes on
            patience -= 1
        error = self._died()
        self.kill("closed its socket")
        return error

    def _broken(self, how: str) -> WorkerDied:
        self.kill(f"broke the protocol: {_text(how, 200)}")
        return self._died()

    def _died(self) -> WorkerDied:
        if self._killed:
            why = f"was killed: {self._killed}"
        elif self._process is None:
            why = "was not started"
        elif (status := self._process.poll()) is None:
            why = "closed its socket"
        elif status == EXIT_MEMORY:
            why = f"ran out of memory, {self.memory_limit:,} bytes of address space allowed"
        elif status < 0:
            why = f"died of signal {-status} ({signal.strsignal(-status)})"
        else:
            why = f"ended with status {status}"
        return WorkerDied(f"worker {self.name} {why}")


def adopt(fd: int, size: int) -> SharedBytes:
    """Shared memory that a worker made, safe to map: it is a memfd of at least `size` bytes that can no longer shrink.

    Takes the descriptor over: it is closed where the memory is refused (ValueError). Its content may still change.
    """
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        if (held := os.fstat(fd).st_size) < size:
            raise ValueError(f"{held} bytes of shared memory, {size} announced")
    except (OSError, ValueError) as error:
        os.close(fd)
        raise ValueError(f"no shared memory to be trusted: {error}") from None
    return SharedBytes(fd, size)


def _text(value: object, length: int) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value)[:length])
