"""The goals of the GPU path beside what was measured: one line a goal, read from the parts' files."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.gpu_batching import ACROSS, APART, BY_COST, IN_FLIGHT
from loadtest.gpu_service import GOAL_IN_FLIGHT, SMALL_MODELS

#: A part's figures by its name; KeyError where they are missing.
Parts = Mapping[str, Mapping[str, Any]]

_RECONFIGURED, _ALONE, _NEW = "reconfigured, then the keyframe", "keyframe alone", "new decoder, then the keyframe"
_SIDES: Mapping[str, Callable[[float, float], bool]] = {"at most": operator.le, "at least": operator.ge}


@dataclass(frozen=True, slots=True)
class Goal:
    """One line: `value` is to be `side` ("at most", "at least") `goal`, in `unit`; `beside` is what it is to be seen with."""

    what: str
    side: str
    goal: float
    unit: str
    measure: Callable[[Parts], tuple[float, Mapping[str, Any]]]

    def line(self, parts: Parts) -> dict[str, Any]:
        """The line with its value and whether it was met; `met` is None where a part is missing."""
        told: dict[str, Any] = {"what": self.what, "goal": f"{self.side} {self.goal:g} {self.unit}".strip()}
        try:
            value, beside = self.measure(parts)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            return told | {"value": None, "met": None, "missing": f"{type(error).__name__}: {error}"}
        met = _SIDES[self.side](value, self.goal)
        if not met:
            told["misses by"] = round(abs(value - self.goal), 4)
        return told | {"value": round(value, 4), "met": met, "beside": dict(beside)}


def _reconfigured(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    told = parts["reconfigure"]
    reconfigured, alone = told[_RECONFIGURED]["median"], told[_ALONE]["median"]
    return reconfigured / alone, {"reconfigured_ms": reconfigured, "alone_ms": alone}


def _faster_than_new(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    told = parts["reconfigure"]
    reconfigured, new = told[_RECONFIGURED]["median"], told[_NEW]["median"]
    return new / reconfigured, {"reconfigured_ms": reconfigured, "new_ms": new}


def _road(step: str) -> Callable[[Parts], tuple[float, Mapping[str, Any]]]:
    def measure(parts: Parts) -> tuple[float, Mapping[str, Any]]:
        told = {name: row for name, row in parts["phone"].items() if name.endswith(" decoders")}
        best = min(told, key=lambda name: float(told[name][step]["median"]))
        others = {name: row.get("median") for name, row in parts["phone"].items() if name.startswith("SimpleDecoder")}
        by_count = {name: row[step]["median"] for name, row in told.items()}
        return told[best][step]["median"], {"with": best, "by decoders": by_count, **others}

    return measure


def _call(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    told, models = parts["engine"]["through gRPC"], parts["alone"]["models"]
    alone = models["12 pictures_ms"]
    return told["p50_ms"] - alone, {
        "p50_ms": told["p50_ms"],
        "p90_ms": told["p90_ms"],
        "models alone_ms": alone,
        "models alone with preprocessing_ms": models["pictures to results"]["batch_ms"]["12"],
        "steps, wall_ms": {step: row["wall_ms"] for step, row in told["steps"].items()},
        "outside the server_ms": told["outside the server_ms"],
        "engine in process, p50_ms": parts["engine"]["engine in process"]["p50_ms"],
    }


def _throughput(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    rate = parts["throughput"][f"{GOAL_IN_FLIGHT} in flight"]["pictures/s"]
    decoders, models = parts["alone"]["decoders"]["pictures/s"], parts["alone"]["models"]["pictures/s"]
    by_load = {name: row["pictures/s"] for name, row in parts["throughput"].items() if name.endswith(" in flight")}
    return rate / min(decoders, models), {
        "pictures/s": rate,
        "decoders alone": decoders,
        "models alone": models,
        "by clips in flight": by_load,
    }


def _one_model(name: str) -> Callable[[Parts], tuple[float, Mapping[str, Any]]]:
    def measure(parts: Parts) -> tuple[float, Mapping[str, Any]]:
        rate = parts["one_model"][name][f"{GOAL_IN_FLIGHT} in flight"]["pictures/s"]
        decoders = parts["alone"]["decoders"]["pictures/s"]
        alone = parts["alone"]["models"]["each alone, networks, pictures/s flat out"][name]
        return rate / decoders, {"pictures/s": rate, "decoders alone": decoders, "model alone": alone}

    return measure


def _batching(frames: int) -> Callable[[Parts], tuple[float, Mapping[str, Any]]]:
    def measure(parts: Parts) -> tuple[float, Mapping[str, Any]]:
        told = parts["batching"][f"{frames} pictures a call"]
        beside = {
            way: {name: told[way][name] for name in ("pictures/s", "p50_ms", "p99_ms")}
            | {"mean fill": told[way]["batches"]["mean fill"]}
            for way in (ACROSS, APART)
        }
        by_cost = {BY_COST: told[BY_COST]} if BY_COST in told else {}
        return told["ratio"] + 0.0, beside | {"ratio by round": told["ratio by round"]} | by_cost

    return measure


def _pixels(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    return parts["parity"]["largest"], {"pictures": parts["parity"]["pictures"]}


def _outputs(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    """The largest move of any raw output in the precision that each model runs in: float16 where its check passes."""
    chosen: dict[str, tuple[str, float]] = {}
    for key, row in parts["precision"].items():
        name, _, rest = key.partition(", ")
        precision, _, origin = rest.partition(", ")
        if origin == "pictures on the GPU" and (precision == "float32" or (precision == "float16" and row["passed"])):
            move = max(row["moves"].values())
            if name not in chosen or precision == "float16":
                chosen[name] = precision, move
    return max(move for _, move in chosen.values()), {name: f"{move:g} in {how}" for name, (how, move) in chosen.items()}


def _allocations(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    told = parts["memory"]
    counts: Mapping[str, int] | None = told["allocations on the way"]
    if counts is None:
        raise ValueError("not counted without CuPy")
    return sum(counts.values()) + told["created on the way"], {"calls": told["calls"], **counts, "grown": told["grown"]}


def _used(parts: Parts) -> tuple[float, Mapping[str, Any]]:
    told = parts["memory"]["budget"]
    if told is None:
        raise ValueError("nothing is planned for this engine")
    return told["used in MiB"] / told["planned in MiB"], told


GOALS = (
    Goal("reconfigure plus first 720p keyframe, of the decode of that keyframe alone", "at most", 1.3, "times", _reconfigured),
    Goal("a new decoder and that keyframe, of reconfigure plus keyframe", "at least", 25, "times", _faster_than_new),
    Goal("12 keyframes, bytes in memory to frames in the arena, decoders reconfigured", "at most", 6, "ms", _road("all")),
    Goal("the same, decoders that had that size", "at most", 6, "ms", _road("same")),
    Goal("the clip through gRPC, p50, over the models alone for that batch", "at most", 5, "ms", _call),
    Goal("16 clips in flight, keyframes/s, of the smaller of decoders alone and models alone", "at least", 0.9, "", _throughput),
    *(Goal(f"{name} alone, the same, of the decoders alone", "at least", 0.7, "", _one_model(name)) for name in SMALL_MODELS),
    *(
        Goal(
            f"{IN_FLIGHT} calls of {frames} pictures, pictures/s, of one call a batch",
            "at least",
            goal,
            "times",
            _batching(frames),
        )
        for frames, goal in ((12, 1.5), (2, 3))
    ),
    Goal("pixels: largest distance from the reference, of 255", "at most", 1, "", _pixels),
    Goal("raw outputs: largest move from the CPU's in the precision chosen", "at most", 0.01, "", _outputs),
    Goal("decoders made and GPU memory asked for in usual calls", "at most", 0, "", _allocations),
    Goal("GPU memory used, of what was planned", "at most", 1, "", _used),
)


def summary(directory: Path) -> dict[str, Any]:
    """Every goal beside its value, from the files that are in `directory`, and what these files are of."""
    parts, sources = {}, {}
    for part, told in _files(directory):
        sources[part] = {
            "date": told.get("environment", {}).get("date"),
            "commit": told.get("measured_commit"),
            "gpu": told.get("gpu", {}).get("gpu"),
            "ended": told.get("ended"),
        }
        parts[part] = told.get(part, {})
    lines = [goal.line(parts) for goal in GOALS]
    counts = {name: sum(line["met"] is met for line in lines) for name, met in (("met", True), ("missed", False), ("open", None))}
    return {"goals": lines, **counts, "sources": sources}


def _files(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(directory.glob("gpu_*.json")):
        try:
            told = json.loads(path.read_text())
        except ValueError:  # cut off while it was written
            continue
        name = path.stem.removeprefix("gpu_")
        if isinstance(told, dict) and name in told:
            yield name, told


def table(told: Mapping[str, Any]) -> str:
    """The lines for a terminal."""
    words = {True: "met", False: "MISSED", None: "open"}
    rows = [(words[line["met"]], str(line["value"]), line["goal"], line["what"]) for line in told["goals"]]
    return "\n".join(f"{met:<7}{value:>10}  {goal:<18}{what}" for met, value, goal, what in rows)
