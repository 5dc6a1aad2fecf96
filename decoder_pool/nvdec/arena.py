"""Memory for decoded pictures on the GPU, taken once at start: slots that are leased and given back.

Slots of one size class are pieces of one allocation, so nothing is allocated or freed while the service runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoder_pool.picture import Picture

_KEPT = 8  # pictures kept with a slot
_ALIGNMENT = 512  # bytes: what CUDA's own allocations are aligned to, so rows begin at the same places as in them


class Slot:
    """One leased piece of the arena, held by whoever has a reference; the last `release` gives it back.

    `memory` is a 1-D uint8 array (CuPy). Thread-safe.
    """

    def __init__(self, arena: FrameArena, number: int, size_class: int, memory: Any) -> None:
        self._arena = arena
        self._references = 0
        self._events: list[Any] = []
        self.number = number
        self.size_class = size_class
        self.memory = memory
        #: Bytes.
        self.size = size_class
        #: The CUDA event behind which what was copied into it is complete; None where it is. Set by whoever copied it.
        self.ready: Any = None
        #: For that, one for ever.
        self.event: Any = None
        #: By layout: the memory never moves, so that views of it hold for ever. Belongs to whoever has leased it.
        self.pictures: dict[object, Picture] = {}

    def keep(self, layout: object, picture: Picture) -> None:
        """Remembers a picture of its memory, one of a few."""
        if len(self.pictures) >= _KEPT:
            self.pictures.clear()
        self.pictures[layout] = picture

    def retain(self) -> None:
        """One more holder; RuntimeError where nobody holds it."""
        with self._arena.lock:
            if self._references < 1:
                raise RuntimeError(f"{self!r} was given back")
            self._references += 1

    def release(self, after: Any = None) -> None:
        """One holder less. `after` is a CUDA event behind the holder's last use; whoever gets the slot next waits for it
        on the GPU. Without it the holder's work must be done.
        """
        with self._arena.lock:
            if self._references < 1:
                raise RuntimeError(f"{self!r} was given back")
            if after is not None:
                self._events.append(after)
            self._references -= 1
            turn = None if self._references else self._arena._back(self)
        if turn is not None:
            _hand_soon(turn, self)

    def take_events(self) -> list[Any]:
        """The events that the next use of the memory has to wait for; they are told once."""
        ready, self.ready = self.ready, None  # nobody else holds the slot while these are asked for
        before = [] if ready is None else [ready]  # of a picture that nobody may have looked at
        if not self._events:
            return before
        with self._arena.lock:
            events, self._events = self._events, []
        return before + events

    def __repr__(self) -> str:
        return f"Slot({self.number} of {self.size_class} bytes, {self._references} holders)"


@dataclass(frozen=True, slots=True)
class ArenaSnapshot:
    """Slots by size class in bytes, and how often a lease had to wait."""

    slots: Mapping[int, int]
    free: Mapping[int, int]
    leases: int
    waits: int


class FrameArena:
    """`slots` says how many slots there are of which size in bytes; `empty` makes uint8 arrays (`cupy.empty`)."""

    def __init__(self, slots: Mapping[int, int], empty: Any) -> None:
        if not slots or any(size < 1 or count < 1 for size, count in slots.items()):
            raise ValueError(f"slots {dict(slots)}: sizes and counts of 1 or more are needed")
        self.lock = threading.Lock()
        self._free: dict[int, list[Slot]] = {}
        self._waiting: dict[int, deque[asyncio.Future[Slot]]] = {}
        self._counts: dict[int, int] = {}
        self._leases = self._waits = 0
        for wanted, count in sorted(slots.items()):
            size = -(-wanted // _ALIGNMENT) * _ALIGNMENT
            block = empty(size * count, "uint8")
            self._free[size] = [Slot(self, n, size, block[n * size : (n + 1) * size]) for n in reversed(range(count))]
            self._waiting[size] = deque()
            self._counts[size] = count
        #: Bytes of all slots, and of the largest one.
        self.size = sum(size * count for size, count in self._counts.items())
        self.largest = max(self._counts)

    async def lease(self, size: int) -> Slot:
        """A slot of at least `size` bytes, as soon as one of the smallest class that fits is free; first come, first served.

        ValueError where none is large enough.
        """
        fitting = self._fitting(size)
        with self.lock:
            if (slot := self._pop(fitting)) is not None:
                return slot
            self._leases += 1
            self._waits += 1
            turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
            self._waiting[fitting].append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            with self.lock:
                if turn in self._waiting[fitting]:
                    self._waiting[fitting].remove(turn)
            if turn.done() and not turn.cancelled():
                turn.result().release()
            raise

    def try_lease(self, size: int) -> Slot | None:
        """As `lease`, from any thread and at once; None where none is free, or somebody waits for the next one."""
        fitting = self._fitting(size)
        with self.lock:
            return self._pop(fitting)

    def snapshot(self) -> ArenaSnapshot:
        """The state at this moment."""
        with self.lock:
            free = {size: len(slots) for size, slots in self._free.items()}
            return ArenaSnapshot(dict(self._counts), free, self._leases, self._waits)

    def __repr__(self) -> str:
        now = self.snapshot()
        shown = ", ".join(f"{now.free[size]} of {count} of {size} bytes free" for size, count in now.slots.items())
        return f"FrameArena({shown})"

    def _fitting(self, size: int) -> int:
        for fitting in self._free:  # ascending
            if fitting >= size:
                return fitting
        raise ValueError(f"a picture of {size} bytes, the largest slot has {self.largest}")

    def _pop(self, fitting: int) -> Slot | None:
        """With the lock held."""
        if not self._free[fitting] or self._waiting[fitting]:
            return None
        self._leases += 1
        slot = self._free[fitting].pop()
        slot._references = 1
        return slot

    def _back(self, slot: Slot) -> asyncio.Future[Slot] | None:
        """With the lock held; whose turn it is, who holds the slot from now on, if anybody waits."""
        waiting = self._waiting[slot.size_class]
        if not waiting:
            self._free[slot.size_class].append(slot)
            return None
        slot._references = 1
        return waiting.popleft()


def _hand_soon(turn: asyncio.Future[Slot], slot: Slot) -> None:
    try:
        turn.get_loop().call_soon_threadsafe(_hand, turn, slot)
    except RuntimeError:  # its event loop is closed: nobody waits there any more
        slot.release()


def _hand(turn: asyncio.Future[Slot], slot: Slot) -> None:
    if turn.done():
        slot.release()
    else:
        turn.set_result(slot)
