"""Several fronts over one engine in virtual time: each front has a loop that does one thing at a time.

Where a loop has too much to do, calls wait before anything of ours sees them. A front that took such waiting for work let in more
and more calls, had more to do for it, and kept callers waiting for seconds though nobody waited in its room. Where each front had
the same number of places, callers whose connections had fallen to the same one waited, while others' places were free. Where
calls that waited to be read did not count as waiting, fronts with little memory for them took themselves for half empty, and it
was eight seconds until overload was seen. Where an engine had ten places, as many as its batches need while pictures come at
once, they ran half empty once decoding took its time, and so each call took longer for less.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from keyglance.errors import KeyglanceError
from server.config import OverloadSection
from server.engine import Priority
from server.front_share import FrontBoard
from server.lane_name import LaneName
from server.overload import Overload
from server.urgency import Urgency
from tests.server.simulated_gpu import SimulatedEngines
from tests.server.simulated_service import quantile
from tests.server.virtual_time import now, run_virtually

#: An engine that works for so many calls at once, and the seconds of one: 125 calls a second.
WORKERS, WORK = 16, 0.128
#: Engines of a GPU, and pictures of a call.
ENGINES, PICTURES = 2, 12
#: How connections, and so calls, fall to the fronts.
EVEN, UNEVEN, MANY = (1, 1, 1), (16, 9, 7), (9, 4, 7, 6, 6, 5, 5, 4)
#: Callers by front, each with one call after the other.
CALLERS = ((8, 8, 8, 8), (20, 8, 4, 0, 0, 0), (48, 0, 0, 0, 0, 0), (31, 1), (20, 14, 9, 5))
#: Calls that one front takes at once, and those whose bytes it has memory for: fewer than there are places and room to wait.
CALLS, HELD = 256, (200, 50)
#: Seconds in which more calls may wait than later: so many as their deadlines allow.
SETTLED = 5.0


class Workers:
    """Each has one call at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(WORKERS)
        self._chance = random.Random(2)

    async def call(self) -> tuple[float, float]:
        """How long it worked for the call, and had it."""
        begin, seconds = now(), WORK * self._chance.uniform(0.7, 1.3)
        async with self._free:
            await asyncio.sleep(seconds)
        return seconds, now() - begin

    most = WORKERS / WORK
    overload: ClassVar[dict[str, Any]] = {"engines": 1}


class Gpu:
    """Two engines that take what is there in batches, one after the other."""

    def __init__(self) -> None:
        self._engines = SimulatedEngines(ENGINES)

    async def call(self) -> tuple[float, float]:
        """As that of workers."""
        return await self._engines.call(PICTURES)

    most = SimulatedEngines.most(PICTURES)
    overload: ClassVar[dict[str, Any]] = {"engines": ENGINES, "on_gpu": True}


class SlowlyDecoded(Gpu):
    """One engine that has the GPU for itself, and whose pictures come as slowly as those of an H200 at its limit did."""

    def __init__(self) -> None:
        self._engines = SimulatedEngines(1, decoded=0.03, apart=0.002)

    overload: ClassVar[dict[str, Any]] = {"engines": 1, "on_gpu": True}


Engine = Workers | Gpu


@dataclass
class Front:
    """`accept`: seconds of the loop for a call that comes, `care`: for one that is let in, most of it before the engine."""

    overload: Overload
    accept: float
    care: float
    held: int

    def __post_init__(self) -> None:
        self._loop = asyncio.Lock()  # first come, first served
        self._memory = asyncio.Semaphore(self.held)
        self._calls = self._unread = 0

    async def call(self, engine: Engine, timeout: float = 5.0) -> bool:
        """Whether it was answered."""
        urgency = Urgency(Priority.NORMAL, now() + timeout, "")
        self._calls += 1
        try:
            async with asyncio.timeout(timeout):
                await self._do(self.accept)
                if self._calls > CALLS:
                    raise self.overload.too_many(urgency.priority, CALLS)
                self.overload.come(urgency, self._unread)
                async with self._read(urgency), self.overload.place(urgency) as place:
                    await self._do(self.care * 0.8)
                    place.answered(*await engine.call())
                    await self._do(self.care * 0.2)
        except (KeyglanceError, TimeoutError):
            return False
        finally:
            self._calls -= 1
        return True

    @asynccontextmanager
    async def _read(self, urgency: Urgency) -> AsyncIterator[None]:
        waits = self._memory.locked()
        self._unread += waits
        try:
            await self._memory.acquire()
        finally:
            self._unread -= waits
        try:
            if waits:
                self.overload.check(urgency)
            yield
        finally:
            self._memory.release()

    async def _do(self, seconds: float) -> None:
        async with self._loop:
            await asyncio.sleep(seconds)


