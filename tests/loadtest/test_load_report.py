"""The report and the picture from results as the load tests write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest import load_picture, load_report, load_summary, report
from loadtest.generator import Record
from loadtest.mix import CallClass, Mix
from loadtest.saturation import goals

MIX = Mix((CallClass("clips", b"123"), CallClass("broken", b"", expect=frozenset({"INVALID_ARGUMENT"}))))
SERVER = {"version": "1.2", "device": "cpu", "models": ["m 1", "n 2"], "decoders": {"cpu": 3}}
GENERATOR = {"mix_file": "mix.toml", "seed": 1, "processes": 2, "connections": 8, "settings": ["server.fronts=2"]}


def open_loop(rate: float, *, refused: int = 0, degraded: int = 0) -> dict[str, Any]:
    records = [Record(0, n / 10, n / 10 + 0.001, n / 10 + 0.05 + n / 1000, "OK") for n in range(100)]
    records += [
        Record(0, n / 10, n / 10, n / 10 + 0.01, "RESOURCE_EXHAUSTED", "OVERLOADED", retry_after=True) for n in range(refused)
    ]
    records += [Record(0, n / 10, n / 10, n / 10 + 0.2, "OK", degradations=("FEWER_FRAMES",)) for n in range(degraded)]
    records += [Record(1, 1.0, 1.0, 1.1, "INVALID_ARGUMENT", "NOT_A_VIDEO")]
    figures = load_summary.summary(records, MIX, begin=1.0, end=10.0)
    return {"rate_per_s": rate, "seconds": 9.0, "warm_up_seconds": 1.0, **figures}


DRAIN = {
    "rate_per_s": 24.0,
    "at_sigterm": {"in_flight": 9, "queues": {"turn main": 5.0, "receive ": 2.0}},
    "in_flight_ended": {"OK": 8, "RESOURCE_EXHAUSTED": 1},
    "cut_short": 0,
    "answered_by_server": 70,
    "answered_to_callers": 70,
    "sent_later": {"UNAVAILABLE DRAINING": 40},
    "seconds_to_end": 3.25,
    "exit_code": 0,
    "faults": [],
}


def watched(*processes: str, gpu: bool = False) -> dict[str, Any]:
    """As `loadtest.watch` tells it, each process with half a core."""
    told: dict[str, Any] = {"seconds": 9.0, "machine_cpu_percent": 81.4, "cores": dict.fromkeys(processes, 0.5)}
    if gpu:
        told["gpus"] = [{"source": "NVML", "samples": 40, "gpu_percent": 99.7, "sm_activity_percent": 61.2, "power_w": 412.0}]
        told["metrics"] = {"at_end": {"places": {"main": 14.0}}, "batches": {"m": {"batches": 9, "mean_fill": 30.52}}}
    return told


def saturation(*, answered: bool = True) -> dict[str, Any]:
    steps = [
        {"callers": n, "goodput_per_s": 4.0 + n, "by_status": {"OK": 9}, "answered_ms": load_summary.latencies([0.1 * n, 0.2])}
        for n in (1, 2, 4)
    ]
    steady, overload = open_loop(8), open_loop(24, refused=50, degraded=7)
    if not answered:
        overload["answered_ms"] = {}
    steady["watched"], overload["watched"] = (
        watched("server"),
        watched("server", "front-0", "front-1", "engine-0: workers", gpu=True),
    )
    return {
        "server": SERVER,
        "generator": GENERATOR,
        "mix": MIX.describe(),
        "peak_per_s": 10.0,
        "peak_again": {"callers": 2, "goodput_per_s": 9.4},
        "closed_loop": steps,
        "steady": steady,
        "overload": overload,
        "connections": {"1": {**steps[0], "watched": watched("front-0", "front-1")}, "8": steps[1]},
        "drain": DRAIN,
        "goals": goals(10.0, steady, overload, p99_ms=35.0, goodput=0.95, slowdown=2.0),
        "faults": [],
    }


def ghz() -> dict[str, Any]:
    latency = [{"percentage": p, "latency": p * 1e6} for p in (50, 95, 99)]
    one = {"rps": 2.5, "latencyDistribution": latency, "statusCodeDistribution": {"OK": 9}}
    return {"clip": "c.mp4", "loads": {"unary-8, ranges": one, "rate-constant, whole": {**one, "latencyDistribution": None}}}


def baselines() -> dict[str, Any]:
    way = {
        "calls_per_s": 2.0,
        "ours_to_it": 1.0,
        "latency_ms": load_summary.latencies([0.5]),
        "labels": ["a"],
        "same_labels": True,
    }
    other = {**way, "calls_per_s": 1.0, "ours_to_it": 2.0, "labels": ["a", "b|c"], "same_labels": False}
    return {"callers": 8, "cores": 2, "clips": {"c.mp4": {"keyglance": way, "c": other}}, "behind": []}


def baselines_gpu() -> dict[str, Any]:
    latency = load_summary.latencies([0.01])
    ways = {"a": {"1": {"failed": "RuntimeError: x"}}, "b": {"1": {"calls_per_s": 20.0, "latency_ms": latency}}}
    ways["keyglance"] = {"1": {"calls_per_s": 80.0, "latency_ms": latency}}
    return {"gpu": {"gpu": "A GPU"}, "pictures": 12, "ways": ways, "ours_to_theirs": {"a": {}, "b": {"1": 4.0}}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    report.write("saturation_cpu", saturation(), directory=tmp_path)
    poisson = {
        "server": SERVER,
        "generator": GENERATOR,
        "mix": MIX.describe(),
        "poisson": open_loop(10),
        "faults": ["1 x clips: INTERNAL"],
    }
    report.write("poisson", poisson, directory=tmp_path)
    ended = {"server": SERVER, "generator": GENERATOR, "mix": MIX.describe(), "drain": {**DRAIN, "faults": ["lost"]}}
    report.write("ended", ended, directory=tmp_path)
    report.write("ghz", ghz(), directory=tmp_path)
    report.write("baselines", baselines(), directory=tmp_path)
    report.write("baselines_gpu", baselines_gpu(), directory=tmp_path)
    report.write("other", {"calls": 3}, directory=tmp_path)
    return tmp_path


def test_every_result_has_its_section_and_nothing_else(results: Path) -> None:
    load_report.main(["--results", str(results)])
    text = (results / "load.md").read_text()
    for name in ("saturation_cpu", "poisson", "ended", "ghz", "baselines", "baselines_gpu"):
        assert f"[{name}]({name}.json)" in text
    assert "other.json" not in text
    assert text.count("## The end at full load") == 1, "another stands with the saturation that it is of"
    assert (results / "saturation_cpu.svg").exists()


@pytest.mark.parametrize(
    "line",
    [
        "| 4 | 8.00 | 200 | 400 | 9 OK |",
        "Peak: 10.0 calls/s, after the overload 9.40. Open loops",
        "| p99 at the steady load, ms | ",
        "Degradations in overload:",
        "|  | processors busy | fronts, cores | server, cores | workers, cores | GPU busy | SM activity | W | frames a batch | "
        "calls worked on |",
        "| steady | 81 % | 0.00 | 0.50 | 0.00 | – | – | – | – | – |",
        "| overload | 81 % | 1.00 | 0.50 | 0.50 | 100 % | 61 % | 412 | 30.5 | 14 at most |",
        "| 1 | 1 | 5.00 | 100 | 200 | 0.50, 0.50 |",
        "| 8 | 2 | 6.00 | 200 | 200 | – |",
        "SIGTERM at 24.0 calls/s: 9 calls were in flight (queues just before: 5 turn main, 2 receive); of them 8 OK, 1 RES",
        "Faults: lost.",
        "1 INVALID_ARGUMENT",
        "1 x clips: INTERNAL",
        "settings: server.fronts=2",
        "| unary-8, ranges | 2.50 | 50.0 | 95.0 | 99.0 | 9 OK |",
        "| rate-constant, whole | 2.50 | – | – | – | 9 OK |",
        "| c | 1.00 | 2.00 | 500 | 500 | a, b\\|c |",
        "| a | 1 | RuntimeError: x | – | – | – |",
        "| b | 1 | 20.0 | 4.0 | 10.0 | 10.0 |",
    ],
)
def test_the_figures_stand_in_the_report(results: Path, line: str) -> None:
    assert line in load_report.render(results)


def test_tables_have_as_many_cells_in_every_row(results: Path) -> None:
    block: list[int] = []
    for line in load_report.render(results).splitlines():
        if line.startswith("|"):
            block.append(line.replace("\\|", "").count("|"))
            assert len(set(block)) == 1, line
        else:
            block = []


@pytest.mark.parametrize("answered", [True, False])
def test_the_picture_is_whole_and_the_same_each_time(tmp_path: Path, answered: bool) -> None:
    report.write("s", saturation(answered=answered), directory=tmp_path)
    figures = json.loads((tmp_path / "s.json").read_text())
    for name in ("one.svg", "two.svg"):
        load_picture.main([str(tmp_path / "s.json"), str(tmp_path / name)])
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    text = "".join(ElementTree.fromstring(drawn).itertext())
    for expected in (
        "closed loop, p99",
        "At 2.4 times the peak",
        "refused",
        load_picture.title(figures),
        "8/s offered: 90 answered",
    ):
        assert expected in text
    assert ("24/s offered" in text) is answered


def test_the_title_names_the_device() -> None:
    figures = {**saturation(), "environment": {"cores": 2, "cpu": "X", "date": "2026-01-02T03:04:05Z", "commit": "abc"}}
    assert load_picture.title(figures) == "Keyglance 1.2 on 2 cores of X; calls: clips, broken; 2026-01-02, abc"
    figures["server"] = {**SERVER, "device": "NVIDIA H200"}
    assert load_picture.title(figures).startswith("Keyglance 1.2 on NVIDIA H200; ")


def test_a_gpu_that_did_nothing_is_not_shown() -> None:
    told = saturation()
    (busy,) = told["overload"]["watched"]["gpus"]
    told["overload"]["watched"]["gpus"] = [busy | {"gpu_percent": 0.0, "power_w": 79.0}, busy]
    heading, _, *rows = load_report.watched(told)
    assert "GPU busy |" in heading
    assert "79" not in rows[-1]
    told["overload"]["watched"]["gpus"] = [busy, busy | {"power_w": 99.0}]
    heading, _, *rows = load_report.watched(told)
    assert "GPU busy 1" in heading
    assert "99" in rows[-1]
