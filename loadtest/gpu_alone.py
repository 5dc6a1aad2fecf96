"""The ceilings of the GPU proof: the models alone and the hardware decoders alone, each driven flat out.

Both are measured where no engine lives: capturing CUDA graphs and working decoders do not go together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena, Slot
from decoder_pool.nvdec.gpu import STREAM_PRIORITY, Gpu, HardwareSession, bounds_of_key
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.stream import Feed, HardwareStream
from decoder_pool.picture import Picture
from loadtest.gpu_models import one_canvas, smooth, wall_ms
from loadtest.gpu_setup import FRAMES, Setup, jobs_of
from models.backends import create_cuda_backend
from models.backends.device import Precision
from models.heads import make_head
from models.model_runner import CudaModelRunner, DeviceModel, ModelRunner, OnTheWay
from models.preprocess import layout
from models.preprocess_cuda import Located, locate
from models.repository import ModelRepository
from server.engine import EngineJob

NAMES = ("open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text")
DECODERS = (1, 2, 4, 7, 14, 28)
#: Batches on their way at once: one runs while the next is enqueued, as in the engine.
_DEPTH = 2
_END_OF_PICTURE = 8  # CUVID_PKT_ENDOFPICTURE

_T = TypeVar("_T")


# The models


@contextmanager
def runners_for(setup: Setup, buckets: Sequence[int], size: tuple[int, int], *, half: bool) -> Iterator[list[ModelRunner]]:
    """The default models, warm, each at the one canvas that pictures of `size` (width, height) go to."""
    cupy = importlib.import_module("cupy")
    runners: list[ModelRunner] = []
    try:
        for model in ModelRepository(setup.models).load_all(NAMES):
            placed = layout(model.manifest.inputs.geometry, *size)
            manifest = one_canvas(model.manifest, (placed.canvas_height, placed.canvas_width))
            precision = Precision.FLOAT16 if half and manifest.half_precision else Precision.FLOAT32
            backend = create_cuda_backend(manifest, model.path, precision=precision, buckets=buckets)
            runners.append(CudaModelRunner(DeviceModel(manifest, backend, make_head(manifest))))
            runners[-1].open()
        yield runners
    finally:
        for runner in runners:
            runner.close()
        cupy.get_default_memory_pool().free_all_blocks()


def launch(runners: Sequence[ModelRunner], size: int, pictures: Sequence[Located] | None) -> list[OnTheWay]:
    """Enqueues one batch through all runners: the networks alone, or with the preprocessing of `pictures`."""
    if pictures is None:
        return [runner.rehearse(size) for runner in runners]
    return [runner.enqueue(pictures[:size]).results for runner in runners]


def finish(launched: Sequence[OnTheWay]) -> None:
    """Waits for a batch's results and gives their memory back."""
    for results in launched:
        results.outputs()
    for results in launched:
        results.release()


def batch_ms(runners: Sequence[ModelRunner], size: int, pictures: Sequence[Located] | None, times: int) -> float:
    """The median of one batch from the host's first call until it has every result."""
    return wall_ms(lambda: finish(launch(runners, size, pictures)), times=times)


def flat_out(runners: Sequence[ModelRunner], size: int, pictures: Sequence[Located] | None, seconds: float) -> float:
    """Pictures a second, the next batch always enqueued before the last one is waited for."""
    waiting: deque[list[OnTheWay]] = deque()
    for _ in range(_DEPTH):
        waiting.append(launch(runners, size, pictures))
    finish(waiting.popleft())
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        waiting.append(launch(runners, size, pictures))
        finish(waiting.popleft())
        count += size
    for launched in waiting:
        finish(launched)
    return round(count / (now - begin), 1)


def uploaded(cupy: Any, count: int, width: int, height: int) -> list[Located]:
    """Pictures of soft shapes on the GPU, each in memory of its own, so that no cache holds a batch."""
    distinct = [smooth(width, height, seed) for seed in range(min(count, 8))]
    pictures: list[Picture] = []
    for number in range(count):
        picture = distinct[number % len(distinct)]
        pictures.append(dataclasses.replace(picture, planes=tuple(cupy.asarray(plane) for plane in picture.planes)))
    cupy.cuda.Device().synchronize()
    return [locate(picture) for picture in pictures]


