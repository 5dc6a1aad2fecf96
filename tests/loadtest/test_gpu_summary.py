import copy
import json
from pathlib import Path
from typing import Any

from loadtest.figures.gpu import _goal_row
from loadtest.gpu_batching import BY_COST
from loadtest.gpu_summary import GOALS, summary, table

STEPS = {"decode": {"begins_ms": 1.0, "wall_ms": 4.0, "wait_ms": 0.0}}
PARTS: dict[str, Any] = {
    "alone": {
        "decoders": {"pictures/s": 6000.0},
        "models": {
            "12 pictures_ms": 4.0,
            "pictures/s": 5000.0,
            "pictures to results": {"batch_ms": {"12": 4.2}},
            "each alone, networks, pictures/s flat out": {"efficientnet-lite0": 9000.0, "open-nsfw": 9500.0},
        },
    },
    "reconfigure": {
        "keyframe alone": {"median": 1.2},
        "reconfigured, then the keyframe": {"median": 1.5},
        "new decoder, then the keyframe": {"median": 45.0},
    },
    "phone": {
        "1 decoders": {"all": {"median": 15.0}, "same": {"median": 14.0}},
        "12 decoders": {"all": {"median": 5.5}, "same": {"median": 4.5}},
        "SimpleDecoder new, keyframes by index": {"median": 285.0},
        "SimpleDecoder from somewhere else": {"failed": "no such file"},
    },
    "engine": {
        "through gRPC": {"p50_ms": 8.5, "p90_ms": 9.0, "steps": STEPS, "outside the server_ms": 1.5},
        "engine in process": {"p50_ms": 6.0},
    },
    "throughput": {"device": "x", "16 in flight": {"pictures/s": 4600.0}, "1 in flight": {"pictures/s": 1500.0}},
    "one_model": {
        "efficientnet-lite0": {"16 in flight": {"pictures/s": 4300.0}},
        "open-nsfw": {"16 in flight": {"pictures/s": 3000.0}},
    },
    "batching": {
        f"{frames} pictures a call": {
            "ratio": ratio,
            "ratio by round": [ratio, ratio],
            **{
                way: {"pictures/s": 1.0, "p50_ms": 2.0, "p99_ms": 3.0, "batches": {"mean fill": 4.0}, "calls": 5}
                for way in ("across calls", "one call a batch")
            },
        }
        for frames, ratio in ((12, 1.25), (2, 3.5))
    },
    "parity": {"largest": 0.08, "pictures": 36},
    "precision": {
        "a, float32, pictures on the GPU": {"moves": {"o": 0.0001}, "passed": True},
        "a, tf32, pictures on the GPU": {"moves": {"o": 0.5}, "passed": False},
        "a, float16, tensors of the CPU": {"moves": {"o": 0.9}, "passed": False},
        "a, float16, pictures on the GPU": {"moves": {"o": 0.003, "p": 0.004}, "passed": True},
        "b, float32, pictures on the GPU": {"moves": {"o": 0.0002}, "passed": True},
        "b, float16, pictures on the GPU": {"moves": {"o": 0.05}, "passed": False},
        "b, says 0 to everything": {"passed": False},
    },
    "memory": {
        "calls": 1000,
        "created on the way": 0,
        "allocations on the way": {"device": 0, "pinned": 0},
        "grown": {"threads": 0.0},
        "budget": {"planned in MiB": 30000.0, "used in MiB": 27000.0},
    },
}


def written(folder: Path, parts: dict[str, Any]) -> dict[str, Any]:
    for name, figures in parts.items():
        told = {"environment": {"date": "2026-01-01"}, "measured_commit": "abc", "gpu": {"gpu": "H"}, "ended": "complete"}
        (folder / f"gpu_{name}.json").write_text(json.dumps(told | {name: figures}))
    return summary(folder)


def test_every_goal_has_its_value(tmp_path: Path) -> None:
    told = written(tmp_path, PARTS)
    values = [(line["value"], line["met"]) for line in told["goals"]]
    assert values == [
        (1.25, True),
        (30.0, True),
        (5.5, True),
        (4.5, True),
        (4.5, True),
        (0.92, True),
        (0.7167, True),
        (0.5, False),
        (1.25, False),
        (3.5, True),
        (0.08, True),
        (0.004, True),
        (0, True),
        (0.9, True),
    ]
    assert (told["met"], told["missed"], told["open"]) == (12, 2, 0)
    assert told["sources"]["phone"] == {"date": "2026-01-01", "commit": "abc", "gpu": "H", "ended": "complete"}
    phone = told["goals"][2]
    assert phone["goal"] == "at most 6 ms"
    assert phone["beside"]["with"] == "12 decoders"
    assert phone["beside"]["SimpleDecoder new, keyframes by index"] == 285.0
    assert told["goals"][7]["misses by"] == 0.2
    assert told["goals"][8]["beside"]["one call a batch"] == {"pictures/s": 1.0, "p50_ms": 2.0, "p99_ms": 3.0, "mean fill": 4.0}
    assert told["goals"][11]["beside"] == {"a": "0.004 in float16", "b": "0.0002 in float32"}


def test_a_ratio_stands_beside_what_batches_allow(tmp_path: Path) -> None:
    parts = copy.deepcopy(PARTS)
    parts["batching"]["2 pictures a call"] |= {"ratio": 2.35, BY_COST: 2.876}
    twelve, two = written(tmp_path, parts)["goals"][8:10]
    assert _goal_row(two)[2] == "2.35 times (2.88 if both ways waited for nothing but their batches)"
    assert _goal_row(twelve)[2] == "1.25 times"  # measured before that was told


def test_goals_that_are_missed_say_by_how_much(tmp_path: Path) -> None:
    parts = copy.deepcopy(PARTS)
    parts["engine"]["through gRPC"]["p50_ms"] = 12.5
    parts["memory"]["allocations on the way"]["device"] = 3
    parts["parity"]["largest"] = float("nan")
    told = written(tmp_path, parts)
    missed = {line["what"]: line["misses by"] for line in told["goals"] if line["met"] is False}
    assert missed["the clip through gRPC, p50, over the models alone for that batch"] == 3.5
    assert missed["decoders made and GPU memory asked for in usual calls"] == 3
    assert "pixels: largest distance from the reference, of 255" in missed  # not a number is no parity
    assert "MISSED" in table(told)


def test_what_is_missing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "gpu_phone.json").write_text('{"phone": {"1 deco')  # cut off
    (tmp_path / "gpu_other.json").write_text('{"something": 1}')
    (tmp_path / "gpu.json").write_text("{}")
    memory = PARTS["memory"] | {"allocations on the way": None, "budget": None}
    told = written(tmp_path, {"reconfigure": {}, "memory": memory})
    assert (told["met"], told["missed"], told["open"]) == (0, 0, len(GOALS))
    assert all(line["missing"] for line in told["goals"])
    assert sum(line.startswith("open ") for line in table(told).splitlines()) == len(GOALS)
