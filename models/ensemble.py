"""The ensemble: every model of an engine, fed with one frame at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from opentelemetry.trace import SpanContext

from keyglance.errors import KeyglanceError, ModelFailed, WorkerLost
from models.backend import Backend
from models.batcher import Batcher, BatcherSnapshot, ExpectedFrames
from models.heads import Head
from models.manifest import Manifest
from models.model_set import ModelSet
from models.preprocess import Rendered, normalise
from models.result import FrameResult
from models.run_slots import RunSlots
from models.spec import Geometry

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything that runs it."""

    manifest: Manifest
    backend: Backend
    head: Head
    batcher: Batcher


@dataclass(frozen=True, slots=True)
class EnsembleResult:
    """One frame's results by model, the optional models that failed on it with the reason, and the longest wait in a queue.

    `batches` are the spans of the batches that it was in.
    """

    results: Mapping[str, FrameResult]
    failed: Mapping[str, str]
    waited: float
    batches: tuple[SpanContext, ...] = ()


class Ensemble:
    """Models that share run slots. `work_threads` threads normalise tensors and read outputs beside the inference.

    Raises `ValueError` for two models of one name, and for manifests whose labels contradict one another.
    """

    def __init__(self, models: Sequence[LoadedModel], slots: RunSlots, *, work_threads: int = 1) -> None:
        self._set = ModelSet([model.manifest for model in models])
        self._models = {model.manifest.name: model for model in models}
        self.slots = slots
        self._closed = False
        self._work = ThreadPoolExecutor(work_threads, thread_name_prefix="tensors")

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
        """As `Batcher.across_calls`, of all models."""
        return all(model.batcher.across_calls for model in self._models.values())

    @across_calls.setter
    def across_calls(self, wanted: bool) -> None:
        for model in self._models.values():
            model.batcher.across_calls = wanted

    def geometries(self, models: Iterable[str]) -> tuple[Geometry, ...]:
        """The distinct geometries in which `models` want a picture; each is rendered once."""
        return tuple(dict.fromkeys(self._model(name).manifest.inputs.geometry for name in models))

    def _model(self, name: str) -> LoadedModel:
        return self._models[self._set[name].name]

    def expect(self, frames: int) -> ExpectedFrames:
        """The counter that a call shares among its calls of `infer`, one for each of `frames`."""
        return ExpectedFrames(frames)

    async def start(self) -> None:
        """Loads and warms every model. Raises what the first failure raised, with everything closed again."""
        try:
            for model in self._models.values():
                await self.slots.call(model.backend.load)
                await self.slots.call(model.backend.warm, sorted({1, model.batcher.largest_batch}))
        except BaseException:
            await self.close()
            raise

    async def infer(
        self,
        rendered: Mapping[Geometry, Rendered],
        models: Sequence[str],
        *,
        deadline: float = math.inf,
        priority: int = 0,
        expected: ExpectedFrames | None = None,
    ) -> EnsembleResult:
        """One frame through `models`, all at once; `rendered` has the frame in each of their geometries.

        `deadline` is on `time.monotonic()`'s clock, the lowest `priority` goes first. `expected` is the call's own, for all its
        frames. Raises `UnknownModel`, `ModelFailed` if a required model failed, `DeadlineExceeded`, `WorkerLost` if the ensemble
        is closed.
        """
        wanted = [(model := self._model(name), rendered[model.manifest.inputs.geometry]) for name in dict.fromkeys(models)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(model, frame, deadline, priority, expected)) for model, frame in wanted]
        except* KeyglanceError as errors:
            raised = errors.exceptions
        else:
            answers = [task.result() for task in tasks]
            return EnsembleResult(
                results={answer.model: answer.result for answer in answers if answer.result is not None},
                failed={answer.model: answer.failure for answer in answers if answer.result is None},
                waited=max((answer.waited for answer in answers), default=0.0),
                batches=tuple(answer.batch for answer in answers if answer.batch is not None and answer.batch.is_valid),
            )
        raise next(error for error in raised if isinstance(error, KeyglanceError))  # flat: no task raises a group

    async def _answer(
        self, model: LoadedModel, frame: Rendered, deadline: float, priority: int, expected: ExpectedFrames | None
    ) -> _Answer:
        """One model's answer to one frame; an optional model's failure is an answer too."""
        try:
            tensor = await self._work_on(model, normalise, frame, model.manifest.inputs.normalisation)
            inferred = await model.batcher.submit(tensor, deadline=deadline, priority=priority, expected=expected)
            result = await self._work_on(model, model.head.read, inferred.outputs, frame.placement)
        except ModelFailed as error:
            if model.manifest.required:
                raise
            return _Answer(model.manifest.name, None, failure=error.message)
        return _Answer(model.manifest.name, result, waited=inferred.waited, batch=inferred.batch)

    async def _work_on(self, model: LoadedModel, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function` on a work thread; whatever it raises is a failure of `model`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._work, lambda: function(*args, **kwargs))
        except Exception as error:
            if self._closed:  # the work threads may be gone
                raise WorkerLost("the ensemble of models is closed") from error
            name = model.manifest.name
            raise ModelFailed(f"model {name!r}: {type(error).__name__}: {error}", facts={"model": name}) from error

    async def close(self) -> None:
        """Fails what is queued (`WorkerLost`), waits for what runs, frees every model."""
        if self._closed:
            return
        self._closed = True
        for model in self._models.values():
            await model.batcher.close()
            await self.slots.call(model.backend.close)
        await self.slots.close()
        self._work.shutdown(wait=True)

    def snapshot(self) -> tuple[BatcherSnapshot, ...]:
        """Every model's queue as it stands."""
        return tuple(model.batcher.snapshot() for model in self._models.values())

    def __repr__(self) -> str:
        return (
            f"<Ensemble {', '.join(self.names)} slots={self.slots.busy}/{self.slots.threads}{' closed' if self._closed else ''}>"
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    model: str
    result: FrameResult | None
    waited: float = 0.0
    failure: str = ""
    batch: SpanContext | None = None
