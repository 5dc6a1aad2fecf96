"""A share of 0 to 1 that is told now and then, smoothed, and whether it has been large lately."""

from __future__ import annotations

import math

#: Seconds for which the share must have been small for the strain to end.
_CALM = 30.0


class LoadSignal:
    """An exponentially weighted mean over `settle` seconds. A pure function of what it is told; every `now` is on one clock.

    Strain begins where the share has been `full` or more for `lasting` seconds, and ends where it has been below `relaxed` for
    half a minute.
    """

    def __init__(self, settle: float, *, full: float = 0.9, relaxed: float = 0.5, lasting: float = 0.0) -> None:
        self.value = 0.0
        self.strained = False
        self._settle = settle
        self._full, self._relaxed, self._lasting = full, relaxed, lasting
        self._full_since = math.inf
        self._told = -math.inf
        self._not_relaxed = -math.inf

    def tell(self, load: float, now: float) -> None:
        """The share at this moment, 0 to 1."""
        self.value += (load - self.value) * -math.expm1(-(now - self._told) / self._settle)
        self._told = now
        self._full_since = min(self._full_since, now) if self.value >= self._full else math.inf
        self.strained |= now - self._full_since >= self._lasting
        if self.strained and self.value >= self._relaxed:
            self._not_relaxed = now
        elif now - self._not_relaxed >= _CALM:
            self.strained = False
