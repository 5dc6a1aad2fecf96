"""The engine in the same process: a decoder pool, preprocessing threads and an ensemble of batched models."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

from opentelemetry.trace import SpanContext

from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool, Lease
from keyglance.errors import WorkerLost
from keyglance.video import StreamConfig
from models.batcher import ExpectedFrames
from models.ensemble import Ensemble
from models.preprocess import Preprocessor, Rendered
from models.spec import Geometry
from models.thumbnail import thumbnail
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.engine_stats import BatchStats, EngineStats, PoolStats, QueueStats
from server.job_work import cause, found_config, skipped, told, without
from server.timing import StepTiming


@dataclass(slots=True)
class _Clock:
    """Begin and end of one step over all that a job does of it at once."""

    step: str
    begin: float = 0.0
    end: float = 0.0
    wait: float = 0.0
    created: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        begin = time.monotonic()
        self.begin = min(self.begin, begin) if self.begin else begin
        try:
            yield
        finally:
            self.end = max(self.end, time.monotonic())

    def timing(self) -> StepTiming | None:
        return StepTiming(self.step, self.begin, self.end, self.wait, self.created) if self.begin else None


@dataclass(slots=True)
class _Work:
    """One job on its way through the engine."""

    job: EngineJob
    models: tuple[str, ...]
    geometries: tuple[Geometry, ...]
    units: deque[DecodeUnit]
    expected: ExpectedFrames
    outcomes: list[FrameOutcome] = field(default_factory=list)
    failed_models: dict[str, str] = field(default_factory=dict)
    not_tone_mapped: int = 0
    found: StreamConfig | None = None
    batches: dict[int, SpanContext] = field(default_factory=dict)  # by span id
    decode: _Clock = field(default_factory=lambda: _Clock("decode"))
    preprocess: _Clock = field(default_factory=lambda: _Clock("preprocess"))
    infer: _Clock = field(default_factory=lambda: _Clock("infer"))

    def result(self) -> EngineResult:
        clocks = (self.decode, self.preprocess, self.infer)
        return EngineResult(
            frames=tuple(without(self.failed_models, self.outcomes)),
            timings=tuple(timing for clock in clocks if (timing := clock.timing())),
            degradations=tuple(told(self.job.config, failed_models=self.failed_models, not_tone_mapped=self.not_tone_mapped)),
            config=self.found,
            batches=tuple(self.batches.values()),
        )


class LocalEngine:
    """`Engine` in the server's own process.

    `render_threads` preprocess; at most `frames_in_flight` pictures of all calls lie between decoding and their scores,
    which bounds memory: further ones wait in their decoders.
    """

    def __init__(
        self,
        *,
        pool: DecoderPool,
        ensemble: Ensemble,
        preprocessor: Preprocessor,
        render_threads: int,
        frames_in_flight: int,
        device: str = "cpu",
    ) -> None:
        self._pool = pool
        self.ensemble = ensemble
        self._preprocessor = preprocessor
        self._renderers = ThreadPoolExecutor(render_threads, thread_name_prefix="preprocess")
        self._frames = asyncio.Semaphore(frames_in_flight)
        self._frames_limit = frames_in_flight
        self.frames_in_flight = 0
        self._device = device

    async def start(self) -> None:
        """Starts the warm decoders and warms every model."""
        await asyncio.gather(self._pool.start(), self.ensemble.start())

    @property
    def healthy(self) -> bool:
        """A CPU is not lost."""
        return True

    def info(self) -> EngineInfo:
        """What it is and has."""
        state = self._pool.snapshot()
        return EngineInfo(
            device=self._device,
            models=self.ensemble.manifests,
            decoders=(DecoderState(state.kind, len(state.decoders), state.limit, tuple(self._pool.factory.codecs())),),
        )

    def stats(self) -> EngineStats:
        """How it stands."""
        batchers = self.ensemble.snapshot()
        return EngineStats(
            queues=(
                QueueStats("pictures", self.frames_in_flight, self._frames_limit),
                *(queue for each in batchers for queue in QueueStats.of(each)),
            ),
            batches=tuple(BatchStats.of(each) for each in batchers),
            pools=(PoolStats.of(self._pool.snapshot()),),
            healthy=self.healthy,
        )

    async def run(self, job: EngineJob) -> EngineResult:
        """Decodes, preprocesses and infers; pictures flow from step to step as they come."""
        wanted = sum(len(unit.wanted) for unit in job.units)
        models = self.ensemble.select(job.models)
        geometries = self.ensemble.geometries(models)
        work = _Work(job, models, geometries, deque(job.units), self.ensemble.expect(wanted))
        leases: list[Lease] = []
        try:
            async with asyncio.TaskGroup() as group:
                with work.decode.running():
                    leases = await self._pool.lease(job.config, deadline=job.deadline, most=len(job.units), priority=job.priority)
                work.decode.wait = max(lease.waited for lease in leases)
                work.decode.created = sum(lease.created for lease in leases)
                for lease in leases:
                    group.create_task(self._decode(work, lease, group))
        except BaseExceptionGroup as errors:
            raise cause(errors) from errors
        finally:
            for lease in leases:  # of tasks that were cancelled before their first step
                lease.release()
            work.expected.clear()
        return work.result()

    async def close(self) -> None:
        """Ends decoders, models and threads."""
        await self._pool.close()
        await self.ensemble.close()
        self._renderers.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        return f"<LocalEngine {self._pool!r} {self.ensemble!r}, {self.frames_in_flight} frames in flight>"

    async def _decode(self, work: _Work, lease: Lease, group: asyncio.TaskGroup) -> None:
        """Takes unit after unit until none is left; its siblings do the same with their leases."""
        try:
            async with lease:
                while work.units:
                    await self._decode_unit(work, lease, work.units.popleft(), group)
        except DecoderBroken as broken:
            raise WorkerLost(f"a decoder was lost while it worked for this call: {broken}") from broken

    async def _decode_unit(self, work: _Work, lease: Lease, unit: DecodeUnit, group: asyncio.TaskGroup) -> None:
        async with aclosing(lease.decoder.decode(unit, work.job.packets)) as pictures:
            while True:
                with work.decode.running():
                    decoded = await anext(pictures, None)
                if decoded is None:
                    return
                if decoded.picture is None:
                    work.outcomes.append(skipped(decoded))
                    work.expected.less()
                else:
                    await self._place(work, decoded, replace(decoded.picture, orientation=work.job.orientation), group)

    async def _place(self, work: _Work, decoded: Decoded, picture: Picture, group: asyncio.TaskGroup) -> None:
        """Preprocesses one picture and hands it on; waits first while too many pictures lie in the engine."""
        await self._frames.acquire()
        self.frames_in_flight += 1
        try:
            with work.preprocess.running():
                rendered, jpeg = await asyncio.get_running_loop().run_in_executor(
                    self._renderers, self._render, picture, work.geometries, work.job.thumbnail_size
                )
            _note(work, picture, rendered)
        except BaseException:
            self._leave()
            raise
        group.create_task(self._infer(work, decoded, rendered, jpeg)).add_done_callback(self._leave)

    def _leave(self, _: object = None) -> None:
        self.frames_in_flight -= 1
        self._frames.release()

    def _render(
        self, picture: Picture, geometries: tuple[Geometry, ...], thumbnail_size: int
    ) -> tuple[dict[Geometry, Rendered], bytes]:
        rendered = {geometry: self._preprocessor.render(picture, geometry) for geometry in geometries}
        return rendered, thumbnail(picture, thumbnail_size, preprocessor=self._preprocessor) if thumbnail_size else b""

    async def _infer(self, work: _Work, decoded: Decoded, rendered: dict[Geometry, Rendered], jpeg: bytes) -> None:
        with work.infer.running():
            answer = await self.ensemble.infer(
                rendered, work.models, deadline=work.job.deadline, priority=work.job.priority, expected=work.expected
            )
        work.infer.wait = max(work.infer.wait, answer.waited)
        work.failed_models.update(answer.failed)
        work.batches.update((each.span_id, each) for each in answer.batches)
        work.outcomes.append(
            FrameOutcome(decoded.sample, decoded.alone, decoded.stand_in, results=answer.results, thumbnail=jpeg)
        )


def _note(work: _Work, picture: Picture, rendered: dict[Geometry, Rendered]) -> None:
    """Keeps what the pictures say of themselves: the bitstream is believed, not the container."""
    if any(one.tone_mapped is False for one in rendered.values()):
        work.not_tone_mapped += 1
    if work.found is None:
        work.found = found_config(work.job.config, picture)
