"""Fronts and engines that die, hang and come back: the calls that fail are those that must, and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from keyglance.v1.keyglance_pb2 import LabelRequest
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerStub
from server.config import Config
from server.engine_process import supervisor as supervisors
from server.engine_process.listening import ReservedAddress
from server.engine_process.supervisor import Supervisor, engine_config, engine_count, front_config
from server.start_error import StartError
from tests.server.engine_fakes import descriptors

ROOT = Path(__file__).parent.parent.parent
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@dataclass
class World:
    """A supervisor in this process, its processes, and connections to its fronts."""

    supervisor: Supervisor
    running: asyncio.Task[bool]
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def processes(self) -> dict[str, psutil.Process]:
        """By name."""
        found = {}
        for process in psutil.Process().children():
            try:
                command = process.cmdline()
            except psutil.Error:  # it has just died
                continue
            if "--name" in command:
                found[command[command.index("--name") + 1]] = process
        return found

    def pid(self, name: str) -> int:
        return self.processes()[name].pid

    def shares(self) -> list[float]:
        """Of all that every front could use, the part of one that could use one call more; 1 where none needs anything."""
        board = self.supervisor._board
        return [board.shares(front)[0].of(1.0) for front in range(2)]

    def is_new(self, name: str, old: int) -> bool:
        """Whether another process has the name now."""
        process = self.processes().get(name)
        return process is not None and process.pid != old

    def connect(self) -> grpc.aio.Channel:
        """A connection of its own: the kernel chooses the front."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        channel = grpc.aio.insecure_channel(self.supervisor.address, options=options)
        self.channels.append(channel)
        return channel

    async def connect_to(self, name: str) -> grpc.aio.Channel:
        """A connection to that front."""
        for _ in range(200):
            channel = self.connect()
            if await front_of(channel) == self.pid(name):
                return channel
        raise AssertionError(f"{name} got none of 200 connections")

    async def health(self) -> set[int]:
        """What the fronts say, asked over several connections."""
        said = set()
        for _ in range(6):
            channel = self.connect()
            try:
                stub = health_pb2_grpc.HealthStub(channel)
                said.add((await stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)).status)
            finally:
                await channel.close()
        return said


async def label(channel: grpc.aio.Channel, milliseconds: int = 0, timeout: float = 30) -> str:
    """The number of pictures of one call."""
    stub = ShortVideoLabelerStub(channel)
    return (await stub.Label(LabelRequest(request_id=str(milliseconds)), timeout=timeout, wait_for_ready=True)).request_id


async def front_of(channel: grpc.aio.Channel) -> int:
    stub = ShortVideoLabelerStub(channel)
    return int((await stub.Label(LabelRequest(request_id="0"), timeout=30, wait_for_ready=True)).trace_id)