def models_alone(setup: Setup) -> dict[str, Any]:
    """One batch in ms and pictures a second flat out, by batch size; then each model by itself."""
    cupy = importlib.import_module("cupy")
    config = setup.config()
    buckets, half = config.gpu.batch_buckets, config.gpu.half_precision
    width, height = 720, 1280
    largest = buckets[-1]
    pictures = uploaded(cupy, largest, width, height)
    figures: dict[str, Any] = {"pictures": f"{width}x{height}", "buckets": list(buckets)}
    times, seconds = setup.times(40), setup.seconds(1.0)
    ways: tuple[tuple[str, Sequence[Located] | None], ...] = (("networks", None), ("pictures to results", pictures))
    with runners_for(setup, buckets, (width, height), half=half) as runners:
        figures["models"] = [repr(runner) for runner in runners]
        for name, given in ways:
            sizes = sorted({*buckets, FRAMES})
            figures[name] = {
                "batch_ms": {str(size): batch_ms(runners, size, given, times) for size in sizes},
                "pictures/s flat out": {str(size): flat_out(runners, size, given, seconds) for size in buckets},
            }
        figures["each alone, networks, pictures/s flat out"] = {
            runner.manifest.name: flat_out([runner], largest, None, seconds) for runner in runners
        }
        figures["each alone, pictures to results, pictures/s flat out"] = {
            runner.manifest.name: flat_out([runner], largest, pictures, seconds) for runner in runners
        }
    figures[f"largest batch ({largest}), pictures/s"] = figures["networks"]["pictures/s flat out"][str(largest)]
    figures["pictures/s"] = max(figures["networks"]["pictures/s flat out"].values())
    figures[f"{FRAMES} pictures_ms"] = figures["networks"]["batch_ms"][str(FRAMES)]
    return figures


# The decoders


@dataclass(frozen=True, slots=True)
class Keyframes:
    """The keyframes of one clip as a hardware decoder is fed with them."""

    key: DecoderKey
    feeds: tuple[Feed, ...]


def keyframes_of(job: EngineJob, gpu: Gpu, size_classes: tuple[int, ...]) -> Keyframes:
    """The first packet of each unit of the job."""
    key = DecoderKey.of(job.config, size_classes)
    driver = gpu.bounds(key.codec, key.bit_depth, key.chroma_format)
    if driver is None:
        raise ValueError(f"{key} is not decoded by this GPU")
    stream = HardwareStream(job.config, bounds_of_key(key, driver))
    feeds = []
    for unit in job.units:
        packet = unit.packets[0]
        feed = stream.feed(job.packets.read(packet.offset, packet.size), key=True)
        if feed is None:
            raise ValueError(f"sample {packet.sample} gives no picture by itself")
        feeds.append(feed)
    return Keyframes(key, tuple(feeds))


