"""Which calls may begin: none before warm-up is over, at most so many at once, and none once the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from keyglance.errors import Draining, KeyglanceError
from server.call import Call
from server.overload import Overload


class Admission:
    """The calls in flight, `limit` at most. Calls that come before `open` wait for it within their own deadline.

    Which of them are worked on is `overload`'s to decide.
    """

    def __init__(self, limit: int, overload: Overload | None = None) -> None:
        self.limit = limit
        self.overload = overload or Overload()
        self._calls: set[Call] = set()
        self._opened = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Calls that are being answered or wait."""
        return len(self._calls)

    @asynccontextmanager
    async def admit(self, call: Call) -> AsyncIterator[None]:
        """Counts the call for as long as the block runs. Raises `Draining` or `Overloaded`."""
        self._refuse_if_draining()
        if len(self._calls) >= self.limit:
            raise self.overload.too_many(call.urgency.priority, len(self._calls))
        self._calls.add(call)
        self._idle.clear()
        try:
            if not self._opened.is_set():
                await self._opened.wait()
                self._refuse_if_draining()
            yield
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def open(self) -> None:
        """Lets calls in."""
        self._opened.set()

    def drain(self) -> None:
        """Lets no new calls in, for ever."""
        self._draining = True
        self._opened.set()

    async def idle(self) -> None:
        """Waits until no call is in flight."""
        await self._idle.wait()

    def cut_short(self, error: KeyglanceError) -> int:
        """Ends all calls in flight with `error`; returns how many there were."""
        for call in self._calls:
            call.cut_short(error)
        return len(self._calls)

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Draining("the server is shutting down and takes no new calls")

    def __repr__(self) -> str:
        state = "draining" if self._draining else "open" if self._opened.is_set() else "not open yet"
        return f"<Admission {state}, {len(self._calls)} of {self.limit} calls, {self.overload!r}>"
