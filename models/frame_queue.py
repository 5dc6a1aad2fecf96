"""Which frames go into the next batch: the one place that decides it, for every batcher. Plain data, no locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from models.run_slots import Head


class QueuedFrame(Protocol):
    """A frame that waits. Must be hashable by identity."""

    @property
    def since(self) -> float:
        """When it came, on `time.monotonic()`'s clock."""
        ...

    @property
    def deadline(self) -> float:
        """When it is too late, on the same clock."""
        ...

    @property
    def priority(self) -> int:
        """Lower goes first."""
        ...

    @property
    def to_come(self) -> int:
        """How many frames its call still brings to this queue."""
        ...


F = TypeVar("F", bound=QueuedFrame)
_Key = tuple[Hashable, Hashable]

# Seconds that a call whose frames share no batch with those of others waits for the rest of its own, at the least.
_WHOLE_CALL_WAIT = 1.0


class FrameQueue(Generic[F]):
    """Frames by their kind, where calls are kept apart also by their call: those that can be in one batch, most urgent first.

    More urgent is the lower priority number, then the earlier deadline, then the earlier arrival. A batch is ready as soon as
    one of these holds: it has `largest_batch` frames, all frames together are `limit` or more, the call of its most urgent frame
    has no more to come, or its oldest frame has waited `largest_wait` seconds. Frames leave in constant time.
    """

    def __init__(self, *, largest_batch: int, largest_wait: float, limit: int) -> None:
        self.largest_batch = largest_batch
        self.largest_wait = largest_wait
        self.limit = limit
        #: Whether frames of different calls share batches. False is for comparison: a call's frames wait until all of them have
        #: come, and run in as few batches as hold them. May be set at any time; what is queued already stays as it is.
        self.across_calls = True
        # Dictionaries without values: sets that keep the order of arrival.
        self._buckets: dict[_Key, dict[F, None]] = {}
        self._keys: dict[F, _Key] = {}
        self._size = 0
        #: How many there are of each priority that ever came; to be copied where another thread reads it.
        self.by_priority: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[F]:
        for bucket in tuple(self._buckets.values()):
            yield from tuple(bucket)

    def add(self, kind: Hashable, frame: F, call: Hashable = None) -> None:
        """One more, of frames of one `kind` (what can be in one batch: equal shape, type, models) and of `call`."""
        key = self._keys[frame] = (kind, None if self.across_calls else call)
        self._buckets.setdefault(key, {})[frame] = None
        self._size += 1
        self.by_priority[frame.priority] += 1

    def remove(self, frame: F) -> bool:
        """Whether it was there; it is not any more."""
        key = self._keys.pop(frame, None)
        if key is None:
            return False
        bucket = self._buckets[key]
        del bucket[frame]
        if not bucket:
            del self._buckets[key]
        self._size -= 1
        self.by_priority[frame.priority] -= 1
        return True

    def head(self, now: float) -> Head | None:
        """Of the batches that are ready the one with the most urgent frame; where none is, the one that is ready first."""
        chosen = self._choose(now)
        return None if chosen is None else chosen[1]

    def waiting(self, now: float) -> Sequence[F]:
        """The frames that could be in the batch that `head` speaks of, the most urgent first."""
        chosen = self._choose(now)
        return () if chosen is None else sorted(self._buckets[chosen[0]], key=urgency)

    def take(self, now: float, most: int | None = None) -> tuple[list[F], list[F]]:
        """Takes that batch out, at most `most` frames (`largest_batch`): (in time, most urgent first; those that were late)."""
        chosen = self._choose(now)
        if chosen is None:
            return [], []
        key = chosen[0]
        batch: list[F] = []
        late: list[F] = []
        most = self.largest_batch if most is None else most
        for frame in sorted(self._buckets[key], key=urgency):
            if frame.deadline <= now:
                late.append(frame)
            elif len(batch) < most:
                batch.append(frame)
            else:
                break  # the later deadlines
        for frame in (*batch, *late):
            self.remove(frame)
        return batch, late

    def _choose(self, now: float) -> tuple[_Key, Head] | None:
        heads = [(key, *self._head_of(bucket)) for key, bucket in self._buckets.items()]
        if not heads:
            return None
        ready = [each for each in heads if each[1].ready_at <= now]
        key, head, _ = min(ready, key=lambda each: each[2]) if ready else min(heads, key=lambda each: each[1].ready_at)
        return key, head

    def _head_of(self, bucket: dict[F, None]) -> tuple[Head, tuple[int, float, float]]:
        oldest = next(iter(bucket))
        first = min(bucket, key=urgency)
        wait = len(bucket) < self.largest_batch and self._size < self.limit and first.to_come > 0
        longest = self.largest_wait if self.across_calls else max(self.largest_wait, _WHOLE_CALL_WAIT)
        return Head(oldest.since, oldest.since + (longest if wait else 0.0)), urgency(first)


def urgency(frame: QueuedFrame) -> tuple[int, float, float]:
    """What frames are sorted by."""
    return frame.priority, frame.deadline, frame.since
