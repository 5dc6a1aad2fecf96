"""How many there were lately."""

from __future__ import annotations

import math


class RecentCount:
    """Events, each of which fades with a time constant: at a steady rate, as many as come within it.

    A pure function of what it is told; every `now` is on one clock, every `within` more than 0, both in seconds.
    """

    def __init__(self) -> None:
        self._value = 0.0
        self._told = 0.0

    def add(self, now: float, within: float) -> None:
        """One more."""
        self._value = self.value(now, within) + 1
        self._told = now

    def value(self, now: float, within: float) -> float:
        """How many there were in about the last `within` seconds."""
        return self._value * math.exp(-max(0.0, now - self._told) / within) if self._value else 0.0
