"""The life of a server around a fake engine: health, reflection, draining, signals, TLS, and what can be in the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from keyglance import AsyncClient
from keyglance.v1.keyglance_pb2 import LabelRequest, LabelResponse
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerServicer, ShortVideoLabelerStub
from server.config import Config
from server.engine import EngineInfo
from server.lifecycle import SERVICE, Parts, Server, StartError, serve

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class FakeEngine:
    def __init__(self) -> None:
        self.healthy = True
        self.warm = asyncio.Event()
        self.warm.set()
        self.events: list[str] = []

    async def start(self) -> None:
        self.events.append("start")
        await self.warm.wait()

    async def close(self) -> None:
        self.events.append("close")

    def info(self) -> EngineInfo:
        return EngineInfo("fake", (), ())


class FakeServicer(ShortVideoLabelerServicer):
    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def Label(self, request, context):
        self.running.set()
        await self.go.wait()
        return LabelResponse(request_id=request.request_id)


class World:
    """A server, its parts, and stubs for it."""

    def __init__(self, server: Server, engine: FakeEngine, servicer: FakeServicer) -> None:
        self.server, self.engine, self.servicer = server, engine, servicer
        self.channel: grpc.aio.Channel

    def connect(self) -> None:
        self.channel = grpc.aio.insecure_channel(self.server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = ShortVideoLabelerStub(self.channel)

    async def health(self, service: str = "") -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status

    async def watch(self, seen: list[int]) -> None:
        """Adds each health that a watcher hears of, as it comes."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE)):
            seen.append(response.status)  # noqa: PERF401, each at its time


def config(**server: object) -> Config:
    return Config.load(overrides={"server": {"listen": "127.0.0.1:0", **server}})


@asynccontextmanager
async def world(observed, **settings: object) -> AsyncIterator[World]:
    engine, servicer = FakeEngine(), FakeServicer()
    made = World(Server(config(**settings), observed.telemetry, Parts(servicer, engine)), engine, servicer)
    try:
        yield made
    finally:
        if hasattr(made, "channel"):
            await made.channel.close()
        await made.server.close()


