"""What an engine tells of itself for the metrics: plain numbers, at one moment, counters since it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from decoder_pool.pool import PoolSnapshot
from models.batcher import BatcherSnapshot
from models.device_snapshot import DeviceSnapshot

#: `server.engine.Priority`, by number.
PRIORITIES = ("interactive", "normal", "bulk")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Work that waits: `depth` of `limit` places (0: no limit) are taken, by work of one priority.

    `queue` is `receive` (calls that wait to be read), `turn` (calls that were read and wait for a place), `decode` (calls that
    wait for a decoder), `pictures` (pictures between decoding and their scores), `infer` (pictures that wait for a batch of
    `model`, or of all models where it is empty) or `places` (pictures that wait to be in `infer`).
    """

    queue: str
    depth: int
    limit: int = 0
    model: str = ""
    priority: str = "normal"

    @classmethod
    def of(cls, state: BatcherSnapshot) -> tuple[QueueStats, ...]:
        """A model's queue, by priority, and the frames that wait for a place in it."""
        queued = cls._by_priority(state.priorities, state.queue_limit, state.model)
        return (*queued, cls("places", state.waiting, model=state.model))

    @classmethod
    def of_device(cls, state: DeviceSnapshot) -> tuple[QueueStats, ...]:
        """The one queue of all models, by priority."""
        return tuple(cls._by_priority(state.priorities, state.queue_limit))

    @classmethod
    def _by_priority(cls, priorities: Mapping[int, int], limit: int, model: str = "") -> Iterator[QueueStats]:
        for priority, count in sorted({1: 0, **priorities}.items()):
            yield cls("infer", count, limit, model, PRIORITIES[priority])


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One model's batches: `fill` counts them by their number of frames; at most `largest_batch` frames go into one."""

    model: str
    largest_batch: int
    in_flight: int
    failed: int
    fill: Mapping[int, int]

    @classmethod
    def of(cls, state: BatcherSnapshot) -> BatchStats:
        """The batches that a batcher's snapshot counts."""
        return cls(state.model, state.largest_batch, state.in_flight, state.failed, state.fill)

    @classmethod
    def of_device(cls, state: DeviceSnapshot) -> tuple[BatchStats, ...]:
        """The batches of all models."""
        return tuple(cls(each.model, state.largest_batch, each.in_flight, each.failed, each.fill) for each in state.models)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """One decoder pool: callers that wait, decoders by state, leases by `decoder_pool.assignment.Outcome`."""

    kind: str
    limit: int
    waiting: int
    states: Mapping[str, int]
    leases: Mapping[str, int]
    evicted: int
    broken: int

    @classmethod
    def of(cls, state: PoolSnapshot) -> PoolStats:
        """What a pool's snapshot has."""
        counters = state.counters
        return cls(
            kind=state.kind,
            limit=state.limit,
            waiting=state.waiting,
            states=Counter(str(decoder.state) for decoder in state.decoders),
            leases={
                "reused": counters.reused,
                "reconfigured": counters.reconfigured,
                "rekeyed": counters.rekeyed,
                "created": counters.created,
            },
            evicted=counters.evicted,
            broken=counters.broken,
        )


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One kind of worker process: how many live, how many there should be, how many were replaced."""

    worker: str
    alive: int
    wanted: int
    restarts: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """An engine at one moment. Where the engine is another process, that process tells it, and the proxy gives an empty one.

    `pci_bus_id` is its GPU's (`0000:4B:00.0`), empty for none.
    """

    queues: tuple[QueueStats, ...] = ()
    batches: tuple[BatchStats, ...] = ()
    pools: tuple[PoolStats, ...] = ()
    workers: tuple[WorkerStats, ...] = ()
    healthy: bool = True
    pci_bus_id: str = ""
