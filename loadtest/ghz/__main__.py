"""Runs ghz with label.json against a server that it starts, or against --server. Fails where a call failed.

ghz takes a message as a binary file, so the request is written to one first: protobuf's own bytes, with the clip in `data`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from keyglance.v1 import keyglance_pb2 as pb
from loadtest import report
from loadtest.server_process import ServerFailed, ServerProcess

ROOT = Path(__file__).parent.parent.parent
CONFIG = Path(__file__).with_name("label.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 0 where every call was answered."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.ghz", description=__doc__)
    parser.add_argument("clip", type=Path, nargs="?", default=ROOT / ".cache" / "clips" / "bikes.mp4")
    parser.add_argument("--ghz", default="ghz", help="the ghz program")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already, on this machine")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--keep", action="store_true", help="keep the figures in loadtest/results/ghz.json")
    options = parser.parse_args(arguments)

    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-ghz-")))
            request = scratch / "request.bin"
            request.write_bytes(pb.LabelRequest(data=options.clip.read_bytes()).SerializeToString())
            address = options.server or stack.enter_context(ServerProcess(scratch)).address
            figures = _run(options, address, request)
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    codes = figures.get("statusCodeDistribution") or {}
    print(_summary(figures, options.clip.name))
    for text, count in (figures.get("errorDistribution") or {}).items():
        print(f"  {count} x {text}")
    if options.keep:
        print(f"kept in {report.write('ghz', _kept(figures, options)).relative_to(ROOT)}")
    answered = codes.get("OK", 0)
    return 0 if answered and answered == figures["count"] else 1


def _run(options: argparse.Namespace, address: str, request: Path) -> dict[str, Any]:
    command = [options.ghz, "--config", str(CONFIG), "--binary-file", str(request), "--format", "json"]
    command += ["--duration", f"{options.seconds}s", "--concurrency", str(options.concurrency), address]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.seconds + 60, check=False)
    if answer.returncode:
        sys.exit(f"error: ghz ended with exit code {answer.returncode}: {answer.stderr.strip() or answer.stdout.strip()}")
    figures: dict[str, Any] = json.loads(answer.stdout)
    return figures


def _summary(figures: dict[str, Any], clip: str) -> str:
    percentiles = {item["percentage"]: item["latency"] / 1e6 for item in figures.get("latencyDistribution") or ()}
    latencies = ", ".join(
        f"p{percentage} {percentiles[percentage]:.0f} ms" for percentage in (50, 95, 99) if percentage in percentiles
    )
    codes = ", ".join(f"{count} {code}" for code, count in sorted((figures.get("statusCodeDistribution") or {}).items()))
    return f"ghz, {clip}: {figures['count']} calls ({codes}), {figures['rps']:.1f} a second, {latencies}"


def _kept(figures: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    kept = {key: figures[key] for key in ("count", "total", "average", "fastest", "slowest", "rps")}
    distributions = ("latencyDistribution", "statusCodeDistribution", "errorDistribution")
    return {
        "clip": options.clip.name,
        "seconds": options.seconds,
        "concurrency": options.concurrency,
        "units": "nanoseconds",
        **kept,
        **{key: figures.get(key) for key in distributions},
    }


if __name__ == "__main__":
    sys.exit(main())
