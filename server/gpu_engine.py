"""The engine on a GPU: hardware decoders that hand pictures straight to an ensemble which batches them on the same GPU."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from opentelemetry import trace

from decoder_pool.decoder import Decoded, DecoderBroken, DecoderFactory, DecodeUnit, DrivenDecoder
from decoder_pool.nvdec.stream import Bounds
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool, Lease
from keyglance.errors import DeadlineExceeded, GpuLost, ModelFailed, WorkerLost
from keyglance.video import Orientation
from models.device_ensemble import DeviceEnsemble
from models.frame_group import FrameAnswer, FrameGroup
from models.preprocess import Preprocessor
from models.thumbnail import thumbnail
from server.degradation import Degradation, DegradationReason
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome, HardwareFormat
from server.engine_stats import BatchStats, EngineStats, PoolStats, QueueStats
from server.gpu_watch import GpuWatch
from server.head_process.process import HeadProcess
from server.job_work import cause, found_config, skipped, told, without
from server.memory_budget import MemoryBudget
from server.timing import StepTiming


class Upload(Protocol):
    """Brings pictures from host memory to the GPU."""

    async def upload(self, picture: Picture) -> Picture:
        """The same picture there; whoever gets it releases its lease. ValueError where it does not fit."""
        ...


class HardwareFactory(DecoderFactory, Protocol):
    """What the engine asks of the factory of hardware decoders."""

    #: Called with the reason when a decoder breaks, also where software takes over and no call fails.
    on_broken: Callable[[str], None]

    @property
    def capabilities(self) -> Mapping[tuple[str, int, str], Bounds]:
        """What it decodes: the largest size by codec, bit depth and chroma format."""
        ...

    @property
    def uploader(self) -> Upload:
        """For what software decoded."""
        ...

    def check(self) -> str | None:
        """What is wrong with the GPU; may block for as long as it does not answer."""
        ...

    def close(self) -> None:
        """After all decoders."""
        ...


@dataclass(slots=True)
class _Stretch:
    """Begin and end of one step over all that a job does of it at once."""

    begin: float = 0.0
    end: float = 0.0

    def over(self, begin: float, end: float) -> None:
        self.begin = min(self.begin, begin) if self.begin else begin
        self.end = max(self.end, end)


@dataclass(slots=True, eq=False)
class _Work:
    """One job on its way. `take` and `deliver` are called on decoders' threads, the rest on the event loop."""

    engine: GpuEngine
    job: EngineJob
    loop: asyncio.AbstractEventLoop
    units: deque[DecodeUnit]
    wanted: int
    complete: asyncio.Future[None]
    in_software: str = ""  # why all of it is
    group: FrameGroup = field(init=False)
    outcomes: list[FrameOutcome] = field(default_factory=list)
    failed_models: dict[str, str] = field(default_factory=dict)
    not_tone_mapped: int = 0
    software: list[str] = field(default_factory=list)  # of each picture that software decoded, why
    thumbnails: dict[int, Future[bytes]] = field(default_factory=dict)
    first: Picture | None = None
    decode: _Stretch = field(default_factory=_Stretch)
    preprocess: _Stretch = field(default_factory=_Stretch)
    infer: _Stretch = field(default_factory=_Stretch)
    waited: float = 0.0  # of any picture, from its decoding to its batch
    waited_for_decoders: float = 0.0
    created: int = 0
    batches: dict[int, trace.SpanContext] = field(default_factory=dict)  # by span id

    def take(self) -> DecodeUnit | None:
        """The next unit of the call, for whichever of its decoders is free; none once it is over or too late."""
        if self.group.discarded or time.monotonic() > self.job.deadline:
            return None
        try:
            return self.units.popleft()
        except IndexError:
            return None

    def deliver(self, decoded: Decoded) -> None:
        """A picture goes to the models, what is none is noted. Never raises."""
        self.decode.end = time.monotonic()
        picture, ensemble = decoded.picture, self.engine.ensemble
        if picture is None:
            ensemble.less(self.group)
            self._tell(self.skipped, decoded)
            return
        if self.job.orientation != _UPRIGHT:
            picture = replace(picture, orientation=self.job.orientation)
        if self.job.thumbnail_size and picture.lease is not None:
            picture.lease.retain()
            self.thumbnails[decoded.sample] = self.engine.thumbnail(picture, self.job.thumbnail_size)
        try:
            ensemble.submit(self.group, decoded, picture)
        except Exception as error:  # planes that do not fit their description
            ensemble.less(self.group)
            self._tell(self.skipped, replace(decoded, picture=None, detail=f"{type(error).__name__}: {error}"))

    def _tell(self, call: Callable[[Decoded], None], decoded: Decoded) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call, decoded)

    def skipped(self, decoded: Decoded) -> None:
        """A wanted sample without a picture."""
        self.outcomes.append(skipped(decoded))
        self._count()

    def settled(self, answer: FrameAnswer) -> None:
        """A frame came through the models, or did not."""
        if answer.error is not None:
            if not self.complete.done():
                self.complete.set_exception(answer.error)
            return
        decoded = answer.tag
        assert isinstance(decoded, Decoded)
        self.first = self.first or decoded.picture
        self.failed_models.update(answer.failed)
        self.not_tone_mapped += answer.tone_mapped is False
        if decoded.in_software or self.in_software:
            self.software.append(self.in_software or decoded.detail)
        self.preprocess.over(answer.began, answer.enqueued)
        self.infer.over(answer.since, answer.ended)
        self.waited = max(self.waited, answer.began - answer.since)
        self.batches[answer.batch.span_id] = answer.batch
        self.outcomes.append(FrameOutcome(decoded.sample, decoded.alone, decoded.stand_in, results=answer.results))
        self._count()

    def _count(self) -> None:
        if len(self.outcomes) >= self.wanted and not self.complete.done():
            self.complete.set_result(None)

    async def result(self) -> EngineResult:
        """Once it is complete."""
        jpegs = {sample: await asyncio.wrap_future(future) for sample, future in self.thumbnails.items()}
        frames = without(self.failed_models, self.outcomes)
        if jpegs:
            frames = [replace(frame, thumbnail=jpegs.get(frame.sample, b"")) for frame in frames]
        degradations = told(self.job.config, failed_models=self.failed_models, not_tone_mapped=self.not_tone_mapped)
        if self.software:
            degradations.append(Degradation(DegradationReason.SOFTWARE_FALLBACK, len(self.software), self.software[0]))
        decode, preprocess, infer = self.decode, self.preprocess, self.infer
        timings = [StepTiming("decode", decode.begin, decode.end, self.waited_for_decoders, self.created)]
        if infer.begin:
            # Preprocessing is what the host takes to enqueue it with the networks; the GPU's part of it is in the inference.
            timings.append(StepTiming("preprocess", preprocess.begin, preprocess.end))
            timings.append(StepTiming("infer", infer.begin, infer.end, self.waited))
        found = found_config(self.job.config, self.first) if self.first is not None else None
        batches = tuple(each for each in self.batches.values() if each.is_valid)
        return EngineResult(tuple(frames), tuple(timings), tuple(degradations), found, batches)