async def eventually(check: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not become true"
        await asyncio.sleep(0.02)


async def result(call):
    return await call


async def test_health_follows_warm_up(observed):
    async with world(observed) as it:
        it.engine.warm.clear()
        bound = asyncio.Event()
        starting = asyncio.ensure_future(it.server.start(lambda _: bound.set()))
        await asyncio.wait_for(bound.wait(), 5)
        it.connect()
        assert [await it.health(name) for name in ("", SERVICE)] == [NOT_SERVING] * 2
        early = asyncio.ensure_future(result(it.stub.Label(LabelRequest(request_id="early"))))
        await asyncio.sleep(0.1)
        assert not early.done()
        it.engine.warm.set()
        await starting
        assert (await early).request_id == "early"
        assert [await it.health(name) for name in ("", SERVICE)] == [SERVING] * 2
    assert it.engine.events == ["start", "close"]


async def test_health_follows_the_engine(observed):
    async with world(observed) as it:
        await it.server.start()
        it.connect()
        seen: list[int] = []
        watching = asyncio.ensure_future(it.watch(seen))
        await eventually(lambda: seen == [SERVING])
        it.engine.healthy = False
        await eventually(lambda: seen == [SERVING, NOT_SERVING])
        watching.cancel()


async def test_a_watcher_that_leaves_takes_no_other_with_it(observed):
    async with world(observed) as it:
        await it.server.start()
        it.connect()
        seen: dict[int, list[int]] = {0: [], 1: []}
        watchers = [asyncio.ensure_future(it.watch(mine)) for mine in seen.values()]
        await eventually(lambda: seen == {0: [SERVING], 1: [SERVING]})
        watchers[0].cancel()
        await asyncio.sleep(0.2)
        await it.server.drain()
        await eventually(lambda: seen[1] == [SERVING, NOT_SERVING])
        watchers[1].cancel()


async def test_reflection_lists_the_services(observed):
    async with world(observed) as it:
        await it.server.start()
        it.connect()
        stub = reflection_pb2_grpc.ServerReflectionStub(it.channel)

        async def ask():
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        async for response in stub.ServerReflectionInfo(ask()):
            names = {service.name for service in response.list_services_response.service}
            assert {SERVICE, "grpc.health.v1.Health"} <= names
            break


async def test_draining_lets_calls_end_and_takes_no_new_ones(observed):
    async with world(observed) as it:
        await it.server.start()
        it.connect()
        it.servicer.go.clear()
        flying = asyncio.ensure_future(result(it.stub.Label(LabelRequest(request_id="flying"))))
        await asyncio.wait_for(it.servicer.running.wait(), 5)
        seen: list[int] = []
        watching = asyncio.ensure_future(it.watch(seen))
        await eventually(lambda: seen == [SERVING])
        draining = asyncio.ensure_future(it.server.drain())
        await eventually(lambda: seen == [SERVING, NOT_SERVING])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.stub.Label(LabelRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not draining.done()
        it.servicer.go.set()
        assert (await flying).request_id == "flying"
        assert await draining is True
        watching.cancel()


async def test_callers_of_a_draining_server_go_elsewhere_over_the_connection_that_they_have(observed):
    async with world(observed, reuse_port=True) as leaving:
        await leaving.server.start()
        async with AsyncClient(leaving.server.address, connections=1, retries=3) as client:
            leaving.servicer.go.clear()
            flying = asyncio.ensure_future(client.label(b"x" * 1000, whole=True, request_id="flying"))
            await asyncio.wait_for(leaving.servicer.running.wait(), 5)
            async with world(observed, listen=leaving.server.address, reuse_port=True) as staying:
                await staying.server.start()
                draining = asyncio.ensure_future(leaving.server.drain())
                answers = await asyncio.gather(*(client.label(b"x" * 1000, whole=True, request_id=str(n)) for n in range(50)))
                assert [answer.request_id for answer in answers] == [str(number) for number in range(50)]
                assert staying.servicer.running.is_set()
                assert not draining.done(), "while the other still has a call"
                leaving.servicer.go.set()
                assert (await flying).request_id == "flying"
                assert await draining is True


async def test_draining_cuts_what_does_not_end(observed):
    async with world(observed, grace=0.1) as it:
        await it.server.start()
        it.connect()
        it.servicer.go.clear()
        flying = asyncio.ensure_future(result(it.stub.Label(LabelRequest())))
        await asyncio.wait_for(it.servicer.running.wait(), 5)
        assert await it.server.drain() is False
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await flying
    status = rpc_status.from_call(cut.value)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert (cut.value.code(), info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("127.0.0.1:{taken}", "address already in use"),
        ("no-such-host.invalid:0", "cannot listen"),
        ("unix:/nowhere/at/all", "socket path"),
    ],
)
async def test_what_cannot_be_listened_on(observed, listen, message):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = listen.format(taken=taken.getsockname()[1])
        async with world(observed, listen=address) as it:
            with pytest.raises(StartError, match=message) as caught:
                await it.server.start()
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)
    assert it.engine.events == ["close"], "nothing is warmed up for a server that cannot listen"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", chain],
        check=True,
        capture_output=True,
    )
    return chain, key


async def test_tls(observed, certificate):
    chain, key = certificate
    async with world(observed, tls_certificate=str(chain), tls_key=str(key)) as it:
        await it.server.start()
        trust = grpc.ssl_channel_credentials(chain.read_bytes())
        port = it.server.address.rpartition(":")[2]
        async with grpc.aio.secure_channel(f"localhost:{port}", trust) as channel:
            assert (await ShortVideoLabelerStub(channel).Label(LabelRequest(request_id="tls"), timeout=5)).request_id == "tls"


async def test_tls_demands_a_client_certificate(observed, certificate):
    chain, key = certificate
    async with world(observed, tls_certificate=str(chain), tls_key=str(key), tls_client_ca=str(chain)) as it:
        await it.server.start()
        address = f"localhost:{it.server.address.rpartition(':')[2]}"
        root = chain.read_bytes()
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root)) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await ShortVideoLabelerStub(channel).Label(LabelRequest(), timeout=5)
        own = grpc.ssl_channel_credentials(root, key.read_bytes(), root)
        async with grpc.aio.secure_channel(address, own) as channel:
            assert await ShortVideoLabelerStub(channel).Label(LabelRequest(), timeout=5) == LabelResponse()


