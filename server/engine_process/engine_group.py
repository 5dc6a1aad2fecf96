"""Several engines as one: each job goes where the least is to do."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from keyglance.errors import WorkerLost
from server.engine import EngineInfo, EngineJob, EngineResult
from server.engine_process.remote_engine import RemoteEngine
from server.engine_stats import EngineStats
from server.front_share import EngineLoads


class EngineGroup:
    """`Engine` over engine processes, `sharers` in a row on one device. One that has other models is not used.

    A job goes to the device with the fewest pictures in flight, and there to the engine with the fewest; those of all fronts
    count (`loads`; by default this one is alone). A lost engine gets no jobs; the group is healthy as long as one engine is.
    """

    def __init__(self, count: int, *, sharers: int = 1, loads: EngineLoads | None = None) -> None:
        self._loads = loads or EngineLoads.alone(count)
        self.engines: Sequence[RemoteEngine] = tuple(
            RemoteEngine(f"engine-{number}", refuses=self._refuses, loaded=functools.partial(self._loads.tell, number))
            for number in range(count)
        )
        self._sharers = sharers
        self._first: EngineInfo | None = None
        self._turn = 0

    def attach(self, number: int, sock: socket.socket) -> None:
        """Takes over a socket to the engine process of that number. Raises `IndexError` for a number that there is not."""
        self.engines[number].attach(sock)

    async def known(self) -> None:
        """Waits until one engine has said what it is: `info` works from then on."""
        await _first(engine.known.wait() for engine in self.engines)

    async def start(self) -> None:
        """Waits until one engine takes jobs; the others come when they are ready."""
        await _first(engine.start() for engine in self.engines)

    @property
    def healthy(self) -> bool:
        """Whether an engine takes jobs now."""
        return any(engine.healthy for engine in self.engines)

    @property
    def outdated(self) -> str:
        """Why no engine that is there can be used by this front, though a new front could; else empty.

        So it is when the engines were started again and found other models than those that this front knows.
        """
        if self.healthy:
            return ""
        return next((engine.refused for engine in self.engines if engine.refused), "")

    def info(self) -> EngineInfo:
        """What all engines are together; of those that have not yet said anything, only that they are to come is known."""
        by_number = {number: engine.info() for number, engine in enumerate(self.engines) if engine.known.is_set()}
        infos = tuple(by_number.values())
        if not infos or self._first is None:
            raise RuntimeError("no engine has said yet what it is")
        count = -(-len(self.engines) // self._sharers)
        if len(infos) == 1:
            return replace(infos[0], devices=count)
        names = ", ".join({number // self._sharers: info.device for number, info in by_number.items()}.values())
        decoders = tuple(decoders for info in infos for decoders in info.decoders)
        return EngineInfo(names, self._first.models, decoders, hardware=infos[0].hardware, devices=count)

    def stats(self) -> EngineStats:
        """Nothing: the engines' own processes tell it."""
        return EngineStats(healthy=self.healthy)

    async def run(self, job: EngineJob) -> EngineResult:
        """Has the job done by a healthy engine, where the least is to do."""
        engine = self._least_loaded()
        if engine is None:
            raise WorkerLost("no engine is there now, one is being started", retry_after=1.0)
        return await engine.run(job)

    def keep(self, root: int) -> None:
        """The trace of the call whose root span has this id is kept: whichever engine worked for it keeps its batches' spans."""
        for engine in self.engines:
            engine.keep(root)

    async def close(self) -> None:
        """Leaves all engines."""
        for engine in self.engines:
            await engine.close()

    def __repr__(self) -> str:
        return f"<EngineGroup {', '.join(repr(engine) for engine in self.engines)}>"

    def _least_loaded(self) -> RemoteEngine | None:
        count = len(self.engines)
        self._turn = (self._turn + 1) % count  # idle ones take turns
        loads = [self._loads.of(number) for number in range(count)]
        by_device = [sum(loads[begin : begin + self._sharers]) for begin in range(0, count, self._sharers)]
        order = [(self._turn + step) % count for step in range(count)]
        healthy = [number for number in order if self.engines[number].healthy]
        if not healthy:
            return None
        return self.engines[min(healthy, key=lambda one: (by_device[one // self._sharers], loads[one]))]

    def _refuses(self, info: EngineInfo) -> str | None:
        if self._first is None:
            self._first = info
        ours, theirs = ({model.name: model for model in which.models} for which in (self._first, info))
        if ours == theirs:
            return None
        other = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        return f"it has other models than this front was started with: {', '.join(other)}"


async def _first(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Returns when one of the awaitables does, and leaves nothing running."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
