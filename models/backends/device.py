"""What backends on a GPU have in common: fixed tensors by canvas and batch bucket, one stream, results in pinned memory.

A network is prepared for each canvas of the manifest at each batch bucket, bound to memory that never moves, so that it can be
a CUDA graph. A batch of n pictures runs in the smallest bucket that holds it. The way of a batch:

1. `models.preprocess_cuda` writes the first n rows of `input(canvas, n)` on `stream`;
2. `launch(canvas, n)` enqueues the network and the copy of its first n result rows to pinned memory;
3. `Launched.outputs()` waits for that copy alone; `Launched.release()` gives the pinned memory back.

All of it, `load` and `warm` included, happens on one thread: graphs belong to the thread that captured them. Only `outputs` and
`release` may be called on others. CuPy is imported by `load`.
"""

from __future__ import annotations

import bisect
import enum
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder_pool.cuda_calls import CudaCalls, cuda_calls
from models.backend import Backend, Outputs, warm_up
from models.manifest import Manifest
from models.spec import Layout

BUCKETS = (8, 16, 32, 64)


class Precision(enum.StrEnum):
    """What a network computes in."""

    FLOAT32 = "float32"
    TF32 = "tf32"  # float32 tensors, products of 10-bit mantissas
    FLOAT16 = "float16"  # float16 weights, input and activations; outputs come as float32


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A contiguous array on the GPU. `owner` keeps its memory alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any


class Network(Protocol):
    """A model at one canvas and one batch size, from an input tensor to outputs in fixed memory."""

    @property
    def outputs(self) -> Mapping[str, DeviceArray]:
        """The outputs by name, [batch size, …]."""
        ...

    def enqueue(self) -> None:
        """Enqueues one run on the stream that it was prepared for."""
        ...


class DeviceBackend(Backend, Protocol):
    """A backend whose input lies on the GPU already."""

    @property
    def stream(self) -> Any:
        """The CuPy stream on which everything of this model happens."""
        ...

    def input(self, canvas: tuple[int, int], size: int) -> Any:
        """The CuPy array into which `size` pictures of this canvas go: [bucket, …], laid out as the manifest says."""
        ...

    def launch(self, canvas: tuple[int, int], size: int) -> Launched:
        """Enqueues what is in the input's first `size` rows."""
        ...


