"""The decoder pool: lasting decoders, lent to one call at a time.

Its mutable state is two lists, the decoders and the callers that wait, changed only in `_assign`, `_return` and their like
under one lock; `decoder_pool.assignment.assign` decides, and everything that takes time happens outside the lock. All
coroutines belong to one event loop; `snapshot` and `repr` may be called from any thread (metrics are).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from decoder_pool.assignment import Creation, DecoderState, Outcome, Waiting, assign
from decoder_pool.decoder import Decoder, DecoderBroken, DecoderFactory
from decoder_pool.key import DecoderKey
from keyglance.errors import DeadlineExceeded, Draining, UnsupportedCodec, WorkerLost
from keyglance.video import StreamConfig

#: How many decoders may break under one call's `configure` before the call fails.
_ATTEMPTS = 3
_LEAST_REST = 0.05


def by_urgency(caller: Waiting) -> tuple[int, float, int]:
    """The earliest deadline first within a priority; first come, first served among equals."""
    return caller.priority, caller.deadline, caller.number


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """What has happened since the pool was made. `created` and `evicted` leave out what `start` made."""

    reused: int = 0
    reconfigured: int = 0
    rekeyed: int = 0
    created: int = 0
    evicted: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class DecoderSnapshot:
    """One decoder; `leases` counts those that it has served."""

    number: int
    key: DecoderKey
    state: DecoderState
    leases: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The pool at one moment."""

    kind: str
    limit: int
    decoders: tuple[DecoderSnapshot, ...]
    waiting: int
    draining: bool
    counters: PoolCounters

    def count(self, state: DecoderState) -> int:
        """How many decoders are in that state."""
        return sum(decoder.state is state for decoder in self.decoders)


@dataclass(slots=True, eq=False)
class _Member:
    number: int
    decoder: Decoder
    key: DecoderKey
    state: DecoderState
    configured: StreamConfig | None = None
    used: float = 0.0
    leases: int = 0
    fresh: bool = False  # made because a caller waited, and not lent yet


@dataclass(slots=True, eq=False)
class _Caller:
    waiting: Waiting
    granted: asyncio.Future[list[tuple[_Member, Outcome]]]


@dataclass(slots=True)
class _Todo:
    """What an assignment leaves to be done outside the lock."""

    grants: list[tuple[_Caller, list[tuple[_Member, Outcome]]]] = field(default_factory=list)
    creations: list[tuple[_Member, _Member | None]] = field(default_factory=list)


class Lease:
    """A configured decoder, lent until `release` (or the end of an `async with`).

    `outcome` tells how it was had, `created` whether one had to be made on this call's way, `waited` the seconds from the
    call of `DecoderPool.lease` until the decoder was ready.
    """

    def __init__(self, pool: DecoderPool, member: _Member, outcome: Outcome, waited: float) -> None:
        self._pool = pool
        self._member: _Member | None = member
        self.outcome = outcome
        self.waited = waited

    @property
    def decoder(self) -> Decoder:
        """The decoder; RuntimeError after `release`."""
        if self._member is None:
            raise RuntimeError("the lease was released: its decoder may belong to another call")
        return self._member.decoder

    @property
    def created(self) -> bool:
        """Whether a decoder was made on the way of this call."""
        return self.outcome is Outcome.CREATED

    def release(self, *, broken: bool = False) -> None:
        """Gives the decoder back; a `broken` or unsettled one is settled or closed in the background. May be called twice."""
        member, self._member = self._member, None
        if member is not None:
            self._pool._return(member, broken=broken)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release(broken=isinstance(error, DecoderBroken))

    def __repr__(self) -> str:
        return f"Lease({self._member.decoder!r}, {self.outcome})" if self._member else "Lease(released)"


