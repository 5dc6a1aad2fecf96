"""Which calls are worked on, in which order, how thoroughly, and which are refused, when more come than can be answered."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from keyglance.errors import Overloaded
from server.concurrency_limit import ConcurrencyLimit
from server.config import OverloadSection
from server.engine import Priority
from server.front_share import FrontShare
from server.lane import Lane
from server.lane_name import LaneName
from server.load_steps import LoadSteps
from server.quality import FULL, Quality
from server.urgency import Urgency

#: Calls worked on at once before anything is measured, on the main lane and for software beside a GPU.
_FIRST, _FIRST_IN_SOFTWARE = 16, 4
#: The fewest of each engine. On a GPU two batches of 48 pictures, one that runs and one behind it, what is being decoded for the
#: next two, and what fronts have in hand: half of a call's time there is waiting for the batch before, so by measured times alone
#: batches would run half empty.
_LEAST, _LEAST_ON_GPU, _LEAST_IN_SOFTWARE = 4, 20, 2
#: The same where engines share a GPU. In turns each has it for half of the time, in which it decodes for its next batch.
_LEAST_IN_TURNS = 10
#: Side by side it is full only while each of them has a batch that runs, and two batches at once take about twice as long as one.
_LEAST_SIDE_BY_SIDE = 14
#: Places of a short room at the least.
_LEAST_ROOM = 4
#: Of so many calls one is being read.
_ON_THEIR_WAY = 16


#: Called with the lane, the reason (`server.lane.REFUSALS`) and the priority of each call that is refused.
RefusedIn = Callable[[LaneName, str, Priority], None]


class Place:
    """The place of one call in a lane, and the quality in which it is answered."""

    def __init__(self, overload: Overload, urgency: Urgency) -> None:
        self.quality = FULL
        self._overload = overload
        self._urgency = urgency
        self._lane: Lane | None = None
        self._since = 0.0
        self._worked: float | None = None
        self._in_engine = 0.0

    async def enter(self, name: LaneName) -> None:
        """Leaves the lane in which it is, if it is in one, and waits for a place in another. Raises as `Lane.enter` does."""
        if self._lane is not None:
            lane, self._lane = self._lane, None
            lane.release(self._urgency.caller)
        lane = self._overload.lanes[name]
        if name is not LaneName.MAIN:
            lane.come(self._urgency)
        await lane.enter(self._urgency)
        self._lane = lane
        self._since = self._overload.clock()

    def answered(self, worked: float, in_engine: float) -> None:
        """The call's work was done, which took the engine `worked` of the `in_engine` seconds in which it had the call; the rest
        of its time it waited, wherever.
        """
        self._worked, self._in_engine = worked, in_engine

    def leave(self) -> None:
        """Gives the place back; may be called without having one."""
        if self._lane is None:
            return
        lane, self._lane = self._lane, None
        now = self._overload.clock()
        if self._worked is not None or now >= self._urgency.deadline:
            lane.observe(self._urgency, now - self._since, self._worked, self._in_engine)
        lane.release(self._urgency.caller)


class Overload:
    """The lanes of a server, and how far its answers are degraded. `software_calls`: most calls at once that software decodes;
    `calls`: most calls at once of all, worked on or waiting; `engines`: how many work for them, on `devices`, each of which those
    that share it have `side_by_side`, or in turns. Several fronts have lanes each over the same engines: `shares` are this one's
    by lane, without any it has all places.

    A call `come`s when nothing but its metadata is known, and has its `place` once it was read.
    """

    def __init__(
        self,
        settings: OverloadSection | None = None,
        *,
        software_calls: int = 16,
        calls: int = 256,
        on_gpu: bool = False,
        devices: int = 1,
        engines: int = 1,
        side_by_side: bool = False,
        shares: Sequence[FrontShare] = (),
        clock: Callable[[], float] = time.monotonic,
        refused: RefusedIn = lambda lane, reason, priority: None,
    ) -> None:
        self.settings = settings = settings or OverloadSection()
        self.clock = clock
        most = settings.most_calls * devices
        if not on_gpu:
            usual = _LEAST
        elif engines <= devices:
            usual = _LEAST_ON_GPU
        else:
            usual = _LEAST_SIDE_BY_SIDE if side_by_side else _LEAST_IN_TURNS
        least = min((settings.least_calls or usual) * engines, most)
        in_software = max(1, min(software_calls, most))
        first = min(max(_FIRST * engines, least), most)
        # A room that is never full would leave refusing to the limit on all calls, which knows no priorities; a few of them are
        # neither worked on nor in the room, but on their way.
        waiting = min(settings.waiting, max(0, calls - first - calls // _ON_THEIR_WAY))
        limits = {
            LaneName.MAIN: (first, least, most, waiting),
            LaneName.SOFTWARE: (
                min(_FIRST_IN_SOFTWARE, in_software),
                min(_LEAST_IN_SOFTWARE, in_software),
                in_software,
                settings.software_waiting,
            ),
        }
        self.lanes = {
            name: Lane(
                name,
                ConcurrencyLimit(first=first, least=low, most=high, headroom=settings.headroom),
                waiting=waiting,
                least_room=_LEAST_ROOM,
                settle=settings.settle,
                steps=len(settings.steps),
                share=share,
                clock=clock,
                refused=lambda reason, priority, name=name: refused(name, reason, priority),  # type: ignore[misc]
            )
            for (name, (first, low, high, waiting)), share in zip(
                limits.items(), shares or itertools.repeat(None, len(limits)), strict=True
            )
        }
        self.steps = LoadSteps([step.load for step in settings.steps], settle=settings.settle, hold=settings.hold)
        self._qualities = (FULL, *(Quality(step.frames, frozenset(step.leave_out)) for step in settings.steps))
        self._refused = refused

    def come(self, urgency: Urgency, unread: int = 0) -> None:
        """A call comes, and `unread` others wait for memory to be read into. Raises as `Lane.come` does."""
        main = self.lanes[LaneName.MAIN]
        try:
            main.come(urgency, unread)
        finally:
            self.steps.update(self.clock(), main.load, main.capacity())

    def check(self, urgency: Urgency) -> None:
        """A call that came has waited for memory, and is about to be read. Raises as `Lane.check` does."""
        self.lanes[LaneName.MAIN].check(urgency)

    def too_many(self, priority: Priority, calls: int) -> Overloaded:
        """The error for a call that finds so many already that it cannot even wait."""
        main = self.lanes[LaneName.MAIN]
        main.overrun(priority)
        self.steps.update(self.clock(), main.load, main.capacity())
        self._refused(LaneName.MAIN, "calls", priority)
        message = f"{calls} calls are in flight, no more are taken"
        return Overloaded(message, facts={"refused": "calls"}, retry_after=main.retry_after())

    @asynccontextmanager
    async def place(self, urgency: Urgency) -> AsyncIterator[Place]:
        """A place in the main lane for as long as the block runs. Raises as `Lane.enter` does."""
        place = Place(self, urgency)
        try:
            await place.enter(LaneName.MAIN)
            place.quality = self.quality(urgency.priority)
            yield place
        finally:
            place.leave()

    def quality(self, priority: Priority) -> Quality:
        """How thoroughly calls are looked at now; interactive ones keep theirs one step longer."""
        return self._qualities[max(0, self.steps.step - (priority is Priority.INTERACTIVE))]

    def __repr__(self) -> str:
        lanes = ", ".join(repr(lane) for lane in self.lanes.values())
        return f"<Overload {lanes}, {self.steps!r}>"
