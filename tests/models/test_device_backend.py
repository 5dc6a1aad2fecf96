"""What all backends on a GPU share, on a machine without one: buckets, fixed memory, results that are held and given back."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from models.backends.device import CudaBackend, DeviceArray, Precision
from models.backends.fake import fake_manifest
from models.spec import Layout, Normalisation
from tests.models.fake_cupy import FakeCupy

CANVASES = ((4, 6), (6, 4))


class SumNetwork:
    """Gives each picture's sum, and its values twice."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.runs = 0
        self.sums = np.zeros(len(tensor), np.float32)
        self.twice = np.zeros(tensor.shape, np.float32)

    @property
    def outputs(self) -> Mapping[str, DeviceArray]:
        arrays = {"sums": self.sums, "twice": self.twice}
        return {name: DeviceArray(each.ctypes.data, each.shape, each.dtype, each) for name, each in arrays.items()}

    def enqueue(self) -> None:
        self.runs += 1
        self.sums[:] = self.tensor.reshape(len(self.tensor), -1).astype(np.float32).sum(axis=1)
        self.twice[:] = self.tensor.astype(np.float32) * 2


class SumBackend(CudaBackend):
    def _open(self) -> None:
        self.prepared: list[SumNetwork] = []

    def _prepare(self, tensor: Any) -> SumNetwork:
        self.prepared.append(SumNetwork(tensor))
        return self.prepared[-1]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[arg-type]
    return fake


def make(cupy: FakeCupy, **rest: Any) -> SumBackend:
    manifest = fake_manifest(canvases=CANVASES, outputs=("sums", "twice"))
    backend = SumBackend(manifest, **{"buckets": (2, 4), **rest})
    backend.load()
    backend.warm([1])
    return backend


def frames(count: int, canvas: tuple[int, int] = CANVASES[0], seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0, 1, (count, 3, *canvas)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize("canvas", CANVASES, ids=str)
def test_any_number_of_frames_runs(cupy: FakeCupy, count: int, canvas: tuple[int, int]) -> None:
    backend = make(cupy)
    batch = frames(count, canvas)
    for _ in range(5):  # more often than results are held
        outputs = backend.run(batch)
        np.testing.assert_allclose(outputs["sums"], batch.reshape(count, -1).sum(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(outputs["twice"], batch * 2)


def test_the_smallest_bucket_that_holds_a_batch_runs(cupy: FakeCupy) -> None:
    backend = make(cupy)
    assert [len(network.tensor) for network in backend.prepared] == [4, 4, 2, 2]
    before = [network.runs for network in backend.prepared]
    backend.run(frames(2))
    backend.run(frames(3))
    assert [network.runs - runs for network, runs in zip(backend.prepared, before, strict=True)] == [1, 0, 1, 0]


def test_only_the_rows_of_the_batch_are_copied_back(cupy: FakeCupy) -> None:
    backend = make(cupy)
    copied = cupy.cuda.runtime.copied
    backend.run(frames(3))
    assert cupy.cuda.runtime.copied - copied == 3 * (4 + 3 * 4 * 6 * 4)


def test_buckets_share_one_tensor(cupy: FakeCupy) -> None:
    backend = make(cupy)
    small, large = backend.input(CANVASES[0], 1), backend.input(CANVASES[0], 4)
    assert small.shape == (2, 3, 4, 6)
    assert large.shape == (4, 3, 4, 6)
    assert np.shares_memory(small, large)


def test_results_stay_until_they_are_released(cupy: FakeCupy) -> None:
    backend = make(cupy, results=2)
    tensor = backend.input(CANVASES[0], 2)
    held = []
    for value in (1.0, 2.0):
        tensor[...] = value
        held.append(backend.launch(CANVASES[0], 2))
    with pytest.raises(RuntimeError, match="2 batches are held"):
        backend.launch(CANVASES[0], 2)
    assert [launched.outputs()["sums"].tolist() for launched in held] == [[72.0, 72.0], [144.0, 144.0]]
    assert held[0].done
    for launched in held * 2:
        launched.release()
    assert not held[0].done
    with pytest.raises(RuntimeError, match="released"):
        held[0].outputs()
    backend.launch(CANVASES[0], 2)
    backend.launch(CANVASES[0], 2)


def test_memory_is_free_also_where_the_copy_into_it_cannot_be_waited_for(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make(cupy, results=2)

    def fail(event: object) -> None:
        raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    with monkeypatch.context() as broken:
        broken.setattr(type(cupy.cuda.Event()), "synchronize", fail)
        for _ in range(5):  # more often than results are held
            launched = backend.launch(CANVASES[0], 2)
            for what in (launched.outputs, launched.release):
                with pytest.raises(RuntimeError, match="CaptureUnsupported"):
                    what()
            launched.release()
    assert backend.run(frames(2))["sums"].shape == (2,)


def test_a_run_that_fails_holds_nothing(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make(cupy, results=1)

    def fail(self: SumNetwork) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(SumNetwork, "enqueue", fail)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="out of order"):
                backend.launch(CANVASES[0], 2)
    backend.launch(CANVASES[0], 2).release()


def test_float16_is_what_the_input_is_made_in(cupy: FakeCupy) -> None:
    backend = make(cupy, precision=Precision.FLOAT16)
    assert backend.dtype == np.float16
    assert backend.input(CANVASES[0], 1).dtype == np.float16
    assert backend.run(frames(2))["twice"].dtype == np.float32
    whole = dataclasses.replace(
        backend.manifest, inputs=dataclasses.replace(backend.manifest.inputs, normalisation=Normalisation(dtype="uint8"))
    )
    assert SumBackend(whole, precision=Precision.FLOAT16).dtype == np.uint8


def test_channels_last(cupy: FakeCupy) -> None:
    manifest = fake_manifest(canvases=CANVASES, outputs=("sums", "twice"))
    inputs = dataclasses.replace(manifest.inputs, normalisation=Normalisation(layout=Layout.NHWC))
    backend = SumBackend(dataclasses.replace(manifest, inputs=inputs), buckets=(2,))
    backend.load()
    backend.warm([2])
    assert backend.run(frames(1).transpose(0, 2, 3, 1))["twice"].shape == (1, 4, 6, 3)


def test_mistakes_are_named(cupy: FakeCupy) -> None:
    with pytest.raises(ValueError, match="buckets"):
        SumBackend(fake_manifest(), buckets=())
    with pytest.raises(ValueError, match="0 results"):
        SumBackend(fake_manifest(), results=0)
    cold = SumBackend(fake_manifest())
    assert cold.device == "cuda:0"
    with pytest.raises(RuntimeError, match="not loaded"):
        _ = cold.stream
    cold.close()
    backend = make(cupy)
    assert backend.device == "a GPU"
    with pytest.raises(ValueError, match=r"\(3, 9, 9\)"):
        backend.run(frames(1, (9, 9)))
    with pytest.raises(ValueError, match="1 to 4"):
        backend.launch(CANVASES[0], 5)
    with pytest.raises(ValueError, match="canvas"):
        backend.input((9, 9), 1)
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="not warm"):
        backend.launch(CANVASES[0], 1)