class CudaBackend:
    """Base of the backends on a GPU; a runtime gives `_open` and `_prepare`.

    `buckets`: the batch sizes for which networks are prepared, all of them by `warm`. `results`: how many launched batches may
    hold results at a time. `graphs`: run as CUDA graphs.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        buckets: Sequence[int] = BUCKETS,
        precision: Precision = Precision.FLOAT32,
        graphs: bool = True,
        results: int = 3,
        device_id: int = 0,
    ) -> None:
        self.manifest = manifest
        self.buckets = tuple(sorted(set(buckets)))
        if not self.buckets or self.buckets[0] < 1:
            raise ValueError(f"model {manifest.name!r}: batch buckets {tuple(buckets)}: at least one, each 1 or more")
        if results < 1:
            raise ValueError(f"model {manifest.name!r}: {results} results at a time: at least 1 is needed")
        self.precision = precision
        self.graphs = graphs
        self.device_id = device_id
        self._results = results
        self._cupy: Any = None
        self._stream: Any = None
        self._calls: CudaCalls
        #: Makes pinned memory of so many bytes for results; None: CuPy does. Set before `warm`.
        self.pinned: Callable[[int], Any] | None = None
        self._name = ""
        self._inputs: dict[tuple[int, int], Any] = {}
        self._networks: dict[tuple[tuple[int, int], int], Network] = {}
        self._pinned: _Results | None = None

    # What a runtime gives

    def _open(self) -> None:
        """Reads the weights."""
        raise NotImplementedError

    def _prepare(self, tensor: Any) -> Network:
        """A network for the batch size and canvas of this input tensor."""
        raise NotImplementedError

    def _shut(self) -> None:
        """Frees what `_open` made."""

    # The protocol

    @property
    def device(self) -> str:
        """The GPU's name; before `load`, its number."""
        return self._name or f"cuda:{self.device_id}"

    @property
    def stream(self) -> Any:
        """The stream of this model, a CuPy stream that does not wait for the default one."""
        if self._stream is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not loaded")
        return self._stream

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the input tensor."""
        told = np.dtype(self.manifest.inputs.normalisation.dtype)
        return np.dtype(np.float16) if self.precision is Precision.FLOAT16 and told == np.float32 else told

    def load(self) -> None:
        """Takes the device, its stream and the input memory, reads the weights. Networks come with `warm`."""
        self._cupy = importlib.import_module("cupy")
        self._cupy.cuda.Device(self.device_id).use()
        name = self._cupy.cuda.runtime.getDeviceProperties(self.device_id)["name"]
        self._name = name.decode() if isinstance(name, bytes) else str(name)
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._calls = cuda_calls(self._cupy)
        for canvas in self.manifest.inputs.geometry.canvases:
            self._inputs[canvas] = self._cupy.zeros((self.buckets[-1], *self._frame(canvas)), self.dtype)
        self._cupy.cuda.Device(self.device_id).synchronize()  # the zeros are there before another stream reads them
        self._open()

    def warm(self, batch_sizes: Sequence[int]) -> None:
        """Prepares every network (captures its graph), then runs `batch_sizes` as the CPU's backend does.

        Where graphs are captured nothing else may use the device meanwhile.
        """
        for bucket in reversed(self.buckets):  # the largest first, so that memory grows once
            for canvas in self._inputs:
                network = self._prepare(self.input(canvas, bucket))
                self._networks[canvas, bucket] = network
                for _ in range(2):
                    network.enqueue()
                self.stream.synchronize()
        size = max(
            sum(array.dtype.itemsize * int(np.prod(array.shape)) + _ALIGNMENT for array in network.outputs.values())
            for network in self._networks.values()
        )
        self._pinned = _Results(self._cupy, self._calls, self.pinned or self._cupy.cuda.alloc_pinned_memory, size, self._results)
        warm_up(self, self.manifest, batch_sizes)

    def input(self, canvas: tuple[int, int], size: int) -> Any:
        """The first rows of the canvas' tensor, as many as the bucket for `size` has."""
        if canvas not in self._inputs:
            raise ValueError(f"model {self.manifest.name!r} has no canvas {canvas}, but {', '.join(map(str, self._inputs))}")
        return self._inputs[canvas][: self._bucket(size)]

    def launch(self, canvas: tuple[int, int], size: int) -> Launched:
        """Enqueues the network on the first `size` rows of its input, and the copy of its results.

        Raises RuntimeError where as many results as may be are still held: one has to be released first.
        """
        if self._pinned is None:
            raise RuntimeError(f"model {self.manifest.name!r} is not warm")
        network = self._networks[canvas, self._bucket(size)]
        room = self._pinned.take(self.manifest.name)
        try:
            network.enqueue()
            values = self._copied(network, room, size)
            self._calls.record(room.done, self.stream)
        except BaseException:
            self._pinned.give_back(room)
            raise
        return Launched(values, room, self._pinned)

    def _copied(self, network: Network, room: _Room, size: int) -> dict[str, NDArray[Any]]:
        """Enqueues the copies of the first `size` rows of all outputs; the arrays that they go to."""
        values: dict[str, NDArray[Any]] = {}
        offset = 0
        for name in self.manifest.outputs:
            array = network.outputs[name]
            shape = (size, *array.shape[1:])
            count = int(np.prod(shape))
            values[name] = np.frombuffer(room.memory, array.dtype, count, offset).reshape(shape)
            self._copy(values[name], array)
            offset += -(-count * array.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return values

    def _copy(self, host: NDArray[Any], array: DeviceArray) -> None:
        self._calls.copy(host.ctypes.data, array.address, host.nbytes, self.stream)

    def run(self, batch: NDArray[Any]) -> Outputs:
        """Infers a batch [N, …] from host memory: for tensors that were not made on the GPU. Large ones run in pieces."""
        parts: list[Outputs] = []
        canvas = self._canvas_of(batch)
        for first in range(0, len(batch), self.buckets[-1]):
            part = np.ascontiguousarray(batch[first : first + self.buckets[-1]], self.dtype)
            self.input(canvas, len(part))[: len(part)].set(part, stream=self.stream)
            launched = self.launch(canvas, len(part))
            parts.append({name: values.copy() for name, values in launched.outputs().items()})
            launched.release()
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.manifest.outputs}

    def close(self) -> None:
        """Frees networks and memory. May be called before `load`, and twice."""
        if self._stream is not None:
            self._stream.synchronize()
        self._networks.clear()
        self._shut()
        self._inputs.clear()
        self._pinned = None
        self._stream = None

    def _bucket(self, size: int) -> int:
        if not 1 <= size <= self.buckets[-1]:
            raise ValueError(f"model {self.manifest.name!r}: a batch of {size}: 1 to {self.buckets[-1]} are allowed")
        return self.buckets[bisect.bisect_left(self.buckets, size)]

    def _frame(self, canvas: tuple[int, int]) -> tuple[int, ...]:
        return (3, *canvas) if self.manifest.inputs.normalisation.layout is Layout.NCHW else (*canvas, 3)

    def _canvas_of(self, batch: NDArray[Any]) -> tuple[int, int]:
        for canvas in self._inputs:
            if batch.shape[1:] == self._frame(canvas):
                return canvas
        known = ", ".join(str(self._frame(canvas)) for canvas in self._inputs)
        raise ValueError(f"model {self.manifest.name!r}: frames of shape {batch.shape[1:]}, known are {known}")

    def __repr__(self) -> str:
        state = f"{len(self._networks)} networks" if self._networks else "not warm"
        return f"<{type(self).__name__} {self.manifest.name} {self.device} {self.precision} graphs={self.graphs} {state}>"


