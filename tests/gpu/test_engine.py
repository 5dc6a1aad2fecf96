"""The whole engine on a real GPU: its answers beside the CPU's, mixed load, faults of every kind, nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from decoder_pool.assignment import DecoderState
from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance import Answer
from keyglance.aio import AsyncClient
from keyglance.errors import KeyglanceError
from loadtest.clips import encode, pan, photograph, text_page
from loadtest.gpu_load import Done, one, some
from loadtest.gpu_service import Allocations, held
from loadtest.gpu_setup import Service, far, jobs_of
from server.config import Config
from server.device import choose
from server.engine import Engine, EngineJob, EngineResult

pytestmark = [pytest.mark.gpu, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

NAMES = ("open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text")
#: Scores of one picture may differ so much: its tensor by 1/255 a value, a raw output by 0.01 where the GPU computes in float16.
SCORE = 0.02
#: The same on one GPU, where only the batch is another one.
SAME = 0.005
#: One model, one batch size, few decoders: a quick start, for engines that a test breaks.
SMALL = {"batch_buckets": [16], "warm": [{"count": 3}], "arena_pictures": [48, 4, 2]}


def config(models_folder: Path, device: str, models: Iterable[str] = NAMES, **gpu: object) -> Config:
    return Config.load(
        overrides={
            "engine": {"device": device},
            "models": {"folder": str(models_folder), "enabled": tuple(models)},
            "server": {"listen": "127.0.0.1:0"},
            "gpu": gpu,
        }
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gpu(cupy: Any, models_folder: Path) -> AsyncIterator[Service]:
    """A server with four models on the GPU; few batch sizes, so that it starts soon."""
    service = await Service.start(config(models_folder, "gpu", batch_buckets=[4, 16, 64]))
    yield service
    await service.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cpu(models_folder: Path) -> AsyncIterator[Service]:
    """The same models on the CPU."""
    service = await Service.start(config(models_folder, "cpu"))
    yield service
    await service.close()


def made(width: int, height: int, name: str = "coffee", **options: Any) -> bytes:
    """A clip of three keyframes."""
    source = text_page() if name == "text" else photograph(name)
    return encode(pan(source, 3, width, height), keyframe_interval=1, **options)


CLIPS: dict[str, dict[str, Any]] = {
    "landscape": {"width": 1280, "height": 720},
    "upright": {"width": 720, "height": 1280, "name": "astronaut"},
    "530 rows": {"width": 640, "height": 530, "name": "chelsea"},
    "532 rows": {"width": 640, "height": 532, "name": "rocket"},
    "1080 rows": {"width": 1920, "height": 1080, "name": "astronaut"},
    "turned": {"width": 640, "height": 360, "name": "astronaut", "rotation": 90},
    "text": {"width": 640, "height": 480, "name": "text"},
    "HEVC": {"width": 640, "height": 360, "codec": "libx265"},
    "HEVC, 10 bits": {"width": 640, "height": 360, "codec": "libx265", "pixel_format": "yuv420p10le"},
    "VP9": {"width": 640, "height": 360, "codec": "libvpx-vp9", "container": "webm", "name": "chelsea"},
    "MPEG-4": {"width": 640, "height": 360, "codec": "mpeg4", "name": "rocket"},
    "smaller than hardware decodes": {"width": 32, "height": 32},
}
BUSY = ("landscape", "upright", "530 rows", "532 rows", "1080 rows", "turned", "text")


@pytest.fixture(scope="module")
def clips() -> dict[str, bytes]:
    return {name: made(**options) for name, options in CLIPS.items()}


def scores(answer: Answer) -> list[dict[tuple[str, str], float]]:
    """By picture, in order of time."""
    return [{(score.model, score.label): score.score for score in frame.scores} for frame in answer.frames]


def largest_move(left: EngineResult, right: EngineResult) -> float:
    """The largest difference of any score of any picture; both must have looked at the same ones."""
    mine, theirs = ({frame.sample: frame for frame in result.frames} for result in (left, right))
    assert mine.keys() == theirs.keys()
    moves = [0.0]
    for sample, frame in mine.items():
        other = theirs[sample]
        assert frame.skipped is other.skipped is None, (frame.detail, other.detail)
        assert frame.results.keys() == other.results.keys()
        for name, result in frame.results.items():
            moves += [abs(score - other.results[name].scores[label]) for label, score in result.scores.items()]
    return max(moves)


async def jobs(clips: dict[str, bytes], names: Iterable[str]) -> dict[str, EngineJob]:
    return {name: (await jobs_of(clips[name], 1, frames=3))[0] for name in names}


async def answered(engine: Engine, job: EngineJob, seconds: float = 60) -> EngineResult:
    """One answer; an engine that keeps its callers waiting past their deadline fails the test."""
    async with asyncio.timeout(seconds + 5):
        return await engine.run(dataclasses.replace(job, deadline=time.monotonic() + seconds))


async def quiet(engine: Any, patience: float = 20) -> None:
    """Until nothing is lent, queued or held; fails after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        arena = engine._factory.arena.snapshot()
        pools = [pool.snapshot() for pool in (engine._pool, engine._software)]
        idle = all(pool.waiting == 0 and pool.count(DecoderState.IDLE) == len(pool.decoders) for pool in pools)
        queues = engine.ensemble.snapshot()
        if arena.free == arena.slots and idle and not any(queue.queued or queue.in_flight for queue in queues):
            return
        if time.monotonic() > end:
            pytest.fail(f"not quiet: {engine!r}, {engine._factory.arena!r}")
        await asyncio.sleep(0.02)


