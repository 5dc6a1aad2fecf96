import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest import gpu_load
from loadtest.gpu_setup import FRAMES, jobs_of
from server.engine import EngineJob
from tests.loadtest.gpu_fakes import PHONE, FakeEngine, write_clips


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[list[EngineJob]]:
    await asyncio.to_thread(write_clips, tmp_path)
    made = await jobs_of((tmp_path / PHONE).read_bytes(), 3, models=("a",))
    yield made
    for job in made:
        job.packets.close()


async def test_a_files_jobs_are_what_the_pipeline_makes_of_it(jobs: list[EngineJob]) -> None:
    assert len(jobs) == 3
    for job in jobs:
        assert (job.config.codec, job.config.width, job.config.height) == ("h264", 144, 256)
        assert sum(len(unit.wanted) for unit in job.units) == FRAMES
        assert job.models == ("a",)
        assert all(unit.packets[0].key for unit in job.units)
    assert len({id(job.packets) for job in jobs}) == 3


async def test_as_many_calls_are_in_flight_as_there_are_jobs(jobs: list[EngineJob]) -> None:
    engine = FakeEngine(seconds=0.005)
    figures = (await gpu_load.load(engine, jobs, 0.3, warm=0.05)).figures()
    assert engine.most_at_once == 3
    assert figures["in flight"] == 3
    assert figures["pictures/s"] == pytest.approx(FRAMES * figures["calls/s"], abs=FRAMES * 0.1)  # both are rounded
    assert figures["calls"] > 0
    assert figures["calls"] < len(engine.models)  # those of the time before do not count
    assert figures["p50_ms"] >= 5
    assert figures["batches"]["mean fill"] == FRAMES
    assert set(figures["batches"]["by size"]) == {str(FRAMES)}
    assert figures["created on the way"] == 0


async def test_some_calls_take_the_jobs_in_turn(jobs: list[EngineJob]) -> None:
    engine = FakeEngine(created=1)
    done = await gpu_load.some(engine, jobs, 10, at_once=4)
    assert len(done) == len(engine.models) == 10
    assert engine.most_at_once == 4
    assert sum(each.created for each in done) == 10
    told = gpu_load.steps([each.timings for each in done], [each.ended - each.seconds for each in done])
    assert told["decode"]["wait_ms"] == 0.5
    assert told["decode"]["wall_ms"] >= 1


async def test_a_load_of_skipped_pictures_measures_nothing(jobs: list[EngineJob]) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await gpu_load.load(FakeEngine(skip=True), jobs[:1], 0.1, warm=0)
    assert "12 of 12 pictures skipped: cut off" in str(raised.value.exceptions[0])


def test_latencies() -> None:
    assert gpu_load.latencies([]) == {}
    assert gpu_load.latencies([n / 1e3 for n in range(1, 101)]) == {"p50_ms": 50.5, "p90_ms": 91.0, "p99_ms": 100.0, "n": 100}
