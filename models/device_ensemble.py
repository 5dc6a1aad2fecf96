"""The ensemble on a GPU: one queue of pictures, one thread that batches them through every model, one that reads the results.

Pictures come from the decoders' threads straight into the queue, and their slots go back as soon as the preprocessing that was
enqueued has read them; the event loop hears of a whole batch at once. The inference thread captured the CUDA graphs, so it runs
them; it enqueues and never waits for the GPU: that is the reader's part.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import queue
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context

from decoder_pool.picture import Picture
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from keyglance.errors import DeadlineExceeded, KeyglanceError, ModelFailed, WorkerLost
from models.backend import Outputs
from models.batch_plan import BatchPlan
from models.device_snapshot import DeviceSnapshot, ModelBatches
from models.frame_group import FrameAnswer, FrameGroup
from models.frame_queue import FrameQueue
from models.manifest import Manifest
from models.model_runner import Fence, ModelRunner, OnTheWay
from models.model_set import ModelSet
from models.preprocess import layout
from models.preprocess_cuda import Located, Prepared, locate
from models.result import FrameResult

#: Batches that are enqueued and not finished: one that runs and one behind it. Backends hold results of one more, being read.
_DEPTH = 2
_REHEARSALS = 5
#: Seconds for enqueuing before it was measured; the share of a new measurement; how many times that long before a batch ends
#: the next one is enqueued.
_ENQUEUING, _SHARE, _LEAD = 0.002, 0.1, 2.0
#: Of what batches take, times what they took at start, when they had the GPU for themselves.
_FASTEST, _SLOWEST = 0.25, 4.0
_SHAPES = 4096  # shapes of pictures whose canvases are remembered

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Frame:
    group: FrameGroup
    tag: object
    located: Located
    since: float

    @property
    def to_come(self) -> int:
        return self.group.to_come

    @property
    def deadline(self) -> float:
        return self.group.deadline

    @property
    def priority(self) -> int:
        return self.group.priority


@dataclass(slots=True)
class _Run:
    """One model's part of a batch: results to come, or why there are none."""

    runner: ModelRunner
    prepared: Sequence[Prepared] = ()
    results: OnTheWay | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Batch:
    frames: list[_Frame]
    began: float
    enqueued: float
    runs: list[_Run]
    span: trace.Span


