"""How near something is to refusing calls, smoothed, and whether it has been so lately."""

from __future__ import annotations

import math

#: From this load on there is strain, until the load has been below the second for so many seconds.
_FULL, _RELAXED, _CALM = 0.9, 0.5, 30.0


class LoadSignal:
    """An exponentially weighted mean over `settle` seconds. A pure function of what it is told; every `now` is on one clock."""

    def __init__(self, settle: float) -> None:
        self.value = 0.0
        self.strained = False
        self._settle = settle
        self._told = -math.inf
        self._not_relaxed = -math.inf

    def tell(self, load: float, now: float) -> bool:
        """The load at this moment, 0 to 1. Returns whether strain begins with it."""
        self.value += (load - self.value) * -math.expm1(-(now - self._told) / self._settle)
        self._told = now
        begins = self.value >= _FULL and not self.strained
        self.strained |= begins
        if self.strained and self.value >= _RELAXED:
            self._not_relaxed = now
        elif now - self._not_relaxed >= _CALM:
            self.strained = False
        return begins