# What it says


async def test_auto_takes_the_gpu(gpu: Service, models_folder: Path) -> None:
    chosen = choose(config(models_folder, "auto"))
    assert chosen.gpu is not None
    assert chosen.reason == ""
    assert gpu.engine.info().device == chosen.name
    assert {manifest.name for manifest in gpu.engine.info().models if manifest.default_on} == set(NAMES)


@pytest.mark.parametrize("name", list(CLIPS))
async def test_answers_are_the_cpus(gpu: Service, cpu: Service, clips: dict[str, bytes], name: str) -> None:
    answers: list[Answer] = []
    for service in (gpu, cpu):
        async with AsyncClient(service.server.address, retries=0, timeout=60) as client:
            answers.append(await client.label(clips[name], frames=3, models=NAMES, least_score=0, frame_scores=True))
    mine, theirs = answers
    assert len(mine.frames) == len(theirs.frames) == 3
    assert [frame.index for frame in mine.frames] == [frame.index for frame in theirs.frames]
    for left, right in zip(scores(mine), scores(theirs), strict=True):
        assert left.keys() == right.keys()
        assert {model for model, _ in left} <= set(NAMES)
        far_apart = {label: (value, right[label]) for label, value in left.items() if abs(value - right[label]) > SCORE}
        assert far_apart == {}
    labels = [{label.name: label.score for label in answer.labels} for answer in answers]
    assert labels[0].keys() == labels[1].keys()
    assert max((abs(labels[0][label] - labels[1][label]) for label in labels[0]), default=0) <= SCORE
    assert mine.verdict == theirs.verdict
    degraded = {degradation.detail for degradation in mine.degradations}
    assert bool(degraded) == (name in ("MPEG-4", "smaller than hardware decodes")), degraded


# Mixed load


async def test_sizes_and_orientations_in_one_batch(gpu: Service, clips: dict[str, bytes]) -> None:
    by_name = await jobs(clips, BUSY)
    alone = {name: await answered(gpu.engine, job) for name, job in by_name.items()}
    again = {name: await answered(gpu.engine, job) for name, job in by_name.items()}
    assert {name: largest_move(alone[name], again[name]) for name in BUSY} == dict.fromkeys(BUSY, 0.0)
    order = [name for name in BUSY for _ in range(12)]
    random.Random(1).shuffle(order)
    await asyncio.gather(*(answered(gpu.engine, by_name[name]) for name in order))  # a crowd may bring decoders into being
    crowd = await asyncio.gather(*(answered(gpu.engine, by_name[name]) for name in order))
    moves = {name: largest_move(alone[name], result) for name, result in zip(order, crowd, strict=True)}
    assert {name: move for name, move in moves.items() if move > SAME} == {}
    assert sum(timing.created for result in crowd for timing in result.timings) == 0
    await quiet(gpu.engine)


