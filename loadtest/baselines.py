"""The CPU server beside the usual ways to do its job, in one run on one machine: `python -m loadtest.baselines`.

Each way labels the same clips with the same models on the same cores, 8 calls at once: as soon as one is answered, its caller
makes the next. The ways take turns, so that a machine that grows slower does so for all.

- keyglance: `Client.label` over gRPC to a server in its own process.
- a: PyAV decodes the clip frame by frame with a new decoder, one inference for each picture; a process for each core.
- c: OpenCV decodes the clip, the pictures of a call are inferred in batches; a process for each core.
- d, OpenCV and d, keyframes: a general model server over HTTP (`loadtest.model_server`) with a worker for each core and
  batches over calls; it decodes as in c, or only keyframes.
- no service: only keyframes decoded, batches, a process for each core, and no service around it.

`make baselines` makes the model server's environment first; without --model-server, d is left out.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from keyglance import Client
from keyglance.errors import KeyglanceError
from loadtest import baseline_ways, cpu, report
from loadtest.baseline_ways import FRAMES
from loadtest.load_summary import latencies
from loadtest.server_process import ServerFailed, ServerProcess, checkout_models

ROOT = Path(__file__).parent.parent
OURS = "keyglance"
#: The ways that the server is to be ahead of.
RIVALS = ("c", "d, OpenCV", "d, keyframes")

#: A clip's bytes to the names of its labels.
Way = Callable[[bytes], Sequence[str]]


class BaselineFailed(Exception):
    """A way gave no answer; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one way: calls answered a second, and how long each took, in seconds."""

    rate: float
    seconds: tuple[float, ...]


def turn(way: Way, clip: bytes, *, callers: int, seconds: float) -> Turn:
    """`callers`, each with one call after the other; no new call after `seconds`, and the last ones count."""
    taken: list[float] = []
    begin = time.perf_counter()

    def caller() -> None:
        while (sent := time.perf_counter()) < begin + seconds:
            way(clip)
            taken.append(time.perf_counter() - sent)

    with ThreadPoolExecutor(callers) as threads:
        for future in [threads.submit(caller) for _ in range(callers)]:
            future.result()
    return Turn(len(taken) / (time.perf_counter() - begin), tuple(taken))


def compare(
    ways: Mapping[str, Way], clips: Mapping[str, bytes], *, callers: int, seconds: float, rounds: int
) -> dict[str, dict[str, Any]]:
    """Figures by clip and way: median rate over the rounds, latency, labels, and how many times slower than ours it is."""
    results: dict[str, dict[str, Any]] = {}
    for name, clip in clips.items():
        labels = {way: sorted(answer(clip)) for way, answer in ways.items()}  # warms it up as well
        turns: dict[str, list[Turn]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, answer in ways.items():
                turns[way].append(turn(answer, clip, callers=callers, seconds=seconds))
        rates = {way: statistics.median(one.rate for one in its) for way, its in turns.items()}
        results[name] = {
            way: {
                "calls_per_s": round(rates[way], 3),
                "all_calls_per_s": [round(one.rate, 3) for one in its],
                "ours_to_it": round(rates[OURS] / rates[way], 3),
                "latency_ms": latencies(taken for one in its for taken in one.seconds),
                "labels": labels[way],
                "same_labels": labels[way] == labels[OURS],
            }
            for way, its in turns.items()
        }
    return results


@contextmanager
def pool(cores: int) -> Iterator[Callable[[Way], Way]]:
    """Runs ways in so many processes: as many calls at a time as there are cores, the others wait."""
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as processes:

        def pooled(way: Way) -> Way:
            return lambda clip: processes.submit(way, clip).result()

        yield pooled


@contextmanager
def model_server(python: Path, scratch: Path, *, start_timeout: float = 120) -> Iterator[Callable[[str], Way]]:
    """`loadtest.model_server` by the Python of its own environment; gives the way of a path. Raises `BaselineFailed`."""
    port = _free_port()
    command = [str(python), "-m", "loadtest.model_server", "--address", "127.0.0.1", "--port", str(port)]
    command += [
        "--path",
        str(scratch / "mosec"),
        "--timeout",
        "120000",
        "--max-request-size",
        str(64 << 20),
        "--log-level",
        "error",
    ]
    models = checkout_models()
    defaults = {} if models is None else {"KEYGLANCE_MODELS__FOLDER": str(models)}
    log = scratch / "model_server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**defaults, **os.environ}, stdout=output, stderr=output)
    connections = threading.local()

    def post(path: str, clip: bytes) -> list[str]:
        if not hasattr(connections, "own"):
            connections.own = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connections.own.request("POST", path, clip, {"content-type": "application/octet-stream"})
        with connections.own.getresponse() as response:
            body = response.read()
        if response.status != 200:
            raise BaselineFailed(f"the model server answered {response.status} {body[:200]!r}")
        names: list[str] = json.loads(body)["labels"]
        return names

    try:
        end = time.monotonic() + start_timeout
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise BaselineFailed(f"the model server did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield lambda path: functools.partial(post, path)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def keyglance(client: Client) -> Way:
    """Our way; a clip of which other pictures than its keyframes are looked at cannot be compared."""

    def label(clip: bytes) -> list[str]:
        answer = client.label(clip, frames=FRAMES)
        if answer.degradations or not all(frame.keyframe for frame in answer.frames):
            raise BaselineFailed("only clips can be compared of which keyframes are looked at, all of them")
        return [label.name for label in answer.labels if label.passed]

    return label


def show(name: str, figures: Mapping[str, Any], console: Console) -> None:
    """The figures of one clip as a table."""
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for heading in ("way", "calls/s", "ours to it", "p50 ms", "p99 ms", "labels"):
        table.add_column(heading, justify="left" if heading in ("way", "labels") else "right")
    for way, one in figures.items():
        numbers = (f"{one['calls_per_s']:.2f}", f"{one['ours_to_it']:.2f}")
        latency = one["latency_ms"]
        labels = "the same" if one["same_labels"] else ", ".join(one["labels"])
        table.add_row(way, *numbers, f"{latency['p50']:.0f}", f"{latency['p99']:.0f}", labels)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 1 where the server is not ahead of c and d."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.baselines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="*", help="MP4 files; default: one of 1280x720 that is made, and bikes.mp4")
    parser.add_argument(
        "--model-server", type=Path, metavar="PYTHON", help="Python of the environment of requirements/baseline.lock"
    )
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each way and clip")
    parser.add_argument("--no-keep", action="store_true", help="do not write loadtest/results/baselines.json")
    options = parser.parse_args(arguments)
    console = Console()
    cores = len(os.sched_getaffinity(0))
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-baselines-")))
            clips = {path.name: path.read_bytes() for path in options.clips or cpu.default_clips(scratch, console)}
            server = stack.enter_context(ServerProcess(scratch))
            client = stack.enter_context(Client(server.address, retries=0, timeout=120))
            pooled = stack.enter_context(pool(cores))
            ways = {OURS: keyglance(client), "a": pooled(baseline_ways.frame_by_frame), "c": pooled(baseline_ways.opencv)}
            if options.model_server:
                at = stack.enter_context(model_server(options.model_server, scratch))
                ways |= {"d, OpenCV": at("/opencv"), "d, keyframes": at("/keyframes")}
            ways["no service"] = pooled(baseline_ways.keyframes)
            with console.status("measuring"):
                results = compare(ways, clips, callers=options.callers, seconds=options.seconds, rounds=options.rounds)
    except (BaselineFailed, ServerFailed, KeyglanceError, http.client.HTTPException, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    behind = []
    for name, figures in results.items():
        show(name, figures, console)
        behind += [f"{name}: {way}" for way in RIVALS if way in figures and figures[way]["ours_to_it"] <= 1]
    if not options.no_keep:
        about = {
            "callers": options.callers,
            "cores": cores,
            "seconds": options.seconds,
            "rounds": options.rounds,
            "frames": FRAMES,
        }
        print(f"kept in {report.write('baselines', {**about, 'clips': results, 'behind': behind}).relative_to(ROOT)}")
    for one in behind:
        print(f"behind {one}")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
