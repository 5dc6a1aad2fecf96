"""The batcher: a model's queue, which joins frames of all calls into batches."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry import trace
from opentelemetry.context import Context

from keyglance.errors import DeadlineExceeded, KeyglanceError, ModelFailed, WorkerLost
from models.backend import Backend, Outputs, check_outputs
from models.frame_queue import FrameQueue
from models.manifest import Manifest
from models.run_slots import Head, RunSlots

logger = logging.getLogger(__name__)


class ExpectedFrames:
    """How many frames a call still brings. One object a call, shared by all its submits; lives on the event loop's thread."""

    def __init__(self, frames: int) -> None:
        if frames < 0:
            raise ValueError(f"{frames} frames expected: must be 0 or more")
        self._frames = frames
        self._arrived: Counter[str] = Counter()
        self._wakes: set[Callable[[], None]] = set()

    def to_come(self, model: str) -> int:
        """Frames that have not yet been submitted to `model`."""
        return max(0, self._frames - self._arrived[model])

    def arrive(self, model: str, wake: Callable[[], None]) -> None:
        """One frame has come to `model`; `wake` is called when fewer are to come than was said."""
        self._arrived[model] += 1
        self._wakes.add(wake)

    def less(self, frames: int = 1) -> None:
        """`frames` of the frames will never come (they could not be decoded): nobody waits for them any longer."""
        self._frames = max(0, self._frames - frames)
        for wake in tuple(self._wakes):
            wake()

    def clear(self) -> None:
        """No more frames will come (the call ends)."""
        self.less(self._frames)

    def __repr__(self) -> str:
        return f"<ExpectedFrames {self._frames} arrived={dict(self._arrived)}>"


@dataclass(frozen=True, slots=True)
class Inferred:
    """The outputs for one frame, without a batch axis, the seconds that it waited until its batch began, and the batch's span."""

    outputs: Outputs
    waited: float
    batch: trace.SpanContext = trace.INVALID_SPAN_CONTEXT