def made(engine: Engine, count: int, *, accept: float, care: float, held: int = max(HELD)) -> list[Front]:
    """Fronts that share one engine."""
    board = FrontBoard.allocate(fronts=count, engines=0)
    return [
        Front(
            Overload(OverloadSection(), shares=board.shares(number), clock=now, **engine.overload),
            accept=accept,
            care=care,
            held=held,
        )
        for number in range(count)
    ]


async def callers(make: Callable[[], Engine], counts: Sequence[int], seconds: float) -> tuple[float, list[list[float]]]:
    """Calls answered a second, and how long the calls of each front took, of the second half of the time."""
    engine = make()
    fronts = made(engine, len(counts), accept=0.0005, care=0.004)
    begin = now()
    took: list[list[float]] = [[] for _ in counts]

    async def caller(number: int) -> None:
        while (came := now()) < begin + seconds:
            assert await fronts[number].call(engine), "a closed loop is no overload"
            if came >= begin + seconds / 2:
                took[number].append(now() - came)

    async with asyncio.TaskGroup() as group:
        for number, count in enumerate(counts):
            for _ in range(count):
                group.create_task(caller(number))
    return sum(map(len, took)) * 2 / seconds, took


async def load(
    make: Callable[[], Engine], shares: Sequence[int], rate: float, seconds: float, *, accept: float, care: float, held: int
) -> tuple[float, float]:
    """Calls answered a second and their p99 in seconds, but for the first seconds, in which more calls may wait than later."""
    chance = random.Random(1)
    engine = make()
    fronts = made(engine, len(shares), accept=accept, care=care, held=held)
    answered: list[tuple[float, float]] = []
    begin = now()

    async def call(front: Front) -> None:
        came = now()
        if await front.call(engine):
            answered.append((came, now()))

    async with asyncio.TaskGroup() as group:
        while now() < begin + seconds:
            await asyncio.sleep(chance.expovariate(rate))
            (front,) = chance.choices(fronts, shares)
            group.create_task(call(front))
    settled, end = begin + SETTLED, begin + seconds
    for front in fronts:
        lane = front.overload.lanes[LaneName.MAIN]
        assert (lane.serving, lane.waiting()) == (0, 0)
    p99 = quantile([ended - came for came, ended in answered if settled <= came < end], 0.99)
    return sum(settled <= ended < end for _, ended in answered) / (seconds - SETTLED), p99


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("make", [Workers, Gpu, SlowlyDecoded])
@pytest.mark.parametrize(
    ("shares", "accept", "care"),
    [(EVEN, 0.003, 0.01), (UNEVEN, 0.004, 0.0075), ((3, 1, 2, 1), 0.001, 0.004), (MANY, 0.001, 0.004)],
)
def test_overload_costs_no_goodput_and_little_latency(
    make: type[Engine], shares: Sequence[int], accept: float, care: float, held: int
) -> None:
    _, usual = run_virtually(load(make, shares, 0.8 * make.most, 25, accept=accept, care=care, held=held))
    goodput, p99 = run_virtually(load(make, shares, 3 * make.most, 20, accept=accept, care=care, held=held))
    assert goodput >= 0.95 * make.most
    assert p99 <= 2.6 * usual


@pytest.mark.parametrize("make", [Workers, Gpu, SlowlyDecoded])
@pytest.mark.parametrize("counts", CALLERS)
def test_connections_may_fall_to_fronts_as_they_like(make: type[Engine], counts: Sequence[int]) -> None:
    goodput, took = run_virtually(callers(make, counts, 30))
    assert goodput >= 0.95 * make.most
    usual = sum(counts) / make.most  # Little's law
    for times in filter(None, took):
        assert sum(times) / len(times) <= 1.6 * usual, "no front's callers wait for the others'"
        assert quantile(sorted(times), 0.99) <= 2.5 * usual
