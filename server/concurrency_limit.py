"""How many calls are worked on at once: as many as keep everything behind busy, and not many more."""

from __future__ import annotations

import math

#: Calls that must have ended before the limit is set anew, if that is more than the limit itself.
_LEAST_CALLS = 16


class ConcurrencyLimit:
    """A limit that follows measured times, by Little's law. A pure function of what it is told; no clock.

    While all places are taken, of L calls at once L * w are really worked on, where w is the share of their time in which the
    engine works for them; else they wait, for a decoder, for a batch, or for this process, which may have too much to do. The
    limit is `headroom` times that, and one more. So with too few places nothing waits and the limit grows by `headroom` each
    time; with too many the queues behind are long and it falls. It rests where w = 1 / `headroom`: at 1.25 a fifth of a call's
    time is waiting, so that the next batch is there when one ends. Calls that end while places are free say nothing of how many
    are needed.
    """

    def __init__(self, *, first: int, least: int, most: int, headroom: float) -> None:
        if not 1 <= least <= first <= most:
            raise ValueError(f"1 <= least <= first <= most is wanted, got {least}, {first}, {most}")
        if not headroom > 1:
            raise ValueError(f"headroom is {headroom}, more than 1 is wanted")
        self.least, self.most = least, most
        self._headroom = headroom
        self._value = float(first)
        self._calls = 0
        self._served = self._worked = 0.0

    @property
    def value(self) -> int:
        """Calls at once, `least` to `most`."""
        return math.floor(self._value)

    def observe(self, served: float, worked: float, *, short: bool, places: int | None = None) -> None:
        """A call was answered `served` seconds after it had its place, in which the engine worked for it for `worked` seconds.

        `short`: calls wait for places. `places`: how many of the limit's are this front's; default: all. The limit is set anew
        once as many calls have ended, so that they had it.
        """
        if not short:
            return
        self._calls += 1
        self._served += served
        self._worked += min(worked, served)
        if self._calls < max(_LEAST_CALLS, self.value if places is None else places) or not self._served:
            return
        worked_on = self._value * self._worked / self._served
        self._value = min(max(worked_on * self._headroom + 1, self.least), self.most)
        self._calls = 0
        self._served = self._worked = 0.0

    def __repr__(self) -> str:
        return f"<ConcurrencyLimit {self.value} of {self.least} to {self.most}>"
