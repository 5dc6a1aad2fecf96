"""One thread that does one step after the other, each awaited by a coroutine: a leaner executor.

Its thread is a daemon: a GPU that never answers does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class Step:
    """Something that is done, or will be, on a `StepThread`."""

    __slots__ = ("_after", "_call", "_error", "_lock", "_result", "done")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._after: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self.done = False

    def run(self) -> None:
        """Does it; on the thread."""
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        with self._lock:
            self.done = True
            after, self._after = self._after, []
        for call in after:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Calls once it is done, on whatever thread."""
        with self._lock:
            if not self.done:
                self._after.append(call)
                return
        call()

    def result(self) -> Any:
        """What it gave, or raises what it raised; for done ones."""
        if self._error is not None:
            raise self._error
        return self._result

    async def wait(self, seconds: float) -> bool:
        """Whether it is done within `seconds`. Cancelling the wait does not touch it."""
        if self.done:
            return True
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        self.then(lambda: _tell(loop, told))
        late = loop.call_later(seconds, _set, told)
        try:
            await told
        finally:
            late.cancel()
        return self.done


class StepThread:
    """The thread; it lives until `close`."""

    def __init__(self, name: str) -> None:
        self._steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closed = False

    def submit(self, call: Callable[[], Any]) -> Step:
        """Has it done behind all that came before; RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the thread {self._thread.name} is closed")
        if self._thread.ident is None:
            self._thread.start()
        step = Step(call)
        self._steps.put(step)
        return step

    def close(self) -> None:
        """Ends the thread behind the steps that were submitted."""
        if not self._closed:
            self._closed = True
            self._steps.put(None)

    def _work(self) -> None:
        while (step := self._steps.get()) is not None:
            step.run()
            del step  # what it holds is not to live until the next one comes


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(_set, told)


def _set(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
