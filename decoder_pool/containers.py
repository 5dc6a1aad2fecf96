"""Containers of every kind, read by FFmpeg in warm worker processes: a `VideoIndex`, then packets on demand."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decoder_pool.decoder import Packet
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.worker import Reply, Worker, WorkerDied, WorkerRefused
from keyglance.errors import (
    ERRORS,
    DeadlineExceeded,
    Draining,
    EmptySource,
    InternalError,
    KeyglanceError,
    TooLarge,
    WorkerLost,
)
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy, plan
from keyglance.video import Colour, ColourRange, Orientation, SampleFlag, Samples, StreamConfig, VideoIndex

#: The arrays of `Samples` as they travel: field and type, one array behind the other.
_ARRAYS = (("position", np.int64), ("size", np.int64), ("time", np.float64), ("duration", np.float64), ("flags", np.uint8))
_BYTES_A_SAMPLE = sum(np.dtype(kind).itemsize for _, kind in _ARRAYS)
#: Bytes of a keyframe in which its headers are looked for.
_HEADERS = 1 << 16
#: What a worker may refuse a source for.
_REASONS = ("NOT_A_VIDEO", "NO_VIDEO_STREAM", "UNSUPPORTED_CODEC", "ENCRYPTED", "CORRUPT_VIDEO", "TOO_LARGE")

_Short = Annotated[str, Field(max_length=64)]
_CodePoint = Annotated[int, Field(ge=0, le=255)]
_Positive = Annotated[int, Field(ge=1, le=2**31)]
_Finite = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Values(BaseModel):
    """What a worker says of a source, believed only as far as this type goes."""

    model_config = ConfigDict(strict=True, extra="forbid")

    container: _Short
    codec: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,32}$")]
    width: Annotated[int, Field(ge=0, le=1 << 20)]
    height: Annotated[int, Field(ge=0, le=1 << 20)]
    bit_depth: Annotated[int, Field(ge=8, le=16)]
    chroma_format: Annotated[str, Field(max_length=8)]
    profile: _Short
    extradata: Annotated[str, Field(max_length=2 << 20)]
    codec_tag: Annotated[int, Field(ge=0, lt=2**32)]
    bits_per_coded_sample: Annotated[int, Field(ge=0, le=2**31)]
    sample_aspect: Annotated[list[_Positive], Field(min_length=2, max_length=2)]
    colour: tuple[_CodePoint, _CodePoint, _CodePoint, Literal["limited", "full", "unspecified"], _CodePoint | None] = Field(
        strict=False
    )
    degrees: Literal[0, 90, 180, 270]
    mirrored: bool
    samples: _Positive
    duration: _Finite
    track: Annotated[int, Field(ge=0, le=1000)]
    other_video_tracks: Annotated[int, Field(ge=0, le=1000)]
    notes: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=32)]
    truncated: bool


class _Lie(Exception):
    """A worker's answer that cannot be."""