async def test_a_fresh_engine_gives_what_a_used_one_gives(gpu: Service, models_folder: Path, clips: dict[str, bytes]) -> None:
    by_name = await jobs(clips, BUSY)
    await some(gpu.engine, list(by_name.values()), 200, at_once=8)
    used = {name: await answered(gpu.engine, job) for name, job in by_name.items()}
    await quiet(gpu.engine)
    for name, job in by_name.items():
        fresh = await _decoded_fresh(gpu.engine, job)
        assert largest_move(used[name], fresh) <= SAME, name


async def _decoded_fresh(engine: Any, job: EngineJob) -> EngineResult:
    """The job on decoders that have never seen another stream: all idle ones are closed first and come anew."""
    pool = engine._pool
    leases = await pool.lease(job.config, deadline=far(), most=pool.limit)
    for lease in leases:
        lease.release(broken=True)
    await quiet(engine)
    return await answered(engine, job)


async def test_calls_that_are_cancelled_leave_nothing(gpu: Service, clips: dict[str, bytes]) -> None:
    by_name = list((await jobs(clips, BUSY)).values())
    chance = random.Random(2)

    async def cut_short(job: EngineJob) -> None:
        task = asyncio.create_task(answered(gpu.engine, job))
        await asyncio.sleep(chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for _ in range(10):
        await asyncio.gather(*(cut_short(chance.choice(by_name)) for _ in range(16)))
    await quiet(gpu.engine)
    done = await some(gpu.engine, by_name, 20, at_once=4)
    assert sum(each.degraded for each in done) == 0


# Faults


async def test_garbage_costs_its_own_call_at_most(gpu: Service, clips: dict[str, bytes]) -> None:
    good = (await jobs(clips, ["landscape"]))["landscape"]
    expected = await answered(gpu.engine, good)
    before = gpu.engine.stats().pools[0].broken
    payloads = [good.packets.read(unit.packets[0].offset, unit.packets[0].size) for unit in good.units]
    chance = random.Random(3)
    cases = {
        "random bytes": chance.randbytes(20_000),
        "zeros": bytes(20_000),
        "one byte": b"\1",
        "cut in its header": payloads[0][:40],
        "cut in the middle": payloads[0][: len(payloads[0]) // 2],
        "lengths with random bytes": b"".join(b"\0\0\x10\0" + chance.randbytes(4096) for _ in range(5)),
    }
    for name, payload in cases.items():
        with SharedBytes.of([payload, payloads[1]]) as packets:
            units = tuple(
                DecodeUnit((Packet(number, offset, size, True),), (number,))
                for number, (offset, size) in enumerate(((0, len(payload)), (len(payload), len(payloads[1]))))
            )
            try:
                result = await answered(gpu.engine, dataclasses.replace(good, units=units, packets=packets))
            except KeyglanceError:
                pass  # a sentence for its caller
            else:
                frames = {frame.sample: frame for frame in result.frames}
                assert frames[0].skipped is not None or frames[0].stand_in is not None, name
                assert frames[1].skipped is None, name
        assert largest_move(expected, await answered(gpu.engine, good)) == 0, name
    assert gpu.engine.stats().pools[0].broken == before
    await quiet(gpu.engine)


async def test_a_container_that_lies_about_the_size(gpu: Service, clips: dict[str, bytes]) -> None:
    told = await jobs(clips, ["landscape", "530 rows", "smaller than hardware decodes"])
    good = told["landscape"]
    expected = await answered(gpu.engine, good)
    before = gpu.engine.stats().pools[0].broken
    for name in ("530 rows", "smaller than hardware decodes"):
        job = told[name]
        honest = await answered(gpu.engine, job)
        lies = dataclasses.replace(job, config=dataclasses.replace(job.config, width=1280, height=720))
        assert largest_move(honest, await answered(gpu.engine, lies)) <= SAME, name
        assert largest_move(expected, await answered(gpu.engine, good)) == 0
    assert gpu.engine.stats().pools[0].broken == before
    await quiet(gpu.engine)


@pytest_asyncio.fixture(loop_scope="module")
async def expendable(cupy: Any, models_folder: Path) -> AsyncIterator[Service]:
    """A small engine of its own, for what may break it."""
    service = await Service.start(config(models_folder, "gpu", ["open-nsfw"], **SMALL))
    yield service
    await service.close()


async def recovered(engine: Any, job: EngineJob, expected: EngineResult, patience: float = 30) -> None:
    """Until the engine is healthy and answers as before, in hardware; fails after `patience` seconds."""
    end, last = time.monotonic() + patience, ""
    while time.monotonic() < end:
        try:
            result = await answered(engine, job)
        except KeyglanceError as error:
            last = f"{type(error).__name__}: {error}"
        else:
            last = "; ".join(degradation.detail for degradation in result.degradations)
            if engine.healthy and not result.degradations and largest_move(expected, result) <= SAME:
                return
        await asyncio.sleep(0.2)
    pytest.fail(f"healthy: {engine.healthy}; the last answer: {last or 'other scores'}")


async def test_a_poisoned_decoder_is_replaced(expendable: Service, clips: dict[str, bytes]) -> None:
    engine: Any = expendable.engine
    job = (await jobs(clips, ["landscape"]))["landscape"]
    expected = await answered(engine, job)
    poison = encode(pan(photograph("coffee"), 1, 32, 32), keyframe_interval=1, container="h264")
    leases = await engine._pool.lease(job.config, deadline=far(), most=3)
    assert len(leases) == 3
    for lease in leases:
        with pytest.raises(Exception, match=r".+"):
            lease.decoder._session._decode(poison, 8)  # error 1, once; from then on every valid picture raises too
        lease.release()  # the pool does not know
    poisoned = {decoder.number for decoder in engine._pool.snapshot().decoders}
    result = await answered(engine, job)
    assert [frame for frame in result.frames if frame.skipped is not None] == []  # software took over
    assert result.degradations
    await recovered(engine, job, expected)
    await quiet(engine)
    state = engine._pool.snapshot()
    assert state.counters.broken >= 1
    assert len(state.decoders) == 3
    assert {decoder.number for decoder in state.decoders} != poisoned


async def test_a_capture_that_fails_elsewhere_in_the_process(expendable: Service, cupy: Any, clips: dict[str, bytes]) -> None:
    engine: Any = expendable.engine
    by_name = await jobs(clips, ["landscape", "upright"])
    expected = await answered(engine, by_name["landscape"])
    begun, enough = threading.Event(), threading.Event()
    said: list[str] = []

    def capture() -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            begun.set()
            enough.wait(20)
            try:
                stream.end_capture()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    assert await asyncio.to_thread(begun.wait, 20)
    hit = await asyncio.gather(*(answered(engine, job, 15) for _ in range(8) for job in by_name.values()), return_exceptions=True)
    enough.set()
    await asyncio.to_thread(thread.join, 20)
    # A call that is hit may fail, with a sentence of ours; it may as well have been answered.
    assert [error for error in hit if isinstance(error, BaseException) and not isinstance(error, KeyglanceError)] == []
    print(json.dumps({"the capture said": said, "calls": sorted({type(each).__name__ for each in hit})}))
    await recovered(engine, by_name["landscape"], expected)
    await recovered(engine, by_name["upright"], await answered(engine, by_name["upright"]))
    await quiet(engine)


# Nothing grows


async def test_a_thousand_clips_leave_nothing(gpu: Service, clips: dict[str, bytes]) -> None:
    engine: Any = gpu.engine
    by_name = list((await jobs(clips, BUSY)).values())
    await some(engine, by_name, 200, at_once=16)
    for job in by_name:
        await one(engine, job)
    await quiet(engine)
    with Allocations() as allocations:
        before = held()
        done: list[Done] = await some(engine, by_name, 1000, at_once=16)
        await quiet(engine)
        after = held()
    assert allocations.figures() == {"device": 0, "pinned": 0}
    assert sum(each.created for each in done) == sum(each.degraded for each in done) == 0
    memory = {name: (before.pop(name), after.pop(name)) for name in ("memory in MiB", "GPU memory free in MiB")}
    assert after == before
    resident, free = memory["memory in MiB"], memory["GPU memory free in MiB"]
    assert resident[1] - resident[0] < 64
    assert free[0] - free[1] < 4
    assert engine.healthy
