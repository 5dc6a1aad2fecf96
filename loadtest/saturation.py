"""What a server can do, and what it does with more: `python -m loadtest.saturation`.

1. Closed loop with 1, 2, 4 … callers until more of them bring no more: the most calls answered a second is the peak.
2. Open loop, Poisson arrivals at 80 % of the peak: the latency that callers get.
3. Open loop at three times the peak: goodput, and the latency of the calls that were accepted. Then the closed loop at its best
   once more: machines are not equally fast all the time, so goodput is compared with the mean of the peak before and after.

Each with what processors, GPUs and the server's metrics showed meanwhile (`loadtest.watch`). On request also

4. the closed loop at its best with 1 and with 8 connections: what several fronts of one port, among which the kernel spreads
   connections and not calls, make of few of them (`--compare-connections`),
5. SIGTERM at that overload (`loadtest.drain`): every call accepted must be answered (`--drain`).
Each part has its time, so the run ends by itself; the exit code is 1 where a goal is missed or a call ended as it must not.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import drain, load_summary, poisson, report
from loadtest.generator import Generator, GeneratorFailed
from loadtest.mix import Mix
from loadtest.target import FAILURES, add_options, keep, known, target
from loadtest.watch import Watch

#: More callers are tried as long as they bring at least so much more than the best so far, once in two attempts.
_WORTHWHILE = 1.03
#: What `--compare-connections` compares.
_CONNECTIONS = (1, 8)
#: Seconds of calls before and after SIGTERM.
_BEFORE, _AFTER = 10.0, 4.0
#: Share of each step of the closed loop that warms up and does not count.
_WARM_SHARE = 0.25


def closed_step(
    generator: Generator, mix: Mix, callers: int, seconds: float, seed: int, watch: Watch | None = None
) -> dict[str, Any]:
    """Figures of `callers` that each have one call in flight all the time."""
    warm = seconds * _WARM_SHARE
    began = None if watch is None else lambda begin: watch.between(begin + warm, begin + seconds)
    records = generator.closed_loop(mix, callers, seconds, seed, began)
    figures = load_summary.summary(records, mix, begin=warm, end=seconds)
    kept = ("goodput_per_s", "frames_per_s", "by_status", "answered_ms", "degradations", "unexpected")
    watched = {} if watch is None else {"watched": watch.figures()}
    return {"callers": callers, **{name: figures[name] for name in kept}, **watched}


def closed_loop(
    generator: Generator, mix: Mix, callers: Sequence[int], seconds: float, seed: int, watch: Callable[[], Watch]
) -> Iterator[dict[str, Any]]:
    """One step for each number of callers, until two in a row bring no more than the best before them."""
    best, idle = 0.0, 0
    for count in callers:
        step = closed_step(generator, mix, count, seconds, seed, watch())
        yield step
        idle = 0 if step["goodput_per_s"] >= best * _WORTHWHILE else idle + 1
        best = max(best, step["goodput_per_s"])
        if idle == 2:
            return


def compare_connections(
    generator: Generator, mix: Mix, callers: int, seconds: float, seed: int, watch: Callable[[], Watch]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The closed loop of one generator process with few connections and with more."""
    for count in _CONNECTIONS:
        one = dataclasses.replace(generator, processes=1, connections=count)
        yield count, closed_step(one, mix, callers, seconds, seed, watch())


def goals(
    peak: float, steady: Mapping[str, Any], overload: Mapping[str, Any], *, p99_ms: float | None, goodput: float, slowdown: float
) -> list[dict[str, Any]]:
    """Each goal with its value, its limit and whether it holds. `goodput` is a share of `peak` (calls/s), `slowdown` a factor."""
    usual, loaded = (figures["answered_ms"].get("p99") for figures in (steady, overload))
    share = overload["goodput_per_s"] / peak if peak else 0.0
    factor = loaded / usual if usual and loaded else None
    rows = [
        ("goodput in overload, share of peak", round(share, 4), goodput, share >= goodput),
        (
            "p99 of accepted calls in overload, times that of the steady load",
            factor and round(factor, 3),
            slowdown,
            factor is not None and factor <= slowdown,
        ),
    ]
    if p99_ms is not None:
        rows.insert(0, ("p99 at the steady load, ms", usual, p99_ms, usual is not None and usual <= p99_ms))
    return [{"goal": name, "value": value, "limit": limit, "holds": holds} for name, value, limit, holds in rows]


def _shown(step: Mapping[str, Any]) -> str:
    latency = step["answered_ms"]
    times = f"p50 {latency['p50']:.0f} ms, p99 {latency['p99']:.0f} ms" if latency else "no answer"
    return f"{step['goodput_per_s']:.2f} calls/s, {times}"


def _part(options: argparse.Namespace) -> Path:
    return report.RESULTS / "unfinished" / f"{options.keep}.json"


