"""The in-process engine with scripted decoders and models: what comes back, what is told, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from decoder_pool.assignment import DecoderState
from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.fake import FakeFactory, FakeScript
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import DeadlineExceeded, ModelFailed, UnknownModel, UnsupportedCodec, WorkerLost
from keyglance.video import Colour, Orientation, StreamConfig
from models.backends.fake import FakeBackend, FakeHead, fake_manifest
from models.batcher import Batcher
from models.ensemble import Ensemble, LoadedModel
from models.manifest import LabelSpec
from models.preprocess import Preprocessor
from models.run_slots import RunSlots
from server.degradation import DegradationReason
from server.engine import EngineJob, EngineResult
from server.local_engine import LocalEngine

CONFIG = StreamConfig("h264", 64, 48)


@dataclass
class Bench:
    engine: LocalEngine
    pool: DecoderPool
    factory: FakeFactory
    backends: dict[str, FakeBackend]
    ensemble: Ensemble

    async def assert_quiet(self) -> None:
        """Soon every decoder is idle, nobody waits, no frame is queued: what a lost call left running ends by itself."""
        for _ in range(200):
            if self._is_quiet():
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"{self.pool!r} {self.ensemble.snapshot()} {self.engine.frames_in_flight} frames in flight")

    def _is_quiet(self) -> bool:
        snapshot = self.pool.snapshot()
        return snapshot.waiting == snapshot.count(DecoderState.LEASED) == self.engine.frames_in_flight == 0 and all(
            queue.queued == queue.in_flight == queue.waiting == 0 for queue in self.ensemble.snapshot()
        )


@asynccontextmanager
async def bench(
    script: FakeScript | None = None, *, frames_in_flight: int = 8, limit: int = 3, **faults: int
) -> AsyncIterator[Bench]:
    factory = FakeFactory(script=script or FakeScript(), rekeyable=True, refused={"vvc": "no decoder reads vvc"})
    pool = DecoderPool(factory=factory, limit=limit, size_classes=(64, 2048))
    slots = RunSlots(1)
    backends, models = {}, []
    for name, required in (("colours", True), ("other", False)):
        manifest = fake_manifest(name, [LabelSpec(f"{name}-{c}") for c in "rgb"], required=required)
        backend = FakeBackend(manifest, fail_every=faults.get(name, 0))
        backends[name] = backend
        models.append(LoadedModel(manifest, backend, FakeHead(manifest), Batcher(manifest, backend, slots)))
    ensemble = Ensemble(models, slots)
    engine = LocalEngine(
        pool=pool, ensemble=ensemble, preprocessor=Preprocessor(), render_threads=2, frames_in_flight=frames_in_flight
    )
    await engine.start()
    try:
        yield Bench(engine, pool, factory, backends, ensemble)
    finally:
        await engine.close()


def job(samples: int = 6, *, config: StreamConfig = CONFIG, **fields: object) -> EngineJob:
    """One unit a sample, as a plan of keyframes gives."""
    units = tuple(DecodeUnit((Packet(n, n, 1, True),), (n,)) for n in range(samples))
    values = {
        "config": config,
        "orientation": Orientation(),
        "units": units,
        "packets": SharedBytes.held([bytes(samples)]),
        "models": (),
        "deadline": time.monotonic() + 20,
    }
    return EngineJob(**(values | fields))  # type: ignore[arg-type]


async def test_every_wanted_sample_gets_its_own_scores() -> None:
    def grey(sample: int, config: StreamConfig) -> Picture:
        level = 16 + 20 * sample
        planes = (np.full((48, 64), level, np.uint8), *(np.full((24, 32), 128, np.uint8) for _ in "uv"))
        return Picture(planes, 64, 48, colour=config.colour)

    async with bench(FakeScript(picture=grey)) as b:
        result = await b.engine.run(job(8))
        for frame in result.frames:
            expected = 20 * frame.sample / 219  # limited range: 16 is black, 235 is white
            assert frame.results["colours"].scores["colours-g"] == pytest.approx(expected, abs=1 / 255)
        assert sorted(frame.sample for frame in result.frames) == list(range(8))
        assert {timing.step for timing in result.timings} == {"decode", "preprocess", "infer"}
        assert result.degradations == ()
        await b.assert_quiet()


async def test_keyframes_of_one_call_spread_over_idle_decoders() -> None:
    async with bench(FakeScript(picture_delay=0.01), limit=3) as b:
        await asyncio.gather(*(b.engine.run(job(1)) for _ in range(3)))  # makes three decoders
        await b.engine.run(job(9))
        assert len([d for d in b.pool.snapshot().decoders if d.leases >= 2]) == 3


async def test_models_asked_for_by_name_run_alone() -> None:
    async with bench() as b:
        result = await b.engine.run(job(models=("other",)))
        assert all(set(frame.results) == {"other"} for frame in result.frames)
        assert b.backends["colours"].batches == []
        with pytest.raises(UnknownModel, match="colours"):
            await b.engine.run(job(models=("nope",)))
        await b.assert_quiet()


async def test_damaged_and_missing_pictures_are_told_and_not_labelled() -> None:
    async with bench(FakeScript(damaged=frozenset({1}), missing=frozenset({3}))) as b:
        frames = {frame.sample: frame for frame in (await b.engine.run(job(5))).frames}
        assert frames[1].skipped is DegradationReason.FRAME_DAMAGED
        assert frames[3].skipped is DegradationReason.FRAME_UNDECODABLE
        assert not frames[1].results
        assert not frames[3].results
        assert all(frames[n].skipped is None and frames[n].results for n in (0, 2, 4))
        await b.assert_quiet()


async def test_orientation_reaches_the_models_and_the_thumbnail() -> None:
    async with bench() as b:
        result = await b.engine.run(job(1, orientation=Orientation(90), thumbnail_size=32))
        assert Image.open(BytesIO(result.frames[0].thumbnail)).size == (24, 32)


async def test_the_stream_is_told_as_the_pictures_have_it() -> None:
    def wide(sample: int, config: StreamConfig) -> Picture:
        return Picture((np.zeros((20, 30), np.uint8),), 30, 20, chroma_format="400", chroma_shift=(0, 0), colour=Colour(matrix=1))

    async with bench(FakeScript(picture=wide)) as b:
        found = (await b.engine.run(job(1))).config
        assert found is not None
        assert (found.width, found.height, found.chroma_format, found.colour.matrix) == (30, 20, "400", 1)


async def test_an_optional_model_that_fails_is_left_out_of_every_frame_and_told() -> None:
    async with bench(other=2) as b:  # every second batch of the optional model fails
        for _ in range(4):
            result = await b.engine.run(job(6))
            if result.degradations:
                break
        assert [d.reason for d in result.degradations] == [DegradationReason.MODEL_LEFT_OUT]
        assert all(set(frame.results) == {"colours"} for frame in result.frames)
        await b.assert_quiet()


async def test_a_required_model_that_fails_fails_its_call_and_no_other() -> None:
    async with bench(colours=3) as b:
        ended = [await asyncio.gather(b.engine.run(job(2)), return_exceptions=True) for _ in range(9)]
        kinds = [type(one[0]) for one in ended]
        assert ModelFailed in kinds
        assert EngineResult in kinds
        await b.assert_quiet()


async def test_a_broken_decoder_fails_one_call_and_is_replaced() -> None:
    async with bench(FakeScript(breaks_at_unit=5), limit=1) as b:
        await b.engine.run(job(4))
        with pytest.raises(WorkerLost):
            await b.engine.run(job(4))
        await b.engine.run(job(4))
        await b.assert_quiet()


async def test_what_no_decoder_reads_is_refused() -> None:
    async with bench() as b:
        with pytest.raises(UnsupportedCodec, match="vvc"):
            await b.engine.run(job(config=StreamConfig("vvc", 64, 48)))
        await b.assert_quiet()


async def test_a_deadline_in_the_queue_for_decoders_is_kept() -> None:
    async with bench(FakeScript(picture_delay=0.05), limit=1) as b:
        slow = asyncio.create_task(b.engine.run(job(6)))
        await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded):
            await b.engine.run(job(1, deadline=time.monotonic() + 0.05))
        await slow
        await b.assert_quiet()


async def test_few_frames_in_flight_are_enough_for_many_calls() -> None:
    async with bench(frames_in_flight=1, limit=2) as b:
        results = await asyncio.gather(*(b.engine.run(job(5)) for _ in range(6)))
        assert all(len(result.frames) == 5 for result in results)
        await b.assert_quiet()


async def test_calls_cancelled_at_any_moment_leave_nothing_behind() -> None:
    random.seed(7)
    async with bench(FakeScript(picture_delay=0.002), frames_in_flight=4, limit=2) as b:
        tasks = [asyncio.create_task(b.engine.run(job(4))) for _ in range(40)]
        for task in tasks[::2]:
            await asyncio.sleep(random.uniform(0, 0.01))
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(one, EngineResult) for one in ended) >= 20
        assert all(isinstance(one, EngineResult | asyncio.CancelledError) for one in ended)
        await b.assert_quiet()