class DeviceEnsemble:
    """Batches the frames of all calls through models on one GPU.

    `open_runners` makes the models' runners (and the fence) on the inference thread, at start. A batch has frames of calls that
    want the same models, on the same canvases; which, `models.frame_queue.FrameQueue` decides, and how many, `BatchPlan` by what
    each batch size was found to cost at start. Behind a batch that runs another one is enqueued when it is full, or when the
    running one is about to end, as batches have taken of late (decoders and other engines use the GPU as well): until then
    frames gather. While none runs, the frames of a call that have come do not wait for the others where running them apart costs
    less time than the wait.
    `largest_wait` in seconds, `queue_limit` in frames: from then on batches no longer wait for more.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        open_runners: Callable[[], tuple[Sequence[ModelRunner], Fence]],
        *,
        largest_wait: float = 0.02,
        queue_limit: int = 256,
        tracer: trace.Tracer | None = None,
        ranges: ProfilerRanges = no_ranges,
    ) -> None:
        self._ranges = ranges
        self._set = ModelSet(manifests)
        self._open_runners = open_runners
        self._tracer = trace.get_tracer("keyglance.models") if tracer is None else tracer
        self._canvases = functools.lru_cache(_SHAPES)(self._canvases_of)
        self._changed = threading.Condition()
        self._frames: FrameQueue[_Frame] = FrameQueue(largest_batch=1, largest_wait=largest_wait, limit=queue_limit)
        self._coming = 0  # frames of all calls that have neither come nor been given up
        self._outstanding = 0
        self._ends = 0.0  # when what is enqueued will have run, as far as costs tell
        self._enqueuing = _ENQUEUING  # seconds that enqueuing a batch takes, of late
        self._pace = 1.0  # what a batch takes of late, times its cost in the plan
        self._ended = 0.0  # when the last batch had run
        self._in_flight: Counter[str] = Counter()  # frames, by model
        self._closed = False
        self._runners: dict[str, ModelRunner] = {}
        self._fence: Fence | None = None
        self._seconds: dict[str, float] = {}  # that each model takes for the largest batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="infer")
        self._results: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_all, name="results", daemon=True)
        self._serving: Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fill: dict[str, Counter[int]] = {name: Counter() for name in self.names}
        self._failed: Counter[str] = Counter()
        #: What batches cost, in seconds, as found at start.
        self.plan = BatchPlan({1: 1.0})
        #: Called, on whatever thread, when a model raised: the GPU may be lost.
        self.on_failure: Callable[[], None] = lambda: None

    # What it is

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all models, in the order given."""
        return self._set.names

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Manifests of all models, in the order given."""
        return self._set.manifests

    def select(self, names: Iterable[str] = ()) -> tuple[str, ...]:
        """As `ModelSet.select`."""
        return self._set.select(names)

    @property
    def across_calls(self) -> bool:
        """As `FrameQueue.across_calls`."""
        return self._frames.across_calls

    @across_calls.setter
    def across_calls(self, wanted: bool) -> None:
        with self._changed:
            self._frames.across_calls = wanted
            self._changed.notify_all()

    def snapshot(self) -> DeviceSnapshot:
        """As it stands."""
        with self._changed:
            return DeviceSnapshot(
                queued=len(self._frames),
                queue_limit=self._frames.limit,
                priorities=dict(self._frames.by_priority),
                largest_batch=self.plan.largest,
                models=tuple(
                    ModelBatches(name, self._in_flight[name], self._failed[name], dict(sorted(self._fill[name].items())))
                    for name in self.names
                ),
            )

    # Its life

    async def start(self) -> None:
        """Opens and warms every model on the inference thread. Raises what the first failure raised, with all closed again."""
        self._loop = asyncio.get_running_loop()
        self._reader.start()
        try:
            await asyncio.wrap_future(self._thread.submit(self._open))
        except BaseException:
            await self.close()
            raise
        self._serving = self._thread.submit(self._serve)

    async def close(self) -> None:
        """Fails what is queued (`WorkerLost`), waits for what runs, frees every model. May be called twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            left = list(self._frames)
            for frame in left:
                self._frames.remove(frame)
            self._changed.notify_all()
        self._give_up(left, lambda _: WorkerLost("the ensemble of models is closed"))
        if self._serving is not None:
            await asyncio.wrap_future(self._serving)
        if self._reader.is_alive():
            self._results.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._reader.join)
        await asyncio.wrap_future(self._thread.submit(self._close_runners))
        self._thread.shutdown(wait=True)

    def _open(self) -> None:
        runners, self._fence = self._open_runners()
        self._runners = {runner.manifest.name: runner for runner in runners}
        if set(self._runners) != set(self.names):
            raise ValueError(f"runners for {', '.join(sorted(self._runners))}, models are {', '.join(sorted(self.names))}")
        buckets = {runner.buckets for runner in runners}
        if len(buckets) != 1:
            raise ValueError(f"models are prepared for different batch sizes: {sorted(buckets)}")
        for runner in runners:
            runner.open()
        sizes = buckets.pop()
        self._seconds = {runner.manifest.name: _rehearse([runner], sizes[-1]) for runner in runners}
        usual = [self._runners[name] for name in self.select() or self.names]
        self.plan = BatchPlan({size: _rehearse(usual, size) for size in sizes})
        self._frames.largest_batch = self.plan.largest
        self._frames.limit = max(self._frames.limit, self.plan.largest)

    def _close_runners(self) -> None:
        for runner in self._runners.values():
            try:
                runner.close()
            except Exception:  # a lost GPU: the process ends, and with it all that it holds
                _log.warning("model %s did not close", runner.manifest.name, exc_info=True)

    # Frames, in

    def group(
        self,
        frames: int,
        models: tuple[str, ...],
        settled: Callable[[FrameAnswer], None],
        *,
        deadline: float = math.inf,
        priority: int = 0,
        caller: trace.SpanContext = trace.INVALID_SPAN_CONTEXT,
    ) -> FrameGroup:
        """For one call that brings `frames` frames."""
        with self._changed:
            self._coming += frames
        return FrameGroup(frames, models, settled, deadline=deadline, priority=priority, caller=caller)

    def submit(self, group: FrameGroup, tag: object, picture: Picture) -> None:
        """Queues one picture on the GPU; its `lease`, where it has one, is released here or later, whatever happens.

        For any thread. Raises ValueError for planes that do not fit their description or lie in host memory.
        """
        try:
            located = locate(picture)
            canvases = self._canvases(group.models, *picture.shown_size)
        except BaseException:
            _release(picture)
            raise
        frame = _Frame(group, tag, located, time.monotonic())
        with self._changed:
            self._coming -= group.arrive(frame.since)
            if not self._closed and not group.discarded:
                self._frames.add((group.models, canvases), frame, group)
                count = len(self._frames)
                if (
                    count == 1  # there is something to wait for
                    or not group.to_come
                    or count >= self.plan.largest
                    or not self._coming
                    or (count in self.plan.costs and not self._outstanding)
                ):
                    self._changed.notify_all()
                return
        _release(picture)
        if not group.discarded:
            self._settle([_refused(frame, WorkerLost("the ensemble of models is closed"))])

    def less(self, group: FrameGroup, frames: int = 1) -> None:
        """`frames` of the group's frames will never come: nobody waits for them any longer. For any thread."""
        with self._changed:
            self._coming -= group.less(frames)
            if not group.to_come:
                self._changed.notify_all()

    def discard(self, group: FrameGroup) -> None:
        """The call is over: its frames leave the queue, and of those in a batch nobody hears. On the event loop."""
        with self._changed:
            group.discarded = True
            self._coming -= group.less(group.to_come)
            mine = [frame for frame in self._frames if frame.group is group]
            for frame in mine:
                self._frames.remove(frame)
            if mine or not self._coming:
                self._changed.notify_all()
        for frame in mine:
            _release(frame.located.picture)

    def _canvases_of(self, models: tuple[str, ...], width: int, height: int) -> tuple[tuple[int, int], ...]:
        placed = [layout(self._set[name].inputs.geometry, width, height) for name in models]
        return tuple((each.canvas_height, each.canvas_width) for each in placed)

    # Batches, on the inference thread

    def _serve(self) -> None:
        while (frames := self._next()) is not None:
            if frames:
                with self._ranges("enqueue"):
                    batch = self._enqueue(frames)
                self._results.put(batch)
                del batch
            del frames

    def _next(self) -> list[_Frame] | None:
        """The next batch once there is one; empty where all of it was late; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                wait: float | None = None
                if (head := self._frames.head(now)) is not None and self._outstanding < _DEPTH:
                    waiting = self._frames.waiting(now)
                    if head.ready_at <= now and not self._frames.across_calls:
                        return self._take(now, self.plan.largest)
                    if head.ready_at <= now:
                        left = self._ends - _LEAD * self._enqueuing - now if self._outstanding else 0.0
                        if left <= 0 or len(waiting) >= self.plan.largest:
                            return self._take(now, self.plan.first(len(waiting), more=self._coming > 0))
                        wait = left
                    elif self._frames.across_calls and not self._outstanding and self._better_apart(waiting, now):
                        return self._take(now, len(waiting))
                    else:
                        wait = head.ready_at - now
                self._changed.wait(wait)
            return None

    def _better_apart(self, waiting: Sequence[_Frame], now: float) -> bool:
        """Whether a full bucket of one call that runs alone today has its results sooner than if the rest were waited for."""
        count, group = len(waiting), waiting[0].group
        if count not in self.plan.costs or group.arrived != count or self._coming != group.to_come:
            return False
        apart = self.plan.cost(count) + self.plan.cost(group.to_come) - self.plan.cost(count + group.to_come)
        return apart < group.wait(now)

    def _take(self, now: float, most: int) -> list[_Frame]:
        frames, late = self._frames.take(now, most)
        if frames:
            self._outstanding += 1
            takes = self._pace * self.plan.cost(len(frames))
            self._ends = max(now, self._ends if self._outstanding > 1 else 0.0) + takes
            for name in frames[0].group.models:
                self._in_flight[name] += len(frames)
                self._fill[name][len(frames)] += 1
        self._give_up(late, lambda frame: DeadlineExceeded(f"the deadline passed before {', '.join(frame.group.models)} had run"))
        return frames

    def _enqueue(self, frames: list[_Frame]) -> _Batch:
        began = time.monotonic()
        callers = {frame.group.caller.span_id: frame.group.caller for frame in frames if frame.group.caller.is_valid}
        # A batch belongs to several calls: it is a root of its own, linked to each of them.
        span = self._tracer.start_span(
            "infer_batch",
            context=Context(),
            links=[trace.Link(caller) for caller in callers.values()],
            attributes={"keyglance.models": frames[0].group.models, "keyglance.batch.size": len(frames)},
        )
        pictures = [frame.located for frame in frames]
        runs, events = [], []
        ready, lost = None, None
        try:
            ready = self._ready(pictures)
        except Exception as error:  # a lost GPU
            lost = error
        for name in sorted(frames[0].group.models, key=lambda name: -self._seconds[name]):  # the GPU has work for longest
            run = _Run(self._runners[name])
            try:
                if lost is not None:
                    raise lost
                enqueued = run.runner.enqueue(pictures, ready)
                run.prepared, run.results = enqueued.prepared, enqueued.results
                events.append(enqueued.pictures_used)
            except Exception as error:
                run.error = error
            runs.append(run)
        try:
            used = self._fence.after(events) if self._fence is not None else None
        except Exception as error:  # a lost GPU: nothing reads the pictures any more
            _log.warning("no event behind a batch: %s: %s", type(error).__name__, error)
            used = None
        for frame in frames:
            _release(frame.located.picture, used)
        ended = time.monotonic()
        self._enqueuing += _SHARE * (ended - began - self._enqueuing)
        return _Batch(frames, began, ended, runs, span)

    def _ready(self, pictures: Sequence[Located]) -> Any:
        """One event behind which all pictures are complete, None where they are."""
        leases = (located.picture.lease for located in pictures)
        return self._fence.before([lease.ready for lease in leases if lease is not None]) if self._fence is not None else None

    # Results, on the reader's thread

    def _read_all(self) -> None:
        while (batch := self._results.get()) is not None:
            try:
                with self._ranges("results"):
                    self._read(batch)
            except Exception as error:
                _log.exception("the results of a batch were lost")
                self._settle([_refused(frame, _failure("all", error)) for frame in batch.frames])
            del batch

    def _read(self, batch: _Batch) -> None:
        rows: dict[str, Sequence[FrameResult | Exception]] = {}
        runs = sorted(batch.runs, key=lambda run: self._seconds[run.runner.manifest.name])
        try:
            for run in runs[:-1]:  # the quicker ones are read while the slowest still runs
                rows[run.runner.manifest.name] = self._rows(run, _outputs(run), batch)
            outputs = _outputs(runs[-1]) if runs else {}
        finally:
            ended = time.monotonic()
            pace = (ended - max(batch.began, self._ended)) / self.plan.cost(len(batch.frames))
            self._ended = ended
            with self._changed:  # the next batch may begin while the last one is read
                self._pace += _SHARE * (min(max(pace, _FASTEST), _SLOWEST) - self._pace)
                self._outstanding -= 1
                for run in runs:
                    self._in_flight[run.runner.manifest.name] -= len(batch.frames)
                self._changed.notify_all()
        if runs:
            rows[runs[-1].runner.manifest.name] = self._rows(runs[-1], outputs, batch)
        for run in batch.runs:
            if run.error is not None:
                batch.span.record_exception(run.error)
                batch.span.set_status(trace.StatusCode.ERROR, str(run.error))
        batch.span.end()
        self._settle([(frame.group, self._answer(batch, place, rows, ended)) for place, frame in enumerate(batch.frames)])

    def _rows(self, run: _Run, outputs: Outputs, batch: _Batch) -> Sequence[FrameResult | Exception]:
        """One model's result for each frame, or what is wrong with it."""
        name = run.runner.manifest.name
        rows: Sequence[FrameResult | Exception] = ()
        try:
            if run.error is None:
                rows = run.runner.head.read_batch(outputs, [one.placement for one in run.prepared])
        except Exception as error:
            run.error = error
        try:
            if run.results is not None:
                run.results.release()
        except Exception as error:  # of a GPU that is lost, or that somebody else in this process has stopped
            run.error = run.error or error
        if run.error is None:
            return rows
        _log.warning("model %s failed on a batch of %d frames", name, len(batch.frames), exc_info=run.error)
        self._failed[name] += 1
        self.on_failure()
        return [run.error] * len(batch.frames)

    def _answer(
        self, batch: _Batch, place: int, rows: Mapping[str, Sequence[FrameResult | Exception]], ended: float
    ) -> FrameAnswer:
        results: dict[str, FrameResult] = {}
        failed: dict[str, str] = {}
        error: KeyglanceError | None = None
        for name, by_frame in rows.items():
            row = by_frame[place]
            if isinstance(row, FrameResult):
                results[name] = row
            elif self._set[name].required:
                error = error or _failure(name, row)
            else:
                failed[name] = _failure(name, row).message
        told = [run.prepared[place].tone_mapped for run in batch.runs if run.prepared]
        frame = batch.frames[place]
        return FrameAnswer(
            frame.tag,
            error,
            results,
            failed,
            False if False in told else True if True in told else None,
            frame.since,
            batch.began,
            batch.enqueued,
            ended,
            batch.span.get_span_context(),
        )

    # Answers, out

    def _give_up(self, frames: Sequence[_Frame], why: Callable[[_Frame], KeyglanceError]) -> None:
        for frame in frames:
            _release(frame.located.picture)
        self._settle([_refused(frame, why(frame)) for frame in frames])

    def _settle(self, answers: Sequence[tuple[FrameGroup, FrameAnswer]]) -> None:
        """Has the calls hear of it, on the event loop; for any thread."""
        if answers and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(_tell, answers)
            except RuntimeError:  # the loop is closed: nobody waits
                _log.debug("%d answers for a loop that is closed", len(answers))

    def __repr__(self) -> str:
        with self._changed:
            state = f"{len(self._frames)} queued, {self._outstanding} batches enqueued"
        return f"<DeviceEnsemble {', '.join(self.names)}: {state}{', closed' if self._closed else ''}>"


