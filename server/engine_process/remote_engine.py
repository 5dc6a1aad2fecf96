"""An engine in another process, as a front sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from dataclasses import replace

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from keyglance.errors import DeadlineExceeded, WorkerLost
from server.engine import EngineInfo, EngineJob, EngineResult
from server.engine_process import codec
from server.engine_process.kinds import EngineKind
from server.engine_process.wire import BrokenProtocol, Connection, Frame
from server.engine_stats import EngineStats

_log = logging.getLogger(__name__)

#: Seconds after which a call that found no engine may try again: about what it takes to start one.
_RETRY_AFTER = 1.0


class RemoteEngine:
    """`Engine` over a connection to an engine process; outlives that process: `attach` gives it the connection to the next one.

    Calls in flight when a connection is lost fail with `WorkerLost`, as do those that come while there is none. `refuses` is
    asked about each new engine's info; where it gives a reason the engine is not used. `loaded` is told how many pictures are in
    flight there from here, whenever that changes.
    """

    def __init__(
        self,
        name: str,
        *,
        refuses: Callable[[EngineInfo], str | None] = lambda _: None,
        loaded: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.pictures = 0  # of jobs in flight from here
        self.known = asyncio.Event()  # set once an engine has said what it is
        self.refused = ""  # why the engine that is there now is not used
        self._refuses = refuses
        self._loaded = loaded
        self._connection: Connection | None = None
        self._info: EngineInfo | None = None
        self._names = codec.label_names(())
        self._ready = asyncio.Event()
        self._closed = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._propagator = TraceContextTextMapPropagator()

    def attach(self, sock: socket.socket) -> None:
        """Takes over a socket to an engine process, in place of the one before."""
        if self._connection is not None:
            self._connection.close()
            self._lost("another process has taken its place")
        if self._closed:
            sock.close()
            return
        self._connection = Connection(sock, on_frame=self._take, on_lost=self._lost, name=self.name)

    async def start(self) -> None:
        """Waits until the engine takes jobs."""
        await self._ready.wait()

    @property
    def healthy(self) -> bool:
        """Whether it takes jobs now."""
        return self._ready.is_set()

    @property
    def in_flight(self) -> int:
        """Jobs from here that are not answered yet."""
        return len(self._waiting)

    def info(self) -> EngineInfo:
        """What the engine is, as it said last. Raises `RuntimeError` before it has said anything (`known`)."""
        if self._info is None:
            raise RuntimeError(f"{self.name} has not said yet what it is")
        return self._info

    def stats(self) -> EngineStats:
        """Nothing: the engine's own process tells it."""
        return EngineStats(healthy=self.healthy)

    async def run(self, job: EngineJob) -> EngineResult:
        """Has the job done there."""
        if self._connection is None or not self._ready.is_set():
            raise WorkerLost(f"{self.name} is not there now", retry_after=_RETRY_AFTER)
        connection, number, pictures = self._connection, next(self._numbers), sum(len(unit.wanted) for unit in job.units)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        body = codec.encode_job(job, carrier)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._load(pictures)
        try:
            connection.send(EngineKind.JOB, number, body, (job.packets.fd,))
            async with asyncio.timeout_at(job.deadline):
                frame = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"the deadline passed before {self.name} had answered") from None
        finally:
            self._load(-pictures)
            if self._waiting.pop(number, None) is not None and not connection.withdraw(number):
                connection.send(EngineKind.CANCEL, number)
        if frame.kind == EngineKind.FAILURE:
            raise codec.decode_error(frame.body)
        try:
            return codec.decode_result(frame.body, self._names)
        except ValueError as error:
            raise WorkerLost(f"{self.name} gave an answer that cannot be read: {error}") from error

    def keep(self, root: int) -> None:
        """The trace of the call whose root span has this id is kept."""
        if self._connection is not None:
            self._connection.send(EngineKind.KEEP, root)

    async def close(self) -> None:
        """Leaves the engine, which goes on. Jobs in flight fail with `WorkerLost`."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._lost("this front ends")

    def _load(self, more: int) -> None:
        self.pictures += more
        self._loaded(self.pictures)

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else "not there"
        return f"<RemoteEngine {self.name} {state}, {self.in_flight} jobs with {self.pictures} pictures in flight>"

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case EngineKind.ANSWER | EngineKind.FAILURE:
                # Unknown where the job was cancelled while its answer was on the way.
                if (answer := self._waiting.pop(frame.number, None)) is not None and not answer.done():
                    answer.set_result(frame)
            case EngineKind.INFO:
                self._learn(codec.decode_info(frame.body))
            case EngineKind.READY:
                if self.refused:
                    return
                self._ready.set()
                _log.info("%s is there", self.name)
            case EngineKind.DECODERS if self._info is not None:
                self._info = replace(self._info, decoders=codec.decode_decoders(frame.body))
            case kind:
                raise BrokenProtocol(f"a frame of kind {kind}")

    def _learn(self, info: EngineInfo) -> None:
        self.refused = self._refuses(info) or ""
        if self.refused:
            _log.error("%s is not used: %s", self.name, self.refused)
            return
        # The objects of before where nothing has changed, because others hold them too.
        models = self._info.models if self._info is not None and self._info.models == info.models else info.models
        self._info = replace(info, models=models)
        self._names = codec.label_names(models)
        self.known.set()

    def _lost(self, why: str) -> None:
        self._connection = None
        self.refused = ""
        if self._ready.is_set():
            self._ready.clear()
            if not self._closed:
                _log.error("%s is lost, %d jobs in flight: %s", self.name, len(self._waiting), why)
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                # No time to come back: a caller whose video is what kills engines shall not do so again and again.
                answer.set_exception(WorkerLost(f"{self.name} was lost while it worked for this call"))
                answer.exception()  # whoever waited may be cancelled in this very turn of the loop
