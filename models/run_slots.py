"""Run slots: the threads that infer, shared fairly by the queues of all models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """The work that a queue would run next: since when it waits, and from when it may run, on `time.monotonic()`'s clock."""

    since: float
    ready_at: float


class WorkQueue(Protocol):
    """A queue that is served by run slots. Called on the event loop's thread, must not block."""

    def head(self, now: float) -> Head | None:
        """The work that would run next, None where there is none."""
        ...

    def take(self, now: float) -> Coroutine[Any, Any, None] | None:
        """Takes that work out of the queue and gives what runs it through `RunSlots.call`; None if it came to nothing."""
        ...


class RunSlots:
    """At most `threads` pieces of work at a time, each on a thread of this object's own.

    Work leaves its queue only when a slot is free, so a batch goes on filling while it waits for one. Of all queues
    the one whose head has waited longest is served first. With `threads` of 1 everything that passes through `call`
    (loading, warming, running) happens on one and the same thread. To be used from one event loop.
    """

    def __init__(self, threads: int = 1, *, name: str = "infer") -> None:
        if threads < 1:
            raise ValueError(f"{threads} run slots: at least 1 is needed")
        self.threads = threads
        self.name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queues: list[WorkQueue] = []
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def busy(self) -> int:
        """Slots at work."""
        return len(self._running)

    def attach(self, queue: WorkQueue) -> None:
        """Serves `queue` from now on."""
        self._queues.append(queue)

    def detach(self, queue: WorkQueue) -> None:
        """Serves `queue` no longer; what runs of it runs to its end."""
        if queue in self._queues:
            self._queues.remove(queue)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking function on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def poll(self) -> None:
        """Gives free slots to the queues that have work. To be called whenever a queue's head has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        while self.busy < self.threads:
            now = time.monotonic()
            heads = [(head, queue) for queue in self._queues if (head := queue.head(now)) is not None]
            ready = [(head.since, place) for place, (head, _) in enumerate(heads) if head.ready_at <= now]
            if not ready:
                if heads:
                    first = min(head.ready_at for head, _ in heads)
                    self._timer = asyncio.get_running_loop().call_later(first - now, self.poll)
                return
            work = heads[min(ready)[1]][1].take(now)
            if work is not None:
                task = asyncio.get_running_loop().create_task(work, name=f"{self.name}-batch")
                self._running.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.poll()

    async def close(self) -> None:
        """Starts nothing more, waits for what runs, ends the threads."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<RunSlots {self.name} busy={self.busy}/{self.threads} queues={len(self._queues)}{state}>"
