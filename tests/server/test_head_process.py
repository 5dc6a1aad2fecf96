"""Results read in another process: the same as here, and read here where that process is not there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.heads import make_head
from models.manifest import Manifest
from models.repository import ModelRepository
from models.result import FrameResult
from models.spec import Placement
from server.engine_stats import WorkerStats
from server.head_process.process import HeadProcess
from server.head_process.shared_results import SharedResults

NAMES = ("open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text")
MOST = 6
PLACEMENT = Placement(10.0, 0.0, 60.0, 64.0)


def manifests() -> list[Manifest]:
    repository = ModelRepository(Path("nowhere"))
    return [repository.entry(name).manifest for name in NAMES]


def shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    match manifest.head:
        case "classification":
            return {manifest.outputs[0]: (1 + max(n for label in manifest.labels for n in label.classes),)}
        case "centerface":
            return dict(zip(manifest.outputs, [(1, 16, 20), (2, 16, 20), (2, 16, 20)], strict=True))
        case _:
            return {manifest.outputs[0]: (1, 64, 80)}


class Bench:
    """Four models, a room in the shared memory for the results of each, and the process."""

    def __init__(self, **rest: Any) -> None:
        self.pinned: list[tuple[int, int]] = []
        self.unpinned: list[int] = []
        self.memory = SharedResults(lambda address, size: self.pinned.append((address, size)), self.unpinned.append)
        self.manifests = manifests()
        self.process = HeadProcess(self.manifests, self.memory, **{"least": 1, **rest})
        self.heads = {manifest.name: self.process.head(manifest) for manifest in self.manifests}
        self.rooms = {
            manifest.name: {
                name: np.frombuffer(self.memory.allocate(MOST * int(np.prod(shape)) * 4), np.float32)
                for name, shape in shapes(manifest).items()
            }
            for manifest in self.manifests
        }

    def outputs(self, manifest: Manifest, seed: int, count: int) -> dict[str, NDArray[Any]]:
        """Something to be found in the shared memory."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, shape in shapes(manifest).items():
            room = self.rooms[manifest.name][name][: count * int(np.prod(shape))].reshape(count, *shape)
            room[...] = rng.random(room.shape, np.float32) ** 6
            if rng.random() < 0.2:
                room[rng.integers(count)].flat[0] = np.nan
            found[name] = room
        return found

    def ready(self, ready: bool = True) -> None:
        until(lambda: self.process.ready is ready)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def told(results: list[FrameResult | ValueError]) -> list[Any]:
    return [(dict(one.scores), one.regions) if isinstance(one, FrameResult) else str(one) for one in results]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    b = Bench()
    b.process.start()
    b.ready()
    yield b
    b.process.close()
    assert sorted(b.unpinned) == sorted(address for address, _ in b.pinned)


@given(st.sampled_from(range(len(NAMES))), st.integers(0, 1 << 20), st.integers(1, MOST))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_found_there_is_what_is_found_here(bench: Bench, number: int, seed: int, count: int) -> None:
    manifest = bench.manifests[number]
    outputs = bench.outputs(manifest, seed, count)
    placements = [PLACEMENT] * count
    there = bench.process.read(manifest.name, outputs, placements)
    assert there is not None
    assert told(there) == told(make_head(manifest).read_batch(outputs, placements))
    assert told(bench.heads[manifest.name].read_batch(outputs, placements)) == told(there)


def test_memory_is_pinned_where_it_lies(bench: Bench) -> None:
    for (address, size), (_, told_size) in zip(bench.pinned, bench.memory.parts, strict=True):
        assert size == told_size
        assert address % 4096 == size % 4096 == 0
    room = bench.rooms["centerface"][bench.manifests[2].outputs[1]]
    found = bench.memory.find(room[5:9])
    assert found == (bench.memory.find(room)[0], 20)  # type: ignore[index]
    assert bench.memory.find(room[::2]) is None
    assert bench.memory.find(np.zeros(4, np.float32)) is None


