"""What sending only the bytes that matter saves: `python -m loadtest.transport`.

A clip of 60 s and about 12.5 MB on its way from a file to a server's plan and packets and back, over loopback: the client's
own selection, the call, the server's index, sampling and copying of packets; nothing is decoded and no model runs. As whole
bytes and as ranges, in turns, each from a client's `label(path)`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keyglance import Client
from loadtest import report
from loadtest.clips import tone
from loadtest.index import LAYOUTS, clip, remuxed
from loadtest.own_server import parts_around
from loadtest.request_bytes import request_message
from server.config import Config
from server.engine import EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.engine_stats import EngineStats
from server.lifecycle import Parts, serve
from server.telemetry import Telemetry


class IdleEngine:
    """Answers every job at once, with nothing seen in its pictures."""

    healthy = True

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def info(self) -> EngineInfo:
        """No models, no decoders."""
        return EngineInfo("none", (), ())

    def stats(self) -> EngineStats:
        """Nothing to tell."""
        return EngineStats()

    async def run(self, job: EngineJob) -> EngineResult:
        """One empty result for each wanted sample."""
        wanted = [sample for unit in job.units for sample in unit.wanted]
        return EngineResult(tuple(FrameOutcome(sample, True) for sample in wanted), ())


def parts(config: Config, telemetry: Telemetry) -> Parts:
    """A server's parts with an engine that does nothing."""
    return parts_around(IdleEngine(), config)


def measure(client: Client, path: Path, rounds: int) -> dict[str, Any]:
    """Medians of both ways, in milliseconds, and the bytes of both messages."""
    times: dict[bool, list[float]] = {True: [], False: []}
    steps: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 2):
        for whole in (True, False):
            begin = time.perf_counter()
            answer = client.label(path, whole=whole)
            took = (time.perf_counter() - begin) * 1e3
            if number > 1:  # the first two warm connection and caches
                times[whole].append(took)
                steps[whole].append(sum(t.wall_ms for t in answer.timings if t.step in ("index", "sample")))
    message = {whole: request_bytes(path, whole) for whole in (True, False)}
    whole_ms, ranges_ms = (statistics.median(times[whole]) for whole in (True, False))
    return {
        "file_bytes": path.stat().st_size,
        "whole": {"median_ms": round(whole_ms, 3), "message_bytes": message[True], "index_and_sample_ms": median(steps[True])},
        "ranges": {
            "median_ms": round(ranges_ms, 3),
            "message_bytes": message[False],
            "index_and_sample_ms": median(steps[False]),
        },
        "ranges_to_whole_time": round(ranges_ms / whole_ms, 4),
        "rounds": rounds,
    }


def median(values: Sequence[float]) -> float:
    """To microseconds."""
    return round(statistics.median(values), 3)


def request_bytes(path: Path, whole: bool) -> int:
    """The message's size for a file with all else at its default."""
    return request_message(path, whole=whole).ByteSize()


def run_server(port_file: Path) -> None:
    """Serves until SIGTERM."""
    config = Config.load(overrides={"server": {"listen": "127.0.0.1:0"}})
    asyncio.run(serve(config, Telemetry.create(version="0"), parts, port_file=port_file))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.transport", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=60, help="of the clip")
    parser.add_argument("--serve", type=Path, metavar="PORT_FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        run_server(options.serve)
        return 0
    pictures, sound = clip(options.seconds), tone(float(options.seconds))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        port_file = folder / "port"
        server = subprocess.Popen([sys.executable, "-m", "loadtest.transport", "--serve", str(port_file)])
        try:
            while not port_file.exists():
                if server.poll() is not None:
                    raise SystemExit(f"the server ended at its start with exit code {server.returncode}")
                time.sleep(0.05)
            figures = {}
            with Client(port_file.read_text().strip(), timeout=30) as client:
                for name, muxing in LAYOUTS.items():
                    path = folder / "clip.mp4"
                    path.write_bytes(remuxed(pictures, sound, muxing, path))
                    figures[name] = found = measure(client, path, options.rounds)
                    whole, ranges = found["whole"], found["ranges"]
                    print(
                        f"{name}: whole {whole['median_ms']} ms, {whole['message_bytes']:,} bytes; "
                        f"ranges {ranges['median_ms']} ms, {ranges['message_bytes']:,} bytes; "
                        f"{found['ranges_to_whole_time']:.2f} of the time"
                    )
        finally:
            server.terminate()
            server.wait(30)
    print(report.write("transport", {"layouts": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
