"""Work on threads that is done one after the other, as long as none of it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


class Turns:
    """For short work of the interpreter, which threads cannot do at the same time anyway: where several try, each step of NumPy
    hands the interpreter's lock to another of them, and a call that takes 2 ms of a processor takes 4.

    Whoever has waited for `patience` seconds goes on without a turn, so that something long holds up nobody for longer.
    """

    def __init__(self, patience: float = 0.05) -> None:
        self._patience = patience
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[..., R], *arguments: object) -> R:
        """What `work` gives, on a thread. If the caller is cancelled the work goes on, and its turn ends with it."""
        mine = await self._have()
        working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        if mine:
            working.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(_seen)
            raise

    async def _have(self) -> bool:
        """Whether the turn came before patience ended."""
        try:
            async with asyncio.timeout(self._patience) as patience:
                await self._turn.acquire()
        except TimeoutError:
            if not patience.expired():
                raise
            return False
        return True

    def __repr__(self) -> str:
        return f"<Turns, {'one works' if self._turn.locked() else 'idle'}>"


def _seen(working: asyncio.Task[R]) -> None:
    """Nobody is there any more for its error."""
    if not working.cancelled():
        working.exception()