def test_outputs_of_other_memory_are_read_here(bench: Bench) -> None:
    manifest = bench.manifests[0]
    outputs = {name: np.full((2, *shape), 0.25, np.float32) for name, shape in shapes(manifest).items()}
    assert bench.process.read(manifest.name, outputs, [PLACEMENT] * 2) is None
    (first, _) = bench.heads[manifest.name].read_batch(outputs, [PLACEMENT] * 2)
    assert isinstance(first, FrameResult)
    assert bench.heads[manifest.name].read_batch(outputs, []) == []
    assert bench.process.ready


def test_before_it_is_started_heads_read_themselves_and_start_nothing() -> None:
    bench = Bench()
    outputs = bench.outputs(bench.manifests[0], 1, 2)
    assert len(bench.heads[NAMES[0]].read_batch(outputs, [PLACEMENT] * 2)) == 2
    assert bench.process.pid is None
    bench.process.close()
    bench.process.start()
    assert bench.process.pid is None


def test_small_batches_are_read_here(bench: Bench) -> None:
    manifest = bench.manifests[0]
    outputs = bench.outputs(manifest, 1, MOST)
    few = HeadProcess(bench.manifests, bench.memory, least=MOST + 1)
    assert few.read(manifest.name, outputs, [PLACEMENT] * MOST) is None
    assert len(few.head(manifest).read_batch(outputs, [PLACEMENT] * MOST)) == MOST
    assert bench.process.read(manifest.name, outputs, [PLACEMENT] * MOST) is not None


def test_a_process_that_dies_while_nothing_is_read_comes_back_too() -> None:
    bench = Bench(pause=0.0)
    bench.process.start()
    bench.ready()
    first = bench.process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: bench.process.restarts == 1)
    bench.ready()
    bench.process.close()
    assert bench.process.stats() == WorkerStats("heads", 0, 1, 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_gone_or_does_not_answer_costs_no_batch_and_comes_back(how: int) -> None:
    bench = Bench(patience=0.5, pause=0.0)
    bench.process.start()
    bench.ready()
    manifest = bench.manifests[2]
    outputs, placements = bench.outputs(manifest, 5, 3), [PLACEMENT] * 3
    expected = told(make_head(manifest).read_batch(outputs, placements))
    first = bench.process.pid
    assert first is not None
    os.kill(first, how)
    for _ in range(2):
        assert told(bench.heads[manifest.name].read_batch(outputs, placements)) == expected
    until(lambda: bench.process.restarts == 1)
    bench.ready()
    assert bench.process.stats() == WorkerStats("heads", 1, 1, 1)
    assert bench.process.pid not in (None, first)
    there = bench.process.read(manifest.name, outputs, placements)
    assert there is not None
    assert told(there) == expected
    last = bench.process.pid
    bench.process.close()
    assert last is not None
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_a_process_that_cannot_start_is_not_waited_for() -> None:
    bench = Bench(pause=3600.0, module="server.head_process.not_there")
    bench.process.start()
    outputs, placements = bench.outputs(bench.manifests[0], 5, 3), [PLACEMENT] * 3
    until(lambda: bench.process.pid is not None)
    until(lambda: bench.process.pid is None)
    assert len(bench.heads[NAMES[0]].read_batch(outputs, placements)) == 3
    assert bench.process.stats() == WorkerStats("heads", 0, 1, 0)  # not again before the pause is over
    bench.process.close()


def test_closing_while_batches_are_read_hurts_nobody() -> None:
    bench = Bench()
    bench.process.start()
    bench.ready()
    manifest = bench.manifests[3]
    outputs, placements = bench.outputs(manifest, 5, 3), [PLACEMENT] * 3
    expected = told(make_head(manifest).read_batch(outputs, placements))
    found: list[Any] = []

    def read() -> None:
        found.extend(told(bench.heads[manifest.name].read_batch(outputs, placements)) for _ in range(50))

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    bench.process.close()
    thread.join()
    assert found == [expected] * 50
