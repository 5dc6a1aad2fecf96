"""Snapshots as metrics: what parts of the server tell of themselves, as readings of `server.metrics`' observed instruments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from server.admission import Admission
from server.engine import Engine, Priority
from server.engine_stats import BatchStats, EngineStats, PoolStats, QueueStats, WorkerStats
from server.gpu_readings import GpuReadings
from server.metrics import (
    BATCH_FRAMES,
    BATCH_LIMIT,
    BATCHES,
    BATCHES_FAILED,
    CALLS_ACTIVE,
    CALLS_LIMIT,
    CALLS_PLACES,
    CALLS_SERVING,
    DECODERS,
    DECODERS_EVICTED,
    DECODERS_LIMIT,
    ENGINE_HEALTHY,
    LEASES,
    LOAD,
    LOAD_STEP,
    QUEUE_DEPTH,
    QUEUE_LIMIT,
    RECEIVE_LIMIT,
    RECEIVE_RESERVED,
    WORKER_RESTARTS,
    WORKERS,
    WORKERS_WANTED,
    Reading,
)
from server.receive_budget import ReceiveBudget


def calls_readings(admission: Admission, budget: ReceiveBudget) -> Iterator[Reading]:
    """The calls at a server's door."""
    yield Reading(CALLS_ACTIVE, admission.in_flight)
    yield Reading(CALLS_LIMIT, admission.limit)
    yield Reading(RECEIVE_RESERVED, budget.reserved)
    yield Reading(RECEIVE_LIMIT, budget.total)
    yield from queue_readings(QueueStats("receive", budget.waiting, budget.queue_limit))
    yield Reading(LOAD_STEP, admission.overload.steps.step)
    for name, lane in admission.overload.lanes.items():
        label = {"lane": str(name)}
        yield Reading(CALLS_SERVING, lane.serving, label)
        yield Reading(CALLS_PLACES, lane.places, label)
        yield Reading(LOAD, lane.load, label)
        for priority in Priority:
            waiting = QueueStats("turn", lane.waiting(priority), lane.longest_room, str(name), priority.name.lower())
            yield from queue_readings(waiting)


class EngineSource:
    """An engine's readings and those of its GPU, for `Metrics.observe`; `gpu` opens one by its PCI bus address."""

    def __init__(self, engine: Engine, gpu: Callable[[str], GpuReadings | None] = GpuReadings.open) -> None:
        self._engine = engine
        self._open = gpu
        self._gpu: GpuReadings | None = None
        self._opened = False

    def __call__(self) -> Iterator[Reading]:
        """What the engine and its GPU tell now."""
        stats = self._engine.stats()
        yield from engine_readings(stats)
        if stats.pci_bus_id and not self._opened:
            self._gpu, self._opened = self._open(stats.pci_bus_id), True
        if self._gpu is not None:
            yield from self._gpu()


def engine_readings(stats: EngineStats) -> Iterator[Reading]:
    """What an engine tells of itself."""
    if stats.pools:  # else it is a proxy's, and the engine's own process tells
        yield Reading(ENGINE_HEALTHY, int(stats.healthy))
    for queue in stats.queues:
        yield from queue_readings(queue)
    for pool in stats.pools:
        yield from _pool_readings(pool)
    for batches in stats.batches:
        yield from _batch_readings(batches)
    yield from worker_readings(stats.workers)


def queue_readings(queue: QueueStats) -> Iterator[Reading]:
    """One queue: depth by priority, and its limit once."""
    labels = {"queue": queue.queue, "model": queue.model}
    yield Reading(QUEUE_DEPTH, queue.depth, {**labels, "priority": queue.priority})
    if queue.limit and queue.priority == "normal":
        yield Reading(QUEUE_LIMIT, queue.limit, labels)


def _pool_readings(pool: PoolStats) -> Iterator[Reading]:
    kind = {"kind": pool.kind}
    for state in ("starting", "idle", "leased", "settling", "closing"):  # zeros too: a series that ends keeps its last value
        yield Reading(DECODERS, pool.states.get(state, 0), {**kind, "state": state})
    yield Reading(DECODERS_LIMIT, pool.limit, kind)
    yield from queue_readings(QueueStats("decode", pool.waiting, model=pool.kind))
    for outcome, count in pool.leases.items():
        yield Reading(LEASES, count, {**kind, "outcome": outcome})
    yield Reading(DECODERS_EVICTED, pool.evicted, kind)
    yield Reading(WORKER_RESTARTS, pool.broken, {"worker": pool.kind})


def _batch_readings(batches: BatchStats) -> Iterator[Reading]:
    model = {"model": batches.model}
    sizes: defaultdict[int, int] = defaultdict(int)
    for frames, count in batches.fill.items():
        sizes[1 << (frames - 1).bit_length()] += count
    for size, count in sorted(sizes.items()):
        yield Reading(BATCHES, count, {**model, "size": str(size)})
    yield Reading(BATCH_FRAMES, sum(frames * count for frames, count in batches.fill.items()), model)
    yield Reading(BATCH_LIMIT, batches.largest_batch, model)
    yield Reading(BATCHES_FAILED, batches.failed, model)


def worker_readings(workers: Iterable[WorkerStats]) -> Iterator[Reading]:
    """Worker processes."""
    for each in workers:
        label = {"worker": each.worker}
        yield Reading(WORKERS, each.alive, label)
        yield Reading(WORKERS_WANTED, each.wanted, label)
        yield Reading(WORKER_RESTARTS, each.restarts, label)