def _tell(answers: Sequence[tuple[FrameGroup, FrameAnswer]]) -> None:
    for group, answer in answers:
        if not group.discarded:
            group.settled(answer)


def _refused(frame: _Frame, error: KeyglanceError) -> tuple[FrameGroup, FrameAnswer]:
    now = time.monotonic()
    return frame.group, FrameAnswer(frame.tag, error, since=frame.since, began=now, enqueued=now, ended=now)


def _rehearse(runners: Sequence[ModelRunner], size: int) -> float:
    """Seconds that a batch of `size` takes through these models at once, measured."""
    times = []
    for _ in range(_REHEARSALS):
        begin = time.perf_counter()
        on_the_way = [runner.rehearse(size) for runner in runners]
        for results in on_the_way:
            results.outputs()
        times.append(time.perf_counter() - begin)
        for results in on_the_way:
            results.release()
    return statistics.median(times)


def _outputs(run: _Run) -> Outputs:
    """Waits for one model's results; nothing where there are none."""
    if run.results is not None:
        try:
            return run.results.outputs()
        except Exception as error:
            run.error = error
    return {}


def _release(picture: Picture, after: object = None) -> None:
    if picture.lease is not None:
        picture.lease.release(after)


def _failure(model: str, error: Exception) -> KeyglanceError:
    """An error of its own for each frame: one object raised in several tasks would gather all their tracebacks."""
    failed = ModelFailed(f"model {model!r}: {type(error).__name__}: {error}", facts={"model": model})
    failed.__cause__ = error
    return failed