class DecoderPool:
    """Lends decoders of one kind. At most `limit` exist at any moment, at least `warm` by key once `start` has returned.

    Waiting callers are served `by_urgency`. `clock` is the clock of all deadlines, in seconds. `rest`: seconds that a decoder
    has been idle for before one of another key may take its place, unless that key has none.
    """

    def __init__(
        self,
        *,
        factory: DecoderFactory,
        limit: int,
        size_classes: tuple[int, ...],
        warm: Mapping[DecoderKey, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rest: float = 5.0,
    ) -> None:
        self.factory = factory
        self.limit = limit
        self.size_classes = tuple(sorted(size_classes))
        self._warm = dict(warm or {})
        if limit < 1:
            raise ValueError(f"limit of decoders is {limit}, at least 1 needed")
        if (least := sum(self._warm.values())) > limit:
            raise ValueError(f"{least} decoders are to be warm, more than the limit of {limit}")
        self._clock = clock
        self._rest = rest
        self._lock = threading.Lock()
        self._members: list[_Member] = []
        self._callers: list[_Caller] = []
        self._counts: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()  # nothing lent, nobody waits
        self._quiet.set()
        self._draining = False
        self._closed = False
        self._settled = False  # whether the warm minimum was there, and no decoder has left since
        self._later: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Makes the warm minimum; when one decoder cannot be started, closes all and raises what it raised."""
        members = [self._new(key) for key, least in self._warm.items() for _ in range(least)]
        with self._lock:
            self._members.extend(members)
        try:
            async with asyncio.TaskGroup() as group:
                for member in members:
                    group.create_task(member.decoder.start())
        except BaseException as error:
            await self.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        with self._lock:
            for member in members:
                member.state = DecoderState.IDLE
        self._assign()

    async def lease(self, config: StreamConfig, *, deadline: float, most: int = 1, priority: int = 0) -> list[Lease]:
        """Decoders set to `config`: at least one, up to `most` where they are idle and nobody else waits for one.

        `deadline` is on the pool's clock; the lowest `priority` is served first. Raises UnsupportedCodec, DeadlineExceeded,
        Draining, or WorkerLost where decoders cannot be started or break at once. A cancelled or late caller leaves nothing
        behind.
        """
        if self._draining:
            raise Draining("the decoder pool is shutting down")
        if reason := self.factory.refuses(config):
            raise UnsupportedCodec(reason)
        asked = self._clock()
        key = DecoderKey.of(config, self.size_classes)
        for _ in range(_ATTEMPTS):
            granted = await self._wait(Waiting(next(self._numbers), key, config, deadline, max(1, most), priority))
            ready = await self._configure(granted, config, deadline)
            if ready:
                waited = self._clock() - asked
                return [Lease(self, member, outcome, waited) for member, outcome in ready]
        raise WorkerLost(f"{_ATTEMPTS} decoders broke one after the other when they were set to {config.codec}")

    async def drain(self) -> None:
        """Takes no new callers and waits until those that were there have got and returned their decoders."""
        self._draining = True
        await self._quiet.wait()

    async def close(self) -> None:
        """Closes every decoder, also lent ones, in the middle of their work; callers that wait get Draining."""
        self._draining = self._closed = True
        if self._later is not None:
            self._later.cancel()
        with self._lock:
            callers, self._callers[:] = list(self._callers), []
            members = list(self._members)
            for member in members:
                member.state = DecoderState.CLOSING
        for caller in callers:
            if not caller.granted.done():
                caller.granted.set_exception(Draining("the decoder pool was closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(member.decoder.close() for member in members), return_exceptions=True)
        with self._lock:
            self._members.clear()
        self._quiet.set()

    def snapshot(self) -> PoolSnapshot:
        """The state at this moment."""
        with self._lock:
            decoders = tuple(DecoderSnapshot(m.number, m.key, m.state, m.leases) for m in self._members)
            waiting = sum(not caller.granted.done() for caller in self._callers)
            counters = PoolCounters(**self._counts)
        return PoolSnapshot(self.factory.kind, self.limit, decoders, waiting, self._draining, counters)

    def __repr__(self) -> str:
        now = self.snapshot()
        states = Counter(str(decoder.state) for decoder in now.decoders)
        shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
        end = "; draining" if now.draining else ""
        return f"DecoderPool({now.kind}, {len(now.decoders)} of {now.limit} decoders: {shown}; {now.waiting} waiting{end})"

    def _new(self, key: DecoderKey, *, fresh: bool = False) -> _Member:
        decoder = self.factory.make(key)
        return _Member(next(self._numbers), decoder, key, DecoderState.STARTING, used=self._clock(), fresh=fresh)

    async def _wait(self, waiting: Waiting) -> list[tuple[_Member, Outcome]]:
        patience = waiting.deadline - self._clock()
        if patience <= 0:
            raise DeadlineExceeded("the deadline passed before a decoder was asked for")
        caller = _Caller(waiting, asyncio.get_running_loop().create_future())
        with self._lock:
            self._callers.append(caller)
        self._assign()
        if caller.granted.done():  # as usual, and a timer would cost as much as the lease
            return caller.granted.result()
        try:
            async with asyncio.timeout(patience):
                return await caller.granted
        except BaseException as error:
            self._forget(caller)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"no {self.factory.kind} decoder became free before the deadline") from None
            raise

    def _forget(self, caller: _Caller) -> None:
        """After a cancelled or timed-out wait: takes the entry out, gives back what was granted in that very moment."""
        with self._lock:
            if caller in self._callers:
                self._callers.remove(caller)
        granted = caller.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            for member, _ in granted.result():
                self._return(member)
        else:
            granted.cancel()
            self._assign()

    async def _configure(
        self, granted: list[tuple[_Member, Outcome]], config: StreamConfig, deadline: float
    ) -> list[tuple[_Member, Outcome]]:
        """Configures all at once; gives those that did not break, and gives all back where the caller is gone."""
        others = [member for member, _ in granted if not _is_set_to(member, config)]
        if not others:
            return granted
        broken: list[_Member] = []

        async def configure(member: _Member) -> None:
            try:
                await member.decoder.configure(config)
                member.configured = config
            except DecoderBroken:
                broken.append(member)

        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())), asyncio.TaskGroup() as group:
                for member in others:
                    group.create_task(configure(member))
        except BaseException as error:
            for member, _ in granted:
                self._return(member, broken=member in broken)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded("the deadline passed while the decoder was configured") from None
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for member in broken:
            self._return(member, broken=True)
        return [(member, outcome) for member, outcome in granted if member not in broken]

    def _return(self, member: _Member, *, broken: bool = False) -> None:
        with self._lock:
            if member.state is not DecoderState.LEASED:  # the pool was closed meanwhile
                return
            member.used = self._clock()
            member.leases += 1
            if broken:
                self._give_up(member)
            else:
                member.state = DecoderState.IDLE if member.decoder.settled else DecoderState.SETTLING
            state = member.state
            if state is DecoderState.IDLE and self._settled and not self._callers:  # the usual return: nothing to decide
                if not any(other.state is DecoderState.LEASED for other in self._members):
                    self._quiet.set()
                return
        if state is DecoderState.CLOSING:
            self._spawn(self._retire(member))
        elif state is DecoderState.SETTLING:
            self._spawn(self._settle(member))
        self._assign()

    def _assign(self, *, restore: bool = True) -> None:
        """Carries out what `assign` decides for the state as it is now."""
        with self._lock:
            todo = _Todo() if self._closed else self._plan(restore)
            if not self._callers and not any(m.state is DecoderState.LEASED for m in self._members):
                self._quiet.set()
            else:
                self._quiet.clear()
        for caller, members in todo.grants:
            caller.granted.set_result(members)
        for member, evicted in todo.creations:
            self._spawn(self._create(member, evicted))

    def _look_again(self) -> None:
        self._later = None
        self._assign()

    def _plan(self, restore: bool) -> _Todo:
        self._callers[:] = [caller for caller in self._callers if not caller.granted.done()]
        callers = {caller.waiting.number: caller for caller in self._callers}
        members = {member.number: member for member in self._members}
        plan = assign(
            sorted((caller.waiting for caller in self._callers), key=by_urgency),
            self._members,
            limit=self.limit,
            warm=self._warm,
            rekeyable=self.factory.rekeyable,
            restore=restore and not self._settled,
            now=self._clock(),
            rest=self._rest,
        )
        todo = _Todo()
        granted: dict[int, list[tuple[_Member, Outcome]]] = {}
        for grant in plan.grants:
            member, caller = members[grant.decoder], callers[grant.waiting]
            outcome = Outcome.CREATED if member.fresh else grant.outcome
            member.state, member.key, member.fresh = DecoderState.LEASED, caller.waiting.key, False
            if outcome is not Outcome.CREATED:  # counted when it was made
                self._counts[outcome.value] += 1
            granted.setdefault(grant.waiting, []).append((member, outcome))
        todo.grants = [(callers[number], given) for number, given in granted.items()]
        self._callers[:] = [caller for caller in self._callers if caller.waiting.number not in granted]
        todo.creations = [self._admit(creation, members) for creation in plan.creations]
        self._settled = (self._settled and not todo.creations) or (restore and self._is_warm())
        if not self._settled and self._later is None:  # what is in the way may have rested by then
            self._later = asyncio.get_running_loop().call_later(max(self._rest, _LEAST_REST), self._look_again)
        return todo

    def _is_warm(self) -> bool:
        alive = Counter(member.key for member in self._members if member.state is not DecoderState.CLOSING)
        if self.factory.rekeyable:
            return alive.total() >= sum(self._warm.values())
        return all(alive[key] >= least for key, least in self._warm.items())

    def _admit(self, creation: Creation, members: Mapping[int, _Member]) -> tuple[_Member, _Member | None]:
        evicted = None if creation.evict is None else members[creation.evict]
        if evicted is not None:
            evicted.state = DecoderState.CLOSING
            self._members.remove(evicted)  # its successor stands for it: the successor starts when it is closed
            self._counts["evicted"] += 1
        member = self._new(creation.key, fresh=creation.on_the_way)
        self._members.append(member)
        self._counts["created"] += 1
        return member, evicted

    async def _create(self, member: _Member, evicted: _Member | None) -> None:
        try:
            if evicted is not None:
                await evicted.decoder.close()
            await member.decoder.start()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail_one(member, error)
            await self._retire(member, restore=False)
            return
        with self._lock:
            if member.state is DecoderState.STARTING:
                member.state = DecoderState.IDLE
        self._assign()

    def _fail_one(self, member: _Member, error: Exception) -> None:
        """A decoder that cannot be started fails the first caller that counted on it, so that a broken host fails all, soon."""
        with self._lock:
            self._give_up(member)
            waiting = [c for c in self._callers if not c.granted.done()]
            usable = [c for c in waiting if self.factory.rekeyable or c.waiting.key == member.key]
            first = min(usable, key=lambda caller: by_urgency(caller.waiting), default=None)
            if first is not None:
                self._callers.remove(first)
        if first is not None:
            first.granted.set_exception(WorkerLost(f"no {self.factory.kind} decoder could be started: {error}"))

    async def _settle(self, member: _Member) -> None:
        try:
            await member.decoder.settle()
        except asyncio.CancelledError:
            raise
        except Exception:
            with self._lock:
                self._give_up(member)
            await self._retire(member)
            return
        with self._lock:
            if member.state is DecoderState.SETTLING:
                member.state = DecoderState.IDLE
        self._assign()

    def _give_up(self, member: _Member) -> None:
        """With the lock held: it is broken, and one less is there."""
        member.state = DecoderState.CLOSING
        self._counts["broken"] += 1
        self._settled = False

    async def _retire(self, member: _Member, *, restore: bool = True) -> None:
        await member.decoder.close()
        with self._lock:
            if member in self._members:
                self._members.remove(member)
        self._assign(restore=restore)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_set_to(member: _Member, config: StreamConfig) -> bool:
    """Whether it is ready for the stream as it is, by its own word and by what the pool knows."""
    return member.decoder.configured == config and member.configured == config and member.decoder.settled
