"""Which calls are among the slowest of the last minutes."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable

_WINDOW = 300.0  # seconds that are looked back upon
_SLOT = 10.0  # seconds that are forgotten together
_LEAST = 50  # calls below which none is called slow
_FINE = 8  # buckets for each doubling: 9 % from one to the next


class SlowCalls:
    """A running quantile of durations, in buckets that grow by 9 %; memory does not depend on how many calls there are.

    A duration is slow when its bucket lies above that of the `quantile`: at most the rest of the window's calls are, even while
    all of them become slower. Not thread-safe.
    """

    def __init__(self, quantile: float = 0.99, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quantile = quantile
        self._clock = clock
        self._slots: deque[tuple[float, Counter[int]]] = deque()
        self._sum: Counter[int] = Counter()
        self._bound = math.inf  # bucket of the quantile
        self._asked = -math.inf

    def is_slow(self, seconds: float) -> bool:
        """Whether a duration would be slow now."""
        return _bucket(seconds) > self._bound

    def add(self, seconds: float) -> None:
        """Counts a call."""
        now = self._clock()
        if not self._slots or now - self._slots[-1][0] >= _SLOT:
            self._slots.append((now, Counter()))
            while now - self._slots[0][0] >= _WINDOW + _SLOT:
                self._sum -= self._slots.popleft()[1]
        bucket = _bucket(seconds)
        self._slots[-1][1][bucket] += 1
        self._sum[bucket] += 1
        if now - self._asked >= 1.0 or self._bound == math.inf:
            self._asked, self._bound = now, self._found()

    def _found(self) -> float:
        total = self._sum.total()
        if total < _LEAST:
            return math.inf
        left = math.ceil(total * self._quantile)
        for bucket in sorted(self._sum):
            left -= self._sum[bucket]
            if left <= 0:
                return bucket
        return math.inf


def _bucket(seconds: float) -> int:
    return math.floor(math.log2(max(seconds, 1e-6)) * _FINE)
