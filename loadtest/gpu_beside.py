"""A picture's decoding while models keep the GPU busy, on streams of the usual priority and of the decoders' own.

What a decoder waits for on the GPU's processors it waits for behind what the models have put there, unless it goes first.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from decoder_pool.nvdec.arena import FrameArena, Slot
from decoder_pool.nvdec.gpu import STREAM_PRIORITY, Gpu, HardwareSession
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.stream import Feed
from loadtest.gpu_alone import Drivers, Keyframes, decode_and_copy, flat_out, keyframes_of, runners_for
from loadtest.gpu_load import latencies
from loadtest.gpu_setup import Setup, jobs_of
from server.engine import EngineJob

DECODERS = 8
PRIORITIES = {"usual priority": 0, "decoders' priority": STREAM_PRIORITY}
IDLE, BUSY = "GPU idle", "beside the models"
_PAUSE = 0.003  # seconds between two pictures of a decoder: their number is not to be the limit
_SECONDS = 2.0


async def beside(setup: Setup, in_thread: Callable[[Callable[[], dict[str, Any]]], Any]) -> dict[str, Any]:
    """Latencies of one keyframe, from its bytes to its place in the arena, with `DECODERS` at work; pictures/s of the models."""
    (job,) = await jobs_of(setup.phone.read_bytes(), 1)
    try:
        figures: dict[str, Any] = await in_thread(functools.partial(_beside, setup, job))
    finally:
        job.packets.close()
    return figures


def _beside(setup: Setup, job: EngineJob) -> dict[str, Any]:
    config = setup.config().gpu
    largest, seconds = config.batch_buckets[-1], setup.seconds(_SECONDS)
    with ExitStack() as stack:
        # The models first, on the thread that uses them: no decoder works while their graphs are captured.
        size = job.config.width, job.config.height
        runners = stack.enter_context(runners_for(setup, (largest,), size, half=config.half_precision))
        models = functools.partial(flat_out, runners, largest, None, seconds)
        figures: dict[str, Any] = {"decoders": DECODERS, "batch": largest, "models alone, pictures/s": models()}
        gpu = Gpu.open(0)
        keyframes = keyframes_of(job, gpu, config.size_classes)
        for name, priority in PRIORITIES.items():
            figures[name] = decoding(gpu, keyframes, priority, {IDLE: lambda: time.sleep(seconds), BUSY: models})
    return figures


def decoding(gpu: Gpu, keyframes: Keyframes, priority: int, meanwhile: dict[str, Callable[[], float | None]]) -> dict[str, Any]:
    """What decoders do while each of these runs in the calling thread, and what it returns."""
    arena = FrameArena({keyframes.feeds[0].surface.size: DECODERS}, gpu.cupy.empty)
    watch = StdoutWatch()
    watch.install()
    figures: dict[str, Any] = {}
    try:
        drivers = Drivers(gpu, keyframes, watch, arena, DECODERS, priority=priority)
        try:
            for name, work in meanwhile.items():
                taken = Taken()
                rate, models = drivers.run(taken.decode, work)
                figures[name] = latencies(taken.seconds) | {"decoded/s": rate}
                figures[name] |= {} if models is None else {"models, pictures/s": models}
        finally:
            drivers.close()
    finally:
        watch.close()
    return figures


class Taken:
    """How long pictures took, on whatever thread."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._lock = threading.Lock()

    def decode(self, session: HardwareSession, feed: Feed, slot: Slot) -> None:
        """One more; then a pause."""
        begin = time.perf_counter()
        decode_and_copy(session, feed, slot)
        took = time.perf_counter() - begin
        with self._lock:
            self.seconds.append(took)
        time.sleep(_PAUSE)
