"""One of the supervisor's processes, from outside."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from server.engine_process.child import Settings
from server.engine_process.kinds import ControlKind
from server.engine_process.wire import BrokenProtocol, Connection, Frame, pair

_log = logging.getLogger(__name__)

_START = 900.0  # seconds until a process must be ready: a cold disk, and every network prepared for every size of batch
_BEATS = 4  # looks at a process in the time that it may stay silent
_STARVED = 4  # times as long for one that is not stopped: it may only lack processor time, of which a new one would need more
_DYING = 2.0  # seconds for a process that has closed its connection to be gone


class SupervisedProcess:
    """A fresh Python process that runs `module`, which ends in `child.run_child(…)`.

    No fork: neither gRPC nor CUDA survives one. It dies with the supervisor, whatever that dies of. `heartbeat` is the seconds
    that it may stay silent once it is ready and a signal has stopped it, four times as many where none has. Only turns of the
    supervisor's own loop count, so a machine that was asleep, or a supervisor that was stopped, kills nobody. `board` is a
    descriptor that it gets with the settings.
    """

    def __init__(self, name: str, module: str, settings: Settings, *, heartbeat: float, board: int | None = None) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.address = ""  # that of a front, once it is ready
        self.failure = ""  # why it could not start, in its own words
        self._module = module
        self._settings = settings
        self._heartbeat = heartbeat
        self._board = board
        self._process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None
        self._killed = ""
        self._pinged = self._ponged = 0

    @property
    def pid(self) -> int | None:
        """Its process id, None before `start`."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Starts it, with `environment` beside this process's own; it may be connected with others from then on.

        Raises `OSError`.
        """
        ours, theirs = pair()
        with theirs:
            command = [sys.executable, "-P", "-m", self._module, "--name", self.name]
            try:
                # From the main thread, whose end is what the kernel tells its children of.
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--control", str(theirs.fileno()), "--parent", str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=child_environment() | dict(environment or {}),
                    start_new_session=True,  # Ctrl-C is the supervisor's
                )
            except BaseException:
                ours.close()
                raise
        self._connection = Connection(ours, on_frame=self._take, on_lost=self._hung_up, name=self.name)
        self._connection.send(
            ControlKind.SETTINGS, body=self._settings.to_json(), fds=() if self._board is None else (self._board,)
        )

    def connect(self, number: int, sock: socket.socket) -> None:
        """Gives it a connection to the engine or the front of that number; takes the socket over."""
        with sock:
            if self._connection is not None:
                self._connection.send(ControlKind.PEER, number, fds=(sock.fileno(),))

    async def watch(self) -> str:
        """Waits for its end, which it is helped to where it does not answer; says how it ended."""
        assert self._process is not None
        beat = asyncio.create_task(self._beat(), name=f"heartbeat of {self.name}")
        try:
            await self._process.wait()
        finally:
            beat.cancel()
        return self._how(self._process.returncode)

    def end(self) -> None:
        """Asks it to finish what it does and to end."""
        if self._connection is not None:
            self._connection.send(ControlKind.END)

    def kill(self, why: str) -> None:
        """Ends it at once, also where it is stopped."""
        if self._process is not None and self._process.returncode is None:
            self._killed = self._killed or why
            self._process.kill()

    async def gone(self, within: float) -> bool:
        """Waits for its end for so many seconds, then kills it. Whether that was not needed."""
        in_time = True
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), within)
            except TimeoutError:
                in_time = False
                _log.error("%s did not end within %g s, it is killed", self.name, within)
                self.kill("did not end in time")
                await self._process.wait()
        self.close()
        return in_time

    def close(self) -> None:
        """Gives its descriptors back."""
        if self._connection is not None:
            self._connection.close()

    def __repr__(self) -> str:
        return f"<SupervisedProcess {self.name} pid={self.pid} {'ready' if self.ready.is_set() else 'not ready'}>"

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case ControlKind.PONG:
                self._ponged = frame.number
            case ControlKind.READY:
                self.address = frame.body.decode()
                self.ready.set()
            case ControlKind.FAILED:
                self.failure = frame.body.decode()
            case kind:
                raise BrokenProtocol(f"a frame of kind {kind}")

    def _hung_up(self, why: str) -> None:
        asyncio.get_running_loop().call_later(_DYING, self.kill, f"{why}, and it went on")

    async def _beat(self) -> None:
        try:
            async with asyncio.timeout(_START):
                await self.ready.wait()
        except TimeoutError:
            return self.kill(f"was not ready after {_START:g} s")
        silent = 0
        while self._connection is not None:
            await asyncio.sleep(self._heartbeat / _BEATS)
            if self._ponged == self._pinged:
                silent = 0
                self._pinged += 1
                self._connection.send(ControlKind.PING, self._pinged)
                continue
            silent += 1
            if silent >= _BEATS * _STARVED or (silent >= _BEATS and self._is_stopped()):
                return self.kill(f"did not answer for {silent / _BEATS * self._heartbeat:g} s")
        return None

    def _is_stopped(self) -> bool:
        """Whether a signal has stopped it (`/proc/PID/stat`, proc(5)); where that cannot be told, it counts as stopped."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def _how(self, status: int | None) -> str:
        if self.failure:
            return f"failed: {self.failure}"
        if self._killed and status == -signal.SIGKILL:
            return f"was killed: {self._killed}"
        if status is not None and status < 0:
            return f"died of signal {-status} ({signal.strsignal(-status)})"
        return f"ended with status {status}"


def child_environment() -> dict[str, str]:
    """For a child: this process's own, and the folders from which it imports: `-P` keeps the current one out."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)}
