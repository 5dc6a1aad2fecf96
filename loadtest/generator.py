"""Makes the calls of a load: open loop by a schedule, or closed loop by so many callers, from one process or several.

Each process has an event loop and its own connections; the moments are on `time.monotonic()`, which all processes of a
machine share. Requests go out as bytes that were made before, answers are read after their moment has been taken.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import grpc
import grpc.aio

from keyglance.status import error_from
from keyglance.v1 import keyglance_pb2 as pb
from loadtest.mix import Mix
from loadtest.request_bytes import LABEL_METHOD
from loadtest.schedule import Arrival, Successors

#: The status of an arrival that could not be sent because the generator already held too many calls.
NOT_SENT = "NOT_SENT"

#: Seconds from "all processes are ready" to the run's begin.
_HEAD_START = 0.3
#: Seconds before each moment from which its process waits awake.
_AWAKE = 0.0015
#: Seconds that a call may take beyond its deadline before its process counts as stuck.
_GRACE = 30.0
_UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
    ("grpc.enable_http_proxy", 0),
]


#: Is told the moment at which a run begins, on `time.monotonic()`, shortly before.
Began = Callable[[float], object]


class GeneratorFailed(Exception):
    """The load could not be made; the message says why."""


class Record(NamedTuple):
    """What became of one call. Moments are seconds after the run's begin, on one clock.

    `due` is when it should be sent, `sent` when it was, `ended` when its answer or status was there. `status` is gRPC's, or
    `NOT_SENT`; `reason` Keyglance's, where it failed. `degradations` are reasons, `frames` pictures looked at.
    `retry_after` tells whether a refusal said when to come back.
    """

    kind: int
    due: float
    sent: float
    ended: float
    status: str
    reason: str = ""
    degradations: tuple[str, ...] = ()
    frames: int = 0
    retry_after: bool = False
    to_be_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Generator:
    """How calls are made: over `connections` in each of `processes`, each with at most `most_in_flight` calls at once.

    An open loop that reaches `most_in_flight` is none any more: such arrivals are not sent, and told as `NOT_SENT`.
    """

    target: str
    processes: int = 1
    connections: int = 4
    most_in_flight: int = 2000
    connect_seconds: float = 30.0

    def open_loop(self, mix: Mix, arrivals: Sequence[Arrival], began: Began | None = None) -> list[Record]:
        """Sends each of `arrivals` at its moment and waits for all ends; records in the order of `due`."""
        parts = [_Open(tuple(arrivals[number :: self.processes])) for number in range(self.processes)]
        longest = max((arrival.at + arrival.timeout for arrival in arrivals), default=0.0)
        return self._run(mix, parts, longest, began)

    def closed_loop(self, mix: Mix, callers: int, seconds: float, seed: int, began: Began | None = None) -> list[Record]:
        """`callers`, each with one call after the other, over `seconds`; records in the order of `due`."""
        counts = [len(range(number, callers, self.processes)) for number in range(self.processes)]
        parts = [_Closed(count, seconds, seed + number) for number, count in enumerate(counts) if count]
        return self._run(mix, parts, seconds + max(one.timeout[1] for one in mix.classes), began)

    def _run(self, mix: Mix, parts: Sequence[_Open | _Closed], longest: float, began: Began | None) -> list[Record]:
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        workers: list[tuple[Any, Connection]] = []
        try:
            for part in parts:
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, self, mix, part), daemon=True)
                process.start()
                theirs.close()
                workers.append((process, ours))
            for _, pipe in workers:
                _receive(pipe, self.connect_seconds + 30)
            begin = time.monotonic() + _HEAD_START
            for _, pipe in workers:
                pipe.send(begin)
            if began is not None:
                began(begin)
            end = begin + longest + _GRACE
            records = [record for _, pipe in workers for record in _receive(pipe, end - time.monotonic())]
        finally:
            for process, pipe in workers:
                pipe.close()
                process.join(5)
                if process.is_alive():
                    process.kill()
        return sorted(records, key=lambda record: record.due)


@dataclass(frozen=True, slots=True)
class _Open:
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class _Closed:
    callers: int
    seconds: float
    seed: int


def _receive(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(max(seconds, 0)):
        raise GeneratorFailed(f"a generator's process said nothing for {seconds:.0f} s")
    try:
        said = pipe.recv()
    except EOFError:
        raise GeneratorFailed("a generator's process ended before its time") from None
    if isinstance(said, Exception):
        raise said
    return said


def _work(pipe: Connection, generator: Generator, mix: Mix, part: _Open | _Closed) -> None:
    """The process: says that it is connected, hears when to begin, sends its records."""
    try:
        pipe.send(asyncio.run(_Sender(pipe, generator, mix).run(part)))
    except Exception as error:
        pipe.send(error if isinstance(error, GeneratorFailed) else GeneratorFailed(f"{type(error).__name__}: {error}"))


class _Sender:
    def __init__(self, pipe: Connection, generator: Generator, mix: Mix) -> None:
        self._pipe = pipe
        self._generator = generator
        self._mix = mix
        self._begin = 0.0
        self._calls: list[Callable[..., Any]] = []
        self._sent = 0
        self._in_flight = 0
        self._records: list[Record] = []

    async def run(self, part: _Open | _Closed) -> list[Record]:
        async with AsyncExitStack() as stack:
            for _ in range(self._generator.connections):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(self._generator.target, _UNLIMITED))
                try:
                    await asyncio.wait_for(channel.channel_ready(), self._generator.connect_seconds)
                except TimeoutError:
                    raise GeneratorFailed(f"no server answers at {self._generator.target}") from None
                self._calls.append(channel.unary_unary(LABEL_METHOD))  # no serializers: bytes as they are
            gc.freeze()
            self._pipe.send("ready")
            self._begin = await asyncio.to_thread(self._pipe.recv)
            await self._sleep_until(0.0)
            await (self._open(part) if isinstance(part, _Open) else self._closed(part))
        return self._records

    async def _open(self, part: _Open) -> None:
        async with asyncio.TaskGroup() as group:
            for arrival in part.arrivals:
                await self._sleep_until(arrival.at)
                if self._in_flight >= self._generator.most_in_flight:
                    now = self._now()
                    self._records.append(Record(arrival.kind, arrival.at, now, now, NOT_SENT))
                else:
                    self._in_flight += 1
                    group.create_task(self._call(arrival))

    async def _closed(self, part: _Closed) -> None:
        successors = Successors(self._mix, part.seed)

        async def caller() -> None:
            while (now := self._now()) < part.seconds:
                self._in_flight += 1
                await self._call(successors.next(now))

        async with asyncio.TaskGroup() as group:
            for _ in range(part.callers):
                group.create_task(caller())

    async def _call(self, arrival: Arrival) -> None:
        one = self._mix.classes[arrival.kind]
        method = self._calls[self._sent % len(self._calls)]
        self._sent += 1
        sent = self._now()
        call = method(one.request, timeout=arrival.timeout, metadata=one.metadata)
        timer = None
        if arrival.cancel_after is not None:
            timer = asyncio.get_running_loop().call_later(arrival.cancel_after, call.cancel)
        answer, failure, status = b"", None, "OK"
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            failure, status = error, error.code().name
        except asyncio.CancelledError:
            if not call.cancelled() or arrival.cancel_after is None:
                raise
            status = "CANCELLED"
        finally:
            self._in_flight -= 1
            if timer is not None:
                timer.cancel()
        ended = self._now()
        common = (arrival.kind, arrival.at, sent, ended, status)
        asked = arrival.cancel_after is not None
        if failure is not None:
            told = error_from(failure, target=self._generator.target, timeout=arrival.timeout)
            retry_after = told.retry_after is not None
            self._records.append(Record(*common, told.reason, retry_after=retry_after, to_be_cancelled=asked))
        elif status == "OK":
            self._records.append(Record(*common, "", *_read(answer), to_be_cancelled=asked))
        else:
            self._records.append(Record(*common, to_be_cancelled=asked))

    def _now(self) -> float:
        return time.monotonic() - self._begin

    async def _sleep_until(self, at: float) -> None:
        # The loop's timers are late by up to a millisecond, which is much of a fast answer: the rest is waited for awake.
        while (left := at - self._now()) > 0:  # noqa: ASYNC110  (a moment, not an event)
            await asyncio.sleep(left - _AWAKE if left > _AWAKE else 0)


def _read(answer: bytes) -> tuple[tuple[str, ...], int]:
    """Degradations and pictures looked at."""
    response = pb.LabelResponse.FromString(answer)
    prefix = "DEGRADATION_REASON_"
    reasons = tuple(pb.DegradationReason.Name(one.reason).removeprefix(prefix) for one in response.degradations)
    return reasons, response.coverage.frames
