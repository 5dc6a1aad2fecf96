"""One model on a GPU with all that a batch passes: preprocessing, network, results on their way to pinned memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from decoder_pool.cuda_calls import CudaCalls, cuda_calls
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from models.backend import Outputs
from models.backends.device import CudaBackend
from models.heads import Head
from models.manifest import Manifest
from models.preprocess_cuda import CudaPreprocessor, Located, Prepared


class OnTheWay(Protocol):
    """A batch on its way through a network."""

    def outputs(self) -> Outputs:
        """Waits for the results, arrays [n, …], which stay valid until `release`."""
        ...

    def release(self) -> None:
        """Gives their memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `ModelRunner.enqueue` gives: where each picture lies on the canvas, the event behind the last use of the pictures'
    planes (None where that is over), and the results to come.
    """

    prepared: tuple[Prepared, ...]
    pictures_used: Any
    results: OnTheWay


class ModelRunner(Protocol):
    """One model as an ensemble on a device uses it: everything on one thread, but for `Enqueued.results` and `head`."""

    @property
    def manifest(self) -> Manifest:
        """The model."""
        ...

    @property
    def head(self) -> Head:
        """Reads its outputs."""
        ...

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that networks are prepared for, ascending; a batch costs what the smallest that holds it costs."""
        ...

    def open(self) -> None:
        """Loads, prepares and warms everything; nothing is created or allocated later."""
        ...

    def enqueue(self, pictures: Sequence[Located], ready: Any = None) -> Enqueued:
        """Enqueues preprocessing and network of 1 to `buckets[-1]` pictures of one canvas, complete behind the event `ready`."""
        ...

    def rehearse(self, size: int) -> OnTheWay:
        """Enqueues the network alone for a batch of `size`, on whatever its input holds: to learn what it costs."""
        ...

    def close(self) -> None:
        """Frees everything. May be called before `open`, and twice."""
        ...


class Fence(Protocol):
    """Joins events of several streams."""

    def before(self, events: Sequence[Any]) -> Any:
        """One event behind all of them, which a batch waits for; None for none."""
        ...

    def after(self, events: Sequence[Any]) -> Any:
        """One event behind all of them, which come from a batch; None for none."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A model with its backend, not loaded yet, and what reads its outputs."""

    manifest: Manifest
    backend: CudaBackend
    head: Head


class CudaModelRunner:
    """`ModelRunner` of a `CudaBackend`: `CudaPreprocessor` writes into the network's input on the same stream."""

    def __init__(self, model: DeviceModel, *, ranges: ProfilerRanges = no_ranges) -> None:
        self._ranges = ranges
        self._model = model
        self._backend = model.backend
        self._preprocessor: CudaPreprocessor | None = None
        self._calls: CudaCalls | None = None

    @property
    def manifest(self) -> Manifest:
        """As `ModelRunner.manifest`."""
        return self._model.manifest

    @property
    def head(self) -> Head:
        """As `ModelRunner.head`."""
        return self._model.head

    @property
    def buckets(self) -> tuple[int, ...]:
        """As `ModelRunner.buckets`."""
        return self._backend.buckets

    def open(self) -> None:
        """As `ModelRunner.open`: loads, captures every graph, compiles the preprocessing."""
        self._backend.load()
        self._calls = cuda_calls(importlib.import_module("cupy"))
        self._backend.warm([1, self.buckets[-1]])
        self._preprocessor = CudaPreprocessor(
            self.manifest.inputs, largest_batch=self.buckets[-1], dtype=self._backend.dtype.name
        )

    def enqueue(self, pictures: Sequence[Located], ready: Any = None) -> Enqueued:
        """As `ModelRunner.enqueue`."""
        if self._preprocessor is None or self._calls is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not open")
        if ready is not None:
            self._calls.wait(self._backend.stream, ready)
        canvas = self._preprocessor.canvas(pictures[0])
        size = len(pictures)
        with self._ranges(f"render {self.manifest.name}"):
            prepared = self._preprocessor.render(pictures, self._backend.input(canvas, size), self._backend.stream)
        with self._ranges(f"launch {self.manifest.name}"):
            return Enqueued(prepared, self._preprocessor.sent, self._backend.launch(canvas, size))

    def rehearse(self, size: int) -> OnTheWay:
        """As `ModelRunner.rehearse`, on the first canvas."""
        return self._backend.launch(self.manifest.inputs.geometry.canvases[0], size)

    def close(self) -> None:
        """As `ModelRunner.close`."""
        self._preprocessor = None
        self._backend.close()

    def __repr__(self) -> str:
        return f"<CudaModelRunner {self._backend!r}>"


class CudaFence:
    """`Fence` on CUDA streams of its own. Made and used on one thread; an event it gave is used again after `events` more."""

    def __init__(self, events: int = 16) -> None:
        cupy = importlib.import_module("cupy")
        # One each: what comes before a batch does not wait for what comes after the last one.
        self._before, self._after = _Joint(cupy, events), _Joint(cupy, events)

    def before(self, events: Sequence[Any]) -> Any:
        """As `Fence.before`. As `after`."""
        return self._before.behind(events)

    def after(self, events: Sequence[Any]) -> Any:
        """As `Fence.after`. Whoever waits for it late may wait for a later use of it too, never for less."""
        return self._after.behind(events)


class _Joint:
    def __init__(self, cupy: Any, events: int) -> None:
        self._calls = cuda_calls(cupy)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(events)]
        self._next = 0

    def behind(self, events: Sequence[Any]) -> Any:
        behind = [event for event in events if event is not None]
        if not behind:
            return None
        for event in behind:
            self._calls.wait(self._stream, event)
        joined = self._events[self._next % len(self._events)]
        self._next += 1
        self._calls.record(joined, self._stream)
        return joined
