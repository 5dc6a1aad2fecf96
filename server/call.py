"""What is known of the call that is being answered, for everything that runs in its task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from keyglance.errors import KeyglanceError
from server.deadline import Deadline
from server.overload import Place
from server.steps import Steps
from server.urgency import Urgency

_CURRENT: ContextVar[Call] = ContextVar("keyglance_call")


@dataclass(slots=True, eq=False)
class Call:
    """One call: who asked, until when, and what its trace, its steps and its access line have to say.

    `facts` go into the access line (`request_id`, `verdict`, …); the servicer adds to them. `place` is where it is worked on, for
    methods that need one.
    """

    method: str
    peer: str
    deadline: Deadline
    trace_id: str
    steps: Steps
    request_bytes: int = 0
    response_bytes: int = 0
    facts: dict[str, str | int | float] = field(default_factory=dict)
    timeout: asyncio.Timeout | None = None
    cut: KeyglanceError | None = None
    urgency: Urgency = field(default_factory=Urgency)
    place: Place | None = None

    def cut_short(self, error: KeyglanceError) -> None:
        """Cancels the call's work now; its caller gets `error`."""
        if self.cut is None and self.timeout is not None and not self.timeout.expired():
            self.cut = error
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def enter(self) -> None:
        """Makes it the current call of the running task and of those that it starts."""
        _CURRENT.set(self)


def current_call() -> Call:
    """The call that the running task works for. Raises `LookupError` outside of one."""
    return _CURRENT.get()
