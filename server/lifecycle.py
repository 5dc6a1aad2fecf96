"""The life of a server: bind, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from keyglance.errors import Draining
from keyglance.v1 import keyglance_pb2, keyglance_pb2_grpc
from server import port_file as port_files
from server.admission import Admission
from server.config import Config, ServerSection
from server.engine import Engine
from server.front_share import FrontShare
from server.health import HealthServicer
from server.interceptors import ENVELOPE, CallInterceptor
from server.lasting_objects import spare_the_collector
from server.overload import Overload
from server.readings import EngineSource, calls_readings
from server.receive_budget import ReceiveBudget
from server.start_error import StartError as StartError
from server.stopping import stop_on_signals
from server.telemetry import Telemetry

SERVICE: str = keyglance_pb2.DESCRIPTOR.services_by_name["ShortVideoLabeler"].full_name

_HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_HEALTH_INTERVAL = 0.1  # seconds between two looks at the engine, which has its answer at hand
_BACKLOG = 0.1  # seconds for calls that gRPC holds for a busy loop: stopping would cancel them, so they are refused first
_AFTER_CUT = 5.0  # seconds for calls to end once they were cut short
_LAST_BYTES = 1.0  # seconds for the last answers to be sent
_NEVER = 1e6  # seconds of grace that gRPC gives by itself: when calls are cut short is decided here
_MOST_MS = 2**31 - 1  # what gRPC's options hold, 24 days
_TELEMETRY_END = 3.0  # seconds for the last traces and metrics to be sent

_log = logging.getLogger(__name__)


class Component(Protocol):
    """Something with a life of its own: workers, pools."""

    async def start(self) -> None:
        """Ready when it returns."""
        ...

    async def close(self) -> None:
        """Ends it, also where `start` has failed or was cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server serves: the servicer, the engine below it, and what else has to run (an indexer).

    `shares`: where several fronts share the engine, this one's of the places, by lane (`server.overload.LaneName`).
    """

    servicer: keyglance_pb2_grpc.ShortVideoLabelerServicer
    engine: Engine
    others: tuple[Component, ...] = ()
    shares: tuple[FrontShare, ...] = ()


#: Makes the parts without starting them; raises what is wrong with models, policies and the like.
MakeParts = Callable[[Config, Telemetry], Parts]


def channel_options(largest_message: int, *, connection_age: float = 600.0, reuse_port: bool = False) -> list[tuple[str, int]]:
    """gRPC's options for a server that takes messages of `largest_message` bytes and ends connections after that many seconds."""
    return [
        ("grpc.max_receive_message_length", largest_message + ENVELOPE),
        ("grpc.max_send_message_length", largest_message + ENVELOPE),
        ("grpc.so_reuseport", int(reuse_port)),
        # What is not read yet stays at the sender but for one window (64 KiB) a stream: probing would let windows grow to
        # megabytes each. A message that is being read gets a window of its own size, so nothing becomes slower.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", 512),
        # Dead peers are found, peers may ping, and connections end now and then (gRPC varies the age by a tenth), so that load
        # balancers, and the kernel among fronts, can spread them anew. Calls on them end first, within the grace.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.max_connection_idle_ms", 15 * 60_000),
        ("grpc.max_connection_age_ms", min(_MOST_MS, round(connection_age * 1e3))),
        ("grpc.max_connection_age_grace_ms", 60_000),
    ]


def credentials(section: ServerSection) -> grpc.ServerCredentials | None:
    """TLS as configured, None without. Raises `StartError` for files that cannot be read or do not fit together."""
    if section.tls_certificate is None or section.tls_key is None:
        return None
    key, chain = _pem(section.tls_key, "tls_key"), _pem(section.tls_certificate, "tls_certificate")
    authorities = None if section.tls_client_ca is None else _pem(section.tls_client_ca, "tls_client_ca")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A password would be asked for on the terminal; gRPC takes plain keys only.
        context.load_cert_chain(section.tls_certificate, section.tls_key, password=lambda: b"")
        if section.tls_client_ca is not None:
            context.load_verify_locations(section.tls_client_ca)
    except (ssl.SSLError, ValueError) as error:
        raise StartError(f"server.tls_*: certificate, key and authorities cannot be used: {error}") from None
    return grpc.ssl_server_credentials([(key, chain)], authorities, authorities is not None)


def _pem(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"server.{name}: cannot read {path}: {error.strerror or error}") from None