class GpuEngine:
    """`Engine` on one GPU, in this process.

    What the hardware refuses as a whole is decoded by `software`'s decoders and uploaded; what it cannot decode of a stream, by
    the factory's own software. The ensemble starts first: its CUDA graphs are captured while no decoder works, and none is
    captured later. A call's pictures spread over `decoders_per_call` decoders at most: with a few, the first pictures are with
    the models sooner than with one for each; over fewer while `busy_decoders` are at work. `budget` is what was planned of the
    GPU's memory, to be compared with what is used once everything is there; `heads` the process that reads for the ensemble,
    which lives as long as this engine.
    """

    def __init__(
        self,
        *,
        factory: HardwareFactory,
        pool: DecoderPool,
        software: DecoderPool,
        ensemble: DeviceEnsemble,
        device_name: str,
        decoders_per_call: int = 4,
        busy_decoders: int = 8,
        pci_bus_id: str = "",
        thumbnail_threads: int = 2,
        budget: MemoryBudget | None = None,
        heads: HeadProcess | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.ensemble = ensemble
        self._factory = factory
        self._pool = pool
        self._software = software
        self._device_name = device_name
        self._decoders_per_call = decoders_per_call
        self._busy_decoders = busy_decoders
        self._at_work = 0  # hardware decoders
        self._pci_bus_id = pci_bus_id
        self._hardware = tuple(
            HardwareFormat(codec, depth, chroma, bounds.width, bounds.height)
            for (codec, depth, chroma), bounds in factory.capabilities.items()
        )
        self.budget = budget
        self._heads = heads
        self._ended = ended
        self._preprocessor = Preprocessor()
        self._thumbnails = ThreadPoolExecutor(thumbnail_threads, thread_name_prefix="thumbnails")
        self._watch = GpuWatch(factory.check)
        ensemble.on_failure = self._watch.look_now
        factory.on_broken = lambda _: self._watch.look_now()
        self.jobs_in_flight = 0

    async def start(self) -> None:
        """Captures every graph, then starts the warm decoders."""
        await self.ensemble.start()
        await asyncio.gather(self._pool.start(), self._software.start())
        self._watch.start()
        if self._heads is not None:
            self._heads.start()
        if self.budget is not None:
            self.budget.report()

    @property
    def healthy(self) -> bool:
        """False once the GPU is lost: it does not answer, or every CUDA call fails."""
        return self._watch.lost is None

    def info(self) -> EngineInfo:
        """What it is and has."""
        pools = (self._pool, self._software)
        states = [(pool.snapshot(), pool) for pool in pools]
        return EngineInfo(
            device=self._device_name,
            models=self.ensemble.manifests,
            decoders=tuple(
                DecoderState(state.kind, len(state.decoders), state.limit, tuple(pool.factory.codecs())) for state, pool in states
            ),
            hardware=self._hardware,
        )

    def stats(self) -> EngineStats:
        """How it stands."""
        models = self.ensemble.snapshot()
        return EngineStats(
            queues=QueueStats.of_device(models),
            batches=BatchStats.of_device(models),
            pools=tuple(PoolStats.of(pool.snapshot()) for pool in (self._pool, self._software)),
            workers=() if self._heads is None else (self._heads.stats(),),
            healthy=self.healthy,
            pci_bus_id=self._pci_bus_id,
        )

    async def run(self, job: EngineJob) -> EngineResult:
        """Decodes and infers; pictures go to the models as they come."""
        if (lost := self._watch.lost) is not None:
            raise GpuLost(lost)
        models = self.ensemble.select(job.models)
        wanted = sum(len(unit.wanted) for unit in job.units)
        loop = asyncio.get_running_loop()
        work = _Work(self, job, loop, deque(job.units), wanted, loop.create_future())
        caller = trace.get_current_span().get_span_context()
        work.group = self.ensemble.group(
            wanted, models, work.settled, deadline=job.deadline, priority=job.priority, caller=caller
        )
        if not wanted:
            work.complete.set_result(None)
        self.jobs_in_flight += 1
        try:
            async with asyncio.TaskGroup() as group:
                await self._decode(work, group)
                await work.complete
            return await work.result()
        except BaseExceptionGroup as errors:
            raise await self._told(cause(errors)) from errors
        except (ModelFailed, WorkerLost) as error:
            raise await self._told(error) from error
        finally:
            self.jobs_in_flight -= 1
            self.ensemble.discard(work.group)
            if work.complete.done() and not work.complete.cancelled():
                work.complete.exception()  # seen

    async def close(self) -> None:
        """Ends decoders, models and threads."""
        self._watch.close()
        await asyncio.gather(self._pool.close(), self._software.close())
        self._factory.close()
        await self.ensemble.close()
        if self._heads is not None:
            self._heads.close()
        self._thumbnails.shutdown(wait=False, cancel_futures=True)
        self._ended()

    def thumbnail(self, picture: Picture, size: int) -> Future[bytes]:
        """A JPEG made on a thread of its own; takes over one reference of the picture's lease."""
        try:
            return self._thumbnails.submit(self._make_thumbnail, picture, size)
        except RuntimeError as error:  # the engine was closed
            if picture.lease is not None:
                picture.lease.release()
            closed: Future[bytes] = Future()
            closed.set_exception(WorkerLost(f"no thumbnail can be made: {error}"))
            return closed

    def __repr__(self) -> str:
        return f"<GpuEngine {self._pool!r} {self._software!r} {self.ensemble!r}, {self.jobs_in_flight} jobs in flight>"

    async def _decode(self, work: _Work, group: asyncio.TaskGroup) -> None:
        """Leases decoders of the one kind or the other, and has them work in `group`."""
        job = work.job
        work.decode.begin = work.decode.end = time.monotonic()
        refused = self._factory.refuses(job.config)
        work.in_software = refused or ""
        pool, most = (self._software, len(job.units)) if refused else (self._pool, self._decoders_for(len(job.units)))
        leases = await pool.lease(job.config, deadline=job.deadline, most=most, priority=job.priority)
        work.waited_for_decoders = max(lease.waited for lease in leases)
        work.created = sum(lease.created for lease in leases)
        self._at_work += 0 if refused else len(leases)
        for lease in leases:
            task = group.create_task(self._in_software(work, lease) if refused else self._in_hardware(work, lease))
            task.add_done_callback(functools.partial(self._give_back, lease, hardware=not refused))

    def _decoders_for(self, units: int) -> int:
        """Of the hardware, for the next call: what keeps it busy is shared, since more threads only hold each other up.

        While more calls are in flight than that, they wait for models, and a thread more for a picture or two costs all of them
        more than it gains for one.
        """
        free = max(1, min(self._decoders_per_call, self._busy_decoders - self._at_work))
        each = _UNITS_EACH if self.jobs_in_flight > self._busy_decoders else 1
        return min(free, math.ceil(units / each))

    def _give_back(self, lease: Lease, _: asyncio.Task[None], *, hardware: bool) -> None:
        """Also of a task that was cancelled before its first step."""
        self._at_work -= hardware
        lease.release()

    async def _in_hardware(self, work: _Work, lease: Lease) -> None:
        try:
            async with lease:
                await cast(DrivenDecoder, lease.decoder).drive(work.take, work.job.packets, work.deliver)
        except DecoderBroken as broken:
            self._watch.look_now()
            raise WorkerLost(f"a decoder was lost while it worked for this call: {broken}") from broken
        _in_time(work)

    async def _in_software(self, work: _Work, lease: Lease) -> None:
        try:
            async with lease:
                while (unit := work.take()) is not None:
                    async with aclosing(lease.decoder.decode(unit, work.job.packets)) as pictures:
                        async for decoded in pictures:
                            work.deliver(await self._uploaded(decoded))
        except DecoderBroken as broken:
            raise WorkerLost(f"a decoder was lost while it worked for this call: {broken}") from broken
        _in_time(work)

    async def _uploaded(self, decoded: Decoded) -> Decoded:
        if decoded.picture is None:
            return decoded
        try:
            return replace(decoded, picture=await self._factory.uploader.upload(decoded.picture))
        except ValueError as error:
            return replace(decoded, picture=None, detail=str(error))

    def _make_thumbnail(self, picture: Picture, size: int) -> bytes:
        try:
            if picture.lease is not None and picture.lease.ready is not None:
                picture.lease.ready.synchronize()
            planes = tuple(plane.get() for plane in picture.planes)
            return thumbnail(replace(picture, planes=planes, lease=None), size, preprocessor=self._preprocessor)
        finally:
            if picture.lease is not None:
                picture.lease.release()

    async def _told(self, error: BaseException) -> BaseException:
        """The error of a call: that the GPU is lost, where that is behind it."""
        if isinstance(error, (ModelFailed, WorkerLost)) and (lost := await self._watch.looked()) is not None:
            return GpuLost(f"{lost}; {error.message}")
        return error


_UPRIGHT: Any = Orientation()
#: Units of a call for each of its decoders, at the least, where many calls are in flight.
_UNITS_EACH = 3


def _in_time(work: _Work) -> None:
    if work.units and not work.group.discarded and time.monotonic() > work.job.deadline:
        raise DeadlineExceeded(f"the deadline passed before {len(work.units)} of the call's units were decoded")
