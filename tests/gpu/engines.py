"""Engines on a GPU and clips for them, as the tests of the whole engine use them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from decoder_pool.assignment import DecoderState
from keyglance.errors import KeyglanceError
from loadtest.clips import encode, pan, photograph, text_page
from loadtest.gpu_setup import jobs_of
from server.config import Config
from server.engine import Engine, EngineJob, EngineResult

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
        models = engine.ensemble.snapshot()
        in_flight = models.queued or any(model.in_flight for model in models.models)
        if arena.free == arena.slots and idle and not in_flight:
            return
        if time.monotonic() > end:
            pytest.fail(f"not quiet: {engine!r}, {engine._factory.arena!r}")
        await asyncio.sleep(0.02)


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
