"""Runs ghz with one of the loads beside this file, or with all, against a server that it starts, or against --server.

What goes over the wire is what the client would send: a request as protobuf's own bytes, which ghz takes as a binary file.
Fails where a threshold of --gate does not hold; by default, where no call was made or one was not answered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest import gate, report
from loadtest.request_bytes import request_message
from loadtest.server_process import ServerFailed, ServerProcess

ROOT = Path(__file__).parent.parent.parent
LOADS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.json")))
#: Where the loads' own `binary-file` lies; the other way to send lies beside it.
REQUESTS = ROOT / ".cache" / "ghz"
SENDING = ("ranges", "whole")


class GhzFailed(Exception):
    """ghz could not run; the message has what it said."""


def write_requests(clip: Path, frames: int | None, folder: Path = REQUESTS) -> dict[str, Path]:
    """Writes the clip's requests, once with the ranges that matter and once with all bytes; the files by way of sending."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {sending: folder / f"{sending}.bin" for sending in SENDING}
    for sending, file in files.items():
        file.write_bytes(request_message(clip, whole=sending == "whole", frames=frames).SerializeToString())
    return files


def run(ghz: str, load: str, address: str, request: Path, *, seconds: int | None, further: Sequence[str] = ()) -> dict[str, Any]:
    """ghz's own figures of one run. `further` arguments go to ghz and win over the load's file. Raises `GhzFailed`."""
    config = Path(__file__).with_name(f"{load}.json")
    settings = json.loads(config.read_text())
    command = [ghz, "--config", str(config), "--binary-file", str(request), "--format", "json"]
    if seconds is not None:
        command += ["--duration", f"{seconds}s"]
        if settings.get("load-schedule") == "step":  # all of its steps in the time given
            steps = (settings["load-end"] - settings["load-start"]) // settings["load-step"] + 1
            command += ["--load-step-duration", f"{seconds / steps:g}s"]
    limit = (seconds or int(settings["duration"].removesuffix("s"))) + 90
    try:
        answer = subprocess.run(
            [*command, *further, address], cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GhzFailed(f"ghz could not run: {error}") from None
    if answer.returncode:
        raise GhzFailed(f"ghz ended with exit code {answer.returncode}: {answer.stderr.strip() or answer.stdout.strip()}")
    figures: dict[str, Any] = json.loads(answer.stdout)
    return figures


def summary(figures: Mapping[str, Any]) -> str:
    """One line for people."""
    percentiles = {item["percentage"]: item["latency"] / 1e6 for item in figures.get("latencyDistribution") or ()}
    latencies = "".join(f", p{percent} {percentiles[percent]:.0f} ms" for percent in (50, 95, 99) if percent in percentiles)
    codes = ", ".join(f"{count} {code}" for code, count in sorted((figures.get("statusCodeDistribution") or {}).items()))
    return f"{figures['count']} calls ({codes}), {figures['rps']:.1f} a second{latencies}"


def kept(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth keeping of ghz's figures: all but the single calls; times in nanoseconds."""
    names = ("count", "total", "average", "fastest", "slowest", "rps")
    distributions = ("latencyDistribution", "statusCodeDistribution", "errorDistribution")
    return {**{name: figures[name] for name in names}, **{name: figures.get(name) for name in distributions}}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 0 where every threshold holds."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, further = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.ghz", description=__doc__, epilog="What stands behind -- goes to ghz: rate-constant -- --rps 300"
    )
    parser.add_argument("load", nargs="?", default="unary-8", choices=(*LOADS, "all"), help="default: unary-8")
    parser.add_argument("--send", choices=(*SENDING, "both"), default="ranges", help="default: ranges, as the client does")
    parser.add_argument("--clip", type=Path, default=ROOT / ".cache" / "clips" / "bikes.mp4")
    parser.add_argument("--frames", type=int, help="pictures wanted of it; default: the server's")
    parser.add_argument("--ghz", default="ghz", help="the ghz program")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already")
    parser.add_argument("--seconds", type=int, help="of each run; default: what the load's file says")
    parser.add_argument("--gate", type=Path, default=Path(__file__).with_name("gate.toml"), help="thresholds of loadtest.gate")
    parser.add_argument("--keep", action="store_true", help="keep the figures in loadtest/results/ghz.json")
    parser.add_argument("--requests", action="store_true", help="only write what the loads send, to .cache/ghz")
    options = parser.parse_args(own)
    results: dict[str, Any] = {}
    found: list[str] = []
    try:
        thresholds = gate.read_thresholds(options.gate)
        requests = write_requests(options.clip, options.frames)
        if options.requests:
            print("\n".join(str(path.relative_to(ROOT)) for path in requests.values()))
            return 0
        with ExitStack() as stack:
            address = options.server
            if address is None:
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-ghz-")))
                address = stack.enter_context(ServerProcess(scratch)).address
            for load in LOADS if options.load == "all" else (options.load,):
                for sending in SENDING if options.send == "both" else (options.send,):
                    request = requests[sending]
                    figures = run(options.ghz, load, address, request, seconds=options.seconds, further=further)
                    name = f"{load}, {sending}"
                    results[name] = {"request_bytes": request.stat().st_size, **kept(figures)}
                    print(f"ghz, {options.clip.name}, {name}: {summary(figures)}")
                    for text, count in (figures.get("errorDistribution") or {}).items():
                        print(f"  {count} x {text}")
                    found += [f"{name}: {line}" for line in gate.broken(figures, thresholds)]
    except (gate.GateError, GhzFailed, ServerFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(f"broken: {line}")
    if options.keep:
        figures = {"clip": options.clip.name, "units": "nanoseconds", "loads": results}
        print(f"kept in {report.write('ghz', figures).relative_to(ROOT)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
