"""The engine process's side: one engine, and the fronts that it works for."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
import time
from collections.abc import Callable

from opentelemetry import context as otel
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.worker import adopt
from decoder_pool.worker_frames import close_all
from keyglance.errors import DeadlineExceeded, InternalError, KeyglanceError, Overloaded, WorkerLost
from server.engine import Engine, EngineJob
from server.engine_process import codec
from server.engine_process.kinds import EngineKind
from server.engine_process.wire import BrokenProtocol, Connection, Frame

_log = logging.getLogger(__name__)

#: Seconds between two looks at how the decoders stand, which fronts tell their callers.
_LOOK = 1.0


class EngineHost:
    """Serves `engine` to any number of fronts, at most `most_jobs` of them all at once (more are `Overloaded`).

    A front that goes away takes its own jobs with it and nothing else. `open` once the engine is started. `keep` gets the id of
    the root span of each call whose trace a front keeps.
    """

    def __init__(self, engine: Engine, *, most_jobs: int = 4096, keep: Callable[[int], None] = lambda _: None) -> None:
        self.keep = keep
        self._engine = engine
        self._most_jobs = most_jobs
        self._info = engine.info()
        self._names = codec.label_names(self._info.models)
        self._fronts: set[_Front] = set()
        self._opened = False
        self._look: asyncio.Task[None] | None = None

    @property
    def fronts(self) -> int:
        """Fronts that are connected."""
        return len(self._fronts)

    @property
    def in_flight(self) -> int:
        """Jobs of all fronts."""
        return sum(len(front.jobs) for front in self._fronts)

    def attach(self, sock: socket.socket, name: str) -> None:
        """Takes over a socket to a front."""
        front = _Front(self, sock, name)
        self._fronts.add(front)
        front.connection.send(EngineKind.INFO, body=codec.encode_info(self._info))
        if self._opened:
            front.connection.send(EngineKind.READY)

    def open(self) -> None:
        """Takes jobs from now on."""
        self._opened = True
        self._tell_decoders()  # the warm ones are there now: whoever asks a front that has just become ready hears of them
        self._look = asyncio.create_task(self._look_at_decoders(), name="look at decoders")
        for front in self._fronts:
            front.connection.send(EngineKind.READY)

    async def close(self) -> None:
        """Leaves all fronts; their jobs end."""
        if self._look is not None:
            self._look.cancel()
        tasks = [task for front in self._fronts for task in front.jobs.values()]
        for front in tuple(self._fronts):
            front.close()
        if tasks:
            await asyncio.wait(tasks)

    def __repr__(self) -> str:
        return f"<EngineHost {self._engine!r}, {len(self._fronts)} fronts, {self.in_flight} jobs>"

    async def _look_at_decoders(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            self._tell_decoders()

    def _tell_decoders(self) -> None:
        info = self._engine.info()
        if info.decoders != self._info.decoders:
            self._info = info
            body = codec.encode_decoders(info.decoders)
            for front in self._fronts:
                front.connection.send(EngineKind.DECODERS, body=body)

    def forget(self, front: _Front) -> None:
        """The front is gone."""
        self._fronts.discard(front)

    def refusal(self) -> KeyglanceError | None:
        """Why a job cannot be taken now."""
        if not self._opened:
            return WorkerLost("the engine is not ready yet")
        if self.in_flight >= self._most_jobs:
            return Overloaded(f"{self.in_flight} jobs are in flight, no more are taken", retry_after=1.0)
        return None

    async def answer(self, job: EngineJob) -> tuple[EngineKind, bytes]:
        """The engine's answer to a job, or why there is none, as a frame's kind and body."""
        try:
            if job.deadline <= time.monotonic():
                raise DeadlineExceeded("the deadline passed before the engine had begun")
            return EngineKind.ANSWER, codec.encode_result(await self._engine.run(job), self._names)
        except KeyglanceError as error:
            return EngineKind.FAILURE, codec.encode_error(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside was cancelled, not this job, whose caller waits.
            return EngineKind.FAILURE, codec.encode_error(InternalError("the engine gave up a job that nobody cancelled"))
        except Exception as error:
            _log.exception("unexpected error in the engine")
            return EngineKind.FAILURE, codec.encode_error(InternalError(f"{type(error).__name__}: {error}"))


class _Front:
    """One front and its jobs."""

    def __init__(self, host: EngineHost, sock: socket.socket, name: str) -> None:
        self.jobs: dict[int, asyncio.Task[None]] = {}
        self._host = host
        self._propagator = TraceContextTextMapPropagator()
        self.connection = Connection(sock, on_frame=self._take, on_lost=self._lost, name=name)

    def close(self) -> None:
        """Cancels its jobs and hangs up."""
        self.connection.close()
        self._host.forget(self)
        for task in tuple(self.jobs.values()):
            task.cancel()

    def _lost(self, why: str) -> None:
        _log.info("%s has gone, %d jobs in flight: %s", self.connection.name, len(self.jobs), why)
        self.close()

    def _take(self, frame: Frame) -> None:
        if frame.kind == EngineKind.JOB and len(frame.fds) == 1 and frame.number not in self.jobs:
            self._begin(frame)
            return
        close_all(frame.fds)
        if frame.kind == EngineKind.KEEP:
            self._host.keep(frame.number)
            return
        if frame.kind != EngineKind.CANCEL:
            raise BrokenProtocol(f"a frame of kind {frame.kind}, number {frame.number}, with {len(frame.fds)} descriptors")
        if (task := self.jobs.get(frame.number)) is not None:
            task.cancel()

    def _begin(self, frame: Frame) -> None:
        if (refusal := self._host.refusal()) is not None:
            close_all(frame.fds)
            self.connection.send(EngineKind.FAILURE, frame.number, codec.encode_error(refusal))
            return
        try:
            message = codec.parse_job(frame.body)
        except ValueError:
            close_all(frame.fds)
            raise
        packets = adopt(frame.fds[0], message.buffer_size)  # closes what it refuses
        try:
            job = codec.job_of(message, packets)
        except ValueError:
            packets.close()
            raise
        # Whatever the engine traces for this job belongs to the caller's trace.
        context = contextvars.copy_context()
        context.run(otel.attach, self._propagator.extract(codec.trace_context_of(message), context=otel.Context()))
        task = asyncio.get_running_loop().create_task(self._serve(frame.number, job), context=context)
        self.jobs[frame.number] = task
        # In a callback, because a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda _: self._ended(frame.number, packets))

    def _ended(self, number: int, packets: SharedBytes) -> None:
        del self.jobs[number]
        packets.close()

    async def _serve(self, number: int, job: EngineJob) -> None:
        kind, body = await self._host.answer(job)
        try:
            self.connection.send(kind, number, body)
        except ValueError as error:
            failure = InternalError(f"the answer is too large: {error}")
            self.connection.send(EngineKind.FAILURE, number, codec.encode_error(failure))
