"""The head process as its engine sees it, and heads that have it do their work."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from decoder_pool.shared_bytes import SharedBytes
from models.heads import Head, make_head
from models.manifest import Manifest
from models.result import FrameResult
from models.spec import Placement
from server.engine_process import codec
from server.head_process import messages
from server.head_process.shared_results import SharedResults

_log = logging.getLogger(__name__)

#: Pictures from which on a batch is read there: a few, of an engine that has little to do, are read sooner than sent.
_LEAST = 16


class HeadProcess:
    """One process that reads results out of `memory`; it is started anew, `pause` seconds later, when it is gone.

    Batches of at least `least` pictures are for it. One that it does not answer within `patience` seconds ends it. Whatever it
    does not read, nobody has read: `read` says so, and the heads do it themselves. `read` is for one thread at a time.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        memory: SharedResults,
        *,
        patience: float = 5.0,
        pause: float = 5.0,
        least: int = _LEAST,
        module: str = "server.head_process.child",
    ) -> None:
        self._manifests = tuple(manifests)
        self._names = codec.label_names(manifests)
        #: Where its networks' results have to lie.
        self.memory = memory
        self._patience = patience
        self._pause = pause
        self._least = least
        self._module = module
        self._lock = threading.Lock()  # between `close` and all else
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._started = self._ready = self._closed = False
        self._again = 0.0  # when it may be started anew
        self.restarts = 0

    def head(self, manifest: Manifest) -> Head:
        """One model's head."""
        return _HeadElsewhere(self, manifest)

    def start(self) -> None:
        """Starts it, and does not wait until it is ready. The memory must be allocated."""
        with self._lock:
            if self._closed or self._process is not None:
                return
            self._started = True
            ours, theirs = Pipe()
            # In memory too: where the process does not read, nobody waits to get rid of what it is sent.
            with theirs, SharedBytes.of([messages.encode_manifests(self._manifests)], "models") as models:
                parts = ((models.fd, models.size), *self.memory.parts)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), *(f"{fd}:{size}" for fd, size in parts)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(fd for fd, _ in parts)),
                    start_new_session=True,
                )
            self._connection = ours
            self._ready = False

    @property
    def pid(self) -> int | None:
        """The process id, None where there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def ready(self) -> bool:
        """Whether it reads what comes."""
        with self._lock:
            return self._is_ready()

    def read(
        self, model: str, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]
    ) -> list[FrameResult | ValueError] | None:
        """What it finds in a batch, as `Head.read_batch`; None where it is not there, or the outputs are not in its memory."""
        with self._lock:
            try:
                if not self._is_ready():
                    return None
                connection = self._connection
                assert connection is not None
                told = self._located(outputs)
                if told is None:
                    return None
                connection.send_bytes(messages.encode_batch(model, told, placements))
                if not connection.poll(self._patience):
                    raise TimeoutError(f"no answer within {self._patience:g} s")
                return messages.decode_results(model, connection.recv_bytes(), self._names)
            except (OSError, EOFError, ValueError) as error:
                self._lose(f"{type(error).__name__}: {error}")
        return None

    def is_for(self, placements: Sequence[Placement]) -> bool:
        """Whether a batch is large enough."""
        return len(placements) >= self._least

    def revive(self) -> None:
        """Starts it anew where it is gone and the pause is over."""
        if self._started and self._process is None and not self._closed and time.monotonic() >= self._again:
            self.restarts += 1
            try:
                self.start()
            except OSError as error:
                self._again = time.monotonic() + self._pause
                _log.warning("the head process cannot be started: %s", error)

    def close(self) -> None:
        """Ends it and gives the memory back, to which the GPU must copy nothing more."""
        with self._lock:
            self._closed = True
            self._end()
            self.memory.close()

    def _is_ready(self) -> bool:
        connection = self._connection
        if not self._ready and connection is not None:
            try:
                self._ready = connection.poll() and connection.recv_bytes() == messages.READY
            except (OSError, EOFError) as error:
                self._lose(f"it ended at its start: {type(error).__name__}")
        return self._ready

    def _located(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, messages.Output] | None:
        told = {}
        for name, array in outputs.items():
            place = self.memory.find(array)
            if place is None:
                return None
            told[name] = messages.Output(*place, array.shape, array.dtype.str)
        return told

    def _lose(self, why: str) -> None:
        _log.warning("the head process is lost, the engine reads results itself meanwhile: %s", why)
        self._again = time.monotonic() + self._pause
        self._end()

    def _end(self) -> None:
        self._ready = False
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()  # it holds nothing
            process.wait()

    def __repr__(self) -> str:
        return f"<HeadProcess {self.pid or 'not there'}, {self.restarts} restarts>"


class _HeadElsewhere:
    """`Head` that has batches read by the head process, and reads them itself where that is not there."""

    def __init__(self, process: HeadProcess, manifest: Manifest) -> None:
        self._process = process
        self._name = manifest.name
        self._head = make_head(manifest)

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `Head.read`."""
        return self._head.read(outputs, placement)

    def read_batch(self, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        """As `Head.read_batch`."""
        if self._process.is_for(placements):
            found = self._process.read(self._name, outputs, placements)
            if found is not None and len(found) == len(placements):
                return found
            self._process.revive()
        return self._head.read_batch(outputs, placements)
