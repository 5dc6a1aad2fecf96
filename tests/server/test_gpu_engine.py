"""The engine on a GPU, with scripted decoders and a device of threads: outcomes, degradations, failures, nothing left behind."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from decoder_pool.assignment import DecoderState
from decoder_pool.decoder import Decoded, DecodeUnit, Packet
from decoder_pool.fake import FakeDecoder, FakeFactory, FakeScript
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.stream import Bounds
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import DeadlineExceeded, GpuLost, ModelFailed, UnknownModel, UnsupportedCodec, WorkerLost
from keyglance.video import Orientation, StreamConfig
from models.device_ensemble import DeviceEnsemble
from server.degradation import DegradationReason
from server.engine import EngineJob, EngineResult
from server.engine_stats import WorkerStats
from server.gpu_engine import GpuEngine
from server.head_process.process import HeadProcess
from server.head_process.shared_results import SharedResults
from server.readings import engine_readings
from tests.models.fake_runners import CountedLease, FakeFence, FakeRunner, grey, on_gpu, runner_manifest

CONFIG = StreamConfig("h264", 64, 48)


class Slots:
    """What was lent."""

    def __init__(self) -> None:
        self.leases: list[CountedLease] = []

    def lend(self, picture: Picture) -> Picture:
        lease = CountedLease()
        self.leases.append(lease)
        return replace(picture, planes=tuple(on_gpu(plane) for plane in picture.planes), lease=lease)

    @property
    def held(self) -> int:
        return sum(lease.holders for lease in self.leases)


class FakeDriven(FakeDecoder):
    """Drives on a thread of its own, as hardware decoders do."""

    def __init__(self, key: DecoderKey, factory: FakeGpu) -> None:
        super().__init__(key, factory)
        self._slots = factory.slots
        self._in_software = factory.in_software

    async def drive(
        self, take: Callable[[], DecodeUnit | None], packets: SharedBytes, deliver: Callable[[Decoded], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        while (unit := await loop.run_in_executor(None, take)) is not None:
            async with aclosing(self.decode(unit, packets)) as pictures:
                async for decoded in pictures:
                    if decoded.picture is not None:
                        decoded = replace(decoded, picture=self._slots.lend(decoded.picture))
                    if decoded.sample in self._in_software:
                        decoded = replace(decoded, in_software=True, detail="damaged in hardware")
                    await asyncio.shield(loop.run_in_executor(None, deliver, decoded))


@dataclass(slots=True)
class FakeGpu(FakeFactory):
    """Hardware: its factory, its memory, its health."""

    slots: Slots = field(default_factory=Slots)
    wrong: str | None = None
    too_large: bool = False
    closed: bool = False
    in_software: frozenset[int] = frozenset()
    on_broken: Callable[[str], None] = print
    capabilities: Mapping[tuple[str, int, str], Bounds] = field(
        default_factory=lambda: {("h264", 8, "420"): Bounds(48, 16, 4096, 4096, 65536)}
    )

    def make(self, key: DecoderKey) -> FakeDriven:
        decoder = FakeDriven(key, self)
        self.decoders.append(decoder)
        return decoder

    @property
    def uploader(self) -> FakeGpu:
        return self

    async def upload(self, picture: Picture) -> Picture:
        if self.too_large:
            raise ValueError("a picture of 9 bytes, the largest slot has 8")
        return self.slots.lend(picture)

    def check(self) -> str | None:
        return self.wrong

    def close(self) -> None:
        self.closed = True


@dataclass
class Bench:
    engine: GpuEngine
    gpu: FakeGpu
    pool: DecoderPool
    software: DecoderPool
    runners: dict[str, FakeRunner]

    async def assert_quiet(self) -> None:
        for _ in range(200):
            if self._is_quiet():
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"{self.engine!r}, {self.gpu.slots.held} slots are held")

    def _is_quiet(self) -> bool:
        pools = [pool.snapshot() for pool in (self.pool, self.software)]
        return (
            self.gpu.slots.held == self.engine.jobs_in_flight == 0
            and all(pool.waiting == pool.count(DecoderState.LEASED) == 0 for pool in pools)
            and self.engine._at_work == 0
            and self.engine.ensemble.snapshot().queued == 0
            and all(model.in_flight == 0 for model in self.engine.ensemble.snapshot().models)
        )


def level_of(sample: int, config: StreamConfig) -> Picture:
    return grey(10 * sample, config.width, config.height)


@asynccontextmanager
async def bench(script: FakeScript | None = None, *, limit: int = 3, **rest: Any) -> AsyncIterator[Bench]:
    script = script or FakeScript(picture=level_of)
    gpu = FakeGpu(script=script, kind="nvdec", refused={"av1": "this GPU does not decode av1"})
    pool = DecoderPool(factory=gpu, limit=limit, size_classes=(64, 2048))
    software = DecoderPool(
        factory=FakeFactory(script=script, kind="cpu", rekeyable=True, refused={"prores": "no decoder reads prores"}),
        limit=limit,
        size_classes=(64, 2048),
    )
    runners = {"first": FakeRunner(runner_manifest("first", required=True)), "second": FakeRunner(runner_manifest("second"))}
    ensemble = DeviceEnsemble(
        [runner.manifest for runner in runners.values()], lambda: (list(runners.values()), FakeFence()), largest_wait=0.01
    )
    engine = GpuEngine(factory=gpu, pool=pool, software=software, ensemble=ensemble, device_name="a GPU", **rest)
    await engine.start()
    try:
        yield Bench(engine, gpu, pool, software, runners)
    finally:
        await engine.close()
        assert gpu.closed
        assert gpu.slots.held == 0


def job(samples: int = 6, *, config: StreamConfig = CONFIG, **fields: object) -> EngineJob:
    """One unit a sample, as a plan of keyframes gives."""
    units = tuple(DecodeUnit((Packet(n, n, 1, True),), (n,)) for n in range(samples))
    values = {
        "config": config,
        "orientation": Orientation(),
        "units": units,
        "packets": SharedBytes.held([bytes(max(1, samples))]),
        "models": (),
        "deadline": time.monotonic() + 20,
    }
    return EngineJob(**(values | fields))  # type: ignore[arg-type]


def scores(result: EngineResult, model: str = "first") -> dict[int, float]:
    return {f.sample: f.results[model].scores[f"{model}-level"] for f in result.frames if model in f.results}


async def test_every_wanted_sample_gets_its_own_scores() -> None:
    async with bench() as b:
        result = await b.engine.run(job(8))
        for model in ("first", "second"):
            assert scores(result, model) == {n: pytest.approx(10 * n / 255) for n in range(8)}
        assert [timing.step for timing in result.timings] == ["decode", "preprocess", "infer"]
        assert all(0 < timing.begin <= timing.end for timing in result.timings)
        assert result.degradations == ()
        assert result.config == CONFIG
        await b.assert_quiet()


async def test_what_hardware_refuses_is_decoded_in_software_and_told() -> None:
    async with bench() as b:
        result = await b.engine.run(job(4, config=StreamConfig("av1", 64, 48)))
        assert scores(result) == {n: pytest.approx(10 * n / 255) for n in range(4)}
        (told,) = result.degradations
        assert (told.reason, told.count) == (DegradationReason.SOFTWARE_FALLBACK, 4)
        assert "does not decode av1" in told.detail
        assert b.pool.snapshot().counters.created == 0
        b.gpu.refused = {"prores": "no"}
        with pytest.raises(UnsupportedCodec, match="prores"):
            await b.engine.run(job(1, config=StreamConfig("prores", 64, 48)))
        await b.assert_quiet()


async def test_single_pictures_that_software_decoded_are_told() -> None:
    async with bench() as b:
        b.gpu.in_software = frozenset({1, 2})
        (told,) = (await b.engine.run(job(4))).degradations
        assert (told.reason, told.count, told.detail) == (DegradationReason.SOFTWARE_FALLBACK, 2, "damaged in hardware")


async def test_pictures_without_room_on_the_gpu_are_skipped_and_told() -> None:
    async with bench() as b:
        b.gpu.too_large = True
        result = await b.engine.run(job(2, config=StreamConfig("av1", 64, 48)))
        assert [frame.skipped for frame in result.frames] == [DegradationReason.FRAME_UNDECODABLE] * 2
        assert "largest slot" in result.frames[0].detail


async def test_damaged_and_missing_pictures_are_told_and_not_waited_for() -> None:
    script = FakeScript(picture=level_of, damaged=frozenset({1}), missing=frozenset({3}))
    async with bench(script) as b:
        frames = {frame.sample: frame for frame in (await b.engine.run(job(5))).frames}
        assert frames[1].skipped is DegradationReason.FRAME_DAMAGED
        assert frames[3].skipped is DegradationReason.FRAME_UNDECODABLE
        assert all(frames[n].skipped is None and frames[n].results for n in (0, 2, 4))
        assert len((await b.engine.run(job(0))).frames) == 0
        await b.assert_quiet()


async def test_planes_that_do_not_fit_are_a_skipped_picture() -> None:
    def wrong(sample: int, config: StreamConfig) -> Picture:
        return replace(level_of(sample, config), width=4000 if sample == 1 else config.width)

    async with bench(FakeScript(picture=wrong)) as b:
        frames = {frame.sample: frame for frame in (await b.engine.run(job(3))).frames}
        assert frames[1].skipped is DegradationReason.FRAME_UNDECODABLE
        assert "plane 0" in frames[1].detail
        assert frames[0].results
        await b.assert_quiet()


async def test_models_asked_for_by_name_run_alone() -> None:
    async with bench() as b:
        result = await b.engine.run(job(models=("second",)))
        assert all(set(frame.results) == {"second"} for frame in result.frames)
        assert b.runners["first"].batches == []
        with pytest.raises(UnknownModel):
            await b.engine.run(job(models=("nope",)))
        await b.assert_quiet()


async def test_thumbnails_are_upright_and_belong_to_their_frames() -> None:
    async with bench() as b:
        result = await b.engine.run(job(3, thumbnail_size=32, orientation=Orientation(90)))
        for frame in result.frames:
            image = Image.open(BytesIO(frame.thumbnail))
            assert image.size == (24, 32)
            level = (10 * frame.sample - 16) * 255 / 219
            assert np.asarray(image).mean() == pytest.approx(max(0.0, level), abs=2)
        await b.assert_quiet()


async def test_an_optional_model_that_fails_is_left_out_of_every_frame() -> None:
    async with bench() as b:
        b.runners["second"].nan = True
        result = await b.engine.run(job(4))
        assert all(set(frame.results) == {"first"} for frame in result.frames)
        assert [told.reason for told in result.degradations] == [DegradationReason.MODEL_LEFT_OUT]


async def test_a_required_model_that_fails_fails_its_call_and_no_later_one() -> None:
    async with bench() as b:
        b.runners["first"].fails = True
        with pytest.raises(ModelFailed, match="IllegalAddress"):
            await b.engine.run(job(4))
        b.runners["first"].fails = False
        await b.assert_quiet()
        await b.engine.run(job(4))


async def test_a_lost_gpu_is_told_and_ends_the_engine() -> None:
    async with bench() as b:
        assert b.engine.healthy
        b.gpu.wrong = "cudaErrorECCUncorrectable"
        b.runners["first"].fails = True
        with pytest.raises(GpuLost, match="ECC"):
            await b.engine.run(job(4))
        assert not b.engine.healthy
        with pytest.raises(GpuLost):
            await b.engine.run(job(1))


async def test_a_gpu_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    async with bench() as b:
        monkeypatch.setattr("server.gpu_watch._CHECK_PATIENCE", 0.05)
        monkeypatch.setattr(b.engine._watch, "_check", lambda: answer.wait(10) and None)
        b.engine._watch.look_now()
        for _ in range(100):
            if not b.engine.healthy:
                break
            await asyncio.sleep(0.01)
        assert not b.engine.healthy
        answer.set()


async def test_a_broken_decoder_fails_one_call_and_is_replaced() -> None:
    script = FakeScript(picture=level_of, breaks_at_unit=2)
    async with bench(script, limit=1) as b:
        with pytest.raises(WorkerLost):
            await b.engine.run(job(4))
        script.breaks_at_unit = None
        await b.assert_quiet()
        assert len((await b.engine.run(job(4))).frames) == 4
        assert b.engine.healthy


async def test_a_deadline_between_units_is_kept() -> None:
    async with bench(FakeScript(picture=level_of, picture_delay=0.05), limit=1) as b:
        with pytest.raises(DeadlineExceeded):
            await b.engine.run(job(20, deadline=time.monotonic() + 0.12))
        await b.assert_quiet()


async def test_the_process_that_reads_for_it_lives_as_long_as_it() -> None:
    heads = HeadProcess([], SharedResults(), module="server.head_process.child")
    async with bench(heads=heads) as b:
        assert b.engine.stats().workers[0].worker == "heads"
        for _ in range(500):
            if heads.ready:
                break
            await asyncio.sleep(0.02)
        assert b.engine.stats().workers == (WorkerStats("heads", 1, 1, 0),)
        told = [
            (each.instrument.name, each.value) for each in engine_readings(b.engine.stats()) if "heads" in each.labels.values()
        ]
        assert told == [("keyglance.workers", 1), ("keyglance.workers.wanted", 1), ("keyglance.worker.restarts", 0)]
    assert heads.stats() == WorkerStats("heads", 0, 1, 0)


async def test_what_it_says_of_itself() -> None:
    async with bench() as b:
        await b.engine.run(job(4))
        info, stats = b.engine.info(), b.engine.stats()
        assert [state.kind for state in info.decoders] == ["nvdec", "cpu"]
        assert info.device == "a GPU"
        assert {each.model: sum(n * c for n, c in each.fill.items()) for each in stats.batches} == {"first": 4, "second": 4}
        assert [(queue.queue, queue.model, queue.depth) for queue in stats.queues] == [("infer", "", 0)]


async def test_decoders_that_keep_the_hardware_busy_are_shared_by_the_calls_that_decode() -> None:
    script = FakeScript(picture=level_of, picture_delay=0.05)
    async with bench(script, limit=9, decoders_per_call=4, busy_decoders=6) as b:
        for _ in range(4):  # what was at work is not counted any more; the first ones make the decoders
            at_once = []
            calls = []
            for _ in range(4):
                calls.append(asyncio.create_task(b.engine.run(job(12))))
                await asyncio.sleep(0.02)
                at_once.append(b.pool.snapshot().count(DecoderState.LEASED))
            await asyncio.gather(*calls)
            await b.assert_quiet()
        assert at_once == [4, 6, 7, 8]  # one at the least


async def test_few_pictures_are_for_one_decoder_where_many_calls_are_in_flight() -> None:
    script = FakeScript(picture=level_of, picture_delay=0.05)
    async with bench(script, limit=9, decoders_per_call=4, busy_decoders=6) as b:
        for _ in range(3):  # these make the decoders
            await b.engine.run(job(12))
        gate = b.runners["first"].gate = threading.Event()
        calls: list[asyncio.Task[EngineResult]] = []

        async def leased(samples: int) -> int:
            calls.append(asyncio.create_task(b.engine.run(job(samples))))
            at_once = 0
            while not at_once or b.pool.snapshot().count(DecoderState.LEASED):
                at_once = max(at_once, b.pool.snapshot().count(DecoderState.LEASED))
                await asyncio.sleep(0.005)
            return at_once

        assert [await leased(2) for _ in range(6)] == [2] * 6
        assert [await leased(samples) for samples in (2, 3, 4, 12)] == [1, 1, 2, 4]
        gate.set()
        await asyncio.gather(*calls)


async def test_calls_cancelled_at_any_moment_leave_nothing_behind() -> None:
    rng = random.Random(11)
    async with bench(FakeScript(picture=level_of, picture_delay=0.002)) as b:
        for runner in b.runners.values():
            runner.seconds = 0.002

        async def call(number: int) -> None:
            config = StreamConfig("av1", 64, 48) if number % 5 == 0 else CONFIG
            task = asyncio.create_task(b.engine.run(job(rng.randint(1, 7), config=config, thumbnail_size=(number % 3 == 0) * 16)))
            if number % 2:
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(outcome, (EngineResult, asyncio.CancelledError)), outcome

        await asyncio.gather(*(call(number) for number in range(60)))
        await b.assert_quiet()
