"""Whether some calls have to be refused in any case, so that waiting helps nobody."""

from __future__ import annotations

from collections.abc import Callable

from server.engine import Priority
from server.front_share import FrontShare
from server.load_signal import LoadSignal

#: Shares of calls for which there was no room at all, smoothed over so many times `settle`: a burst is not felt much then. From
#: the first on there is strain, until it was below the second for long: that it is not more only says that others are let in, and
#: they wait for as long as they can bear.
_FULL_HOUSE, _HAD_ROOM, _SMOOTHED = 0.15, 0.05, 4.0
#: Times `settle` that answers may be degraded by one step instead, of which one passes until it is taken and one until it shows.
_STEP = 2.0
#: Seconds for which other fronts believe one that tells them of its strain.
_TOLD = 5.0


class Strain:
    """A lane's, by priority: from the load that calls meet, smoothed over `settle` seconds, from calls that find no room, where
    `steps` in which answers can be degraded are waited for, and from what other fronts tell (`share`).
    """

    def __init__(self, settle: float, share: FrontShare, clock: Callable[[], float], *, steps: int = 0) -> None:
        self._share = share
        self._clock = clock
        self._loads = {priority: LoadSignal(settle) for priority in Priority}
        self._no_room = {
            priority: LoadSignal(_SMOOTHED * settle, full=_FULL_HOUSE, relaxed=_HAD_ROOM, lasting=_STEP * steps * settle)
            for priority in Priority
        }
        self._known = dict.fromkeys(Priority, False)

    def is_on(self, priority: Priority) -> bool:
        """Whether calls of this priority have to be refused now, here or at another front."""
        return self._is_own(priority) or self._share.strained_until(priority) > self._clock()

    def meets(self, priority: Priority, load: float) -> bool:
        """A call meets this load, 0 to 1. Returns whether strain begins, as far as this front has heard."""
        self._loads[priority].tell(load, self._clock())
        return self._begins(priority)

    def has_room(self, priority: Priority, room: bool) -> bool:
        """Whether there was room for a call, to be worked on or to wait. Returns as `meets` does."""
        self._no_room[priority].tell(float(not room), self._clock())
        return self._begins(priority)

    def _is_own(self, priority: Priority) -> bool:
        return self._loads[priority].strained or self._no_room[priority].strained

    def _begins(self, priority: Priority) -> bool:
        if self._is_own(priority):
            self._share.strain(priority, self._clock() + _TOLD)
        before, self._known[priority] = self._known[priority], self.is_on(priority)
        return self._known[priority] and not before
