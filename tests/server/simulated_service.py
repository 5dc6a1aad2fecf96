"""Callers, an `Overload`, and an engine with a few workers and a queue, in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keyglance.errors import DeadlineExceeded, KeyglanceError, Overloaded
from server.config import OverloadSection
from server.engine import Priority
from server.lane_name import LaneName
from server.overload import Overload
from server.urgency import Urgency
from tests.server.virtual_time import now

#: Seconds between two looks at a rate that changes.
_LOOK = 0.5


@dataclass(frozen=True)
class Outcome:
    """What became of one call. `begun`: whether it reached the engine. Times in seconds from the simulation's begin."""

    came: float
    ended: float
    what: str
    priority: Priority
    caller: str
    frames: int
    begun: bool
    retry_after: float | None

    @property
    def answered(self) -> bool:
        return self.what == "answered"

    @property
    def latency(self) -> float:
        return self.ended - self.came


@dataclass
class Service:
    """`workers` of the engine each take `work` seconds for a call of 16 pictures, less for fewer; a tenth of it in any case.

    With `work` of 0.1 and 4 workers it does 40 calls a second, whatever is done at once.
    """

    settings: OverloadSection = field(default_factory=OverloadSection)
    workers: int = 4
    work: float = 0.1
    spread: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        self.overload = Overload(self.settings, clock=now, refused=self._count)
        self.refused: Counter[tuple[str, str, Priority]] = Counter()
        self.outcomes: list[Outcome] = []
        self.steps: list[tuple[float, int]] = [(0.0, 0)]
        self.in_engine = self.most_in_engine = 0
        self.random = random.Random(self.seed)
        self._free = asyncio.Semaphore(self.workers)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def rate(self) -> float:
        """Calls a second in full quality."""
        return self.workers / self.work

    async def offer(
        self,
        rate: Callable[[float], float] | float,
        seconds: float,
        *,
        timeout: float = 10.0,
        priority: Priority = Priority.NORMAL,
        caller: str = "",
        lane: LaneName = LaneName.MAIN,
    ) -> None:
        """Poisson arrivals at `rate` a second, a number or a function of the time."""
        end = now() + seconds
        while (at := now()) < end:
            level = rate(at) if callable(rate) else rate
            gap = self.random.expovariate(level) if level > 1e-6 else math.inf
            # A Poisson process has no memory, so a gap may be cut where the rate may have changed.
            await asyncio.sleep(min(gap, _LOOK, end - at))
            if gap <= min(_LOOK, end - at):
                self.call(timeout=timeout, priority=priority, caller=caller, lane=lane)

    async def close_loop(self, callers: int, seconds: float, **call: object) -> None:
        """So many callers, each with one call after the other."""
        end = now() + seconds

        async def one() -> None:
            while now() < end:
                await self.call(**call)  # type: ignore[arg-type]
                await asyncio.sleep(0.001)

        await asyncio.gather(*(one() for _ in range(callers)))

    def call(
        self,
        *,
        timeout: float = 10.0,
        priority: Priority = Priority.NORMAL,
        caller: str = "",
        lane: LaneName = LaneName.MAIN,
        cancel_after: float | None = None,
    ) -> asyncio.Task[None]:
        """Makes one call."""
        urgency = Urgency(priority, now() + timeout, caller)
        task = asyncio.get_running_loop().create_task(self._call(urgency, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if cancel_after is not None:
            asyncio.get_running_loop().call_later(cancel_after, task.cancel)
        return task

    async def ended(self) -> None:
        """Waits for all calls."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def assert_quiet(self) -> None:
        """Nothing is left of any call."""
        for lane in self.overload.lanes.values():
            assert (lane.serving, lane.waiting()) == (0, 0), lane
            assert not lane._in_work
            assert not lane._room._lines
            assert not lane._room._turns
        assert self.in_engine == 0

    def between(self, begin: float, end: float) -> list[Outcome]:
        return [each for each in self.outcomes if begin <= each.came < end]

    async def _call(self, urgency: Urgency, lane: LaneName) -> None:
        came = now()
        begun, frames = False, 16
        error: KeyglanceError | None = None
        what = "answered"
        try:
            async with asyncio.timeout_at(urgency.deadline):
                try:
                    self.overload.come(urgency)
                finally:
                    self._note_step()
                async with self.overload.place(urgency) as place:
                    if lane is not LaneName.MAIN:
                        await place.enter(lane)
                    begun = True
                    frames = place.quality.frames or 16
                    begin = now()
                    worked = await self._work(frames)
                    place.answered(worked, now() - begin)
        except Overloaded as refused:
            error, what = refused, refused.facts["refused"]
        except DeadlineExceeded as refused:
            error, what = refused, refused.facts["refused"]
        except TimeoutError:
            what = "late"
        except asyncio.CancelledError:
            what = "cancelled"
        retry = None if error is None else error.retry_after
        self.outcomes.append(Outcome(came, now(), what, urgency.priority, urgency.caller, frames, begun, retry))

    async def _work(self, frames: int) -> float:
        self.in_engine += 1
        self.most_in_engine = max(self.most_in_engine, self.in_engine)
        try:
            async with self._free:
                usual = self.work * (0.1 + 0.9 * frames / 16)
                worked = usual * (1 + self.spread * (2 * self.random.random() - 1))
                await asyncio.sleep(worked)
        finally:
            self.in_engine -= 1
        return worked

    def _note_step(self) -> None:
        if (step := self.overload.steps.step) != self.steps[-1][1]:
            self.steps.append((self.overload.steps._changed, step))  # it may have been in a pause before this call

    def _count(self, lane: str, reason: str, priority: Priority) -> None:
        self.refused[lane, reason, priority] += 1


def quantile(values: Sequence[float], share: float) -> float:
    """Of one value or more."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