class Server:
    """A gRPC server around `parts`. `start`, then `drain`; `close` ends it in whatever state it is."""

    def __init__(self, config: Config, telemetry: Telemetry, parts: Parts) -> None:
        self._config = config
        self._telemetry = telemetry
        self._parts = parts
        about = parts.engine.info()
        devices = about.devices if about.hardware else 1  # engines without a GPU have the same processors
        overload = Overload(
            config.overload,
            software_calls=config.decoders.most,
            calls=config.server.concurrent_calls,
            on_gpu=bool(about.hardware),
            devices=devices,
            engines=devices * config.server.sharers if about.hardware else 1,
            side_by_side=config.server.mps,
            shares=parts.shares,
            refused=telemetry.metrics.refused,
        )
        self._admission = Admission(config.server.concurrent_calls, overload)
        self._budget = ReceiveBudget(config.receive.budget, queue_limit=config.receive.queue_limit)
        self._health = HealthServicer([SERVICE])
        self._grpc: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.address = config.server.listen
        telemetry.metrics.observe(lambda: calls_readings(self._admission, self._budget))
        telemetry.metrics.observe(EngineSource(parts.engine))

    async def start(self, bound: Callable[[str], None] = lambda _: None) -> None:
        """Binds (`bound` gets the address), answers health checks from then on, warms up, serves.

        Calls that come before warm-up is over wait for it. Raises `StartError`, or what a part raises.
        """
        self._grpc = self._make_grpc()
        self.address = self._bind(self._grpc)
        bound(self.address)
        await self._grpc.start()
        for part in (self._parts.engine, *self._parts.others):
            await part.start()
        self._admission.open()
        await self._health.set(self._parts.engine.healthy)
        self._watch = asyncio.create_task(self._watch_engine(), name="watch engine")
        _log.info("serving on %s", self.address)
        if self._telemetry.prometheus:
            _log.info("metrics on %s", self._telemetry.prometheus)

    async def drain(self) -> bool:
        """Takes no new calls, gives those in flight `server.grace` seconds. Returns whether all of them ended in time.

        Every connection is told at once to take no more calls (HTTP/2's GOAWAY), and none is accepted: callers go elsewhere with
        the next one. Were they told by the status of their calls only, each would come back over the connection that it has.
        """
        _log.info("draining, %d calls in flight", self._admission.in_flight)
        await self._health.drain()
        self._admission.drain()
        if self._grpc is not None:
            await asyncio.sleep(_BACKLOG)
            self._stopping = asyncio.create_task(self._grpc.stop(_NEVER), name="take no new calls")
        try:
            await asyncio.wait_for(self._admission.idle(), self._config.server.grace)
        except TimeoutError:
            count = self._admission.cut_short(Draining("the server shuts down and could not wait for this call any longer"))
            _log.warning("%d calls were cut short after %g s of grace", count, self._config.server.grace)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._admission.idle(), _AFTER_CUT)
            return False
        # Every decoder idle, nobody waiting: whoever reads the log sees that no call left anything behind.
        _log.info("drained: %s", ", ".join(repr(part) for part in (self._parts.engine, *self._parts.others)))
        return True

    async def close(self) -> None:
        """Ends gRPC, then the parts, the last one started first."""
        if self._watch is not None:
            self._watch.cancel()
        if self._grpc is not None:
            await self._grpc.stop(_LAST_BYTES)
        if self._stopping is not None:
            await self._stopping
        for part in (*reversed(self._parts.others), self._parts.engine):
            try:
                await part.close()
            except Exception:
                _log.exception("%r did not close", part)
        if self._watch is not None:
            _log.info("ended")

    def __repr__(self) -> str:
        return f"<Server {self.address} {self._admission!r}>"

    def _make_grpc(self) -> grpc.aio.Server:
        config = self._config
        interceptor = CallInterceptor(
            self._telemetry,
            self._admission,
            self._budget,
            services=[SERVICE],
            default_deadline=config.server.default_deadline,
            receive_timeout=config.receive.timeout,
            largest_message=config.server.largest_message,
        )
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=channel_options(
                config.server.largest_message,
                connection_age=config.server.connection_age,
                reuse_port=config.server.reuse_port,
            ),
        )
        keyglance_pb2_grpc.add_ShortVideoLabelerServicer_to_server(self._parts.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, _HEALTH_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    def _bind(self, server: grpc.aio.Server) -> str:
        listen = self._config.server.listen
        tls = credentials(self._config.server)
        try:
            port = server.add_insecure_port(listen) if tls is None else server.add_secure_port(listen, tls)
        except RuntimeError:
            raise StartError(f"cannot listen on {listen}: {_why_not(listen)}") from None
        return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"

    async def _watch_engine(self) -> None:
        was = self._parts.engine.healthy
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL)
            if (now := self._parts.engine.healthy) != was:
                _log.log(logging.INFO if now else logging.ERROR, "the engine is %s", "healthy again" if now else "lost")
                await self._health.set(now)
                was = now


def _why_not(listen: str) -> str:
    """What the operating system says to binding; gRPC itself only says that it failed."""
    if listen.startswith("unix:"):
        return "not a usable socket path"
    host, _, port = listen.rpartition(":")
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "the address cannot be used"


async def serve(config: Config, telemetry: Telemetry, make_parts: MakeParts, *, port_file: Path | None = None) -> bool:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends the process at once.

    Returns whether every call ended within the grace. Raises `StartError` or what the parts raise where it cannot start.
    """
    with stop_on_signals() as stop:
        try:
            return await serve_until(
                stop, config, telemetry, make_parts, bound=lambda address: port_files.write(port_file, address)
            )
        finally:
            port_files.remove(port_file)


async def serve_until(
    stop: asyncio.Event,
    config: Config,
    telemetry: Telemetry,
    make_parts: MakeParts,
    *,
    bound: Callable[[str], None] = lambda _: None,
) -> bool:
    """Serves until `stop` is set, then drains; `bound` gets the address. Returns and raises as `serve` does."""
    try:
        server = Server(config, telemetry, make_parts(config, telemetry))
        try:
            starting = asyncio.ensure_future(server.start(bound))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                _log.info("stopped before warm-up was over")
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return True
            if (error := starting.exception()) is not None:
                stopping.cancel()
                raise error
            spare_the_collector()
            await stopping
            return await server.drain()
        finally:
            await server.close()
    finally:
        await end_telemetry(telemetry)


async def end_telemetry(telemetry: Telemetry) -> None:
    """Sends what waits, for a few seconds at most, and ends the exporters."""
    # Not in the loop's executor, for which `asyncio.run` would wait: an exporter tries an unreachable collector for long.
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        telemetry.shutdown()
        with contextlib.suppress(RuntimeError):  # the loop is gone, nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=end, name="end telemetry", daemon=True).start()
    try:
        await asyncio.wait_for(ended.wait(), _TELEMETRY_END)
    except TimeoutError:
        _log.warning("traces and metrics that waited could not be sent within %g s", _TELEMETRY_END)
