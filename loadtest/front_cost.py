"""What stands between the wire and the engine: `python -m loadtest.front_cost`.

A front answers calls of a mix with an engine that does no work but has the scores of four models for each picture; beside it, in
turns, a gRPC server that reads the same message and sends as many bytes back, which is the least that a call can cost in this
language. Told are, for one call, the processor time of each process and how often its threads change, and the front's steps as
it tells them itself, which with several calls at once include waiting for one another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from keyglance.v1.keyglance_pb2 import LabelResponse
from loadtest import report
from loadtest.engine_process import IdleEngine
from loadtest.mix import Mix, MixError
from loadtest.own_server import address_of, parts_around
from loadtest.request_bytes import LABEL_METHOD
from models.result import FrameResult, LabelScores
from server.config import Config
from server.engine import EngineJob, EngineResult
from server.lifecycle import Parts, channel_options, serve
from server.telemetry import Telemetry

_DEFAULT_MIX = Path(__file__).parent / "mixes" / "phone.toml"
AT_ONCE = (1, 8)
#: The ways; the second is compared with the first.
BARE, FRONT = "bare", "front"
_CONNECTIONS = 4
#: Pictures of a call for which there are scores; more are answered as if they were not decoded.
_MOST_PICTURES = 64
_PATIENCE = 60.0  # seconds for one call, and for the end of a server


class _Engine(IdleEngine):
    """On each picture one label of each model is likely, all others are not, as it is with most videos."""

    def __init__(self) -> None:
        super().__init__(_MOST_PICTURES)
        self._usual = [
            dataclasses.replace(frame, results={name: _usual(found, number) for name, found in frame.results.items()})
            for number, frame in enumerate(self._result.frames)
        ]

    async def run(self, job: EngineJob) -> EngineResult:
        """The same scores for each job."""
        result = await super().run(job)
        wanted = [sample for unit in job.units for sample in unit.wanted]
        frames = [dataclasses.replace(frame, sample=sample) for frame, sample in zip(self._usual, wanted, strict=False)]
        return dataclasses.replace(result, frames=tuple(frames))


def _usual(found: FrameResult, number: int) -> FrameResult:
    assert isinstance(found.scores, LabelScores)
    scores = found.scores.array * np.float32(0.02)
    scores[number % min(3, len(scores))] = 0.6
    return FrameResult(LabelScores(found.scores.labels, scores), found.regions)


def serve_front(port_file: Path) -> None:
    """A server of one process with that engine, until SIGTERM."""

    def parts(config: Config, telemetry: Telemetry) -> Parts:
        return parts_around(_Engine(), config)

    config = Config.load(overrides={"server": {"listen": "127.0.0.1:0"}})
    asyncio.run(serve(config, Telemetry.create(version="0"), parts, port_file=port_file))


def serve_bare(port_file: Path, answer_bytes: int) -> None:
    """gRPC alone, with the options of a front."""
    answer = bytes(answer_bytes)

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
            async def call(_: object, context: Any) -> bytes:
                await context.read()
                return answer

            return grpc.stream_unary_rpc_method_handler(call)

    async def run() -> None:
        server = grpc.aio.server(options=channel_options(Config.load().server.largest_message))
        server.add_generic_rpc_handlers((Handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await asyncio.to_thread(port_file.write_text, f"127.0.0.1:{port}")
        await server.wait_for_termination()

    asyncio.run(run())


@dataclass
class Server:
    """One of them, and its figures, a value for each turn."""

    address: str
    process: psutil.Process
    calls: int = 0
    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    system_ms: list[float] = field(default_factory=list)
    switches: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds

    def turn(self, message: bytes, at_once: int, seconds: float) -> list[bytes]:
        """Calls for so long; returns some of their answers."""
        before, switched, begin = self.process.cpu_times(), _switches(self.process), time.monotonic()
        latencies, answers = asyncio.run(_calls(self.address, message, at_once, seconds))
        taken, after = time.monotonic() - begin, self.process.cpu_times()
        count = len(latencies)
        self.calls += count
        self.rates.append(count / taken)
        self.system_ms.append((after.system - before.system) / count * 1e3)
        self.cpu_ms.append((after.user - before.user) / count * 1e3 + self.system_ms[-1])
        self.switches.append((_switches(self.process) - switched) / count)
        self.latencies += latencies
        return answers

    def figures(self) -> dict[str, Any]:
        """Medians over the turns, for one call."""
        return {
            "calls": self.calls,
            "calls_per_second": round(statistics.median(self.rates), 1),
            "p50_ms": round(statistics.median(self.latencies) * 1e3, 3),
            "cpu_ms": round(statistics.median(self.cpu_ms), 3),
            "of_it_in_the_kernel_ms": round(statistics.median(self.system_ms), 3),
            "thread_switches": round(statistics.median(self.switches), 1),
        }


async def _calls(address: str, message: bytes, at_once: int, seconds: float) -> tuple[list[float], list[bytes]]:
    """How long each took, and the last answer of each caller."""
    latencies: list[float] = []
    answers: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(min(_CONNECTIONS, at_once))
        ]
        end = time.monotonic() + seconds

        async def caller(number: int) -> None:
            call: Any = channels[number % len(channels)].unary_unary(LABEL_METHOD)
            answer = b""
            while time.monotonic() < end or not answer:
                begin = time.monotonic()
                answer = await call(message, timeout=_PATIENCE)
                latencies.append(time.monotonic() - begin)
            answers.append(answer)

        await asyncio.gather(*(caller(number) for number in range(at_once)))
    return latencies, answers


def _switches(process: psutil.Process) -> int:
    """Changes of threads so far, of all that live: those that waited and those that had to make room."""
    total = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            total += sum(int(line.split()[1]) for line in status.read_text().splitlines() if "ctxt_switches" in line)
    return total


@contextlib.contextmanager
def serving(way: str, folder: Path, *, answer_bytes: int = 0) -> Iterator[tuple[str, psutil.Process]]:
    """Starts a way's server."""
    port_file = folder / f"{way}.port"
    command = [sys.executable, "-m", "loadtest.front_cost", "--serve", way, str(port_file), str(answer_bytes)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    try:
        yield address_of(process, port_file), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def steps_ms(answers: Sequence[bytes]) -> dict[str, float]:
    """Medians of what answers tell of their steps, those of the engine left out."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        for timing in LabelResponse.FromString(answer).timings:
            found.setdefault(timing.step, []).append(timing.wall_ms - timing.wait_ms)
    return {step: round(statistics.median(found[step]), 3) for step in ("receive", "index", "sample", "fuse") if step in found}


def measure(message: bytes, *, turns: int, seconds: float) -> dict[str, Any]:
    """Both ways in turns, at each number of calls at once."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        front = stack.enter_context(serving(FRONT, folder))
        answer = Server(*front).turn(message, max(AT_ONCE), seconds)[0]
        bare = stack.enter_context(serving(BARE, folder, answer_bytes=len(answer)))
        Server(*bare).turn(message, max(AT_ONCE), seconds)
        for at_once in AT_ONCE:
            servers = {BARE: Server(*bare), FRONT: Server(*front)}
            answers: list[bytes] = []
            for _ in range(turns):
                servers[BARE].turn(message, at_once, seconds)
                answers += servers[FRONT].turn(message, at_once, seconds)
            figures = {way: server.figures() for way, server in servers.items()}
            times = [mine / least for mine, least in zip(servers[FRONT].cpu_ms, servers[BARE].cpu_ms, strict=True)]
            told[str(at_once)] = {**figures, "front_of_bare": round(statistics.median(times), 3), "steps_ms": steps_ms(answers)}
    pictures = LabelResponse.FromString(answer).coverage.frames
    return {"message_bytes": len(message), "answer_bytes": len(answer), "pictures": pictures, "at_once": told}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.front_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--mix", type=Path, default=_DEFAULT_MIX, help="its first class is called (default: phone)")
    parser.add_argument("--turns", type=int, default=6, help="of each way (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--dry", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--serve", nargs=3, metavar=("WAY", "PORT_FILE", "ANSWER_BYTES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        way, port_file, answer_bytes = options.serve
        if way == BARE:
            serve_bare(Path(port_file), int(answer_bytes))
        else:
            serve_front(Path(port_file))
        return 0
    try:
        request = Mix.load(options.mix).classes[0].request
    except MixError as error:
        parser.error(str(error))
    told = measure(request, turns=options.turns, seconds=options.seconds)
    told |= {"turns": options.turns, "seconds": options.seconds}
    print(json.dumps(told, indent=1))
    if not options.dry:
        print(report.write("front_cost", told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