def _keep_part(options: argparse.Namespace, known: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """What there is so far: a run that somebody ends before its time was not for nothing."""
    if options.keep:
        part = _part(options)
        report.write(part.stem, {**known, "ended": "not at its end", **figures}, directory=part.parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.saturation", description=__doc__)
    parser.add_argument("--callers", default="1,2,4,8,16,32,64,128", help="numbers of callers to try, ascending")
    parser.add_argument("--step-seconds", type=float, default=8.0, help="for each number of callers")
    parser.add_argument("--steady", type=float, default=0.8, help="share of the peak of the steady load")
    parser.add_argument("--steady-seconds", type=float, default=30.0)
    parser.add_argument("--overload", type=float, default=3.0, help="times the peak")
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--goal-p99-ms", type=float, help="at the steady load; default: none")
    parser.add_argument("--goal-goodput", type=float, default=0.95, help="in overload, share of the peak")
    parser.add_argument("--goal-slowdown", type=float, default=2.0, help="p99 of accepted calls in overload by the steady load's")
    parser.add_argument(
        "--compare-connections", action="store_true", help="the closed loop at its best with 1 and 8 connections too"
    )
    parser.add_argument("--drain", action="store_true", help="SIGTERM at that overload too; for a server that is started here")
    add_options(parser, mix="small")
    options = parser.parse_args(arguments)
    console = poisson.wide_console()
    if options.drain and options.server:
        parser.error("--drain ends the server: it must be one that is started here, without --server")
    try:
        callers = [int(count) for count in options.callers.split(",")]
        mix = Mix.load(options.mix)
        with target(options) as server:
            generator = server.generator(options)
            facts = known(options, mix, server.about)
            steps = []
            for step in closed_loop(generator, mix, callers, options.step_seconds, options.seed, server.watch):
                steps.append(step)
                console.print(f"{step['callers']} callers: {_shown(step)}")
                _keep_part(options, facts, {"closed_loop": steps})
            best = max(steps, key=lambda step: float(step["goodput_per_s"]))
            peak = best["goodput_per_s"]
            if not peak:
                raise GeneratorFailed(f"no call was answered in time: {steps[0]['by_status']}")
            more: dict[str, Any] = {}
            if options.compare_connections:
                compared = more["connections"] = {}
                seconds = options.step_seconds
                for count, step in compare_connections(generator, mix, best["callers"], seconds, options.seed, server.watch):
                    compared[str(count)] = step
                    console.print(f"{step['callers']} callers over {count} of one process's connections: {_shown(step)}")
            open_loops = {}
            for name, rate, seconds in (
                ("steady", options.steady * peak, options.steady_seconds),
                ("overload", options.overload * peak, options.overload_seconds),
            ):
                warm_up = min(5.0, seconds / 4)
                times = {"rate": rate, "seconds": seconds, "warm_up": warm_up}
                figures = poisson.run(generator, mix, server.watch(), **times, seed=options.seed)
                open_loops[name] = figures
                _keep_part(options, facts, {"closed_loop": steps, **open_loops, **more})
                console.print(f"\n{name}: Poisson arrivals, {rate:.2f} calls/s for {seconds:g} s")
                console.print(poisson.table(figures))
            again = more["peak_again"] = closed_step(
                generator, mix, best["callers"], options.step_seconds, options.seed, server.watch()
            )
            console.print(f"\n{again['callers']} callers again: {_shown(again)}")
            about = server.about
            if options.drain:
                ended = more["drain"] = drain.run(
                    server, generator, mix, rate=options.overload * peak, before=_BEFORE, after=_AFTER, seed=options.seed
                )
                console.print(f"\n{drain.text(ended)}")
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = [f"{name}: {fault}" for name, figures in open_loops.items() for fault in poisson.faults(figures)]
    found += [
        f"{step['callers']} callers: {count} x {what}" for step in (*steps, again) for what, count in step["unexpected"].items()
    ]
    found += [f"SIGTERM: {fault}" for fault in more.get("drain", {}).get("faults", ())]
    usual = statistics.mean((peak, again["goodput_per_s"]))
    reached = goals(usual, **open_loops, p99_ms=options.goal_p99_ms, goodput=options.goal_goodput, slowdown=options.goal_slowdown)
    for row in reached:
        console.print(f"{'holds ' if row['holds'] else 'missed'} {row['goal']}: {row['value']}, limit {row['limit']}")
    for fault in found:
        print(f"fault: {fault}")
    told = {"peak_per_s": peak, "closed_loop": steps, **open_loops, **more, "goals": reached, "faults": found}
    keep(options, mix, about, told)
    _part(options).unlink(missing_ok=True)
    return 1 if found or not all(row["holds"] for row in reached) else 0


if __name__ == "__main__":
    sys.exit(main())
