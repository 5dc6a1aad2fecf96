"""How long calls took lately: the measure of what a call that comes now can expect."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable

#: Calls remembered of each kind, and those of the mean, which is to follow a change of load soon.
_KEPT, _MEAN_OF = 64, 32
#: Fewer say nothing.
_LEAST = 8


class ServiceTimes:
    """Seconds from a call's place to its end, by kind of call; kinds are few.

    What is older than `memory` seconds is forgotten: a server that refuses every call learns nothing any more, and must not
    believe for ever what it knew then. `now` is on `time.monotonic()`'s clock.
    """

    def __init__(self, *, memory: float = 60.0) -> None:
        self._memory = memory
        self._all: deque[tuple[float, float]] = deque()
        self._total = 0.0  # of all in it: the mean is asked for several times a call
        self._kinds: dict[Hashable, deque[tuple[float, float]]] = {}

    def add(self, kind: Hashable, seconds: float, now: float) -> None:
        """A call of `kind` took so long, or had so long and was not done."""
        if len(self._all) == _MEAN_OF:
            self._total -= self._all.popleft()[1]
        self._all.append((now, seconds))
        self._total += seconds
        held = self._kinds.get(kind)
        if held is None:
            held = self._kinds[kind] = deque(maxlen=_KEPT)
        held.append((now, seconds))

    def scale(self, factor: float) -> None:
        """All times become `factor` times what they were measured as."""
        for held in (self._all, *self._kinds.values()):
            for place, (when, seconds) in enumerate(held):
                held[place] = (when, seconds * factor)
        self._total = sum(seconds for _, seconds in self._all)

    def mean(self, now: float) -> float | None:
        """Of the last calls of all kinds; None where too few are known."""
        while self._all and self._all[0][0] < now - self._memory:
            self._total -= self._all.popleft()[1]
        return None if len(self._all) < _LEAST else max(0.0, self._total / len(self._all))

    def median(self, kind: Hashable, now: float) -> float | None:
        """Of the last calls of this kind, of all where these are too few; None where too few are known at all."""
        known = self._recent(self._kinds.get(kind, ()), now)
        if len(known) < _LEAST:
            known = self._recent(self._all, now)
        return None if len(known) < _LEAST else statistics.median_low(known)

    def _recent(self, held: deque[tuple[float, float]] | tuple[()], now: float) -> list[float]:
        begin = now - self._memory
        return [seconds for when, seconds in held if when >= begin]