class IndexedVideo:
    """A source opened by a worker, which it holds until `close`: fetch the packets, then give it back."""

    def __init__(self, indexer: Indexer, worker: Worker, index: VideoIndex, deadline: float) -> None:
        self.index = index
        self._indexer = indexer
        self._worker: Worker | None = worker
        self._deadline = deadline

    async def plan(self, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
        """As `keyglance.sampling.plan`, in a thread: a long video takes a while."""
        return await asyncio.to_thread(plan, self.index, policy, limits)

    async def packets(self, samples: Sequence[int], spare: Collection[int] = ()) -> tuple[SharedBytes, tuple[Packet, ...]]:
        """The payloads of samples, one behind the other in memory that the caller closes, and where each lies.

        No payload is ever missing, so `spare` changes nothing.
        """
        if self._worker is None:
            raise RuntimeError(f"{self!r} is closed")
        count = len(self.index.samples)
        if outside := [sample for sample in samples if not 0 <= sample < count]:
            raise IndexError(f"sample {outside[0]} of a video of {count} samples")
        keys = self.index.samples.having(SampleFlag.KEY)
        placed: dict[int, Packet] = {}  # a sample asked for twice is stored once
        offset = 0
        for sample in samples:
            if sample not in placed:
                size = int(self.index.samples.size[sample])
                placed[sample] = Packet(sample, offset, size, bool(keys[sample]))
                offset += size
        memory = SharedBytes.allocate(offset, "packets")
        try:
            arguments = {"ranges": list(_ranges(list(placed)))}
            reply = await self._indexer._call(self._worker, "packets", arguments, (memory.fd,), self._deadline)
            if reply.values != {"written": offset}:
                self._worker.kill(f"wrote {str(reply.values)[:100]}, {offset} bytes expected")
                raise WorkerLost("a worker gave other packets than its index promised")
        except BaseException:
            memory.close()
            raise
        return memory, tuple(placed[sample] for sample in samples)

    async def close(self) -> None:
        """Gives the worker back. May be called twice."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self._indexer._give_back(worker)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._worker is None else self._worker.name
        return f"IndexedVideo({self.index.container}, {len(self.index.samples)} samples, {state})"


class Indexer:
    """A warm set of index workers.

    `size` workers (default: the number of CPUs, 2 to 4) exist after `start`; a lost one is replaced in the background.
    `memory_limit` is each worker's address space in bytes and must leave room for a source and the payloads that its
    container stores compressed or in pieces. `longest_call` is the most seconds that one call may take, whatever the
    caller's deadline; a worker past it is killed.
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        memory_limit: int = 1536 << 20,
        longest_call: float = 20.0,
        module: str = "decoder_pool.containers_worker",
    ) -> None:
        self.size = size if size is not None else min(4, max(2, os.cpu_count() or 2))
        self.lost = 0  # workers that died or were killed
        self._memory_limit = memory_limit
        self._longest_call = longest_call
        self._module = module
        self._workers: set[Worker] = set()
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = 0
        self._closed = False

    async def start(self) -> None:
        """Starts all workers; WorkerLost if they cannot be started."""
        try:
            await asyncio.gather(*(self._add() for _ in range(self.size)))
        except WorkerDied as error:
            await self.close()
            raise WorkerLost(str(error)) from error

    async def open(self, source: SharedBytes, limits: SourceLimits, deadline: float) -> IndexedVideo:
        """Indexes a source; `deadline` is on `time.monotonic()` and holds for the packets too.

        Raises EmptySource, NotAVideo, NoVideoStream, UnsupportedCodec, Encrypted, CorruptVideo (no samples), TooLarge,
        DeadlineExceeded or WorkerLost.
        """
        if source.size == 0:
            raise EmptySource("the source is empty (0 bytes)")
        if source.size > limits.bytes:
            raise TooLarge.over("bytes", source.size, limits.bytes)
        worker = await self._acquire(deadline)
        try:
            with SharedBytes.allocate(limits.samples * _BYTES_A_SAMPLE, "samples") as arrays:
                arguments = {"size": source.size, "samples": limits.samples, "pixels": limits.pixels, "side": limits.side}
                reply = await self._call(worker, "open", arguments, (source.fd, arrays.fd), deadline)
                try:
                    index = _index(reply.values, arrays, source.size, limits)
                except (ValidationError, _Lie) as lie:
                    worker.kill("gave an impossible index")
                    detail = lie.errors()[0]["msg"] if isinstance(lie, ValidationError) else lie
                    raise WorkerLost(f"a worker gave an impossible index: {detail}") from lie
            if index.duration > limits.seconds:
                raise TooLarge.over("seconds", index.duration, limits.seconds)
        except BaseException:
            self._give_back(worker)
            raise
        return IndexedVideo(self, worker, index, deadline)

    async def close(self) -> None:
        """Ends all workers, also in the middle of work. May be called twice."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in list(self._workers)))
        self._workers.clear()

    @property
    def alive(self) -> int:
        """Workers that exist now."""
        return sum(worker.alive for worker in tuple(self._workers))  # copied in one step: metrics look from another thread

    @property
    def idle(self) -> int:
        """Workers that wait for work."""
        return self._idle.qsize()

    def __repr__(self) -> str:
        return f"Indexer({self.idle} of {self.alive} workers idle, {self.size} wanted, {self.lost} lost)"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _acquire(self, deadline: float) -> Worker:
        while not self._closed:
            async with _until(deadline, "waiting for an index worker"):
                worker = await self._idle.get()
            if worker.alive:
                return worker
            self._lose(worker)
        raise Draining("the indexer is closed")

    async def _call(self, worker: Worker, method: str, arguments: dict[str, Any], fds: Sequence[int], deadline: float) -> Reply:
        # At the caller's deadline the call is left, not killed: short deadlines would else cost a warm worker each.
        try:
            async with _until(deadline, f"indexing ({method})"):
                return await worker.call(method, arguments, fds=fds, timeout=self._longest_call)
        except WorkerDied as error:
            raise WorkerLost(str(error)) from error
        except WorkerRefused as refusal:
            raise _refused(refusal) from refusal

    def _give_back(self, worker: Worker) -> None:
        if self._closed or not worker.alive:
            self._lose(worker)
        else:
            self._background(self._settle(worker))

    async def _settle(self, worker: Worker) -> None:
        """Waits until the worker has forgotten its source (and finished a cancelled call), then lets it wait for work."""
        try:
            await worker.call("close", {}, timeout=self._longest_call)
        except (WorkerDied, WorkerRefused):
            worker.kill("could not be given back")
            self._lose(worker)
        else:
            self._idle.put_nowait(worker)

    def _lose(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.discard(worker)
            self.lost += 1
            worker.kill()
            if not self._closed:
                self._background(self._replace(worker))

    async def _replace(self, lost: Worker) -> None:
        await lost.close()
        pause = 0.1
        while not self._closed:
            try:
                await self._add()
                break
            except (WorkerDied, OSError):
                await asyncio.sleep(pause)
                pause = min(5.0, 2 * pause)

    async def _add(self) -> None:
        self._made += 1
        worker = Worker(self._module, memory_limit=self._memory_limit, name=f"index-{self._made}")
        self._workers.add(worker)
        try:
            await worker.start()
            await worker.call("close", {}, timeout=self._longest_call)
        except BaseException:
            self._workers.discard(worker)
            await worker.close()
            raise
        self._idle.put_nowait(worker)

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.asynccontextmanager
async def _until(deadline: float, what: str) -> AsyncIterator[None]:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded(f"the deadline passed before {what}")
    try:
        async with asyncio.timeout(remaining):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"the deadline passed while {what}") from None


def _ranges(samples: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of neighbouring numbers, in the order given."""
    start = stop = -1
    for sample in samples:
        if sample != stop:
            if stop > start:
                yield start, stop
            start = sample
        stop = sample + 1
    if stop > start:
        yield start, stop


