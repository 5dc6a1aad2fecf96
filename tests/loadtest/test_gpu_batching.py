import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtest import gpu_batching
from loadtest.gpu_setup import jobs_of
from models.batch_plan import BatchPlan
from server.engine import EngineJob, EngineResult
from tests.loadtest.gpu_fakes import PHONE, FakeEngine, write_clips


@dataclass
class Batcher:
    across_calls: bool = True
    plan: BatchPlan = field(default_factory=lambda: BatchPlan({4: 0.003, 16: 0.008, 48: 0.018}))


class SwitchedEngine(FakeEngine):
    """Takes three times as long while batches are not shared."""

    def __init__(self) -> None:
        super().__init__()
        self.ensemble = Batcher()
        self.ways: list[bool] = []

    async def run(self, job: EngineJob) -> EngineResult:
        if not self.ways or self.ways[-1] != self.ensemble.across_calls:
            self.ways.append(self.ensemble.across_calls)
        self.seconds = 0.01 if self.ensemble.across_calls else 0.03
        return await super().run(job)


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[list[EngineJob]]:
    await asyncio.to_thread(write_clips, tmp_path)
    made = await jobs_of((tmp_path / PHONE).read_bytes(), 4, frames=2, largest_gap=3600)
    yield made
    for job in made:
        job.packets.close()


async def test_both_ways_take_turns_on_one_engine(jobs: list[EngineJob]) -> None:
    assert all(sum(len(unit.wanted) for unit in job.units) == 2 for job in jobs)
    engine = SwitchedEngine()
    told = await gpu_batching.both(engine, gpu_batching.batching_of(engine), jobs, turn=0.2, warm=0.05)
    assert engine.ways == [True, False] * 3
    assert engine.ensemble.across_calls
    across, apart = told["across calls"], told["one call a batch"]
    assert across["in flight"] == apart["in flight"] == 4
    assert told["ratio"] == pytest.approx(across["calls"] / apart["calls"], abs=0.001)
    assert len(told["ratio by round"]) == 3
    assert min(told["ratio by round"]) <= told["median of rounds"] <= max(told["ratio by round"])
    assert across["steps"].keys() == apart["steps"].keys() >= {"decode"}


async def test_the_switch_goes_back_where_a_call_fails(jobs: list[EngineJob]) -> None:
    engine = SwitchedEngine()
    engine.skip = True
    with pytest.raises(ExceptionGroup):
        await gpu_batching.both(engine, engine.ensemble, jobs, turn=0.1, warm=0)
    assert engine.ensemble.across_calls


@pytest.mark.parametrize(
    ("frames", "calls", "ratio"),
    [
        (2, 32, 4.0),  # 3 ms for 2 pictures against 18 for 48
        (12, 32, 8 / 12 / (18 / 48)),  # 12 are in a batch of 16 cheaper than in three of 4
        (2, 8, 3.0),  # 16 pictures are there at the most
        (4, 1, 1.0),
        (2, 1, 1.0),  # not even the smallest batch is filled
    ],
)
def test_the_ratio_by_what_batches_cost(frames: int, calls: int, ratio: float) -> None:
    assert gpu_batching.by_cost(Batcher().plan, frames, calls) == pytest.approx(ratio, abs=0.001)


def test_models_in_another_process_cannot_be_switched() -> None:
    with pytest.raises(ValueError, match="does not have its models in this process"):
        gpu_batching.batching_of(FakeEngine())
