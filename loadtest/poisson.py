"""An open loop of independent callers: `python -m loadtest.poisson --rate 5 --seconds 30 [--mix loadtest/mixes/mixed.toml]`.

Calls come at moments fixed beforehand (Poisson arrivals, seeded), whether the server keeps up or not, and latency counts from
those moments: what a slow server does to later callers is in the figures. Told are the rates offered, sent and answered, for
each class percentiles and statuses, what was refused, and every degradation. The exit code is 1 where a call ended as its
class must not, or where the generator could not send all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest import load_summary, schedule
from loadtest.generator import NOT_SENT, Generator
from loadtest.mix import Mix
from loadtest.target import FAILURES, add_options, keep, target
from loadtest.watch import Watch


def run(
    generator: Generator, mix: Mix, watch: Watch, *, rate: float, seconds: float, warm_up: float, seed: int
) -> dict[str, Any]:
    """Figures of `seconds` at `rate` calls a second, after `warm_up` seconds at the same rate that do not count."""
    arrivals = schedule.poisson(mix, rate, warm_up + seconds, seed)
    records = generator.open_loop(mix, arrivals, lambda begin: watch.between(begin + warm_up, begin + warm_up + seconds))
    return {
        "rate_per_s": round(rate, 3),
        "seconds": seconds,
        "warm_up_seconds": warm_up,
        **load_summary.summary(records, mix, begin=warm_up, end=warm_up + seconds),
        "watched": watch.figures(),
    }


def faults(figures: Mapping[str, Any]) -> list[str]:
    """What must not be in a run, in words."""
    found = [f"{count} x {what}" for what, count in figures["unexpected"].items() if not what.endswith(NOT_SENT)]
    if unsent := figures["by_status"].get(NOT_SENT, 0):
        found.append(f"{unsent} calls were not sent: the generator held too many; this was no open loop")
    if silent := figures["refused_without_retry_info"]:
        found.append(f"{silent} refusals did not say when to come back")
    return found


def table(figures: Mapping[str, Any]) -> Table:
    """The figures by class, for people."""
    rows = Table(box=None, pad_edge=False)
    for heading in ("class", "offered/s", "answered/s", "p50 ms", "p90", "p99", "max", "statuses", "degraded"):
        rows.add_column(heading, justify="left" if heading in ("class", "statuses") else "right")
    for name, one in [*figures["by_class"].items(), ("all", figures)]:
        latency = one["answered_ms"]
        shown = [f"{latency[key]:.0f}" if latency else "" for key in ("p50", "p90", "p99", "max")]
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(one["by_status"].items()))
        rows.add_row(name, f"{one['offered_per_s']:.2f}", f"{one['goodput_per_s']:.2f}", *shown, statuses, str(one["degraded"]))
    return rows


def wide_console() -> Console:
    """A console on which the tables fit, also where the output goes into a file."""
    return Console() if sys.stdout.isatty() else Console(width=160)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.poisson", description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="calls a second, on average")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds before that, which do not count")
    add_options(parser, mix="mixed")
    options = parser.parse_args(arguments)
    try:
        mix = Mix.load(options.mix)
        with target(options) as server:
            settings = {"rate": options.rate, "seconds": options.seconds, "warm_up": options.warm_up, "seed": options.seed}
            figures = run(server.generator(options), mix, server.watch(), **settings)
            about = server.about
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    wide_console().print(table(figures))
    for fault in (found := faults(figures)):
        print(f"fault: {fault}")
    keep(options, mix, about, {"poisson": figures, "faults": found})
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
