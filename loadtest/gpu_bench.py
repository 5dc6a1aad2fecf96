"""What the measurements of hardware decoding share: one GPU, its arena, FFmpeg beside it, and how times are told."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoder_pool.cpu import CpuFactory
from decoder_pool.decoder import Decoded, DecodeUnit
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import NvdecFactory, arena_slots
from decoder_pool.nvdec.gpu import Gpu
from decoder_pool.nvdec.software import PooledSoftware, SoftwareDecoding
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.upload import surface_planes
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig
from loadtest.gpu_clips import PackedClip, read_packed

SIZE_CLASSES = (1280, 1920, 4096)


@dataclass(slots=True)
class Bench:
    """What the parts share: one GPU, its arena, and FFmpeg beside it."""

    gpu: Gpu
    watch: StdoutWatch
    arena: FrameArena
    software: DecoderPool
    clips: Mapping[str, PackedClip]
    directory: Path
    every_codec: bool = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path) -> AsyncIterator[Bench]:
        """On GPU 0, with the clips that `loadtest.gpu_clips` has written to `directory`."""
        watch = StdoutWatch()
        watch.install()
        try:
            gpu = Gpu.open(0)
            arena = FrameArena(arena_slots(SIZE_CLASSES, (48, 24, 6)), gpu.cupy.empty)
            software = DecoderPool(factory=CpuFactory(), limit=8, size_classes=SIZE_CLASSES)
            clips = {clip.name: clip for clip in read_packed(directory / "clips.json")}
            try:
                yield cls(gpu, watch, arena, software, clips, directory)
            finally:
                await software.close()
        finally:
            watch.close()

    def factory(self, software: SoftwareDecoding | None = None) -> NvdecFactory:
        """A factory on the shared GPU and arena."""
        return NvdecFactory(
            self.gpu,
            arena=self.arena,
            watch=self.watch,
            size_classes=SIZE_CLASSES,
            software=software,
            damage_untold=("av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4")
            if self.every_codec
            else ("av1", "vp8", "vp9"),
        )

    @asynccontextmanager
    async def pool(self, limit: int, *configs: StreamConfig, software: bool = False) -> AsyncIterator[DecoderPool]:
        """A pool of at most `limit` decoders, so many of them warm for each configuration as fit."""
        keys = list(dict.fromkeys(DecoderKey.of(config, SIZE_CLASSES) for config in configs))
        warm = {key: limit // len(keys) for key in keys} if keys else {}
        factory = self.factory(PooledSoftware(self.software) if software else None)
        pool = DecoderPool(factory=factory, limit=limit, size_classes=SIZE_CLASSES, warm=warm)
        await pool.start()
        try:
            yield pool
        finally:
            await pool.close()
            factory.close()


def host(picture: Picture) -> list[npt.NDArray[Any]]:
    """A picture's planes in host memory, as hardware lays them out."""
    if picture.lease is None:
        return [np.array(plane) for plane in surface_planes(picture)]
    return [np.array(plane.get() if hasattr(plane, "get") else plane) for plane in picture.planes]


async def decoded_by(pool: DecoderPool, config: StreamConfig, unit: DecodeUnit, data: SharedBytes) -> list[tuple[Decoded, Any]]:
    """A unit through a lease: each result, and its planes in host memory."""
    (lease,) = await pool.lease(config, deadline=time.monotonic() + 60)
    found = []
    async with lease, aclosing(lease.decoder.decode(unit, data)) as pictures:
        async for decoded in pictures:
            planes = host(decoded.picture) if decoded.picture is not None else None
            found.append((replace(decoded, picture=None), planes))
    return found


def difference(left: Sequence[npt.NDArray[Any]], right: Sequence[npt.NDArray[Any]]) -> int:
    """The largest difference of any sample; -1 where the shapes differ."""
    if [plane.shape for plane in left] != [plane.shape for plane in right]:
        return -1
    return max(int(np.abs(a.astype(np.int32) - b.astype(np.int32)).max(initial=0)) for a, b in zip(left, right, strict=True))


def timed(times: Sequence[float]) -> dict[str, float]:
    """Median and spread of times in seconds, in milliseconds."""
    ordered = sorted(times)
    return {
        "median": round(statistics.median(ordered) * 1e3, 3),
        "p10": round(ordered[len(ordered) // 10] * 1e3, 3),
        "p90": round(ordered[len(ordered) * 9 // 10] * 1e3, 3),
        "n": len(ordered),
    }


def machine(gpu: Gpu) -> dict[str, Any]:
    """The GPU and what drives it."""

    def asked() -> Iterator[tuple[str, Any]]:
        yield "python", platform.python_version()
        yield "processors", os.cpu_count()
        yield "PyNvVideoCodec", getattr(gpu.codec, "__version__", "")
        yield "cupy", getattr(gpu.cupy, "__version__", "")
        properties = getattr(gpu.cupy.cuda.runtime, "getDeviceProperties", None)
        if properties is not None:
            yield "GPU", properties(gpu.device)["name"].decode()
            yield "CUDA driver", gpu.cupy.cuda.runtime.driverGetVersion()

    return dict(asked())
