"""Batches across calls against batches of one call each: the same engine, the same CUDA graphs, in turns."""

from __future__ import annotations

import functools
import operator
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from loadtest.gpu_load import Load, load
from loadtest.gpu_setup import Setup, close_all, jobs_of
from models.batch_plan import BatchPlan
from server.engine import Engine, EngineJob

IN_FLIGHT = 32
#: Pictures of a call: the clip's keyframes, and what a picture service that looks at a preview would send.
FRAMES_A_CALL = (12, 2)
ACROSS, APART = "across calls", "one call a batch"
BY_COST = "ratio by what batches cost"
_ROUNDS = 3
_TURN, _WARM = 1.5, 0.5  # seconds of one way in a round, and before it counts
_NO_GAP = 3600.0  # seconds: no picture is added to those wanted


class Batching(Protocol):
    """Models whose batching can be switched: `DeviceEnsemble`."""

    across_calls: bool
    plan: BatchPlan


async def batching(setup: Setup) -> dict[str, Any]:
    """32 calls in flight at the engine, all default models, by pictures a call: both ways in turns, and the ratio of their rates.

    Where a batch has frames of one call only, the call waits until all its pictures are decoded, and its batch is enqueued behind
    the one that runs as soon as there is one: the GPU does not wait for it. Beside the ratio stands the one that there would be
    if both ways waited for nothing but their batches.
    """
    service = await setup.served()
    models = batching_of(service.engine)
    batch_ms = {str(size): round(cost * 1e3, 3) for size, cost in models.plan.costs.items()}
    figures: dict[str, Any] = {"device": service.engine.info().device, "batch_ms": batch_ms}
    content = setup.phone.read_bytes()
    for frames in FRAMES_A_CALL:
        jobs = await jobs_of(content, IN_FLIGHT, frames=frames, largest_gap=_NO_GAP)
        try:
            told = await both(service.engine, models, jobs, turn=setup.seconds(_TURN), warm=setup.seconds(_WARM))
            figures[f"{frames} pictures a call"] = told | {BY_COST: by_cost(models.plan, frames, IN_FLIGHT)}
        finally:
            close_all(jobs)
    return figures


def batching_of(engine: Engine) -> Batching:
    """What batches for an engine. Raises ValueError for one whose models are in another process."""
    models: Batching | None = getattr(engine, "ensemble", None)
    if models is None:
        raise ValueError(f"{engine!r} does not have its models in this process: its batching cannot be switched from here")
    return models


async def both(engine: Engine, models: Batching, jobs: Sequence[EngineJob], *, turn: float, warm: float) -> dict[str, Any]:
    """The figures of each way over all its turns, and the ratio: of all, and of each round."""
    turns: dict[str, list[Load]] = {ACROSS: [], APART: []}
    try:
        for _ in range(_ROUNDS):
            for way, loads in turns.items():
                models.across_calls = way == ACROSS
                loads.append(await load(engine, jobs, turn, warm=warm))
    finally:
        models.across_calls = True
    across, apart = (functools.reduce(operator.add, loads) for loads in turns.values())
    rounds = [_ratio(one, other) for one, other in zip(turns[ACROSS], turns[APART], strict=True)]
    known = [ratio for ratio in rounds if ratio is not None]
    return {
        ACROSS: across.figures(),
        APART: apart.figures(),
        "ratio": _ratio(across, apart),
        "ratio by round": rounds,
        "median of rounds": statistics.median(known) if known else None,
    }


def by_cost(plan: BatchPlan, frames: int, calls: int) -> float:
    """What a call's `frames` cost in batches of their own, over their share of the leanest batch that `calls` calls can fill."""
    apart = plan.cost(frames) / frames
    return round(apart / min((cost / size for size, cost in plan.costs.items() if size <= frames * calls), default=apart), 3)


def _ratio(across: Load, apart: Load) -> float | None:
    """None where nothing ended."""
    rate = apart.pictures_a_second
    return round(across.pictures_a_second / rate, 3) if rate else None
