"""One of the supervisor's processes, from inside: how it starts, is spoken to, and ends."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version

from decoder_pool.parent_end import die_with
from server import logs
from server.config import Config
from server.engine_process.kinds import ControlKind
from server.engine_process.wire import BrokenProtocol, Connection, Frame, adopt_socket
from server.start_error import StartError

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
_MOST_FDS = 65536  # what is enough for every call to hold some; the kernel's own limit may be a billion


@dataclass(frozen=True, slots=True)
class Settings:
    """What the supervisor tells a process: the whole configuration as it has it, how many engines there are, and its own number
    among those of its kind.
    """

    config: Config
    engines: int
    number: int = 0

    def to_json(self) -> bytes:
        """For the first frame."""
        told = {"config": self.config.model_dump(mode="json"), "engines": self.engines, "number": self.number}
        return json.dumps(told).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Settings:
        """Out of the first frame. File, environment and command line are the supervisor's to read: all of it is given."""
        values = json.loads(body)
        return cls(Config.load(overrides=values["config"]), values["engines"], values["number"])


class Child:
    """The process's end of the connection to its supervisor, on the running loop.

    `ending` is set when it is to finish. `on_peer` gets the number and the socket of each engine or front that it is connected
    with. `board` is the descriptor of what fronts tell one another (`server.front_share.FrontBoard`), None for others; it is
    there with the settings, and theirs who takes it. A supervisor that is gone ends the process at once.
    """

    def __init__(self, name: str, sock: socket.socket) -> None:
        self.name = name
        self.ending = asyncio.Event()
        self.on_peer: Callable[[int, socket.socket], None] | None = None
        self.board: int | None = None
        self._settings: asyncio.Future[Settings] = asyncio.get_running_loop().create_future()
        self._early: list[tuple[int, socket.socket]] = []
        self._connection = Connection(sock, on_frame=self._take, on_lost=self._orphaned, name="supervisor")

    async def settings(self) -> Settings:
        """What the supervisor says first."""
        return await self._settings

    def listen(self, on_peer: Callable[[int, socket.socket], None]) -> None:
        """Has `on_peer` called for every connection, those that came before too."""
        self.on_peer = on_peer
        early, self._early = self._early, []
        for number, sock in early:
            on_peer(number, sock)

    def ready(self, address: str = "") -> None:
        """Tells that it works and answers pings from now on; a front adds its address."""
        self._connection.send(ControlKind.READY, body=address.encode())

    def failed(self, message: str) -> None:
        """Tells why it cannot start."""
        self._connection.send(ControlKind.FAILED, body=message.encode(errors="replace"))

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case ControlKind.PING:
                self._connection.send(ControlKind.PONG, frame.number)
            case ControlKind.PEER if len(frame.fds) == 1:
                sock = adopt_socket(frame.fds[0])
                if self.on_peer is None:
                    self._early.append((frame.number, sock))
                else:
                    self.on_peer(frame.number, sock)
            case ControlKind.END:
                self.ending.set()
            case ControlKind.SETTINGS if not self._settings.done() and len(frame.fds) < 2:
                self.board = next(iter(frame.fds), None)
                self._settings.set_result(Settings.from_json(frame.body))
            case kind:
                raise BrokenProtocol(f"a frame of kind {kind}")

    def _orphaned(self, why: str) -> None:
        _log.error("the supervisor is gone (%s), ending", why)
        logging.shutdown()
        os._exit(EXIT_FAILED)


Main = Callable[[Child, Settings], Awaitable[None]]


def run_child(main: Main) -> None:
    """The whole life of a process that the supervisor has started: `main` within all that they have in common.

    SIGTERM and SIGINT are the supervisor's, which says in which order its processes end, however many of them got the signal.
    """
    arguments = _arguments()
    faulthandler.enable()  # a process that crashes says where, on standard error
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(arguments.parent)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FDS if hard == resource.RLIM_INFINITY else min(hard, _MOST_FDS), hard))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sock = socket.socket(fileno=arguments.control)
    sock.set_inheritable(False)
    sys.exit(asyncio.run(_run(arguments.name, sock, main)))


async def _run(name: str, sock: socket.socket, main: Main) -> int:
    child = Child(name, sock)
    settings = await child.settings()
    telemetry = settings.config.telemetry
    logs.configure(telemetry.log_format, telemetry.log_level, process=name)
    # Imported late: a process that is only told its settings needs none of it.
    from keyglance.errors import KeyglanceError
    from models.policy import PolicyError
    from models.repository import RepositoryError
    from server.telemetry import TelemetryError

    try:
        await main(child, settings)
    except (StartError, RepositoryError, PolicyError, KeyglanceError, TelemetryError, OSError) as error:
        child.failed(str(error))
        return EXIT_FAILED
    except Exception as error:
        _log.exception("unexpected error")
        child.failed(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    return 0


def server_version() -> str:
    """The server's version, as the package has it."""
    return version("keyglance-server")


async def first_of(*waits: Awaitable[object]) -> int:
    """The number of the awaitable that is done first; the others are cancelled. Raises what that one raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        number = next(number for number, task in enumerate(tasks) if task.done())
        tasks[number].result()
        return number
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One process of a Keyglance server; `keyglance-server` starts it.")
    parser.add_argument("--name", required=True, help="its name, in logs")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the socket to the supervisor")
    parser.add_argument("--parent", type=int, required=True, help="the supervisor's process id")
    return parser.parse_args()