_ALIGNMENT = 256


@dataclass(slots=True)
class _Room:
    memory: Any
    done: Any  # event


class _Results:
    """Pinned memory for the results of a few batches."""

    def __init__(self, cupy: Any, calls: CudaCalls, allocate: Callable[[int], Any], size: int, count: int) -> None:
        self.finish = calls.finish
        self._lock = threading.Lock()
        self._count = count
        self._free = [_Room(allocate(size), cupy.cuda.Event(disable_timing=True)) for _ in range(count)]

    def take(self, model: str) -> _Room:
        with self._lock:
            if not self._free:
                raise RuntimeError(f"model {model!r}: the results of {self._count} batches are held: release one first")
            return self._free.pop()

    def give_back(self, room: _Room) -> None:
        with self._lock:
            self._free.append(room)


class Launched:
    """A batch on its way through a network."""

    def __init__(self, values: Mapping[str, NDArray[Any]], room: _Room, results: _Results) -> None:
        self._values = values
        self._room: _Room | None = room
        self._results = results

    @property
    def done(self) -> bool:
        """True once the results are there; False after `release`."""
        return self._room is not None and bool(self._room.done.done)

    def outputs(self) -> Outputs:
        """Waits for the results: arrays [n, …] in pinned memory, which are another batch's after `release`."""
        if self._room is None:
            raise RuntimeError("the results were released")
        self._results.finish(self._room.done)
        return self._values

    def release(self) -> None:
        """Gives the pinned memory back, once the copy into it is over. May be called twice.

        Where that cannot be waited for it raises, and the memory is free all the same: the next copy is on the same stream.
        """
        room, self._room = self._room, None
        if room is not None:
            try:
                self._results.finish(room.done)
            finally:
                self._results.give_back(room)
