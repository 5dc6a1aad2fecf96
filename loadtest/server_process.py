"""A real server in a process of its own on the loopback interface, for the demonstration, the benchmarks and the tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2

_LOG_TAIL_LINES = 60
_ENGINES = re.compile(r"listening on .*\bengines: (\d+)")
_HELD = re.compile(r"\b(\d+) (?:waiting|leased|settling|jobs|frames in flight|queued|batches enqueued)\b")
_OF_AN_ENGINE = re.compile(r"\b(?:frames|jobs) in flight\b")  # each kind's own word; a front's are in pictures


class ServerFailed(Exception):
    """The server did not come up, or did not go down; the message ends with the last lines of its log."""


class ServerProcess:
    """`keyglance-server` on a free port; its standard output and error go to `server.out` and `server.err` in `directory`.

    A context manager: entering starts it and waits until health says SERVING and every engine is ready (health says so with the
    first one), leaving ends it with SIGTERM. `arguments` are
    added to its command line, `environment` to this process's environment; the models are those that `make` installed in the
    checkout, if it did and nothing says otherwise.
    """

    def __init__(
        self,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        start_timeout: float = 120,
        stop_timeout: float = 30,
    ) -> None:
        self.address = "(not bound yet)"
        self.output = directory / "server.out"
        self.errors = directory / "server.err"
        self._port_file = directory / "server.port"
        # Where the packages are on PYTHONPATH only, there is no program of that name.
        program = Path(sys.executable).with_name("keyglance-server")
        command = [str(program)] if program.exists() else [sys.executable, "-m", "server.main"]
        self._command = [*command, "--listen", "127.0.0.1:0", "--port-file", str(self._port_file), *arguments]
        models = checkout_models()
        defaults = {} if models is None else {"KEYGLANCE_MODELS__FOLDER": str(models)}
        self._environment = {**defaults, **os.environ, **(environment or {})}
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = "not started" if self._process is None else f"pid {self._process.pid}, exit code {self._process.poll()}"
        return f"<ServerProcess {self.address} {state}>"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    @property
    def metrics(self) -> str:
        """Where Prometheus can read the metrics of all its processes, HOST:PORT; empty where the configuration names no port."""
        found: list[str] = re.findall(r"metrics (?:of all processes )?on ([^\s\"]+:\d+)", self.errors.read_text(errors="replace"))
        return found[0] if found else ""

    @property
    def complete(self) -> bool:
        """Whether as many engine processes have been ready as there are to be; one process has none of them."""
        log = self.errors.read_text(errors="replace")
        return log.count("ready: <") >= sum(int(count) for count in _ENGINES.findall(log))

    def __enter__(self) -> Self:
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=self._environment
            )
        try:
            self._await_serving()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        process = self._running()
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if error is None:
                raise ServerFailed(f"the server did not end within {self._stop_timeout:g} s of SIGTERM\n{self.log()}") from None

    def terminate(self) -> None:
        """Sends SIGTERM, upon which the server drains."""
        self._running().send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        """The exit code, once the process ends."""
        return self._running().wait(timeout)

    def left_behind(self) -> str:
        """What the server's last words, once it has drained, say that calls left behind; empty where that is nothing.

        The words are those of the pool's and the engine's `repr`, and in a server of several processes each has its own.
        """
        drained = [line for line in self.errors.read_text(errors="replace").splitlines() if "drained: " in line]
        if not any(_OF_AN_ENGINE.search(words) for words in drained):
            return "the server did not say that it has drained"
        return "\n".join(words for words in drained if any(int(count) for count in _HELD.findall(words)))

    def log(self) -> str:
        """The last lines of what the server wrote to its standard error, or to its standard output where that is empty."""
        for path in (self.errors, self.output):
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
        return "(the server wrote nothing)"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _await_serving(self) -> None:
        end = time.monotonic() + self._start_timeout
        while not self._port_file.exists():
            self._pause(end)
        self.address = self._port_file.read_text().strip()
        with grpc.insecure_channel(self.address) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            while check(health_pb2.HealthCheckRequest(), timeout=10).status != health_pb2.HealthCheckResponse.SERVING:
                self._pause(end)
        while not self.complete:
            self._pause(end)

    def _pause(self, end: float) -> None:
        """Waits a moment. Raises `ServerFailed` where the server is gone or `end` has come."""
        process = self._running()
        if process.poll() is not None:
            raise ServerFailed(f"the server ended at its start with exit code {process.returncode}\n{self.log()}")
        if time.monotonic() > end:
            raise ServerFailed(f"the server was not ready within {self._start_timeout:g} s\n{self.log()}")
        time.sleep(0.05)


def checkout_models() -> Path | None:
    """The folder into which `make` installs models, None where it did not."""
    folder = Path(__file__).parent.parent / ".cache" / "models"
    return folder if folder.is_dir() else None
