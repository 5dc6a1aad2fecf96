"""The nvdec decoder on a real GPU: pooled against fresh and against FFmpeg, bit for bit; damage, faults, leaks.

Skipped without a GPU. `python -m loadtest.gpu_decode` measures the same over many more clips.
"""

import asyncio
import importlib.util
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from decoder_pool.decoder import Decoded, DecodeUnit, Packet
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import NvdecFactory, arena_slots
from decoder_pool.nvdec.gpu import Gpu, GpuUnusable
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.pool import DecoderPool, Lease
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig
from tests.decoder_pool.encoded import Clip, encode

missing = [name for name in ("cupy", "PyNvVideoCodec") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"needs a GPU with {' and '.join(missing)}")

CLASSES = (1280, 1920, 4096)
H264 = {"preset": "ultrafast", "bf": "0"}


@dataclass
class Rig:
    gpu: Gpu
    watch: StdoutWatch
    arena: FrameArena

    def factory(self) -> NvdecFactory:
        return NvdecFactory(self.gpu, arena=self.arena, watch=self.watch, size_classes=CLASSES)

    @asynccontextmanager
    async def pool(self, limit: int) -> AsyncIterator[DecoderPool]:
        factory = self.factory()
        pool = DecoderPool(factory=factory, limit=limit, size_classes=CLASSES)
        try:
            yield pool
        finally:
            await pool.close()
            factory.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    try:
        gpu = Gpu.open(0)
    except GpuUnusable as error:
        pytest.skip(str(error))
    watch = StdoutWatch()
    watch.install()
    yield Rig(gpu, watch, FrameArena(arena_slots(CLASSES, (8, 4, 2)), gpu.cupy.empty))
    watch.close()


def h264(size: tuple[int, int], count: int = 3, gop: int = 1, **options: str) -> Clip:
    return encode("libx264", size=size, count=count, gop=gop, options=H264 | options, container="mp4")


async def decoded(pool: DecoderPool, config: StreamConfig, unit: DecodeUnit, data: SharedBytes) -> list[tuple[Decoded, list]]:
    (lease,) = await pool.lease(config, deadline=time.monotonic() + 30)
    found = []
    async with lease, aclosing(lease.decoder.decode(unit, data)) as pictures:
        async for one in pictures:
            planes = [plane.get() for plane in one.picture.planes] if one.picture else []
            found += [(one, planes)]
    return found


def expected(clip: Clip, sample: int, shift: int = 0) -> list[np.ndarray]:
    luma, *chroma = clip.pictures[sample]
    return [luma << shift, np.stack(chroma, axis=-1) << shift]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


SIZES = [(640, 530), (640, 532), (720, 1280), (1280, 720), (640, 530), (3840, 2160), (640, 360), (48, 48), (1280, 720)]


def test_one_decoder_over_changing_sizes_equals_ffmpeg(rig: Rig) -> None:
    async def run() -> None:
        factory = rig.factory()
        decoder = factory.make(DecoderKey("h264", 8, "420", 4096))
        await decoder.start()
        clips = [h264(size, count=2) for size in SIZES]
        for clip in clips * 2:
            await decoder.configure(clip.config)
            data, packets = clip.packed()
            with data:
                for sample in (1, 0):
                    async with aclosing(decoder.decode(clip.alone(packets, sample), data)) as pictures:
                        async for one in pictures:
                            assert one.picture is not None, one.detail
                            assert same([plane.get() for plane in one.picture.planes], expected(clip, sample)), clip.config
        await decoder.close()
        factory.close()

    asyncio.run(run())


def test_ten_bits_between_eight(rig: Rig) -> None:
    options = {"preset": "ultrafast", "x265-params": "log-level=none:keyint=1:pools=2"}
    clips = [
        encode("libx265", pixels, (320, 192), count=2, options=options, container="mp4", bit_depth=depth)
        for pixels, depth in (("yuv420p", 8), ("yuv420p10le", 10), ("yuv420p", 8))
    ]

    async def run() -> None:
        async with rig.pool(2) as pool:
            for clip in clips:
                data, packets = clip.packed()
                with data:
                    ((one, planes),) = await decoded(pool, clip.config, clip.alone(packets, 1), data)
                assert one.picture is not None, one.detail
                assert same(planes, expected(clip, 1, shift=6 if clip.config.bit_depth == 10 else 0))

    asyncio.run(run())


