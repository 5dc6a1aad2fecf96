"""The parts around a server, on a GPU that is not there: FFmpeg for its decoders, runners that know no pictures."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadtest import gpu, gpu_service
from loadtest.gpu_setup import Setup
from models.model_runner import Enqueued
from models.preprocess import layout
from models.preprocess_cuda import Located, Prepared
from models.result import FrameResult
from models.spec import Placement
from server import gpu_factory
from tests.loadtest.gpu_fakes import OTHER, PHONE, FakeEngine, write_clips
from tests.models.fake_runners import FakeFence, FakeRunner, Results
from tests.server.gpu_machine import GpuMachine

NAMES = ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"]


class Nothing:
    """A head that finds nothing in any picture."""

    def read_batch(self, outputs: Mapping[str, Any], placements: Sequence[Placement]) -> list[FrameResult]:
        return [FrameResult() for _ in placements]


class Blind(FakeRunner):
    """A runner that looks at no picture."""

    def enqueue(self, pictures: Sequence[Located], ready: Any = None) -> Enqueued:
        placed = [layout(self.manifest.inputs.geometry, *each.picture.shown_size) for each in pictures]
        prepared = tuple(Prepared(Placement(one.left, one.top, one.width, one.height), None) for one in placed)
        return Enqueued(prepared, None, Results(self, np.zeros((len(pictures), 1), np.float32)))


def blind_runners(models: Sequence[Any], settings: Any, *_: Any) -> tuple[list[Blind], FakeFence]:
    runners = [Blind(model.manifest, buckets=settings.batch_buckets) for model in models]
    for runner in runners:
        runner.head = Nothing()  # type: ignore[assignment]
    return runners, FakeFence()


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, models_folder: Path, tmp_path: Path) -> Setup:
    GpuMachine(monkeypatch)
    cupy: Any = sys.modules["cupy"]
    cupy.get_default_memory_pool = lambda: SimpleNamespace(
        malloc=None, total_bytes=lambda: 1000, used_bytes=lambda: 500, free_all_blocks=lambda: None
    )
    cupy.get_default_pinned_memory_pool = lambda: SimpleNamespace(malloc=None, n_free_blocks=lambda: 3)
    cupy.cuda.set_allocator = cupy.cuda.set_pinned_memory_allocator = lambda allocator: None
    monkeypatch.setattr(gpu_factory, "open_runners", blind_runners)
    monkeypatch.setattr("loadtest.gpu_setup.PHONE", PHONE)
    monkeypatch.setattr(gpu_service, "USUAL", (OTHER,))
    monkeypatch.setenv("KEYGLANCE_GPU__ARENA_PICTURES", "[40, 1, 1]")
    monkeypatch.setenv("KEYGLANCE_GPU__WARM", "[]")
    monkeypatch.setenv("KEYGLANCE_GPU__DECODER_LIMIT", "3")  # so many calls at once have all their pictures in the arena
    write_clips(tmp_path / "clips")
    return Setup(models_folder, tmp_path / "clips", tmp_path / "out", effort=0.02)


def kept(setup: Setup, part: str) -> dict[str, Any]:
    told = json.loads((setup.out / f"gpu_{part}.json").read_text())
    assert told["ended"] == "complete"
    return told[part]


@pytest.mark.models
def test_every_part_around_a_server(setup: Setup) -> None:
    done = asyncio.run(gpu.run(setup, ["engine", "throughput", "batching", "memory", "one_model", "summary"], "abc"))
    assert done.failed == []
    called = kept(setup, "engine")
    through = called["through gRPC"]
    assert called["device"] == "NVIDIA Fake 0"
    assert through["pictures"] == 12
    assert sorted(through["models"]) == sorted(NAMES)
    assert through["p50_ms"] >= through["steps"]["total"]["wall_ms"] > 0
    assert through["outside the server_ms"] > 0
    assert set(through["steps"]) >= {"receive", "index", "sample", "decode", "infer", "fuse", "total"}
    assert len(through["all_ms"]) == through["n"] == setup.times(100)
    assert through["request_bytes"] < setup.phone.stat().st_size + 1000
    assert {"decode", "infer"} <= set(called["engine in process"]["steps"])
    assert called["16 callers in one client process"]["n"] == 16 * setup.times(20)
    loaded = kept(setup, "throughput")
    assert [row["in flight"] for name, row in loaded.items() if name.endswith("in flight")] == [1, 4, 8, 16, 32]
    assert loaded["16 in flight"]["utilisation"]["samples"] == 0
    batched = kept(setup, "batching")
    for frames in (12, 2):
        rows = batched[f"{frames} pictures a call"]
        assert rows["across calls"]["in flight"] == rows["one call a batch"]["in flight"] == 32
        assert set(rows["one call a batch"]["batches"]["by size"]) == {str(frames)}
        assert rows["across calls"]["batches"]["batches"] > 0
        assert len(rows["ratio by round"]) == 3
    memory = kept(setup, "memory")
    assert memory["budget"]["planned in MiB"] > 1000
    assert "CUDA context and libraries" in memory["budget"]["lines in MiB"]
    assert memory["allocations on the way"] == {"device": 0, "pinned": 0}
    assert memory["calls"] == setup.times(1000)
    assert memory["grown"]["GPU memory free in MiB"] == memory["grown"]["children"] == 0
    alone = kept(setup, "one_model")
    assert set(alone) == set(gpu_service.SMALL_MODELS)
    assert all(set(rows) == {"8 in flight", "16 in flight", "32 in flight"} for rows in alone.values())
    lines = json.loads((setup.out / "gpu.json").read_text())["goals"]
    assert [line["met"] for line in lines if "GPU memory" in line["what"]] == [True, True]


@pytest.mark.models
def test_a_client_that_fails_fails_the_part(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "FRAMES", 100_000)
    done = asyncio.run(gpu.run(setup, ["engine"], None))
    assert done.failed == ["engine: RuntimeError: the client ended with exit code 1, what it said is above"]


def test_allocations_are_counted_while_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    GpuMachine(monkeypatch)
    cupy: Any = sys.modules["cupy"]
    given: dict[str, Any] = {}
    device, pinned = SimpleNamespace(malloc=lambda size: ("device", size)), SimpleNamespace(malloc=lambda size: ("pinned", size))
    cupy.get_default_memory_pool, cupy.get_default_pinned_memory_pool = lambda: device, lambda: pinned
    cupy.cuda.set_allocator = functools.partial(given.__setitem__, "device")
    cupy.cuda.set_pinned_memory_allocator = functools.partial(given.__setitem__, "pinned")
    with gpu_service.Allocations() as allocations:
        assert given["device"](10) == ("device", 10)
        assert given["pinned"](20) == ("pinned", 20)
        assert given["device"](30) == ("device", 30)
    assert allocations.figures() == {"device": 2, "pinned": 1}
    assert given == {"device": device.malloc, "pinned": pinned.malloc}


def test_without_cupy_nothing_is_counted() -> None:
    with gpu_service.Allocations() as allocations:
        pass
    assert allocations.figures() is None
    assert "GPU memory free in MiB" not in gpu_service.held()


def test_there_is_no_budget_on_a_cpu() -> None:
    assert gpu_service.budget(SimpleNamespace(engine=FakeEngine(fill=Counter()))) is None  # type: ignore[arg-type]
