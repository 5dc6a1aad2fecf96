"""What telemetry costs: `python -m loadtest.telemetry`.

Four servers with an engine that does no work, but tells the steps and the batch of a call as one that does: without telemetry
(OTEL_SDK_DISABLED); with metrics alone, read every second; with all of it, traces being sent to a collector on this machine, at
the default `telemetry.trace_ratio`; and with every call's trace sent. Each is saturated by callers over loopback, in turns of a
few seconds. No model runs, so what telemetry takes is compared with the least that a call can cost.

Then the first and the third of them once more as real servers, with the models that are installed, decoding and inferring on the
processor: what telemetry takes of calls as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing as mp
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import psutil
from opentelemetry import trace
from opentelemetry.context import Context

from keyglance.v1.keyglance_pb2 import LabelResponse
from loadtest import report
from loadtest.index import clip
from loadtest.otlp_sink import OtlpSink
from loadtest.own_server import address_of, parts_around
from loadtest.request_bytes import LABEL_METHOD, request_message
from loadtest.server_process import ServerProcess
from loadtest.transport import IdleEngine
from server.config import Config
from server.engine import EngineJob, EngineResult
from server.lifecycle import Parts, serve
from server.telemetry import Telemetry
from server.timing import StepTiming

#: The ways, with what they have in their environment beside the collector's address; the first is compared with.
WAYS: dict[str, dict[str, str]] = {
    "off": {"OTEL_SDK_DISABLED": "true"},
    "metrics": {"KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0", "OTEL_TRACES_EXPORTER": "none"},
    "on": {"KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0"},
    "every_trace": {"KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0", "KEYGLANCE_TELEMETRY__TRACE_RATIO": "1"},
}

#: Those of which models run.
WAYS_WITH_MODELS = ("off", "on")


class TellingEngine(IdleEngine):
    """Does nothing, and tells three steps and a batch of each job."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    async def run(self, job: EngineJob) -> EngineResult:
        """As `IdleEngine`, with what an engine that works would leave in a trace."""
        begin = time.monotonic()
        caller = trace.get_current_span().get_span_context()
        batch = self._tracer.start_span(
            "infer_batch",
            context=Context(),
            links=[trace.Link(caller)] if caller.is_valid else [],
            attributes={"keyglance.model": "none", "keyglance.batch.size": 16},
        )
        result = await super().run(job)
        batch.end()
        steps = tuple(StepTiming(step, begin, time.monotonic(), 1e-3) for step in ("decode", "preprocess", "infer"))
        context = batch.get_span_context()
        return EngineResult(result.frames, steps, batches=(context,) if context.is_valid else ())


def parts(config: Config, telemetry: Telemetry) -> Parts:
    """A server's parts with that engine."""
    return parts_around(TellingEngine(telemetry.tracer), config)


def run_server(port_file: Path) -> None:
    """Serves until SIGTERM; prints where its metrics are."""
    config = Config.load(overrides={"server": {"listen": "127.0.0.1:0"}})
    telemetry = Telemetry.create(version="0", prometheus=config.telemetry.prometheus, trace_ratio=config.telemetry.trace_ratio)
    print(telemetry.prometheus, flush=True)
    asyncio.run(serve(config, telemetry, parts, port_file=port_file))


@dataclass
class Server:
    """One way's server, and what was measured of it, a value for each turn."""

    way: str
    process: psutil.Process
    address: str
    metrics: str
    calls: int = 0
    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def read(self) -> str:
        """Its metrics, as Prometheus reads them."""
        request = urllib.request.Request(f"http://{self.metrics}/metrics", headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())

    def count(self, name: str) -> int:
        """The sum of a counter's samples."""
        return round(sum(float(value) for value in re.findall(rf"^{name}_total{{[^}}]*}} (\S+)", self.read(), re.MULTILINE)))


