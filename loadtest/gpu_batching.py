"""Batches across calls against batches of one call each: the same engine, the same CUDA graphs, in turns."""

from __future__ import annotations

import functools
import operator
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from loadtest.gpu_load import Load, load
from loadtest.gpu_setup import Setup, close_all, jobs_of
from server.engine import Engine, EngineJob

IN_FLIGHT = 32
#: Pictures of a call: the clip's keyframes, and what a picture service that looks at a preview would send.
FRAMES_A_CALL = (12, 2)
ACROSS, APART = "across calls", "one call a batch"
_ROUNDS = 3
_TURN, _WARM = 1.5, 0.5  # seconds of one way in a round, and before it counts
_NO_GAP = 3600.0  # seconds: no picture is added to those wanted


class Batching(Protocol):
    """Models whose batching can be switched: `DeviceEnsemble`, `Ensemble`."""

    across_calls: bool


async def batching(setup: Setup) -> dict[str, Any]:
    """32 calls in flight at the engine, all default models, by pictures a call: both ways in turns, and the ratio of their rates.

    Where a batch has frames of one call only, the call waits until all its pictures are decoded, and its batch is enqueued behind
    the one that runs as soon as there is one: the GPU does not wait for it.
    """
    service = await setup.served()
    models = batching_of(service.engine)
    figures: dict[str, Any] = {"device": service.engine.info().device}
    content = setup.phone.read_bytes()
    for frames in FRAMES_A_CALL:
        jobs = await jobs_of(content, IN_FLIGHT, frames=frames, largest_gap=_NO_GAP)
        try:
            figures[f"{frames} pictures a call"] = await both(
                service.engine, models, jobs, turn=setup.seconds(_TURN), warm=setup.seconds(_WARM)
            )
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


def _ratio(across: Load, apart: Load) -> float | None:
    """None where nothing ended."""
    rate = apart.pictures_a_second
    return round(across.pictures_a_second / rate, 3) if rate else None
