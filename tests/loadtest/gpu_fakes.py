"""A small GPU bench on fakes: clips of a few pictures, FFmpeg for hardware, engines that answer at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from decoder_pool.cpu import CpuFactory
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.pool import DecoderPool
from loadtest import gpu_clips
from loadtest.clips import encode, pan, photograph
from loadtest.gpu_bench import SIZE_CLASSES, Bench
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.engine_stats import BatchStats, EngineStats
from server.timing import StepTiming
from tests.decoder_pool.fake_gpu import fake_gpu

PHONE, OTHER = "phone.mp4", "other.mp4"


def write_clips(folder: Path) -> None:
    """Two small clips as files, packed as `loadtest.gpu_clips` packs them: 12 keyframes upright, 3 across."""
    folder.mkdir(exist_ok=True)
    for name, width, height, pictures in ((PHONE, 144, 256, 24), (OTHER, 256, 144, 6)):
        (folder / name).write_bytes(encode(pan(photograph("coffee"), pictures, width, height), keyframe_interval=2))
    packed = asyncio.run(gpu_clips._packed([folder / PHONE, folder / OTHER], 0))
    gpu_clips.write_packed(folder / "clips.json", packed)


@asynccontextmanager
async def fake_bench(folder: Path) -> AsyncIterator[Bench]:
    """As `Bench.opened`."""
    gpu = fake_gpu()
    gpu.cupy.cuda.Device.synchronize = lambda self: None
    gpu.cupy.cuda.Device.__init__.__defaults__ = (0,)
    watch = StdoutWatch()
    watch.install()
    software = DecoderPool(factory=CpuFactory(), limit=1, size_classes=SIZE_CLASSES)
    clips = {clip.name: clip for clip in gpu_clips.read_packed(folder / "clips.json")}
    try:
        yield Bench(gpu, watch, FrameArena({256 * 144 * 3: 32}, gpu.cupy.empty), software, clips, folder)
    finally:
        await software.close()
        watch.close()


@dataclass
class FakeEngine:
    """Answers each job after `seconds`, in one batch of all its pictures; `skipped` pictures of each are not looked at."""

    seconds: float = 0.001
    skip: bool = False
    created: int = 0
    fill: Counter[int] = field(default_factory=Counter)
    at_once: int = 0
    most_at_once: int = 0
    models: list[tuple[str, ...]] = field(default_factory=list)
    closed: bool = False

    async def start(self) -> None: ...

    @property
    def healthy(self) -> bool:
        return True

    def info(self) -> EngineInfo:
        return EngineInfo("fake", (), (DecoderState("fake", 1, 1, ("h264",)),))

    def stats(self) -> EngineStats:
        return EngineStats(batches=(BatchStats("model", 64, 0, 0, dict(self.fill)), BatchStats("rare", 64, 0, 0, {1: 1})))

    async def run(self, job: EngineJob) -> EngineResult:
        from server.degradation import DegradationReason

        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        begin = time.monotonic()
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        self.models.append(job.models)
        wanted = [sample for unit in job.units for sample in unit.wanted]
        self.fill[len(wanted)] += 1
        skipped = DegradationReason.FRAME_DAMAGED if self.skip else None
        frames = tuple(FrameOutcome(sample, keyframe=True, skipped=skipped, detail="cut off") for sample in wanted)
        return EngineResult(frames, (StepTiming("decode", begin, time.monotonic(), 0.0005, self.created),))

    async def close(self) -> None:
        self.closed = True
