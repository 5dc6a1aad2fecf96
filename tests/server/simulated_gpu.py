"""A GPU that engines share, in virtual time: batches cost what they were measured to cost, two at once go half as fast."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from models.batch_plan import BatchPlan
from tests.server.virtual_time import now

#: Seconds of a batch through all default models on an H200, from pictures to results, by its size.
COSTS = {4: 0.00355, 8: 0.00576, 12: 0.00791, 16: 0.0102, 24: 0.0149, 32: 0.0199, 48: 0.0286}


class SharedGpu:
    """Work goes the slower the more of it there is at once."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], float] = {}
        self._told = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def work(self, seconds: float) -> None:
        """`seconds` of the whole GPU."""
        self._advance()
        done = asyncio.get_running_loop().create_future()
        self._left[done] = seconds
        self._plan()
        await done

    def _advance(self) -> None:
        passed, self._told = now() - self._told, now()
        for done in self._left:
            self._left[done] -= passed / len(self._left)
        for done in [done for done, left in self._left.items() if left <= 1e-9]:
            del self._left[done]
            done.set_result(None)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._left:
            after = min(self._left.values()) * len(self._left)
            self._timer = asyncio.get_running_loop().call_later(after, self._elapsed)

    def _elapsed(self) -> None:
        self._advance()
        self._plan()


@dataclass(eq=False)
class _Job:
    pictures: int
    done: asyncio.Future[None]
    waited: float = 0.0  # the longest of any picture


@dataclass(eq=False)
class _SimulatedEngine:
    gpu: SharedGpu
    plan: BatchPlan
    queue: deque[tuple[_Job, float]] = field(default_factory=deque)  # each picture, and since when it is there
    in_flight: int = 0
    busy: bool = False

    def add(self, job: _Job) -> None:
        self.queue.append((job, now()))
        if not self.busy:
            self.busy = True
            asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self.queue:
            batch = [self.queue.popleft() for _ in range(self.plan.first(len(self.queue)))]
            for job, since in batch:
                job.waited = max(job.waited, now() - since)
            await self.gpu.work(self.plan.costs[min(size for size in self.plan.costs if size >= len(batch))])
            for job, _ in batch:
                job.pictures -= 1
                if not job.pictures and not job.done.done():
                    job.done.set_result(None)
        self.busy = False


class SimulatedEngines:
    """`count` engines on one GPU; a call goes to the one with the fewest pictures. `decoded`: seconds until a call's first
    picture is there, `apart`: between two of them.
    """

    def __init__(self, count: int, *, decoded: float = 0.008, apart: float = 0.0005) -> None:
        self._decoded, self._apart = decoded, apart
        gpu, plan = SharedGpu(), BatchPlan(COSTS)
        self.engines = [_SimulatedEngine(gpu, plan) for _ in range(count)]

    @staticmethod
    def most(pictures: int) -> float:
        """Calls a second of so many pictures that the GPU can do at most."""
        return max(size / cost for size, cost in COSTS.items()) / pictures

    async def call(self, pictures: int) -> tuple[float, float]:
        """Returns the seconds in which the engine worked for it, and those in which it had it."""
        engine = min(self.engines, key=lambda each: each.in_flight)
        engine.in_flight += pictures
        begin = now()
        try:
            job = _Job(pictures, asyncio.get_running_loop().create_future())
            await asyncio.sleep(self._decoded)
            for _ in range(pictures):
                engine.add(job)
                await asyncio.sleep(self._apart)
            await job.done
        finally:
            engine.in_flight -= pictures
        took = now() - begin
        return took - job.waited, took