class Drivers:
    """`count` threads with a decoder each, which all do the same thing at the same time, again and again."""

    def __init__(
        self,
        gpu: Gpu,
        keyframes: Keyframes,
        watch: StdoutWatch,
        arena: FrameArena,
        count: int,
        *,
        priority: int = STREAM_PRIORITY,
    ) -> None:
        self._gpu = gpu
        self._priority = priority
        self._keyframes = keyframes
        self._watch = watch
        self._slots = [asyncio.run(arena.lease(keyframes.feeds[0].surface.size)) for _ in range(count)]
        self._barrier = threading.Barrier(count + 1)
        self._way: Callable[[HardwareSession, Feed, Slot], None] | None = None
        self._stop = False
        self._decoded = [0] * count
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()
        self._meet()  # every decoder is warm

    def rate(self, way: Callable[[HardwareSession, Feed, Slot], None], seconds: float) -> float:
        """Keyframes a second of all together."""
        return self.run(way, lambda: time.sleep(seconds))[0]

    def run(self, way: Callable[[HardwareSession, Feed, Slot], None], meanwhile: Callable[[], _T]) -> tuple[float, _T]:
        """The same for as long as `meanwhile` takes, and what it returns."""
        self._way, self._stop = way, False
        self._meet()
        begin = time.perf_counter()
        try:
            done = meanwhile()
        finally:
            self._stop = True
            self._meet()
        return round(sum(self._decoded) / (time.perf_counter() - begin), 1), done

    def close(self) -> None:
        """Ends threads and decoders. Raises what a decoder raised."""
        self._way = None
        if not self._errors:
            self._meet()
        for thread in self._threads:
            thread.join(30)
        for slot in self._slots:
            slot.release()
        if self._errors:
            raise self._errors[0]

    def _meet(self) -> None:
        try:
            self._barrier.wait(60)
        except threading.BrokenBarrierError:
            raise self._errors[0] if self._errors else RuntimeError("a decoder did not answer within 60 s") from None

    def _work(self, number: int) -> None:
        key, feeds = self._keyframes.key, self._keyframes.feeds
        driver = self._gpu.bounds(key.codec, key.bit_depth, key.chroma_format)
        assert driver is not None
        session = HardwareSession(self._gpu, key, bounds_of_key(key, driver), self._watch, priority=self._priority)
        try:
            session.open()
            session.warm_up()
            for feed in feeds:
                decode_and_copy(session, feed, self._slots[number])
            self._barrier.wait(60)
            while True:
                self._barrier.wait()
                if (way := self._way) is None:
                    return
                count = 0
                while not self._stop:
                    way(session, feeds[count % len(feeds)], self._slots[number])
                    count += 1
                self._decoded[number] = count
                self._barrier.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self._errors.append(error)
            self._barrier.abort()
        finally:
            session.close()


def decode(session: HardwareSession, feed: Feed, slot: Slot) -> None:
    """The decoder and nothing else."""
    if len(session._decode(feed.data, _END_OF_PICTURE)) != 1:
        raise RuntimeError("a keyframe gave no picture")


def decode_and_copy(session: HardwareSession, feed: Feed, slot: Slot) -> None:
    """As a call needs it: listened to, and copied into the arena."""
    session.follow(feed.surface, feed.sequence)
    (frame,) = session.feed(feed.data).frames
    session.copy(frame, feed.surface, slot)


def decoders_alone(
    setup: Setup, gpu: Gpu, job: EngineJob, size_classes: tuple[int, ...], counts: Sequence[int] = DECODERS
) -> dict[str, Any]:
    """The clip's keyframes a second by number of decoders, the decoder alone and with the copy into the arena."""
    keyframes = keyframes_of(job, gpu, size_classes)
    arena = FrameArena({keyframes.feeds[0].surface.size: max(counts)}, gpu.cupy.empty)
    watch = StdoutWatch()
    watch.install()
    ways: Mapping[str, Callable[[HardwareSession, Feed, Slot], None]] = {"decode": decode, "decode and copy": decode_and_copy}
    figures: dict[str, Any] = {
        "bytes of a keyframe": round(sum(len(feed.data) for feed in keyframes.feeds) / len(keyframes.feeds)),
        **{name: {} for name in ways},
    }
    try:
        for count in counts:
            drivers = Drivers(gpu, keyframes, watch, arena, count)
            try:
                for name, way in ways.items():
                    figures[name][str(count)] = drivers.rate(way, setup.seconds(1.0))
            finally:
                drivers.close()
    finally:
        watch.close()
    figures["pictures/s"] = max(value for name in ways for value in figures[name].values())
    return figures


async def alone(setup: Setup, in_thread: Callable[[Callable[[], dict[str, Any]]], Any]) -> dict[str, Any]:
    """Both ceilings; where one of them fails the other is still told, and the part fails in the end."""
    figures: dict[str, Any] = {}
    (job,) = await jobs_of(setup.phone.read_bytes(), 1)
    size_classes = setup.config().gpu.size_classes
    try:
        figures["decoders"] = await in_thread(lambda: decoders_alone(setup, Gpu.open(0), job, size_classes))
        figures["models"] = await in_thread(functools.partial(models_alone, setup))
    finally:
        job.packets.close()
    return figures
