"""Several fronts over one engine in virtual time: each front has a loop that does one thing at a time.

Where a loop has too much to do, calls wait before anything of ours sees them. A front that took such waiting for work let in more
and more calls, had more to do for it, and kept callers waiting for seconds though nobody waited in its room. Where each front had
the same number of places, callers whose connections had fallen to the same one waited, while others' places were free.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from keyglance.errors import KeyglanceError
from server.config import OverloadSection
from server.engine import Priority
from server.front_share import FrontDemands
from server.overload import LaneName, Overload
from server.urgency import Urgency
from tests.server.simulated_service import quantile
from tests.server.virtual_time import now, run_virtually

#: Of a GPU with two engines: calls that it works for at once, and the seconds of one: 125 calls a second.
WORKERS, WORK = 16, 0.128
#: How connections, and so calls, fall to the fronts.
EVEN, UNEVEN = (1, 1, 1), (16, 9, 7)
#: Callers by front, each with one call after the other.
CALLERS = ((8, 8, 8, 8), (20, 8, 4, 0, 0, 0), (48, 0, 0, 0, 0, 0), (31, 1), (20, 14, 9, 5))


@dataclass
class Front:
    """`accept`: seconds of the loop for a call that comes, `care`: for one that is let in, most of it before the engine."""

    overload: Overload
    accept: float
    care: float

    def __post_init__(self) -> None:
        self._loop = asyncio.Lock()  # first come, first served

    async def call(self, engine: asyncio.Semaphore, seconds: float, timeout: float = 5.0) -> bool:
        """Whether it was answered."""
        urgency = Urgency(Priority.NORMAL, now() + timeout, "")
        try:
            async with asyncio.timeout(timeout):
                await self._do(self.accept)
                self.overload.come(urgency)
                async with self.overload.place(urgency) as place:
                    await self._do(self.care * 0.8)
                    async with engine:
                        await asyncio.sleep(seconds)
                    place.answered(seconds)
                    await self._do(self.care * 0.2)
        except (KeyglanceError, TimeoutError):
            return False
        return True

    async def _do(self, seconds: float) -> None:
        async with self._loop:
            await asyncio.sleep(seconds)


def made(count: int, *, accept: float, care: float) -> list[Front]:
    """Fronts that share one engine."""
    demands = FrontDemands.allocate(lanes=len(LaneName), fronts=count)
    return [
        Front(Overload(OverloadSection(), on_gpu=True, shares=demands.shares(number), clock=now), accept=accept, care=care)
        for number in range(count)
    ]


async def callers(counts: Sequence[int], seconds: float) -> tuple[float, list[list[float]]]:
    """Calls answered a second, and how long the calls of each front took, of the second half of the time."""
    chance = random.Random(1)
    fronts = made(len(counts), accept=0.0005, care=0.004)
    engine = asyncio.Semaphore(WORKERS)
    begin = now()
    took: list[list[float]] = [[] for _ in counts]

    async def caller(number: int) -> None:
        while (came := now()) < begin + seconds:
            assert await fronts[number].call(engine, WORK * chance.uniform(0.7, 1.3)), "a closed loop is no overload"
            if came >= begin + seconds / 2:
                took[number].append(now() - came)

    async with asyncio.TaskGroup() as group:
        for number, count in enumerate(counts):
            for _ in range(count):
                group.create_task(caller(number))
    return sum(map(len, took)) * 2 / seconds, took


async def load(shares: Sequence[int], rate: float, seconds: float, *, accept: float, care: float) -> tuple[float, float]:
    """Calls answered a second and their p99 in seconds, of the second half of the time."""
    chance = random.Random(1)
    fronts = made(len(shares), accept=accept, care=care)
    engine = asyncio.Semaphore(WORKERS)
    answered: list[tuple[float, float]] = []
    begin = now()

    async def call(front: Front) -> None:
        came = now()
        if await front.call(engine, WORK * chance.uniform(0.7, 1.3)):
            answered.append((came, now()))

    async with asyncio.TaskGroup() as group:
        while now() < begin + seconds:
            await asyncio.sleep(chance.expovariate(rate))
            (front,) = chance.choices(fronts, shares)
            group.create_task(call(front))
    half, end = begin + seconds / 2, begin + seconds
    for front in fronts:
        lane = front.overload.lanes[LaneName.MAIN]
        assert (lane.serving, lane.waiting()) == (0, 0)
    p99 = quantile([ended - came for came, ended in answered if half <= came < end], 0.99)
    return sum(half <= ended < end for _, ended in answered) * 2 / seconds, p99


@pytest.mark.parametrize(("shares", "accept", "care"), [(EVEN, 0.001, 0.004), (EVEN, 0.003, 0.01), (UNEVEN, 0.004, 0.0075)])
def test_overload_costs_no_goodput_and_little_latency(shares: Sequence[int], accept: float, care: float) -> None:
    _, usual = run_virtually(load(shares, 0.8 * WORKERS / WORK, 30, accept=accept, care=care))
    goodput, p99 = run_virtually(load(shares, 3 * WORKERS / WORK, 40, accept=accept, care=care))
    assert goodput >= 0.95 * WORKERS / WORK
    assert p99 <= 2.2 * usual


@pytest.mark.parametrize("counts", CALLERS)
def test_connections_may_fall_to_fronts_as_they_like(counts: Sequence[int]) -> None:
    goodput, took = run_virtually(callers(counts, 30))
    assert goodput >= 0.95 * WORKERS / WORK
    usual = sum(counts) / (WORKERS / WORK)  # Little's law
    for times in filter(None, took):
        assert sum(times) / len(times) <= 1.6 * usual, "no front's callers wait for the others'"
        assert quantile(sorted(times), 0.99) <= 2.5 * usual
