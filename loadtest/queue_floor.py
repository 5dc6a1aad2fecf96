"""The latency that no server can beat: calls that only wait for their models, in batches as dear as those measured.

`python -m loadtest.queue_floor` takes what batches of all models cost on the GPU (loadtest/results/gpu_alone.json) and lets calls
come at random (Poisson) to a server that receives, decodes and answers in no time, and that begins the next batch, with all that
fits in, the moment the last one ends. A goal below its percentiles cannot be met with these models on this GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import load_summary, report
from models.batch_plan import BatchPlan

SHARES = (0.3, 0.5, 0.7, 0.8, 0.9)
FRAMES = 12


def floor(plan: BatchPlan, *, frames: int, rate: float, seconds: float, seed: int) -> dict[str, float]:
    """Percentiles in ms of the calls of `seconds`, of `frames` pictures each, that come `rate` a second; costs are in seconds."""
    chance = random.Random(seed)
    comes, now = deque[float](), 0.0
    while (now := now + chance.expovariate(rate)) < seconds:
        comes.append(now)
    waiting: deque[tuple[float, int]] = deque()  # when each call came, and how many of its pictures wait
    latencies, now = [], 0.0
    while comes or waiting:
        if not waiting:
            now = max(now, comes[0])
        while comes and comes[0] <= now:
            waiting.append((comes.popleft(), frames))
        room = plan.first(sum(left for _, left in waiting))
        now += plan.costs[min(size for size in plan.costs if size >= room)]
        while waiting and room:
            came, left = waiting.popleft()
            taken = min(left, room)
            room -= taken
            if left > taken:
                waiting.appendleft((came, left - taken))
            else:
                latencies.append(now - came)
    return load_summary.latencies(latencies)


def figures(batch_ms: Mapping[str, float], *, seconds: float, seed: int) -> dict[str, Any]:
    """By share of what the models can do at most."""
    plan = BatchPlan({int(size): cost / 1e3 for size, cost in batch_ms.items()})
    most = max(size / cost for size, cost in plan.costs.items()) / FRAMES
    rows = [
        {"share": share, "rate_per_s": round(share * most, 2)}
        | {"latency_ms": floor(plan, frames=FRAMES, rate=share * most, seconds=seconds, seed=seed)}
        for share in SHARES
    ]
    return {"frames_a_call": FRAMES, "most_calls_per_s": round(most, 2), "batch_ms": dict(batch_ms), "shares": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.queue_floor", description=__doc__)
    parser.add_argument("--batches", type=Path, default=report.RESULTS / "gpu_alone.json", help="what batches cost")
    parser.add_argument("--seconds", type=float, default=600.0, help="of calls that come")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="where the figures go")
    options = parser.parse_args(arguments)
    try:
        told = json.loads(options.batches.read_text())
        batch_ms = told["alone"]["models"]["pictures to results"]["batch_ms"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {options.batches} does not say what batches cost: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    found = figures(batch_ms, seconds=options.seconds, seed=options.seed)
    for row in found["shares"]:
        latency = row["latency_ms"]
        print(f"{row['share']:.0%} of {found['most_calls_per_s']} calls/s: p50 {latency['p50']} ms, p99 {latency['p99']} ms")
    kept = {"batches_of": {"file": options.batches.name, "measured_commit": told.get("measured_commit")}, "floor": found}
    print(f"kept in {report.write('queue_floor', kept, directory=options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
