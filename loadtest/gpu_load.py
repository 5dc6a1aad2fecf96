"""Calls to an engine in the same process, a number of them always in flight: rate, latencies, batch fill."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.gpu_setup import far
from server.engine import Engine, EngineJob, EngineResult
from server.timing import StepTiming


@dataclass(frozen=True, slots=True)
class Done:
    """One call: when it ended, on `time.monotonic()`, how long it took in seconds, and what it told."""

    ended: float
    seconds: float
    pictures: int
    created: int
    degraded: int
    timings: tuple[StepTiming, ...]

    @classmethod
    def of(cls, begin: float, result: EngineResult) -> Done:
        """Now. Raises ValueError for a call in which pictures were not looked at: it measures something else."""
        skipped = [frame for frame in result.frames if frame.skipped is not None]
        if skipped or not result.frames:
            raise ValueError(f"{len(skipped)} of {len(result.frames)} pictures skipped: {skipped[0].detail if skipped else ''}")
        ended = time.monotonic()
        return cls(
            ended,
            ended - begin,
            len(result.frames),
            sum(timing.created for timing in result.timings),
            len(result.degradations),
            result.timings,
        )


async def one(engine: Engine, job: EngineJob) -> Done:
    """One call."""
    begin = time.monotonic()
    return Done.of(begin, await engine.run(replace(job, deadline=far())))


async def some(engine: Engine, jobs: Sequence[EngineJob], count: int, *, at_once: int = 1) -> list[Done]:
    """`count` calls, the jobs in turn, `at_once` in flight."""
    numbers = iter(range(count))
    done: list[Done] = []

    async def work() -> None:
        while (number := next(numbers, None)) is not None:
            done.append(await one(engine, jobs[number % len(jobs)]))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return done


@dataclass(frozen=True, slots=True)
class Load:
    """What ended in `seconds` of `in_flight` calls at a time, and the batches of that time by their number of pictures."""

    in_flight: int
    seconds: float
    done: tuple[Done, ...]
    fill: Counter[int]

    def __add__(self, other: Load) -> Load:
        """Both, of equally many calls in flight."""
        return Load(self.in_flight, self.seconds + other.seconds, self.done + other.done, self.fill + other.fill)

    @property
    def pictures_a_second(self) -> float:
        """The rate."""
        return sum(each.pictures for each in self.done) / self.seconds

    def figures(self) -> dict[str, Any]:
        """Rates, latencies, batches, the medians of the steps."""
        return {
            "in flight": self.in_flight,
            "calls": len(self.done),
            "calls/s": round(len(self.done) / self.seconds, 1),
            "pictures/s": round(self.pictures_a_second, 1),
            **latencies([each.seconds for each in self.done]),
            "created on the way": sum(each.created for each in self.done),
            "degraded": sum(each.degraded for each in self.done),
            "batches": batches(self.fill),
            "steps": steps([each.timings for each in self.done], [each.ended - each.seconds for each in self.done]),
        }


async def load(engine: Engine, jobs: Sequence[EngineJob], seconds: float, *, warm: float) -> Load:
    """As many calls in flight as there are jobs, each again and again; what ended in the `seconds` behind `warm` counts."""
    begin = time.monotonic() + warm
    end = begin + seconds
    done: list[Done] = []
    fill: Counter[int] = Counter()

    async def work(job: EngineJob) -> None:
        while time.monotonic() < end:
            done.append(await one(engine, job))

    async def watch() -> None:
        await asyncio.sleep(warm)
        before = filled(engine)
        await asyncio.sleep(seconds)
        fill.update(filled(engine) - before)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for job in jobs:
            group.create_task(work(job))
    return Load(len(jobs), seconds, tuple(each for each in done if begin <= each.ended < end), fill)


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds; none of nothing."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {name: ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for name, share in (("p90", 90), ("p99", 99))}
    return {
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        **{f"{name}_ms": round(value * 1e3, 3) for name, value in at.items()},
        "n": len(ordered),
    }


def filled(engine: Engine) -> Counter[int]:
    """Batches by their number of pictures so far, of the model that had the most; models on a GPU share their batches."""
    told = [Counter(dict(stats.fill)) for stats in engine.stats().batches]
    return max(told, key=lambda fill: fill.total(), default=Counter())


def batches(fill: Counter[int]) -> dict[str, Any]:
    """Their number, their mean size, and how many there were of each."""
    count, pictures = fill.total(), sum(size * times for size, times in fill.items())
    return {
        "batches": count,
        "mean fill": round(pictures / count, 2) if count else 0.0,
        "by size": {str(size): times for size, times in sorted(fill.items()) if times},
    }


def steps(timings: Sequence[Sequence[StepTiming]], starts: Sequence[float]) -> dict[str, dict[str, float]]:
    """By step the medians in ms: begin after the call's begin (`starts`, same clock), wall time, waiting in it."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for told, start in zip(timings, starts, strict=True):
        for timing in told:
            row = (timing.begin - start, timing.end - timing.begin, timing.wait)
            rows.setdefault(timing.step, []).append(row)
    return {
        step: {
            name: round(statistics.median(row[place] for row in found) * 1e3, 3)
            for place, name in enumerate(("begins_ms", "wall_ms", "wait_ms"))
        }
        for step, found in rows.items()
    }