def _refused(refusal: WorkerRefused) -> KeyglanceError:
    if refusal.kind not in _REASONS:
        return InternalError(f"index worker: {refusal}")
    if refusal.kind == TooLarge.reason:
        try:
            what, value, limit = refusal.message.split()
            return TooLarge.over("pixels on a side" if what == "side" else what, float(value), float(limit))
        except ValueError:
            return InternalError(f"index worker: {refusal}")
    return ERRORS[refusal.kind](refusal.message)


def _index(values: dict[str, Any], arrays: SharedBytes, size_bytes: int, limits: SourceLimits) -> VideoIndex:
    said = _Values.model_validate(values)
    if said.samples > limits.samples:
        raise _Lie(f"{said.samples} samples, at most {limits.samples} allowed")
    if said.width * said.height > limits.pixels or max(said.width, said.height) > limits.side:
        raise _Lie(f"{said.width}x{said.height} pixels, at most {limits.pixels} allowed")
    try:
        extradata = base64.b64decode(said.extradata, validate=True)
    except binascii.Error as error:
        raise _Lie(f"extradata: {error}") from None
    primaries, transfer, matrix, value_range, location = said.colour
    return VideoIndex(
        container=said.container,
        size_bytes=size_bytes,
        config=StreamConfig(
            codec=said.codec,
            width=said.width,
            height=said.height,
            bit_depth=said.bit_depth,
            chroma_format=said.chroma_format,
            profile=said.profile,
            extradata=extradata,
            codec_tag=said.codec_tag,
            bits_per_coded_sample=said.bits_per_coded_sample,
            sample_aspect=Fraction(*said.sample_aspect),
            colour=Colour(primaries, transfer, matrix, ColourRange(value_range), location),
        ),
        samples=_samples(arrays.read(0, said.samples * _BYTES_A_SAMPLE), said.samples, size_bytes),
        duration=said.duration,
        orientation=Orientation(said.degrees, said.mirrored),
        track=said.track,
        other_video_tracks=said.other_video_tracks,
        notes=tuple("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in note) for note in said.notes),
        truncated=said.truncated,
    )


def _samples(data: bytes, count: int, size_bytes: int) -> Samples:
    fields: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, kind in _ARRAYS:
        fields[name] = np.frombuffer(data, dtype=kind, count=count, offset=offset)
        offset += fields[name].nbytes
    position, size, seconds, duration, flags = fields.values()
    if size.min() <= 0 or size.max() > 1 << 31 or int(size.sum()) > 8 * size_bytes + (256 << 20):
        raise _Lie("sizes of samples that cannot be")
    if position.min() < -1 or ((position >= 0) & (position > size_bytes - size)).any():
        raise _Lie("samples outside the source")
    if not (np.isfinite(seconds).all() and np.isfinite(duration).all()) or duration.min() < 0 or np.abs(seconds).max() > 1e9:
        raise _Lie("times that cannot be")
    if int(flags.max()) > int(SampleFlag.KEY | SampleFlag.OUTSIDE_EDIT | SampleFlag.CORRUPT | SampleFlag.ENCRYPTED):
        raise _Lie("unknown flags")
    return Samples(**fields)
