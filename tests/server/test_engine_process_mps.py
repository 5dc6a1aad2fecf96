"""MPS's control daemon: there before any engine, started again when it dies, gone with the server, and why it is not there."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from server.config import Config, ConfigError
from server.engine_process import mps as mps_module
from server.engine_process.mps import COMMAND, MpsDaemon
from server.engine_process.supervisor import PlaceState
from server.start_error import StartError
from tests.server.test_engine_process_supervisor import ROOT, eventually, front_of, serving, world

FAKE = Path(__file__).with_name("scripted_mps_control.py")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake on the PATH."""
    program = tmp_path / "bin" / COMMAND
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return program


def processes(daemon: MpsDaemon) -> list[psutil.Process]:
    """Its guardian, it, and its server."""
    assert daemon._process is not None
    guardian = psutil.Process(daemon._process.pid)
    return [guardian, *guardian.children(recursive=True)]


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def left() -> set[str]:
    """What of any daemon is still there."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if COMMAND in " ".join(process.cmdline()) or FAKE.name in " ".join(process.cmdline()):
                found.add(str(process))
        except psutil.Error:
            continue
    return found


def folder(daemon: MpsDaemon) -> Path:
    return Path(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]).parent


async def test_it_is_started_once_and_leaves_nothing(command: Path):
    daemon = MpsDaemon()
    with pytest.raises(RuntimeError, match="was not started"):
        _ = daemon.environment
    await asyncio.gather(daemon.ensure(), daemon.ensure())
    its = folder(daemon)
    assert daemon.alive
    assert its.stat().st_mode & 0o077 == 0  # of this user alone
    assert len(processes(daemon)) == 3
    await daemon.ensure()
    assert daemon.restarts == 0
    assert repr(daemon) == "<MpsDaemon alive, 0 restarts>"
    await daemon.close()
    await daemon.close()
    assert not daemon.alive
    assert not its.exists()


@pytest.mark.parametrize("does", ["", "deaf"], ids=["asked", "one that does not listen"])
async def test_its_end(command: Path, does: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MPS_FAKE", does)
    monkeypatch.setattr(mps_module, "_QUIT", 0.5)
    daemon = MpsDaemon()
    await daemon.ensure()
    its = processes(daemon)
    assert len(its) == 3
    await daemon.close()
    assert not daemon.alive
    await eventually(lambda: not any(map(lives, its)))


async def test_one_that_died_is_started_again_with_a_fresh_folder(command: Path):
    daemon = MpsDaemon()
    try:
        await daemon.ensure()
        before = folder(daemon)
        _, control, server = processes(daemon)
        control.kill()
        await eventually(lambda: not daemon.alive)
        assert not lives(server)
        await daemon.ensure()
        assert daemon.alive
        assert daemon.restarts == 1
        assert folder(daemon) != before
        assert not before.exists()
    finally:
        await daemon.close()


async def test_why_it_is_not_there(command: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StartError, match=r"server\.mps: no-such-command is not on the PATH; it comes with NVIDIA's driver"):
        await MpsDaemon("no-such-command").ensure()
    monkeypatch.setenv("MPS_FAKE", "refuse")
    daemon = MpsDaemon()
    with pytest.raises(StartError, match="ended with status 1: an instance of it runs already"):
        await daemon.ensure()
    await daemon.close()
    monkeypatch.setattr(mps_module, "_READY", 0.5)
    monkeypatch.setattr(mps_module, "_QUIT", 0.5)
    for does in ("hang", "mute"):
        monkeypatch.setenv("MPS_FAKE", does)
        daemon = MpsDaemon()
        with pytest.raises(StartError, match=r"did not answer within 0\.5 s"):
            await daemon.ensure()
        await daemon.close()
    await eventually(lambda: not left())


async def test_engines_have_it_and_fronts_do_not(command: Path):
    async with world(mps=True, engines=2) as it:
        await eventually(lambda: all(engine.was_ready.is_set() for engine in it.supervisor._engines))
        variables = {name: process.environ() for name, process in it.processes().items()}
        assert {name for name, its in variables.items() if "CUDA_MPS_PIPE_DIRECTORY" in its} == {"engine-0", "engine-1"}
        pipes = {its.get("CUDA_MPS_PIPE_DIRECTORY") for name, its in variables.items() if name.startswith("engine")}
        assert len(pipes) == 1
        daemon = it.supervisor._mps
        assert daemon is not None
        assert daemon._process is not None
        assert it.supervisor.state()[-1] == PlaceState("mps", alive=1, wanted=1, restarts=0)
        assert "<MpsDaemon alive" in repr(it.supervisor)
        # It dies, and with it an engine: both are there again.
        daemon._process.terminate()
        await eventually(lambda: not daemon.alive)
        assert it.supervisor.state()[-1].alive == 0
        engine = it.pid("engine-0")
        os.kill(engine, signal.SIGKILL)
        await eventually(lambda: it.is_new("engine-0", engine), 60)
        await eventually(serving(it))
        assert daemon.alive
        assert daemon.restarts == 1
        await front_of(it.connect())
    assert not daemon.alive


async def test_a_server_without_it_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match=r"^server\.mps: nvidia-cuda-mps-control is not on the PATH"):
        async with world(mps=True):
            pass


def test_it_needs_engines_of_their_own():
    with pytest.raises(
        ConfigError, match=r"mps is for engines in processes of their own: with it fronts must be 1 or more, got 0"
    ):
        Config.load(overrides={"server": {"mps": True}})
    assert Config.load(overrides={"server": {"mps": True, "fronts": 1}}).server.mps


@pytest.mark.parametrize("ended", ["its parent", "the guardian, told", "the guardian, killed", "the program"])
async def test_what_a_guardian_looks_after_ends_with(ended: str):
    """A program whose child has a session of its own."""
    program = "import subprocess; subprocess.Popen(['/bin/sleep', '60'], start_new_session=True).wait()"
    script = (
        "import os, subprocess, sys; "
        "command = [sys.executable, '-P', '-m', 'server.engine_process.guardian', str(os.getpid()), sys.executable, '-c']; "
        f"guardian = subprocess.Popen([*command, {program!r}]); "
        "print(guardian.pid, flush=True); "
        "print(guardian.wait(), flush=True); "
        "sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    guardian = psutil.Process(int(await process.stdout.readline()))
    await eventually(lambda: any(child.cmdline() == ["/bin/sleep", "60"] for child in guardian.children(recursive=True)))
    below = guardian.children(recursive=True)
    assert len(below) == 2
    status = b""
    match ended:
        case "its parent":
            process.kill()
        case "the guardian, told":
            guardian.terminate()
            status = b"143\n"
        case "the guardian, killed":
            *below, orphan = below
            guardian.kill()
            status = b"-9\n"
        case _:
            guardian.children()[0].kill()
            status = b"137\n"
    await eventually(lambda: not any(map(lives, below)))
    if ended == "the guardian, killed":
        orphan.kill()
    if status:
        assert await process.stdout.readline() == status
        process.kill()
    await process.communicate()
