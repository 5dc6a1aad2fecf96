"""A device of threads: runners whose results come after a while, and pictures whose slots are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from decoder_pool.picture import Picture
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec, Manifest
from models.model_runner import Enqueued
from models.preprocess import layout
from models.preprocess_cuda import Located, Prepared
from models.result import FrameResult
from models.spec import Placement


class OnGpu(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array that has an address, as CuPy's have."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> Any:
        return np.array(self)


def on_gpu(plane: Any) -> Any:
    return np.ascontiguousarray(plane).view(OnGpu)


class CountedLease:
    """Counts its holders; fails where it is released too often."""

    def __init__(self, ready: Any = None) -> None:
        self.ready = ready
        self.holders = 1
        self.events: list[Any] = []
        self._lock = threading.Lock()

    def retain(self) -> None:
        with self._lock:
            assert self.holders > 0, "retained after it was given back"
            self.holders += 1

    def release(self, after: Any = None) -> None:
        with self._lock:
            assert self.holders > 0, "released twice"
            self.holders -= 1
            self.events.append(after)


def grey(level: int, width: int = 64, height: int = 48, lease: Any = None) -> Picture:
    planes = (np.full((height, width), level, np.uint8), np.full((height // 2, width // 2, 2), 128, np.uint8))
    return Picture(tuple(on_gpu(plane) for plane in planes), width, height, lease=lease or CountedLease())


def runner_manifest(name: str, *, required: bool = False, **rest: Any) -> Manifest:
    return fake_manifest(name, [LabelSpec(f"{name}-level")], required=required, **rest)


class LevelHead:
    """Reads the one value of a picture."""

    def __init__(self, manifest: Manifest) -> None:
        self.label = manifest.labels[0].name

    def read(self, outputs: Mapping[str, Any], placement: Placement) -> FrameResult:
        return FrameResult({self.label: float(outputs["scores"][0])})

    def read_batch(self, outputs: Mapping[str, Any], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        assert len(placements) == len(outputs["scores"])
        return [
            self.read({"scores": row}, placements[place]) if np.isfinite(row).all() else ValueError("not finite")
            for place, row in enumerate(outputs["scores"])
        ]


class Results:
    def __init__(self, runner: FakeRunner, values: Any) -> None:
        self._runner, self._values = runner, values
        self._ready = time.monotonic() + runner.seconds
        runner.held += 1
        assert runner.held <= 3, "more results are held than a backend has room for"

    def outputs(self) -> Mapping[str, Any]:
        if self._runner.gate is not None:
            assert self._runner.gate.wait(10)
        time.sleep(max(0.0, self._ready - time.monotonic()))
        if self._runner.results_fail:
            raise RuntimeError("cudaErrorLaunchFailure")
        return {"scores": self._values}

    def release(self) -> None:
        self._runner.held -= 1
        if self._runner.release_fails:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")


class FakeRunner:
    """As `models.model_runner.ModelRunner`: a picture's score is its mean luma over 255; level 0 gives NaN where `nan` is set."""

    def __init__(self, manifest: Manifest, *, seconds: float = 0.0, buckets: tuple[int, ...] = (2, 4, 8)) -> None:
        self.manifest = manifest
        self.head = LevelHead(manifest)
        self.buckets = buckets
        self.seconds = seconds
        self.gate: threading.Event | None = None
        self.fails = self.results_fail = self.release_fails = self.nan = self.open_fails = False
        self.batches: list[list[Located]] = []
        self.ready: list[Any] = []  # what each batch waited for
        self.threads: set[int] = set()
        self.held = 0
        self.opened = self.closed = 0

    def open(self) -> None:
        self.threads.add(threading.get_ident())
        if self.open_fails:
            raise RuntimeError("out of memory")
        self.opened += 1

    def enqueue(self, pictures: Sequence[Located], ready: Any = None) -> Enqueued:
        self.ready.append(ready)
        self.threads.add(threading.get_ident())
        if self.fails:
            raise RuntimeError("cudaErrorIllegalAddress")
        assert 1 <= len(pictures) <= self.buckets[-1]
        self.batches.append(list(pictures))
        levels = [float(np.asarray(each.picture.planes[0]).mean()) for each in pictures]
        values = np.array([[np.nan if self.nan and not level else level / 255] for level in levels], np.float32)
        prepared = []
        for each in pictures:
            lease = each.picture.lease
            assert lease is None or lease.holders > 0, "a picture was read whose slot was given back"  # type: ignore[attr-defined]
            placed = layout(self.manifest.inputs.geometry, *each.picture.shown_size)
            prepared.append(Prepared(Placement(placed.left, placed.top, placed.width, placed.height), None))
        return Enqueued(tuple(prepared), f"event of {self.manifest.name}", Results(self, values))

    def rehearse(self, size: int) -> Results:
        return Results(self, np.zeros((size, 1), np.float32))

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


class FakeFence:
    def before(self, events: Sequence[Any]) -> Any:
        return tuple(event for event in events if event is not None) or None

    def after(self, events: Sequence[Any]) -> Any:
        return tuple(events)
