"""The head process as its engine sees it, and heads that have it do their work."""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import threading
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
from server.engine_stats import WorkerStats
from server.head_process import messages
from server.head_process.shared_results import SharedResults

_log = logging.getLogger(__name__)

#: Pictures from which on a batch is read there: a few, of an engine that has little to do, are read sooner than sent.
_LEAST = 16


class HeadProcess:
    """One process that reads results out of `memory`; where it ends it is started anew, `pause` seconds later.

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
        self._lock = threading.Lock()  # over what follows
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._answers = select.poll()  # for the connection; its own `poll` makes a selector each time
        self._ready = False
        self._keeper: threading.Thread | None = None
        self._closed = threading.Event()
        self.restarts = 0

    def head(self, manifest: Manifest) -> Head:
        """One model's head."""
        return _HeadElsewhere(self, manifest)

    def start(self) -> None:
        """Has it started, and does not wait until it is ready. The memory must be allocated."""
        if self._keeper is None and not self._closed.is_set():
            self._keeper = threading.Thread(target=self._keep, name="head process", daemon=True)
            self._keeper.start()

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

    def stats(self) -> WorkerStats:
        """How it stands."""
        return WorkerStats("heads", int(self._process is not None), 1, self.restarts)

    def read(
        self, model: str, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]
    ) -> list[FrameResult | ValueError] | None:
        """What it finds in a batch, as `Head.read_batch`. None where the batch is not for it, its outputs are not in its memory,
        or it is not there.
        """
        if len(placements) < self._least:
            return None
        with self._lock:
            try:
                told = self._located(outputs) if self._is_ready() else None
                connection = self._connection
                if told is None or connection is None:
                    return None
                connection.send_bytes(messages.encode_batch(model, told, placements))
                if not self._answers.poll(self._patience * 1e3):
                    raise TimeoutError(f"no answer within {self._patience:g} s")
                found = messages.decode_results(model, connection.recv_bytes(), self._names)
                if len(found) != len(placements):
                    raise ValueError(f"{len(found)} results for {len(placements)} pictures")
                return found
            except (OSError, EOFError, ValueError) as error:
                self._lose(f"{type(error).__name__}: {error}")
        return None

    def close(self) -> None:
        """Ends it and gives the memory back, to which the GPU must copy nothing more."""
        with self._lock:
            self._closed.set()
            self._hang_up()
        if self._keeper is not None:
            self._keeper.join()
        with self._lock:
            self.memory.close()

    def _keep(self) -> None:
        """Starts it, waits until it ends, and again, until `close`."""
        while True:
            with self._lock:
                if self._closed.is_set():
                    return
                process = self._process = self._started()
            code = None if process is None else process.wait()
            with self._lock:
                self._process = None
                self._lose(f"it ended with code {code}")
            if self._closed.wait(self._pause):
                return
            self.restarts += 1

    def _started(self) -> subprocess.Popen[bytes] | None:
        ours, theirs = Pipe()
        self._connection, self._ready = ours, False
        self._answers.register(ours, select.POLLIN)
        # In memory too: where the process does not read, nobody waits to get rid of what it is sent.
        with theirs, SharedBytes.of([messages.encode_manifests(self._manifests)], "models") as models:
            parts = ((models.fd, models.size), *self.memory.parts)
            try:
                return subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), *(f"{fd}:{size}" for fd, size in parts)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(fd for fd, _ in parts)),
                    start_new_session=True,
                )
            except OSError as error:
                _log.warning("the head process cannot be started: %s", error)
                return None

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
        """Once for each process: whoever finds it lost first says so, and ends it."""
        if self._connection is not None:
            _log.warning("the head process is lost, the engine reads results itself meanwhile: %s", why)
            self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._ready = False
        if connection is not None:
            self._answers.unregister(connection)
            connection.close()
        if self._process is not None:
            self._process.kill()  # it holds nothing, and whoever keeps it waits for its end

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
        found = self._process.read(self._name, outputs, placements) if placements else None
        return self._head.read_batch(outputs, placements) if found is None else found
