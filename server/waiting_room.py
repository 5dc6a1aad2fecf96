"""Calls that wait for a place: who is next, who has to go when there are too many. Plain data: no clock, no locks."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from server.urgency import Urgency

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One call that waits; `item` is whatever its owner wants to have back with it."""

    urgency: Urgency
    number: int
    item: T
    gone: bool = False

    def __lt__(self, other: Waiter[T]) -> bool:
        return (self.urgency.deadline, self.number) < (other.urgency.deadline, other.number)


@dataclass(slots=True)
class _Line(Generic[T]):
    """The waiting calls of one caller and one priority, the earliest deadline first; those that are gone lie in it until it
    is their turn.
    """

    heap: list[Waiter[T]] = field(default_factory=list)
    count: int = 0

    def waiting(self) -> Iterator[Waiter[T]]:
        return (waiter for waiter in self.heap if not waiter.gone)

    def first(self) -> Waiter[T]:
        while self.heap[0].gone:
            heapq.heappop(self.heap)
        return self.heap[0]


class WaitingRoom(Generic[T]):
    """Next is the most urgent priority; within it the caller that has the fewest calls in work, then the one whose turn was
    longest ago; of this caller's calls the one with the earliest deadline. So callers share the places equally, whatever each
    of them asks for, and none is remembered that has nothing here.
    """

    def __init__(self) -> None:
        self._lines: dict[int, dict[str, _Line[T]]] = {}
        self._turns: dict[str, int] = {}
        self._numbers = itertools.count()
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def count(self, priority: int) -> int:
        """How many of one priority wait."""
        return self._counts[priority]

    def add(self, urgency: Urgency, item: T) -> Waiter[T]:
        """One more."""
        waiter = Waiter(urgency, next(self._numbers), item)
        line = self._lines.setdefault(urgency.priority, {}).setdefault(urgency.caller, _Line())
        heapq.heappush(line.heap, waiter)
        line.count += 1
        self._counts[urgency.priority] += 1
        return waiter

    def remove(self, waiter: Waiter[T]) -> None:
        """Takes out one that is here."""
        callers = self._lines[waiter.urgency.priority]
        line = callers[waiter.urgency.caller]
        waiter.gone = True
        line.count -= 1
        self._counts[waiter.urgency.priority] -= 1
        if len(line.heap) > 2 * line.count:  # cancelled calls with late deadlines must not pile up
            line.heap = list(line.waiting())
            heapq.heapify(line.heap)
        if not line.count:
            del callers[waiter.urgency.caller]
            if not callers:
                del self._lines[waiter.urgency.priority]
            if not any(waiter.urgency.caller in others for others in self._lines.values()):
                self._turns.pop(waiter.urgency.caller, None)

    def take(self, in_work: Mapping[str, int]) -> Waiter[T] | None:
        """Takes the next one out; `in_work` are the places that callers have now."""
        if not self._lines:
            return None
        callers = self._lines[min(self._lines)]
        caller = min(callers, key=lambda name: (in_work.get(name, 0), self._turns.get(name, -1)))
        waiter = callers[caller].first()
        self._turns[caller] = next(self._numbers)
        self.remove(waiter)
        return waiter

    def ahead(self, urgency: Urgency) -> int:
        """How many would have their turn before a call that came now, if places were shared equally from now on."""
        more_urgent = sum(self.count(priority) for priority in self._lines if priority < urgency.priority)
        callers = self._lines.get(urgency.priority, {})
        own = callers.get(urgency.caller)
        rank = 0 if own is None else sum(waiter.urgency.deadline <= urgency.deadline for waiter in own.waiting())
        return more_urgent + rank + sum(min(line.count, rank + 1) for name, line in callers.items() if name != urgency.caller)

    def weakest(self, urgency: Urgency, in_work: Mapping[str, int], among: int | None = None) -> Waiter[T] | None:
        """Who should go so that a call of this urgency can stay, where there is no room for both; None: the call itself.

        That is the least urgent priority, if less urgent than the call's; within the call's own priority a caller that has at
        least two calls more than the call's, waiting or `in_work`. Of such a caller the call with the latest deadline. `among`
        looks at one priority only.
        """
        if not self._lines or (among is not None and among not in self._lines):
            return None
        priority = max(self._lines) if among is None else among
        last = self.last(priority, in_work)
        if last is None or priority < urgency.priority:
            return None
        lines = self._lines[priority]
        theirs, own = (
            (lines[name].count if name in lines else 0) + in_work.get(name, 0) for name in (last.urgency.caller, urgency.caller)
        )
        return None if priority == urgency.priority and theirs < own + 2 else last

    def last(self, priority: int, in_work: Mapping[str, int]) -> Waiter[T] | None:
        """Of the caller with the most calls of this priority, waiting or `in_work`, the one with the latest deadline."""
        callers = self._lines.get(priority)
        if not callers:
            return None
        name = max(callers, key=lambda each: callers[each].count + in_work.get(each, 0))
        return max(callers[name].waiting())