def reason(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Status and Keyglance's reason of a failed call; an empty reason where the connection broke."""
    assert isinstance(error, grpc.aio.AioRpcError), error
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    if status is None or not any(detail.Unpack(info) for detail in status.details):
        return error.code(), ""
    return error.code(), info.reason


async def eventually(check: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while True:
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end, "did not become true"
        await asyncio.sleep(0.05)


def serving(world: World) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return await world.health() == {SERVING}

    return asked


def config(**server: object) -> Config:
    given = {"listen": "127.0.0.1:0", "fronts": 2, "grace": 20, "heartbeat": 1.0, **server}
    return Config.load(overrides={"server": given, "telemetry": {"log_format": "text", "log_level": "warning"}})


@asynccontextmanager
async def world(*, engines: int = 1, **server: object) -> AsyncIterator[World]:
    before = descriptors()
    supervisor = Supervisor(
        config(**server),
        engines=engines,
        engine_module="tests.server.scripted_engine_main",
        front_module="tests.server.scripted_front_main",
    )
    stop, bound = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop, bound=lambda address: bound.set()))
    made = World(supervisor, running)
    waiting = asyncio.create_task(bound.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        if running.done():
            running.result()
        assert bound.is_set()
        yield made
        stop.set()
        assert await asyncio.wait_for(running, 60) is True
    finally:
        waiting.cancel()
        stop.set()
        await asyncio.gather(running, return_exceptions=True)
        for channel in made.channels:
            await channel.close()
    assert made.processes() == {}
    after = descriptors()
    assert {kind: after.get(kind, 0) for kind in ("memfd", "socket", "pipe")} == {
        kind: before.get(kind, 0) for kind in ("memfd", "socket", "pipe")
    } or after.get("socket", 0) <= before.get("socket", 0) + 2  # gRPC keeps some of its own


def held(world: World) -> dict[str, tuple[int, int]]:
    """By process: its packets in shared memory, and its connections to the others."""
    return {
        name: (kinds.get("memfd", 0), kinds.get("socket", 0))
        for name, process in world.processes().items()
        if (kinds := descriptors(process.pid))
    }


async def test_calls_spread_over_fronts_and_nothing_is_left():
    async with world() as it:
        assert set(it.processes()) == {"front-0", "front-1", "engine-0"}
        channels = [it.connect() for _ in range(12)]
        fronts = Counter(await asyncio.gather(*(front_of(channel) for channel in channels)))
        assert set(fronts) == {it.pid("front-0"), it.pid("front-1")}
        assert await it.health() == {SERVING}
        before = held(it)
        for _ in range(10):
            assert await asyncio.gather(*(label(channel, 5) for channel in channels)) == ["3"] * 12
        after = held(it)
        assert all(after[name][1] <= sockets for name, (_, sockets) in before.items())
        assert {name: memory for name, (memory, _) in after.items()} == {"front-0": 0, "front-1": 0, "engine-0": 0}


async def test_a_cancelled_call_leaves_the_engine():
    async with world() as it:
        channel = it.connect()
        await front_of(channel)
        calls = [asyncio.create_task(label(channel, 30_000)) for _ in range(5)]
        await eventually(lambda: held(it)["engine-0"][0] == 5)
        for call in calls:
            call.cancel()
        await eventually(lambda: all(memory == 0 for memory, _ in held(it).values()))
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await label(channel, 30_000, timeout=0.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: all(memory == 0 for memory, _ in held(it).values()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_engine_that_dies_or_hangs(number):
    async with world() as it:
        channels = [await it.connect_to("front-0"), await it.connect_to("front-1")]
        engine, fronts = it.pid("engine-0"), {it.pid("front-0"), it.pid("front-1")}
        calls = [asyncio.create_task(label(channel, 60_000)) for channel in channels * 2]
        await eventually(lambda: held(it)["engine-0"][0] == 4)
        os.kill(engine, number)
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert [reason(end) for end in ends] == [(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")] * 4
        await eventually(lambda: it.is_new("engine-0", engine))

        async def served() -> bool:
            ends = await asyncio.gather(*(label(channel) for channel in channels), return_exceptions=True)
            return ends == ["3", "3"]

        await eventually(served)
        await eventually(serving(it))
        assert {it.pid("front-0"), it.pid("front-1")} == fronts, "the fronts lived through it"
        assert not psutil.pid_exists(engine)
        assert all(memory == 0 for memory, _ in held(it).values())


async def test_health_tells_of_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisors, "_FIRST_DELAY", 3.0)
    async with world() as it:
        channel = it.connect()
        await front_of(channel)
        assert await it.health() == {SERVING}
        os.kill(it.pid("engine-0"), signal.SIGKILL)

        async def not_serving() -> bool:
            return await it.health() == {health_pb2.HealthCheckResponse.NOT_SERVING}

        await eventually(not_serving, 2.9)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await label(channel)
        assert reason(refused.value) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
        await eventually(serving(it))


async def test_an_engine_that_says_it_is_lost_is_replaced():
    async with world() as it:
        channel = it.connect()
        engine = it.pid("engine-0")
        waiting = asyncio.create_task(label(channel, 60_000))
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await asyncio.gather(label(channel, 1001), waiting)
        assert reason(lost.value)[1] == "WORKER_LOST"
        await eventually(lambda: it.is_new("engine-0", engine))

        async def answers() -> bool:
            try:
                return await label(channel) == "3"
            except grpc.aio.AioRpcError:
                return False

        await eventually(answers)


async def test_an_engine_that_hangs_is_replaced_and_one_that_is_slow_is_not():
    async with world(heartbeat=2.0) as it:
        channel = it.connect()
        engine = it.pid("engine-0")
        assert await label(channel, 1003) == "3"
        await asyncio.sleep(1)
        assert it.pid("engine-0") == engine
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await label(channel, 1002)
        assert reason(lost.value) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
        await eventually(lambda: it.is_new("engine-0", engine))


async def test_with_two_engines_one_is_enough():
    async with world(engines=2) as it:
        channel = it.connect()

        async def both_work() -> bool:
            calls = [asyncio.create_task(label(channel, 200)) for _ in range(2)]
            await asyncio.sleep(0.1)
            now = held(it)
            await asyncio.gather(*calls)
            return now["engine-0"][0] > 0 and now["engine-1"][0] > 0

        await eventually(both_work)
        os.kill(it.pid("engine-1"), signal.SIGSTOP)
        stopped = it.pid("engine-1")
        calls = [asyncio.create_task(label(channel, 300)) for _ in range(8)]
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        answered = [end for end in ends if end == "3"]
        assert len(answered) == 4, "those that went to the other one"
        assert {reason(end) for end in ends if end != "3"} == {(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")}
        assert await it.health() == {SERVING}
        assert [await label(channel) for _ in range(4)] == ["3"] * 4
        await eventually(lambda: it.is_new("engine-1", stopped))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_front_that_dies_or_hangs_takes_its_own_calls_only(number):
    async with world() as it:
        lost, kept = await it.connect_to("front-0"), await it.connect_to("front-1")
        front, engine = it.pid("front-0"), it.pid("engine-0")
        losing = [asyncio.create_task(label(lost, 60_000)) for _ in range(3)]
        keeping = [asyncio.create_task(label(kept, 4000)) for _ in range(3)]
        await eventually(lambda: held(it)["engine-0"][0] == 6)
        assert it.shares() == [0.25, 0.25], "each front knows of the other's three calls"
        os.kill(front, number)
        ends = await asyncio.wait_for(asyncio.gather(*losing, return_exceptions=True), 30)
        assert {reason(end)[0] for end in ends} == {grpc.StatusCode.UNAVAILABLE}
        assert await asyncio.gather(*keeping) == ["3"] * 3
        await eventually(lambda: all(memory == 0 for memory, _ in held(it).values()))
        await eventually(lambda: it.is_new("front-0", front))
        assert it.shares() == [1.0, 1.0], "what the lost front needed is forgotten"
        assert await front_of(await it.connect_to("front-0")) == it.pid("front-0")
        assert await label(lost) == "3"
        assert it.pid("engine-0") == engine


async def test_draining_answers_what_is_in_flight_on_all_fronts():
    async with world() as it:
        channels = [await it.connect_to("front-0"), await it.connect_to("front-1")]
        calls = [asyncio.create_task(label(channel, 1500)) for channel in channels * 3]
        await eventually(lambda: held(it)["engine-0"][0] == 6)
    assert await asyncio.gather(*calls) == ["3"] * 6


@pytest.mark.parametrize(
    ("way", "message"),
    [("refuse", "^no models for this engine$"), ("crash", "engine-0 died of signal 11 .* before it was ready")],
)
async def test_a_server_whose_engine_cannot_start_does_not_start(monkeypatch: pytest.MonkeyPatch, way: str, message: str):
    monkeypatch.setenv("KEYGLANCE_TEST_ENGINE", way)
    with pytest.raises(StartError, match=message):
        async with world() as it:  # it may listen already, as a server of one process does
            await it.running
    assert not [child for child in psutil.Process().children() if "--name" in child.cmdline()]


async def test_a_server_is_told_to_end_while_it_warms_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEYGLANCE_TEST_ENGINE", "slow")
    async with world() as it:
        assert await it.health() == {health_pb2.HealthCheckResponse.NOT_SERVING}


async def test_an_engine_that_cannot_come_back_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    async with world() as it:
        await front_of(it.connect())
        monkeypatch.setenv("KEYGLANCE_TEST_ENGINE", "refuse")
        with caplog.at_level(logging.INFO):
            os.kill(it.pid("engine-0"), signal.SIGKILL)
            await eventually(lambda: caplog.text.count("engine-0 failed: no models for this engine; it is started again") >= 2)
            monkeypatch.delenv("KEYGLANCE_TEST_ENGINE")
            await eventually(lambda: "engine-0 is there again" in caplog.text)
        assert await label(it.connect()) == "3"


async def test_fronts_make_room_for_ones_that_know_an_engine_s_new_models(monkeypatch: pytest.MonkeyPatch):
    async with world() as it:
        await front_of(it.connect())
        fronts = [it.pid("front-0"), it.pid("front-1")]
        monkeypatch.setenv("KEYGLANCE_TEST_ENGINE", "others")
        os.kill(it.pid("engine-0"), signal.SIGKILL)
        await eventually(lambda: it.is_new("front-0", fronts[0]) and it.is_new("front-1", fronts[1]), 60)
        await eventually(serving(it))
        assert await label(it.connect()) == "3"


class Process:
    """The supervisor in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.port_file = folder / "port"
        self.errors = (folder / "errors").open("w+")
        self.popen = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("scripted_supervisor.py")), str(self.port_file)],
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    async def address(self) -> str:
        await eventually(self.port_file.exists, 60)
        return self.port_file.read_text().strip()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    async def end(self) -> int:
        return await asyncio.to_thread(self.popen.wait, 40)

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()


@pytest.fixture
def process(tmp_path: Path):
    made = Process(tmp_path)
    yield made
    made.popen.kill()
    made.popen.wait()
    made.errors.close()


@pytest.mark.parametrize("everybody", [False, True], ids=["the supervisor alone", "every process of the server"])
async def test_sigterm_drains_fronts_then_engines(process: Process, everybody: bool):
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        await front_of(channel)
        children = process.children()
        call = asyncio.create_task(label(channel, 1000))
        await asyncio.sleep(0.3)
        for each in [psutil.Process(process.popen.pid), *(children if everybody else [])]:
            each.send_signal(signal.SIGTERM)
        assert await call == "3"
        assert await process.end() == 0
    log = process.log()
    assert log.index("[front-0] server.lifecycle: ended") < log.index("[engine-0] server.engine_process.engine_main: drained")
    assert not any(child.is_running() for child in children)
    assert not process.port_file.exists()


async def test_a_second_signal_ends_all_at_once(process: Process):
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        await front_of(channel)
        children = process.children()
        call = asyncio.create_task(label(channel, 20_000))
        await asyncio.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        assert await process.end() == 128 + signal.SIGTERM
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    await eventually(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


async def test_nothing_outlives_a_supervisor_that_is_killed(process: Process):
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        await front_of(channel)
        children = process.children()
        assert len(children) == 3
        process.popen.kill()
        await process.end()
    await eventually(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def test_a_reserved_port_is_kept_and_shared_only_if_asked():
    with ReservedAddress("127.0.0.1:0") as reserved:
        port = int(reserved.address.rpartition(":")[2])
        assert port
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        with socket.socket() as front:
            front.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            front.bind(("127.0.0.1", port))
            front.listen()
            with socket.create_connection(("127.0.0.1", port)):
                front.accept()[0].close()
            with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"):
                ReservedAddress(f"127.0.0.1:{port}")
            ReservedAddress(f"127.0.0.1:{port}", shared=True).close()
    with pytest.raises(StartError, match=r"cannot listen on no-such-host\.invalid:0"):
        ReservedAddress("no-such-host.invalid:0")
    assert ReservedAddress("unix:/somewhere").address == "unix:/somewhere"


@pytest.mark.parametrize("listen", ["localhost:0", "[::]:0", "0.0.0.0:0"])
def test_every_address_of_a_name_is_reserved(listen: str):
    try:
        with ReservedAddress(listen) as reserved:
            host, _, port = reserved.address.rpartition(":")
            assert host == listen.rpartition(":")[0]
            assert int(port)
    except StartError as error:
        if "family not supported" in str(error) or "cannot assign" in str(error):
            pytest.skip("no IPv6 on this machine")
        raise


def test_each_process_has_its_own_configuration():
    given = config(largest_message=1 << 20, fronts=4, reuse_port=False)
    front = front_config(given, "127.0.0.1:7")
    assert front.server.listen == "127.0.0.1:7"
    assert front.server.reuse_port
    assert front.receive.budget == given.receive.budget // 4
    assert engine_config(given, 3).gpu.index == given.gpu.index + 3
    shared = config(engines_per_gpu=2)
    assert [engine_config(shared, number).gpu.index for number in range(5)] == [0, 0, 1, 1, 2]
    assert not front_config(config(listen="unix:/x", fronts=1), "unix:/x").server.reuse_port


def test_how_many_engines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisors, "_gpus", lambda: 4)
    monkeypatch.setattr(supervisors.importlib.util, "find_spec", lambda name: object())

    def count(device: str, index: int = 0, engines: int = 0, engines_per_gpu: int = 1) -> int:
        server = {"engines": engines, "engines_per_gpu": engines_per_gpu}
        return engine_count(Config.load(overrides={"engine": {"device": device}, "gpu": {"index": index}, "server": server}))

    assert count("auto") == 4
    assert count("gpu", index=1) == 3
    assert count("gpu", index=1, engines=2) == 2
    assert count("gpu", index=1, engines_per_gpu=2) == 6
    assert count("gpu", engines=3, engines_per_gpu=2) == 3
    assert count("cpu", engines_per_gpu=2) == 1
    monkeypatch.setattr(supervisors.importlib.util, "find_spec", lambda name: None)
    assert count("auto") == 1
    assert count("auto", engines_per_gpu=2) == 1


def test_where_there_is_no_driver_there_is_no_gpu():
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver")
    assert supervisors._gpus() == 0


def test_a_unix_socket_has_one_front():
    with pytest.raises(Exception, match="2 fronts cannot share unix:/x"):
        config(listen="unix:/x")
    assert config(listen="unix:/x", fronts=1).server.fronts == 1


async def test_one_front_on_a_unix_socket(tmp_path: Path):
    async with world(listen=f"unix:{tmp_path / 'socket'}", fronts=1) as it:
        assert await label(it.connect()) == "3"
