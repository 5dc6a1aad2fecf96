"""How far answers are degraded under load: one step up when the load is there, one down when it is gone for good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: A step is left when fewer calls come than this share of what could be done a step lower, ...
_RECOVERED = 0.85
#: ... or, because that may have changed, when it was calm for so many times `hold`.
_PATIENCE = 30
#: The load is gone below this share of the one at which a step is taken.
_CALM = 0.5
#: A step that was left and is needed again within so many times its dwell was left too early, and is held twice as long.
_RELAPSE = 6
_MOST_DOUBLINGS = 6


@dataclass(slots=True)
class _Taken:
    """What is known of one step."""

    at_load: float
    capacity: float | None = None  # calls a second that could be done a step lower, when that was too little
    left: float = -math.inf
    doublings: int = 0


class LoadSteps:
    """The step in effect, 0 (none) to the number of `loads`, which ascend from 0 (excluded) to 1. A pure function of what it is
    told; every `now` is on one clock.

    Up by one when the load has reached a step's, and the step before has had `settle` seconds to show its effect. That the load
    then falls is the step's own doing and no reason to leave it: down by one when it has been calm for `hold` seconds and fewer
    calls come than could be done a step lower when this one was taken. Should that have been wrong, the step comes back and is
    held for twice as long, and so on; so even a load that fools all of this makes fewer and fewer changes.
    """

    def __init__(self, loads: Sequence[float], *, settle: float, hold: float) -> None:
        if list(loads) != sorted(loads) or any(not 0 < load <= 1 for load in loads):
            raise ValueError(f"loads ascend within more than 0 to 1, got {list(loads)}")
        self._steps = [_Taken(load) for load in loads]
        self._settle = settle
        self._hold = hold
        self.step = 0
        self._rate = 0.0  # of calls that came, a second
        self._smoothing = hold / 2  # so that after `hold` seconds most of a change is in it
        self._told = -math.inf
        self._changed = -math.inf
        # When it was last not calm, and when it was last not calm or too many calls came: rates vary by chance and fall below
        # any bar now and then, so they must stay there.
        self._strained = self._busy = -math.inf

    def update(self, now: float, load: float, capacity: float | None) -> int:
        """A call comes, at this load; `capacity` is how many a second can be done now, None if unknown. Returns the step."""
        since, self._told = now - self._told, now
        self._rate = self._rate * math.exp(-since / self._smoothing) + 1 / self._smoothing
        self._silence(now, since)
        if self.step < len(self._steps) and load >= self._steps[self.step].at_load:
            self._strained = self._busy = now
            if now - self._changed >= self._settle:
                self._up(now, capacity)
        elif self.step:
            self._look_down(now, load)
        return self.step

    def _up(self, now: float, capacity: float | None) -> None:
        taken = self._steps[self.step]
        dwell = self._dwell(taken)
        if now - taken.left < _RELAPSE * dwell:
            taken.doublings = min(taken.doublings + 1, _MOST_DOUBLINGS)
        else:
            taken.doublings = 0
        taken.capacity = capacity
        self.step += 1
        self._changed = now

    def _silence(self, now: float, since: float) -> None:
        """Nobody came for so long: that is calm too, and may have been long enough for several steps."""
        while self.step and since >= (dwell := self._dwell(self._steps[self.step - 1])):
            since -= dwell
            self._down(now - since)

    def _look_down(self, now: float, load: float) -> None:
        taken = self._steps[self.step - 1]
        if load > taken.at_load * _CALM:
            self._strained = self._busy = now
        elif taken.capacity is not None and self._rate > _RECOVERED * taken.capacity:
            self._busy = now
        dwell = self._dwell(taken)
        if now - self._changed >= dwell and (now - self._busy >= self._hold or now - self._strained >= _PATIENCE * dwell):
            self._down(now)

    def _down(self, now: float) -> None:
        self._steps[self.step - 1].left = now
        self.step -= 1
        self._changed = self._strained = self._busy = now

    def _dwell(self, taken: _Taken) -> float:
        return self._hold * (1 << taken.doublings)

    def __repr__(self) -> str:
        return f"<LoadSteps {self.step} of {len(self._steps)}>"
