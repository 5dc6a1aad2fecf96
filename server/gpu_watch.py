"""Whether the GPU is still there: asked on a thread of its own, because a lost one may never answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

_CHECK_INTERVAL = 2.0  # seconds between two looks at the GPU
_CHECKS, _CHECK_PAUSE = 3, 0.2  # failed looks by which it is lost, and seconds between them
_CHECK_PATIENCE = 10.0  # seconds after which a GPU that does not answer counts as lost

_log = logging.getLogger(__name__)


class GpuWatch:
    """Asks `check` every few seconds, and when something failed, what is wrong with the GPU: None where nothing is."""

    def __init__(self, check: Callable[[], str | None]) -> None:
        self._check = check
        self._wake = threading.Event()
        self._closed = False
        self._lost: str | None = None
        self._began: float | None = None
        self._looked = threading.Event()  # of the next look
        self._thread = threading.Thread(target=self._work, name="gpu watch", daemon=True)

    def start(self) -> None:
        """Looks from now on."""
        self._thread.start()

    def close(self) -> None:
        """Looks no longer."""
        self._closed = True
        self._wake.set()

    @property
    def lost(self) -> str | None:
        """Why the GPU counts as lost; once it is, it stays so: the process has to start anew."""
        began = self._began
        if self._lost is None and began is not None and time.monotonic() - began > _CHECK_PATIENCE:
            self._lost = f"the GPU did not answer within {_CHECK_PATIENCE:g} s"
        return self._lost

    def look_now(self) -> None:
        """Something failed: looks at once."""
        self._wake.set()

    async def looked(self) -> str | None:
        """What a look finds that begins now, or is under way; waits for it a second at most."""
        looked = self._looked
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, looked.wait, 1.0)
        return self.lost

    def _found(self) -> str | None:
        """What is wrong at every one of a few looks: one alone may fall into a moment that something else spoilt."""
        for number in range(_CHECKS):
            if number:
                time.sleep(_CHECK_PAUSE)
            self._began = time.monotonic()
            wrong = self._check()
            self._began = None
            if wrong is None:
                return None
        return wrong

    def _work(self) -> None:
        while not self._closed and self._lost is None:
            wrong = self._found()
            if wrong is not None and not self._closed:
                self._lost = f"the GPU is lost: {wrong}"
                _log.error("%s", self._lost)
            looked, self._looked = self._looked, threading.Event()
            looked.set()
            self._wake.wait(_CHECK_INTERVAL)
            self._wake.clear()
