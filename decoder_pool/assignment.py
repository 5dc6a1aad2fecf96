"""Who gets which decoder: one pure function from (waiting callers, decoders) to what is to be done.

The pool calls `assign` after every change. It is all of the pool's policy; `decoder_pool.pool` only carries it out.
"""

from __future__ import annotations

import enum
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from decoder_pool.key import DecoderKey
from keyglance.video import StreamConfig


class DecoderState(enum.StrEnum):
    """Where a decoder is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    LEASED = "leased"
    SETTLING = "settling"  # back from a lease that was cancelled in the middle of a unit, idle again in a moment
    CLOSING = "closing"


class Outcome(enum.StrEnum):
    """How a lease got its decoder, from the cheapest to the dearest."""

    REUSED = "reused"  # it was set to this very stream configuration
    RECONFIGURED = "reconfigured"  # it was made for this key
    REKEYED = "rekeyed"  # it was made for another key and can change it
    CREATED = "created"  # it was made because this call, or one beside it, waited


class DecoderView(Protocol):
    """A decoder as `assign` sees it, which changes nothing of it and does not keep it.

    It is the pool's own record: a copy of each for every decision would cost more than the decision.
    """

    @property
    def number(self) -> int:
        """What it is called in grants."""
        ...

    @property
    def key(self) -> DecoderKey:
        """What it is made for."""
        ...

    @property
    def state(self) -> DecoderState:
        """Where it is in its life."""
        ...

    @property
    def configured(self) -> StreamConfig | None:
        """What it was last set to."""
        ...

    @property
    def used(self) -> float:
        """The time of its last return, on any monotonic clock."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A caller that has no decoder yet. `number` grows with arrival; `most` is how many decoders it has use for, 1 or more.

    The lowest `priority` goes first.
    """

    number: int
    key: DecoderKey
    config: StreamConfig
    deadline: float
    most: int = 1
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The idle decoder goes to the caller, by their numbers."""

    waiting: int
    decoder: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Creation:
    """A decoder to be made, once the idle decoder `evict` (its number, if any) is closed.

    `on_the_way` tells whether a caller waits for it; otherwise it restores the warm minimum or is growth for later calls.
    """

    key: DecoderKey
    evict: int | None = None
    on_the_way: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be done now."""

    grants: tuple[Grant, ...] = ()
    creations: tuple[Creation, ...] = ()


def assign(
    waiting: Sequence[Waiting],
    decoders: Sequence[DecoderView],
    *,
    limit: int,
    warm: Mapping[DecoderKey, int] | None = None,
    rekeyable: bool = False,
    restore: bool = True,
    now: float = math.inf,
    rest: float = 0.0,
) -> Assignment:
    """Decides for `waiting`, in the order in which they are to be served, over all `decoders` of one pool.

    Each caller gets, in this order: an idle decoder with the same configuration; an idle one of the same key; where
    decoders are `rekeyable`, any idle one; else one that is already starting; else a new one below `limit`; else a new one
    in place of an idle one of another key (above its warm minimum if there is such, then the least recently used); else it
    waits. Where decoders of the caller's key exist, only one above its warm minimum that has been idle for `rest` seconds (on
    the clock of `now`) makes way: a busy decoder is free sooner than another one is made, and two keys under load would evict
    each other's for ever.

    Only when nobody is left to wait without a decoder to come, the rest of the idle ones goes to callers that have use for
    more than one, the warm minimum is restored (unless `restore` is false), and the pool grows for callers that got fewer
    than they have use for. Evicted decoders are always idle; decoders never outnumber `limit`.
    """
    desk = _Desk(decoders, limit, dict(warm or {}), rekeyable, now - rest)
    served: list[Waiting] = []
    stuck = False
    for caller in waiting:
        if desk.grant(caller):
            served.append(caller)
        elif not desk.claim(caller.key) and not desk.create(caller.key, on_the_way=True):
            stuck = True
    if not stuck:
        lacking = [caller for caller in served if not desk.spread(caller)]
        if restore:
            desk.restore()
        for caller in lacking:
            desk.grow(caller)
    return Assignment(tuple(desk.grants), tuple(desk.creations))


class _Desk:
    """The books of one assignment: what is still idle, coming and free while callers are served one after the other."""

    def __init__(
        self, decoders: Sequence[DecoderView], limit: int, warm: dict[DecoderKey, int], rekeyable: bool, rested: float
    ) -> None:
        self.grants: list[Grant] = []
        self.creations: list[Creation] = []
        self._decoders = decoders
        self._idle = [d for d in decoders if d.state is DecoderState.IDLE]
        self._room = limit - len(decoders)
        self._warm = warm
        self._rekeyable = rekeyable
        self._rested = rested  # idle since then, or longer
        self._granted: Counter[int] = Counter()

    @functools.cached_property
    def _coming(self) -> Counter[DecoderKey]:
        """That are about to be idle. Most assignments end before anybody asks."""
        return Counter(d.key for d in self._decoders if d.state in (DecoderState.STARTING, DecoderState.SETTLING))

    @functools.cached_property
    def _alive(self) -> Counter[DecoderKey]:
        """That live, or will. Most assignments end before anybody asks."""
        return Counter(d.key for d in self._decoders if d.state is not DecoderState.CLOSING)

    def grant(self, caller: Waiting) -> bool:
        if (found := self._choose(caller)) is None:
            return False
        decoder, outcome = found
        self._idle.remove(decoder)
        if decoder.key != caller.key:
            self._alive[decoder.key] -= 1
            self._alive[caller.key] += 1
        self._granted[caller.number] += 1
        self.grants.append(Grant(caller.number, decoder.number, outcome))
        return True

    def claim(self, key: DecoderKey) -> bool:
        """Counts on a decoder that is coming and that nobody before has counted on."""
        mine = key if self._coming[key] > 0 or not self._rekeyable else next((k for k, n in self._coming.items() if n > 0), key)
        if self._coming[mine] <= 0:
            return False
        self._coming[mine] -= 1
        return True

    def create(self, key: DecoderKey, *, on_the_way: bool) -> bool:
        evicted = None
        if self._room > 0:
            self._room -= 1
        elif self._idle:
            evicted = min(self._idle, key=self._dispensable)
            # With decoders that can be re-keyed one in place of another is no gain: the warm minimum counts them all alike.
            if not on_the_way and self._rekeyable:
                return False
            needless = not on_the_way or self._alive[key] > 0
            if needless and (not self._surplus(evicted.key) or evicted.used > self._rested):
                return False
            self._idle.remove(evicted)
            self._alive[evicted.key] -= 1
        else:
            return False
        self._alive[key] += 1
        self.creations.append(Creation(key, evicted.number if evicted else None, on_the_way))
        return True

    def spread(self, caller: Waiting) -> bool:
        """Gives further idle decoders to a caller that has one. Returns whether it has as many as it has use for."""
        while self._granted[caller.number] < caller.most:
            if not self.grant(caller):
                return False
        return True

    def restore(self) -> None:
        for key, least in self._warm.items():
            while self._lacks(key, least) and self.create(key, on_the_way=False):
                pass

    def grow(self, caller: Waiting) -> None:
        if self._room <= 0:
            return
        wanted = caller.most - self._granted[caller.number] - self._coming[caller.key]
        for _ in range(min(wanted, self._room)):
            self.create(caller.key, on_the_way=False)

    def _choose(self, caller: Waiting) -> tuple[DecoderView, Outcome] | None:
        same_key = [d for d in self._idle if d.key == caller.key]
        for decoder in same_key:
            if decoder.configured == caller.config:
                return decoder, Outcome.REUSED
        if same_key:
            return min(same_key, key=lambda d: d.used), Outcome.RECONFIGURED
        if self._rekeyable and self._idle:
            return min(self._idle, key=self._dispensable), Outcome.REKEYED
        return None

    def _lacks(self, key: DecoderKey, least: int) -> bool:
        if self._rekeyable:  # any decoder serves any key, so only their number counts
            return self._alive.total() < sum(self._warm.values())
        return self._alive[key] < least

    def _surplus(self, key: DecoderKey) -> bool:
        return self._alive[key] > self._warm.get(key, 0)

    def _dispensable(self, decoder: DecoderView) -> tuple[bool, float]:
        return not self._surplus(decoder.key), decoder.used