async def test_tls_files_that_are_not_there_or_no_good(observed, tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    for path, message in ((tmp_path / "none.pem", "no such file"), (bad, "cannot be used")):
        async with world(observed, tls_certificate=str(path), tls_key=str(path)) as it:
            with pytest.raises(StartError, match=f"(?i){message}"):
                await it.server.start()


async def test_an_engine_that_does_not_start_ends_the_server(observed, tmp_path):
    engine = FakeEngine()

    async def fail() -> None:
        raise StartError("no models")

    engine.start = fail  # type: ignore[method-assign]
    port_file = tmp_path / "port"
    with pytest.raises(StartError, match="no models"):
        await serve(config(), observed.telemetry, lambda *_: Parts(FakeServicer(), engine), port_file=port_file)
    assert engine.events == ["close"]
    assert not port_file.exists()


SERVER = textwrap.dedent(
    """
    import asyncio, pathlib, sys
    from keyglance.v1.keyglance_pb2 import LabelResponse
    from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerServicer
    from server import logs
    from server.config import Config
    from server.engine import EngineInfo
    from server.lifecycle import Parts, serve
    from server.telemetry import Telemetry

    class Engine:
        healthy = True
        async def start(self):
            await asyncio.sleep(float(sys.argv[2]))
        async def close(self):
            print("engine closed", flush=True)
        def info(self):
            return EngineInfo("fake", (), ())

    class Servicer(ShortVideoLabelerServicer):
        async def Label(self, request, context):
            print("called", flush=True)
            await asyncio.sleep(float(request.request_id))
            return LabelResponse(request_id=request.request_id)

    logs.configure("json", "info")
    config = Config.load(overrides={"server": {"listen": "127.0.0.1:0", "grace": 10}})
    telemetry = Telemetry.create(version="0")
    asyncio.run(serve(config, telemetry, lambda *_: Parts(Servicer(), Engine()), port_file=pathlib.Path(sys.argv[1])))
    """
)


class Process:
    """A server in a process of its own."""

    def __init__(self, folder: Path, warm_up: float = 0.0) -> None:
        self.port_file = folder / "port"
        self.popen = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.port_file), str(warm_up)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def address(self) -> str:
        await eventually(self.port_file.exists, 60)
        return self.port_file.read_text().strip()

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.popen.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        return self.popen.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(tmp_path, number):
    process = Process(tmp_path)
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        flying = asyncio.ensure_future(result(ShortVideoLabelerStub(channel).Label(LabelRequest(request_id="0.5"))))
        assert await asyncio.to_thread(process.popen.stdout.readline) == "called\n"
        process.popen.send_signal(number)
        assert (await flying).request_id == "0.5"
    code, out, err = await asyncio.to_thread(process.end)
    assert (code, out) == (0, "engine closed\n"), err
    assert not process.port_file.exists()


async def test_a_second_signal_ends_at_once(tmp_path):
    process = Process(tmp_path)
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        flying = asyncio.ensure_future(result(ShortVideoLabelerStub(channel).Label(LabelRequest(request_id="9"))))
        assert await asyncio.to_thread(process.popen.stdout.readline) == "called\n"
        process.popen.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError):
            await flying
    code, out, _ = await asyncio.to_thread(process.end)
    assert (code, out) == (128 + signal.SIGTERM, "")


async def test_a_signal_during_warm_up(tmp_path):
    process = Process(tmp_path, warm_up=60)
    await process.address()
    process.popen.send_signal(signal.SIGTERM)
    code, out, err = await asyncio.to_thread(process.end)
    assert (code, out) == (0, "engine closed\n"), err


async def test_an_unreachable_collector_does_not_keep_the_server(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    process = Process(tmp_path)
    async with grpc.aio.insecure_channel(await process.address()) as channel:
        await ShortVideoLabelerStub(channel).Label(LabelRequest(request_id="0"))
    process.popen.send_signal(signal.SIGTERM)
    code, _, err = await asyncio.to_thread(process.end)
    assert code == 0, err
