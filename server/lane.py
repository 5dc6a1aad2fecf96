"""A lane: places in which calls are worked on, and the room in which further ones wait."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

from keyglance.errors import DeadlineExceeded, KeyglanceError, Overloaded
from server.concurrency_limit import ConcurrencyLimit
from server.engine import Priority
from server.front_share import FrontShare
from server.load_signal import LoadSignal
from server.recent_count import RecentCount
from server.service_times import ServiceTimes
from server.strain import Strain
from server.urgency import Urgency
from server.waiting_room import Waiter, WaitingRoom

#: Places of a short room, by calls that are worked on: a quarter of what one takes is waited at the most.
_SHORT = 0.25
#: Places of which one front can make use at the most, and how many it may have for each call that it has in the engine.
_MOST_USEFUL, _IN_FRONT = 1024, 1.5
#: A limit that fell below this share of what it was makes calls so much shorter that it must not be waited for to show.
_MUCH_LESS = 0.75
#: Seconds after which a refused call may come back: where nothing is known, at the least, at the most.
_RETRY, _SOONEST, _LATEST = 1.0, 0.25, 30.0

#: Called with the reason and the priority of a call that is refused; the reasons are `REFUSALS`.
Refused = Callable[[str, Priority], None]

#: Why calls are refused: too many calls at once, no room to wait in, room given to a more urgent call or to a caller with less,
#: a deadline that would pass while the call waits, a deadline shorter than such calls take.
REFUSALS = ("calls", "room", "evicted", "deadline", "too_short")
#: Those that say that more came than there is room for, whatever deadlines they have.
_WITHOUT_ROOM = ("calls", "room", "evicted")


class Lane:
    """At most `limit` calls are worked on, at most `waiting` wait; what cannot be in time is refused when it comes.

    Where several fronts have a lane each over one engine, the limit is what all of them work on, and this one's places are its
    `share` of it by demand: what is worked on and waits, and what was refused in the time that a call takes. So callers get the
    same from every front, however unevenly their connections fall to them. A front that has too much to do itself, whose calls
    spend their time in it and not in the engine, needs no more places than it has calls there.

    As long as no call of a priority has to be refused, its calls may wait for as long as their deadlines allow. Where some must
    be refused in any case, at this front or another, waiting helps nobody: those who come later wait as long, and as many are
    refused. Then the room is short for this priority, `least_room` of all fronts at the least: it counts who waits that is as
    urgent or more. `steps`: in how many answers can be degraded instead, which is waited for.

    `load` is how near the lane is to refusing calls, smoothed over `settle` seconds: 0 where none waits, 1 where they are
    refused; in between the larger of the room's filling and the share of its time that a call would spend waiting.
    """

    def __init__(
        self,
        name: str,
        limit: ConcurrencyLimit,
        *,
        waiting: int,
        least_room: int,
        settle: float,
        steps: int = 0,
        share: FrontShare | None = None,
        clock: Callable[[], float],
        refused: Refused = lambda reason, priority: None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.longest_room = waiting
        self._least_room = least_room
        self.serving = 0
        self.times = ServiceTimes()
        self._room: WaitingRoom[asyncio.Future[None]] = WaitingRoom()
        self._in_work: Counter[str] = Counter()
        self._clock = clock
        self._refused = refused
        self._share = share or FrontShare()
        self._turned_away = RecentCount()
        self._useful = ConcurrencyLimit(first=_MOST_USEFUL, least=1, most=_MOST_USEFUL, headroom=_IN_FRONT)
        self._load = LoadSignal(settle)
        self._strain = Strain(settle, self._share, clock, steps=steps)

    @property
    def load(self) -> float:
        """0 to 1, as it was when a call came last or the room became empty."""
        return self._load.value

    @property
    def places(self) -> int:
        """Calls that may be worked on here now, 1 or more."""
        return self._part(self.limit.value, self._demand())

    def room(self, priority: Priority) -> int:
        """Calls of this or a more urgent priority that may wait now."""
        if not self._strain.is_on(priority):
            return self.longest_room
        short = self._part(max(self._least_room, self.limit.value * _SHORT), self._demand())
        return min(self.longest_room, short)

    def waiting(self, priority: Priority | None = None) -> int:
        """Calls that wait, of one priority or of all."""
        return len(self._room) if priority is None else self._room.count(priority)

    def capacity(self) -> float | None:
        """Calls a second that can be worked on, None where that is not known."""
        mean = self.times.mean(self._clock())
        return self.places / mean if mean else None

    def retry_after(self) -> float:
        """Seconds in which all that is here now should be done."""
        if not (capacity := self.capacity()):
            return _RETRY
        return min(max((len(self._room) + self.serving) / capacity, _SOONEST), _LATEST)

    def come(self, urgency: Urgency, unread: int = 0) -> None:
        """A call comes, and `unread` others wait for memory to be read into: they will be in the room before it.

        Raises `Overloaded` or `DeadlineExceeded` if there is no use in its waiting, as far as is known.
        """
        refusal, load = self._judge(urgency, unread)
        self._tell(load, urgency.priority)
        if refusal is not None:
            raise refusal
        if self._strain.has_room(urgency.priority, True):
            self._shorten(urgency.priority)

    def overrun(self, priority: Priority) -> None:
        """A call was refused before it came here, because there are too many."""
        self._count_refused("calls", priority)
        self._tell(1.0, priority)

    def check(self, urgency: Urgency) -> None:
        """A call that came is about to be read. Raises as `come` does, if that is of no use any more."""
        refusal, _ = self._judge(urgency)
        if refusal is not None:
            raise refusal

    async def enter(self, urgency: Urgency) -> None:
        """Takes a place, or waits for one. Raises as `come` does, also later: to make room for others."""
        self.check(urgency)
        if self._is_free:
            self._take(urgency.caller)
            return
        if self._is_full(urgency) and (weakest := self._weakest(urgency)) is not None:
            self._room.remove(weakest)
            self._turn_away(weakest, "evicted", "room was made for a more urgent call, or for one of a caller with fewer of them")
        granted = asyncio.get_running_loop().create_future()
        waiter = self._room.add(urgency, granted)
        self._share.tell(self._demand())
        try:
            async with asyncio.timeout(self._patience(urgency)) as patience:
                await granted
        except TimeoutError:
            if not patience.expired():
                raise
            self._leave_room(waiter)
            why = f"others came first, {max(0.0, urgency.deadline - self._clock()):.3g} s are left"
            raise self._overloaded(urgency, "deadline", why) from None
        except asyncio.CancelledError:
            self._leave_room(waiter)
            raise

    def release(self, caller: str) -> None:
        """Gives a place back."""
        self.serving -= 1
        self._in_work[caller] -= 1
        if not self._in_work[caller]:
            del self._in_work[caller]
        self._grant()

    def observe(self, urgency: Urgency, served: float, worked: float | None, in_engine: float = math.inf) -> None:
        """A call that had a place ended `served` seconds later, with an answer for which the engine `worked` so long, or
        without one because its deadline passed (None). It was `in_engine` for so long, the rest in this front. To be told
        before its place is given back.
        """
        self.times.add(urgency.kind, served, self._clock())
        before = self.limit.value
        if worked is None:
            # Whoever had a place was expected to be in time: there are too many at once, whether or not others wait.
            self.limit.observe(served, 0.0, short=True, places=self.places)
        else:
            self.limit.observe(served, worked, short=len(self._room) > 0, places=self.places)
            self._useful.observe(served, in_engine, short=len(self._room) > 0, places=self.places)
        if self.limit.value < before * _MUCH_LESS:
            self.times.scale(self.limit.value / before)  # they were measured among more calls, each of which took longer for it

    @property
    def _is_free(self) -> bool:
        return not self._room and self.serving < self._part(self.limit.value, self._demand() + 1)

    def _demand(self) -> float:
        """Calls that could be worked on here at once to some use, if there were places for all.

        Of those that wait no more than there are places at all: a front with a long queue would starve those that refuse.
        """
        waiting = len(self._room)
        if not self.serving + waiting:
            return 0.0  # what was refused long ago fades only while something is told
        wanted = self.serving + min(waiting, self.limit.value) + self._turned_away.value(self._clock(), self._usual)
        return min(wanted, self._useful.value)

    def _part(self, whole: float, demand: float) -> int:
        """Of what all fronts share, rounded, but 1 at the least: every front can do something."""
        return max(1, round(whole * self._share.of(demand)))

    @property
    def _usual(self) -> float:
        """Seconds that a call takes, as far as is known."""
        return self.times.mean(self._clock()) or _RETRY

    def _count_refused(self, reason: str, priority: Priority) -> None:
        self._turned_away.add(self._clock(), self._usual)
        if reason in _WITHOUT_ROOM and self._strain.has_room(priority, False):
            self._shorten(priority)
        self._share.tell(self._demand())

    def _judge(self, urgency: Urgency, unread: int = 0) -> tuple[KeyglanceError | None, float]:
        """Why a call should be refused, if it should, and the load that it meets."""
        now = self._clock()
        usual = self.times.median(urgency.kind, now)
        left = urgency.deadline - now - (usual or 0.0)
        if self._is_free and not unread:
            # An idle lane tries whatever comes: else it would never learn that calls have become faster.
            if left < 0 and self.serving:
                return self._too_short(urgency, usual or 0.0, now), 0.0
            return None, 0.0
        if self._is_full(urgency, unread) and self._weakest(urgency) is None:
            why = f"{len(self._room) + unread} calls wait already, {self.serving} are worked on"
            return self._overloaded(urgency, "room", why), 1.0
        mean = self.times.mean(now)
        wait = 0.0 if mean is None else (self._room.ahead(urgency) + unread + 1) * mean / self.places
        if usual is not None and wait > left:
            expected = f"about {wait:.3g} s to wait and {usual:.3g} s of work are expected"
            return self._overloaded(urgency, "deadline", f"{expected}, {urgency.deadline - now:.3g} s are left"), 1.0
        filled = (self._as_urgent(urgency.priority) + unread + 1) / (self.room(urgency.priority) + 1)
        return None, min(1.0, max(filled, wait / left if left > 0 else 0.0))

    def _as_urgent(self, priority: Priority) -> int:
        """Calls of this or a more urgent priority that wait."""
        return sum(self._room.count(each) for each in Priority if each <= priority)

    def _is_full(self, urgency: Urgency, unread: int = 0) -> bool:
        """Whether there is no room for one more call like this."""
        if len(self._room) + unread >= self.longest_room:
            return True
        return self._as_urgent(urgency.priority) + unread >= self.room(urgency.priority)

    def _weakest(self, urgency: Urgency) -> Waiter[asyncio.Future[None]] | None:
        """Who would have to go for it, None for the call itself; only its own like where the room is long enough for others."""
        among = None if len(self._room) >= self.longest_room else urgency.priority
        return self._room.weakest(urgency, self._in_work, among)

    def _overloaded(self, urgency: Urgency, reason: str, why: str) -> Overloaded:
        self._refused(reason, urgency.priority)
        self._count_refused(reason, urgency.priority)
        return Overloaded(f"too many calls: {why}", facts={"refused": reason}, retry_after=self.retry_after())

    def _too_short(self, urgency: Urgency, usual: float, now: float) -> DeadlineExceeded:
        # Not `Overloaded`: nothing is to be waited for, so coming back does not help, and a longer deadline does.
        self._refused("too_short", urgency.priority)
        return DeadlineExceeded(
            f"the deadline is too short: {max(0.0, urgency.deadline - now):.3g} s are left, such calls take {usual:.3g} s",
            facts={"refused": "too_short"},
        )

    def _patience(self, urgency: Urgency) -> float | None:
        """Seconds that a call may wait before it is of no use any more; None for ever."""
        now = self._clock()
        left = urgency.deadline - now - (self.times.median(urgency.kind, now) or 0.0)
        return None if math.isinf(left) else max(0.0, left)

    def _leave_room(self, waiter: Waiter[asyncio.Future[None]]) -> None:
        """Whoever waits does not any more."""
        granted = waiter.item
        if not waiter.gone:
            self._room.remove(waiter)
            self._share.tell(self._demand())
            self._look_whether_empty()
        elif granted.done() and not granted.cancelled() and granted.exception() is None:
            self.release(waiter.urgency.caller)  # it was granted in the same turn of the loop

    def _turn_away(self, waiter: Waiter[asyncio.Future[None]], reason: str, why: str) -> None:
        if not waiter.item.done():
            waiter.item.set_exception(self._overloaded(waiter.urgency, reason, why))
            waiter.item.exception()  # seen: whoever waits may be cancelled in this very turn of the loop

    def _take(self, caller: str) -> None:
        self.serving += 1
        self._in_work[caller] += 1
        self._share.tell(self._demand())

    def _grant(self) -> None:
        now = self._clock()
        while self.serving < self.places and (waiter := self._room.take(self._in_work)) is not None:
            if waiter.item.done():  # cancelled
                continue
            usual = self.times.median(waiter.urgency.kind, now)
            if usual is not None and self.serving and now + usual > waiter.urgency.deadline:
                left = max(0.0, waiter.urgency.deadline - now)
                self._turn_away(waiter, "deadline", f"after waiting {left:.3g} s are left, such calls take {usual:.3g} s")
                continue
            self._take(waiter.urgency.caller)
            waiter.item.set_result(None)
        self._share.tell(self._demand())
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        if not self._room and self._load.value:
            self._tell(0.0, *Priority)

    def _tell(self, load: float, *priorities: Priority) -> None:
        self._load.tell(load, self._clock())
        for priority in priorities:
            if self._strain.meets(priority, load):
                self._shorten(priority)

    def _shorten(self, priority: Priority) -> None:
        """The room has become short: who waits too far back for that is told now, not when his time is over."""
        while self._as_urgent(priority) > self.room(priority):
            if (last := self._room.last(priority, self._in_work)) is None:
                return
            self._room.remove(last)
            self._turn_away(last, "room", f"{len(self._room)} calls wait before it, {self.serving} are worked on")

    def __repr__(self) -> str:
        return f"<Lane {self.name}: {self.serving} of {self.places} calls, {len(self._room)} wait>"
