"""What calls that the GPU decodes notice of calls that it leaves to software: `python -m loadtest.software_lane --rate 60`.

An open loop (Poisson arrivals) of the mix's calls without the class named by --software, and the same with that class beside it,
in turns on one server: the others come as often in both. Told is the p99 of the others with the class by that without it; the
exit code is 1 where that is more than --goal, or where a call ended as it must not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from loadtest import poisson
from loadtest.generator import Generator
from loadtest.mix import Mix, MixError
from loadtest.target import FAILURES, Target, add_options, keep, target

_WARM_UP = 2.0  # seconds of each turn that do not count


def without(mix: Mix, name: str) -> tuple[Mix, float]:
    """The mix without a class, and its share of all calls. Raises `MixError` where there is no such class, or no other."""
    shares = {one.name: share for one, share in zip(mix.classes, mix.shares, strict=True)}
    if name not in shares:
        raise MixError(f"the mix has no class {name!r}; there are {', '.join(shares)}")
    return Mix(tuple(one for one in mix.classes if one.name != name)), 1 - shares[name]


def compare(
    server: Target, generator: Generator, mix: Mix, software: str, *, rate: float, seconds: float, turns: int, seed: int
) -> dict[str, Any]:
    """Both loads in turns; `rate` is that of all calls. The p99 of the others is the median over the turns."""
    others, share = without(mix, software)
    loads = {"without": (others, rate * share), "with": (mix, rate)}
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in loads}
    for turn in range(turns):
        for name, (load, its_rate) in loads.items():
            times = {"rate": its_rate, "seconds": seconds, "warm_up": _WARM_UP}
            figures = poisson.run(generator, load, server.watch(), **times, seed=seed + turn)
            told[name].append(figures)
            poisson.wide_console().print(f"{name} {software}: {its_rate:.2f} calls/s", poisson.table(figures), sep="\n")
    p99 = {name: _p99(runs, [one.name for one in others.classes]) for name, runs in told.items()}
    ratio = p99["with"] / p99["without"] if p99["with"] and p99["without"] else None
    return {"software": software, "share": round(1 - share, 4), "rate_per_s": rate, "p99_ms": p99, "ratio": ratio, "turns": told}


def _p99(runs: Sequence[dict[str, Any]], names: Sequence[str]) -> float | None:
    """The slowest class's p99 in ms, of each run; None where one has no answer."""
    found: list[float] = []
    for run in runs:
        latencies = [run["by_class"][name]["answered_ms"] for name in names]
        if not all(latencies):
            return None
        found.append(max(float(latency["p99"]) for latency in latencies))
    return round(statistics.median(found), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.software_lane", description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="calls a second of all classes, on average")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load in each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--software", default="av1", metavar="CLASS", help="the class that software decodes")
    parser.add_argument("--goal", type=float, default=1.1, help="p99 of the others with it, times that without it")
    add_options(parser, mix="software-30")
    options = parser.parse_args(arguments)
    try:
        mix = Mix.load(options.mix)
        with target(options) as server:
            settings = {"rate": options.rate, "seconds": options.seconds, "turns": options.turns, "seed": options.seed}
            figures = compare(server, server.generator(options), mix, options.software, **settings)
            about = server.about
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = [fault for runs in figures["turns"].values() for run in runs for fault in poisson.faults(run)]
    holds = figures["ratio"] is not None and figures["ratio"] <= options.goal
    shown = "unknown, a load had no answers" if figures["ratio"] is None else f"{figures['ratio']:.3f}"
    print(f"{'holds ' if holds else 'missed'} p99 of the others with {options.software}, times that without: {shown}")
    for fault in found:
        print(f"fault: {fault}")
    goal = {"goal": f"p99 with {options.software}, times that without", "limit": options.goal, "holds": holds}
    keep(options, mix, about, {"software_lane": figures, "goals": [goal | {"value": figures["ratio"]}], "faults": found})
    return 0 if holds and not found else 1


if __name__ == "__main__":
    sys.exit(main())