@contextlib.contextmanager
def serving(way: str, endpoint: str, folder: Path) -> Iterator[Server]:
    """Starts a way's server."""
    port_file = folder / f"{way}.port"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | _asked(way, endpoint)
    command = [sys.executable, "-m", "loadtest.telemetry", "--serve", str(port_file)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        metrics = process.stdout.readline().strip()
        yield Server(way, psutil.Process(process.pid), address_of(process, port_file), metrics)
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def serving_with_models(way: str, endpoint: str, folder: Path) -> Iterator[Server]:
    """Starts a way's real server: one process, the installed models, no GPU."""
    directory = folder / f"{way}-with-models"
    directory.mkdir()
    with ServerProcess(directory, environment={"KEYGLANCE_ENGINE__DEVICE": "cpu", **_asked(way, endpoint)}) as server:
        yield Server(way, psutil.Process(server.pid), server.address, server.metrics)


def _asked(way: str, endpoint: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_METRICS_EXPORTER": "none", **WAYS[way]}


async def saturate(server: Server, message: bytes, callers: int, seconds: float) -> int:
    """Calls without a pause for so long; returns how many were answered."""
    answered = 0
    end = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(server.address) as channel:
        label: Any = channel.unary_unary(LABEL_METHOD)

        async def caller() -> None:
            nonlocal answered
            while time.monotonic() < end:
                answer = await label(message, timeout=60)
                if not answered:
                    assert LabelResponse.FromString(answer).coverage.frames
                answered += 1

        async def reader() -> None:
            while server.metrics:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(server.read)

        reading = asyncio.create_task(reader())
        await asyncio.gather(*(caller() for _ in range(callers)))
        reading.cancel()
    return answered


def turn(server: Server, message: bytes, callers: int, seconds: float) -> None:
    """One turn: calls a second, and the milliseconds of processor time of the server and its workers for each."""
    used, begin = _cpu(server.process), time.monotonic()
    answered = asyncio.run(saturate(server, message, callers, seconds))
    taken = time.monotonic() - begin
    server.calls += answered
    server.rates.append(answered / taken)
    server.cpu_ms.append((_cpu(server.process) - used) / answered * 1e3)


def take_turns(servers: Sequence[Server], message: bytes, callers: int, turns: int, seconds: float) -> None:
    """Warms all of them, then measures one after another, in turns of alternating order."""
    for server in servers:
        asyncio.run(saturate(server, message, callers, seconds / 3))
    for number in range(turns):
        for server in servers if number % 2 else reversed(servers):
            turn(server, message, callers, seconds)
    time.sleep(3)  # for the last spans


def _cpu(process: psutil.Process) -> float:
    every = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(times.user + times.system for times in every))


def sink_process(pipe: Connection) -> None:
    """A collector in a process of its own, so that it does not share the callers' interpreter; tells its count when asked."""
    with OtlpSink(keep=False) as sink:
        pipe.send(sink.endpoint)
        while pipe.recv():
            pipe.send(sink.count)


def figures(servers: Sequence[Server]) -> dict[str, Any]:
    """By way: medians, and against the first one: the median over the turns of what each turn's neighbours give."""
    first = servers[0]
    told: dict[str, Any] = {}
    for server in servers:
        rates = [mine / theirs for mine, theirs in zip(server.rates, first.rates, strict=True)]
        cpu = [mine / theirs for mine, theirs in zip(server.cpu_ms, first.cpu_ms, strict=True)]
        told[server.way] = {
            "calls": server.calls,
            "calls_per_second": round(statistics.median(server.rates), 1),
            "server_cpu_ms_per_call": round(statistics.median(server.cpu_ms), 4),
            "throughput_against_off": round(statistics.median(rates), 4),
            "throughput_against_off_quartiles": [round(value, 4) for value in statistics.quantiles(rates, n=4)[::2]],
            "cpu_against_off": round(statistics.median(cpu), 4),
        }
        if server.metrics:
            told[server.way] |= {
                "scrape_bytes": len(server.read()),
                "traces_kept": server.count("keyglance_traces_kept"),
                "spans_sent": server.count("keyglance_spans_exported"),
                "spans_dropped": server.count("keyglance_spans_dropped"),
            }
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.telemetry", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=12, help="of each way (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--callers", type=int, default=16, help="at once (default: %(default)s)")
    parser.add_argument("--turns-with-models", type=int, default=10, help="0 for none (default: %(default)s)")
    parser.add_argument("--seconds-with-models", type=float, default=6.0, help="of such a turn (default: %(default)s)")
    parser.add_argument("--callers-with-models", type=int, default=4, help="at once (default: %(default)s)")
    parser.add_argument("--dry", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--serve", type=Path, metavar="PORT_FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        run_server(options.serve)
        return 0
    here, there = mp.get_context("spawn").Pipe()
    sink = mp.get_context("spawn").Process(target=sink_process, args=(there,))
    sink.start()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        message = request_message(clip(10, rate=300_000)).SerializeToString()
        endpoint = here.recv()
        with contextlib.ExitStack() as idle:
            servers = [idle.enter_context(serving(way, endpoint, folder)) for way in WAYS]
            take_turns(servers, message, options.callers, options.turns, options.seconds)
            told = figures(servers)
        if turns := options.turns_with_models:
            callers, seconds = options.callers_with_models, options.seconds_with_models
            servers = [stack.enter_context(serving_with_models(way, endpoint, folder)) for way in WAYS_WITH_MODELS]
            take_turns(servers, message, callers, turns, seconds)
            told["with_models"] = {**figures(servers), "callers": callers, "turns": turns, "seconds": seconds}
        here.send(True)
        told["spans_received_by_the_collector"] = here.recv()
        here.send(False)
    sink.join()
    told |= {"message_bytes": len(message), "callers": options.callers, "turns": options.turns, "seconds": options.seconds}
    print(json.dumps(told, indent=1))
    if not options.dry:
        print(report.write("telemetry", told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
