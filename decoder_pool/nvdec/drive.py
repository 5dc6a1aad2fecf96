"""Many decode units on one hardware decoder in one go, on the decoder's thread: no event loop on the way of a usual picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from decoder_pool.decoder import Decoded, DecodeUnit
from decoder_pool.nvdec.arena import FrameArena, Slot
from decoder_pool.nvdec.run import Found, HardwareRun, Leftovers, Room
from decoder_pool.nvdec.surface import Surface
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges


class HardwareDrive:
    """Runs units that `take` gives until it gives None, or until `stop`; after that neither `take` nor `deliver` is called.

    `run` makes the run of a unit, `likely` says which surface its pictures will probably have. `advance` and what it calls
    belong to the decoder's thread, all else to the event loop.
    """

    def __init__(
        self,
        take: Callable[[], DecodeUnit | None],
        deliver: Callable[[Decoded], None],
        *,
        run: Callable[[DecodeUnit], HardwareRun],
        likely: Callable[[], Surface | None],
        arena: FrameArena,
        ranges: ProfilerRanges = no_ranges,
    ) -> None:
        self._ranges = ranges
        self._take = take
        self._deliver = deliver
        self._make = run
        self._likely = likely
        self._arena = arena
        self._lock = threading.Lock()  # between a `stop` and the thread's next `take` or `deliver`
        self._stopped = False
        self._run: HardwareRun | None = None  # of the unit in hand
        self._missing: set[int] = set()  # of the unit in hand
        self._over: Leftovers | None = None  # of the unit before, until somebody has them in hand
        self._slot: Slot | None = None
        #: What `take` or `deliver` raised: it is their fault, not the decoder's.
        self.failure: BaseException | None = None
        #: When the thread last showed a sign of life, on `time.monotonic`.
        self.progress = time.monotonic()

    def advance(self) -> Room | Leftovers | None:
        """Goes on until there are no more units, a slot is to be waited for, or a unit leaves something over.

        Whatever the library raises comes through.
        """
        self.progress = time.monotonic()
        try:
            while not self._stopped and (run := self._run or self._next()) is not None:
                with self._ranges("decode"):
                    told = self._advance(run)
                if told is not None:
                    return told
        except BaseException:
            self.give_back()
            raise
        self.give_back()
        return None

    def give(self, slot: Slot) -> None:
        """The slot that was waited for; the next `advance` goes on with it."""
        self._slot = slot

    def give_back(self) -> None:
        """Releases the slot that no picture is in; not while `advance` runs."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def stop(self) -> None:
        """Ends `advance` before its next packet."""
        with self._lock:
            self._stopped = True
            if self._run is not None:
                self._run.stop()

    def let_go(self) -> None:
        """The leftovers that `advance` gave are in other hands."""
        self._over = None

    def in_hand(self, why: str) -> Leftovers | None:
        """After `stop`, of a decoder that broke: what nobody got of the unit in hand."""
        if self._run is not None and self._missing:
            return self._run.leftovers(self._missing, why)
        return self._over

    def _next(self) -> HardwareRun | None:
        with self._lock:
            if self._stopped:
                return None
            try:
                unit = self._take()
            except BaseException as error:
                self.failure, self._stopped = error, True
                return None
            if unit is not None:
                self._run, self._missing = self._make(unit), set(unit.wanted)
            return self._run

    def _advance(self, run: HardwareRun) -> Room | Leftovers | None:
        """The unit in hand, to its end or to where a slot is lacking."""
        while not run.done:
            if self._slot is None and (surface := self._likely()) is not None and surface.size <= self._arena.largest:
                self._slot = self._arena.try_lease(surface.size)
            step = run.advance(self._slot)
            self.progress = time.monotonic()
            if isinstance(step, Room):
                self.give_back()
                if (slot := self._arena.try_lease(step.size)) is None:
                    return step
                self._slot = slot
            elif isinstance(step, Found):
                slot, self._slot = self._slot, None
                assert slot is not None
                if not self._hand_over(step.decoded(slot), slot):
                    return None
            else:
                break
        with self._lock:
            if self._stopped:
                return None
            self._run = None
            if self._missing:
                self._over = run.leftovers(self._missing)
        return self._over

    def _hand_over(self, decoded: Decoded, slot: Slot) -> bool:
        with self._lock:
            if not self._stopped:
                try:
                    self._deliver(decoded)
                except BaseException as error:
                    self.failure, self._stopped = error, True
                else:
                    self._missing.discard(decoded.sample)
                    return True
        slot.release()
        return False