def test_predicted_pictures_with_b_frames_equal_ffmpeg(rig: Rig) -> None:
    plain = h264((640, 360), count=8, gop=8)
    deep = encode(
        "libx264", size=(640, 360), count=24, gop=24, options={"preset": "slow", "bf": "3", "refs": "16"}, container="mp4"
    )

    async def run() -> None:
        async with rig.pool(1) as pool:  # one decoder: same size, other references
            for clip in (plain, deep, plain, deep):
                data, packets = clip.packed()
                wanted = tuple(range(len(packets)))
                with data:
                    found = await decoded(pool, clip.config, DecodeUnit(tuple(packets), wanted), data)
                assert [one.sample for one, planes in found if not same(planes, expected(clip, one.sample))] == []

    asyncio.run(run())


class Driven:
    """Units of a clip, for several decoders; what they give is compared where it is delivered."""

    def __init__(self, clip: Clip, packets: list[Packet], gop: int) -> None:
        self.clip = clip
        self.left = deque(DecodeUnit(tuple(packets[n : n + gop]), tuple(range(n, n + gop))) for n in range(0, len(packets), gop))
        self.good: list[int] = []
        self.told: list[str] = []

    def take(self) -> DecodeUnit | None:
        try:
            return self.left.popleft()
        except IndexError:
            return None

    def deliver(self, one: Decoded) -> None:
        if one.picture is None:
            self.told.append(one.detail)
            return
        assert one.picture.lease is not None
        one.picture.lease.ready.synchronize()
        if same([plane.get() for plane in one.picture.planes], expected(self.clip, one.sample)):
            self.good.append(one.sample)
        one.picture.lease.release()


def test_units_driven_by_several_decoders_equal_ffmpeg(rig: Rig) -> None:
    clips = [h264((1280, 720), count=24, gop=3), h264((720, 1280), count=24, gop=3)]

    async def drive(lease: Lease, work: Driven, data: SharedBytes) -> None:
        async with lease:
            await lease.decoder.drive(work.take, data, work.deliver)

    async def run() -> None:
        async with rig.pool(3) as pool:
            for clip in clips * 2:
                data, packets = clip.packed()
                work = Driven(clip, packets, 3)
                with data:
                    leases = await pool.lease(clip.config, deadline=time.monotonic() + 30, most=3)
                    await asyncio.gather(*(drive(lease, work, data) for lease in leases))
                assert work.told == []
                assert sorted(work.good) == list(range(24))
        assert rig.arena.snapshot().free == rig.arena.snapshot().slots

    asyncio.run(run())


def test_cut_keyframes_are_heard_of_by_the_decoder_that_had_them(rig: Rig) -> None:
    clip = h264((640, 360), count=12)

    async def run() -> None:
        async with rig.pool(4) as pool:
            payloads = [p if n % 2 else p[: len(p) // 2] for n, p in enumerate(clip.payloads)]
            data, packets = clip.packed(payloads)
            with data:
                found = await asyncio.gather(*(decoded(pool, clip.config, clip.alone(packets, n), data) for n in range(12)))
        assert [one.damaged for ((one, _),) in found] == [n % 2 == 0 for n in range(12)]

    asyncio.run(run())


def test_hostile_bytes_break_no_decoder(rig: Rig) -> None:
    good, small = h264((640, 360)), h264((32, 32))
    rng = np.random.default_rng(3)
    cases = [
        (good.config, rng.bytes(9000)),
        (good.config, good.payloads[0][:30]),
        (good.config, (5000).to_bytes(4, "big") + b"\x65" + rng.bytes(4999)),
        (replace(small.config, extradata=b"", width=640, height=360), small.payloads[0]),
        (replace(good.config, width=320, height=180), good.payloads[0]),
    ]

    async def run() -> None:
        async with rig.pool(1) as pool:
            for config, payload in cases:
                with SharedBytes.of([payload]) as data:
                    await decoded(pool, config, DecodeUnit((Packet(0, 0, len(payload), True),), (0,)), data)
                data, packets = good.packed()
                with data:
                    ((one, planes),) = await decoded(pool, good.config, good.alone(packets, 1), data)
                assert same(planes, expected(good, 1)), one.detail
            assert pool.snapshot().counters.broken == 0

    asyncio.run(run())


def test_nothing_grows_over_many_leases(rig: Rig) -> None:
    clips = [h264(size, count=1) for size in ((640, 360), (1280, 720), (720, 1280))]
    packed = [clip.packed() for clip in clips]

    def held() -> tuple[int, int, int]:
        free, _ = rig.gpu.cupy.cuda.runtime.memGetInfo()
        return free, threading.active_count(), len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        async with rig.pool(2) as pool:

            async def some(count: int) -> None:
                for number in range(count):
                    clip, (data, packets) = clips[number % 3], packed[number % 3]
                    ((one, _),) = await decoded(pool, clip.config, clip.alone(packets, 0), data)
                    assert one.picture is not None

            await some(30)
            before = held()
            await some(300)
            assert held() == before
        assert rig.arena.snapshot().free == rig.arena.snapshot().slots

    asyncio.run(run())
