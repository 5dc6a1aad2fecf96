"""NVIDIA's Multi-Process Service (MPS): engines that share a GPU have it side by side, where else they have it in turns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from server.engine_process.supervised import child_environment
from server.start_error import StartError

_log = logging.getLogger(__name__)

COMMAND = "nvidia-cuda-mps-control"

_READY = 20.0  # seconds in which a daemon answers once it was started
_PAUSE = 0.05  # seconds between two questions whether it does
_QUIT = 10.0  # seconds in which it takes a command, and ends when it is asked to
_PIPES, _LOGS = "pipe", "log"


class MpsDaemon:
    """MPS's control daemon, which ends with this process, however that ends.

    Its sockets and logs lie in a folder of this user alone: it serves the processes that get its `environment` and no other. It
    takes memory on a GPU only once one of these has come.
    Source: "Multi-Process Service" of the CUDA documentation, "nvidia-cuda-mps-control" and "Environment Variables".
    """

    def __init__(self, command: str = COMMAND) -> None:
        self._command = command
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self.restarts = 0

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment to be served by it. RuntimeError before `ensure`."""
        if self._folder is None:
            raise RuntimeError(f"{self!r} was not started")
        folder = Path(self._folder.name)
        return {"CUDA_MPS_PIPE_DIRECTORY": str(folder / _PIPES), "CUDA_MPS_LOG_DIRECTORY": str(folder / _LOGS)}

    async def ensure(self) -> None:
        """Starts it unless it runs, and returns once it takes clients. Raises `StartError` where it cannot be had."""
        async with self._starting:
            if self.alive:
                return
            if self._process is not None:
                self.restarts += 1
                _log.error("%s %s; it is started again", self._command, _how(self._process.returncode))
            if (path := shutil.which(self._command)) is None:
                raise StartError(f"server.mps: {self._command} is not on the PATH; it comes with NVIDIA's driver")
            self._prepare()
            # From the main thread, whose end is what the kernel tells its children of.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "server.engine_process.guardian", str(os.getpid()), path, "-f"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env=self._own_environment(),
                start_new_session=True,  # Ctrl-C is the supervisor's
            )
            try:
                await self._answering(path)
            except BaseException:
                await self._end()
                raise
            _log.info("engines share GPUs by MPS, process %d", self._process.pid)

    async def close(self) -> None:
        """Ends it, after those that it serves. May be called twice."""
        if self.alive and self._process is not None:
            with contextlib.suppress(OSError, TimeoutError):
                if await self._tell(shutil.which(self._command) or self._command, "quit"):
                    await asyncio.wait_for(self._process.wait(), _QUIT)
        await self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __repr__(self) -> str:
        return f"<MpsDaemon {'alive' if self.alive else 'not there'}, {self.restarts} restarts>"

    def _prepare(self) -> None:
        """A fresh folder: what a daemon that died has left there would be in the way of the next one."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = tempfile.TemporaryDirectory(prefix="keyglance-mps-", ignore_cleanup_errors=True)
        for name in (_PIPES, _LOGS):
            Path(self._folder.name, name).mkdir()

    def _own_environment(self) -> dict[str, str]:
        return {**child_environment(), **self.environment}

    async def _answering(self, path: str) -> None:
        assert self._process is not None
        end = asyncio.get_running_loop().time() + _READY
        while self.alive and asyncio.get_running_loop().time() < end:
            if await self._tell(path, "get_server_list"):
                return
            await asyncio.sleep(_PAUSE)
        if self.alive:
            raise StartError(f"server.mps: {self._command} did not answer within {_READY:g} s")
        raise StartError(f"server.mps: {self._command} {_how(self._process.returncode)}{self._last_words()}")

    async def _tell(self, path: str, command: str) -> bool:
        """Whether the daemon took a command, soon."""
        client = await asyncio.create_subprocess_exec(
            path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._own_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_QUIT):
                await client.communicate(f"{command}\n".encode())
        except TimeoutError:
            return False
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        return client.returncode == 0

    def _last_words(self) -> str:
        try:
            lines = Path(self.environment["CUDA_MPS_LOG_DIRECTORY"], "control.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return f": {lines[-1]}" if lines else ""

    async def _end(self) -> None:
        """Ends it and its servers at once, where they still are."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _QUIT)
            except TimeoutError:  # a GPU that does not answer holds its processes fast
                _log.error("%s, process %d, does not end, it is left", self._command, self._process.pid)


def _how(status: int | None) -> str:
    return f"died of signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