@dataclass(frozen=True, slots=True)
class BatcherSnapshot:
    """A batcher as it stands. `fill` counts batches by their number of frames, `priorities` what is queued by priority."""

    model: str
    queued: int
    waiting: int
    in_flight: int
    batches: int
    failed: int
    fill: Mapping[int, int]
    largest_batch: int = 0
    queue_limit: int = 0
    priorities: Mapping[int, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Frame:
    tensor: NDArray[Any]
    model: str
    deadline: float
    priority: int
    expected: ExpectedFrames | None
    caller: trace.SpanContext
    since: float
    done: asyncio.Future[Inferred]

    @property
    def to_come(self) -> int:
        return 0 if self.expected is None else self.expected.to_come(self.model)


@dataclass(slots=True)
class _Batch:
    frames: list[_Frame]
    began: float = field(default_factory=time.monotonic)


class Batcher:
    """Queues single frames for one model and runs them in batches of equal shape and type on the run slots.

    At most `queue_limit` frames are queued; further submits wait for a place, first come, first served. When a batch is ready,
    and which frames it takes, `models.frame_queue.FrameQueue` decides. It begins when a run slot is free, with whatever has come
    until then, so a busy engine fills its batches without any wait. Frames that were cancelled or whose deadline has passed
    enter no batch. A batch that fails, fails its own frames.
    """

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        slots: RunSlots,
        *,
        largest_batch: int | None = None,
        largest_wait: float = 0.005,
        queue_limit: int = 64,
        tracer: trace.Tracer | None = None,
    ) -> None:
        self.manifest = manifest
        self.largest_batch = manifest.largest_batch if largest_batch is None else min(largest_batch, manifest.largest_batch)
        self.largest_wait = largest_wait
        self.queue_limit = queue_limit
        if self.largest_batch < 1:
            raise ValueError(f"model {manifest.name!r}: largest batch of {self.largest_batch} frames: at least 1 is needed")
        if queue_limit < self.largest_batch:
            raise ValueError(
                f"model {manifest.name!r}: a queue of {queue_limit} frames cannot fill a batch of {self.largest_batch}"
            )
        if not 0 <= largest_wait < math.inf:
            raise ValueError(f"model {manifest.name!r}: largest wait of {largest_wait} s: must be 0 or more, and finite")
        self._backend = backend
        self._slots = slots
        self._tracer = trace.get_tracer("keyglance.models") if tracer is None else tracer
        self._places = asyncio.Semaphore(queue_limit)
        self._frames: FrameQueue[_Frame] = FrameQueue(
            largest_batch=self.largest_batch, largest_wait=largest_wait, limit=queue_limit
        )
        self._batches: set[asyncio.Future[None]] = set()
        self._waiting = 0
        self._in_flight = 0
        self._failed = 0
        self._fill: Counter[int] = Counter()
        self._closed = False
        slots.attach(self)

    @property
    def across_calls(self) -> bool:
        """As `FrameQueue.across_calls`."""
        return self._frames.across_calls

    @across_calls.setter
    def across_calls(self, wanted: bool) -> None:
        self._frames.across_calls = wanted
        self._slots.poll()

    async def submit(
        self,
        tensor: NDArray[Any],
        *,
        deadline: float = math.inf,
        priority: int = 0,
        expected: ExpectedFrames | None = None,
    ) -> Inferred:
        """Infers one frame, a tensor without batch axis; it must not be changed until this returns.

        `deadline` is on `time.monotonic()`'s clock, the lowest `priority` goes first. Raises `DeadlineExceeded` as soon as the
        deadline has passed, `ModelFailed` if the frame's batch failed, `WorkerLost` if the batcher is closed.
        """
        if expected is not None:
            expected.arrive(self.manifest.name, self._slots.poll)
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                return await self._queue(tensor, deadline, priority, expected)
        except TimeoutError:
            raise self._late() from None

    async def _queue(self, tensor: NDArray[Any], deadline: float, priority: int, expected: ExpectedFrames | None) -> Inferred:
        since = time.monotonic()
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        if self._closed:
            self._places.release()
            raise self._shut()
        caller = trace.get_current_span().get_span_context()
        done: asyncio.Future[Inferred] = asyncio.get_running_loop().create_future()
        frame = _Frame(tensor, self.manifest.name, deadline, priority, expected, caller, since, done)
        self._frames.add((tensor.shape, tensor.dtype), frame, expected)
        self._slots.poll()
        try:
            return await frame.done
        except asyncio.CancelledError:
            if self._frames.remove(frame):
                self._places.release()
                # Another call's frame may be the first now, with other reasons to wait or not to.
                self._slots.poll()
            raise

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the deadline passed before model {self.manifest.name!r} had run")

    def _shut(self) -> WorkerLost:
        return WorkerLost(f"model {self.manifest.name!r} is closed")

    def head(self, now: float) -> Head | None:
        """The batch that would run next, or is ready first."""
        return self._frames.head(now)

    def take(self, now: float) -> Coroutine[Any, Any, None] | None:
        """Takes the next batch out of the queue; its late frames fail and enter no batch."""
        taken, late = self._frames.take(now)
        for _ in (*taken, *late):
            self._places.release()
        for frame in late:
            if not frame.done.done():
                frame.done.set_exception(self._late())
        frames = [frame for frame in taken if not frame.done.done()]  # some were cancelled in this very turn of the loop
        if not frames:
            return None
        self._in_flight += len(frames)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches.add(ended)
        return self._run(_Batch(frames), ended)

    async def _run(self, batch: _Batch, ended: asyncio.Future[None]) -> None:
        callers = {frame.caller.span_id: frame.caller for frame in batch.frames if frame.caller.is_valid}
        # A batch belongs to several calls: it is a root of its own, linked to each of them.
        span = self._tracer.start_span(
            "infer_batch",
            context=Context(),
            links=[trace.Link(caller) for caller in callers.values()],
            attributes={"keyglance.model": self.manifest.name, "keyglance.batch.size": len(batch.frames)},
        )
        error: Exception | None = None
        rows: Sequence[Outputs] = ()
        try:
            rows = await self._slots.call(self._infer, [frame.tensor for frame in batch.frames])
        except asyncio.CancelledError:
            error = self._shut()
            raise
        except Exception as raised:
            logger.warning("model %s failed on a batch of %d frames", self.manifest.name, len(batch.frames), exc_info=True)
            error = raised
        finally:
            self._settle(batch, rows, error, span.get_span_context())
            if error is not None:
                span.record_exception(error)
                span.set_status(trace.StatusCode.ERROR, str(error))
            span.end()
            self._batches.discard(ended)
            ended.set_result(None)

    def _infer(self, tensors: Sequence[NDArray[Any]]) -> Sequence[Outputs]:
        outputs = self._backend.run(np.stack(tensors))
        check_outputs(self.manifest, outputs, len(tensors))
        return [{name: values[row] for name, values in outputs.items()} for row in range(len(tensors))]

    def _settle(self, batch: _Batch, rows: Sequence[Outputs], error: Exception | None, span: trace.SpanContext) -> None:
        self._in_flight -= len(batch.frames)
        self._fill[len(batch.frames)] += 1
        self._failed += error is not None
        for place, frame in enumerate(batch.frames):
            if frame.done.done():
                continue
            if error is None:
                frame.done.set_result(Inferred(rows[place], batch.began - frame.since, span))
            else:
                frame.done.set_exception(self._error_for_one(error))

    def _error_for_one(self, error: Exception) -> KeyglanceError:
        """An error of its own for each frame: one object raised in several tasks would gather all their tracebacks."""
        if isinstance(error, KeyglanceError):
            copy: KeyglanceError = type(error)(error.message, facts=error.facts, retry_after=error.retry_after)
        else:
            name = self.manifest.name
            copy = ModelFailed(f"model {name!r}: {type(error).__name__}: {error}", facts={"model": name})
        copy.__cause__ = error
        return copy

    async def close(self) -> None:
        """Fails what is queued or waits for a place, waits for the batches that run, takes nothing more. May be called twice."""
        self._closed = True
        for frame in self._frames:
            self._frames.remove(frame)
            self._places.release()
            if not frame.done.done():
                frame.done.set_exception(self._shut())
        if self._batches:
            await asyncio.wait(self._batches)
        self._slots.detach(self)

    def snapshot(self) -> BatcherSnapshot:
        """Counts as they stand."""
        return BatcherSnapshot(
            model=self.manifest.name,
            queued=len(self._frames),
            waiting=self._waiting,
            in_flight=self._in_flight,
            batches=self._fill.total(),
            failed=self._failed,
            fill=dict(sorted(dict(self._fill).items())),  # copied in one step: metrics look from another thread
            largest_batch=self.largest_batch,
            queue_limit=self.queue_limit,
            priorities=dict(self._frames.by_priority),
        )

    def __repr__(self) -> str:
        state = self.snapshot()
        return (
            f"<Batcher {state.model} queued={state.queued}/{self.queue_limit} waiting={state.waiting} "
            f"in_flight={state.in_flight} batches={state.batches} failed={state.failed}{' closed' if self._closed else ''}>"
        )
