import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest import poisson, report, saturation, target
from loadtest.server_process import ServerProcess


def loaded(p99: float | None, goodput: float) -> dict[str, Any]:
    return {"answered_ms": {} if p99 is None else {"p99": p99}, "goodput_per_s": goodput}


def test_goals_that_are_just_reached_hold() -> None:
    rows = saturation.goals(100, loaded(35, 80), loaded(70, 95), p99_ms=35, goodput=0.95, slowdown=2)
    assert [row["holds"] for row in rows] == [True, True, True]
    assert [row["value"] for row in rows] == [35, 0.95, 2.0]


@pytest.mark.parametrize(
    ("steady", "overload", "missed"),
    [
        (loaded(36, 80), loaded(60, 95), [0]),
        (loaded(30, 80), loaded(61, 95), [2]),
        (loaded(30, 80), loaded(60, 94), [1]),
        (loaded(30, 80), loaded(None, 0), [1, 2]),
        (loaded(None, 0), loaded(None, 0), [0, 1, 2]),
    ],
)
def test_goals_that_are_missed_do_not(steady: dict[str, Any], overload: dict[str, Any], missed: list[int]) -> None:
    rows = saturation.goals(100, steady, overload, p99_ms=35, goodput=0.95, slowdown=2)
    assert [number for number, row in enumerate(rows) if not row["holds"]] == missed


def test_callers_are_added_until_they_bring_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: 10.0, 2: 19.0, 4: 19.1, 8: 25.0, 16: 25.1, 32: 24.0, 64: 99.0}
    monkeypatch.setattr(saturation, "closed_step", lambda g, m, count, *_: {"callers": count, "goodput_per_s": rates[count]})
    steps = saturation.closed_loop(None, None, list(rates), 1.0, 1, lambda: None)  # type: ignore[arg-type, return-value]
    assert [step["callers"] for step in steps] == [1, 2, 4, 8, 16, 32]


def test_what_a_run_has_so_far_is_kept_where_nobody_takes_it_for_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    facts = {"measured_commit": "abc", "server": {"device": "cpu"}}
    saturation._keep_part(argparse.Namespace(keep="tried"), facts, {"closed_loop": [{"callers": 1}]})
    saturation._keep_part(argparse.Namespace(keep=None), facts, {"closed_loop": []})
    assert not list(tmp_path.glob("*.json"))
    told = json.loads((tmp_path / "unfinished" / "tried.json").read_text())
    assert told["closed_loop"] == [{"callers": 1}]
    assert (told["measured_commit"], told["server"]) == ("abc", {"device": "cpu"})
    assert told["ended"] == "not at its end"


def test_faults_of_a_run_are_told() -> None:
    figures = {
        "unexpected": {"clips: INTERNAL": 2, "clips: NOT_SENT": 3},
        "by_status": {"NOT_SENT": 3},
        "refused_without_retry_info": 1,
    }
    assert [fault.split(" ")[0] for fault in poisson.faults(figures)] == ["2", "3", "1"]


MIX = '[[class]]\nname = "clip"\nclip = "clip.mp4"\nframes = 1\n[[class]]\nname = "text"\nclip = "text"\nexpect = ["{}"]\n'


@pytest.fixture
def mix(tmp_path: Path, clips_folder: Path) -> Path:
    (tmp_path / "clip.mp4").symlink_to(clips_folder / "bikes.mp4")
    (tmp_path / "mix.toml").write_text(MIX.format("INVALID_ARGUMENT"))
    return tmp_path / "mix.toml"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(report.write, "__kwdefaults__", {"directory": tmp_path / "results"})
    monkeypatch.setattr(target, "ROOT", tmp_path)
    return tmp_path / "results"


@pytest.mark.models
def test_a_short_open_loop_against_a_real_server(server: ServerProcess, mix: Path, results: Path) -> None:
    arguments = [
        "--server",
        server.address,
        "--mix",
        str(mix),
        "--rate",
        "4",
        "--seconds",
        "2",
        "--warm-up",
        "0.2",
        "--commit",
        "abc123",
    ]
    assert poisson.main([*arguments, "--keep", "short"]) == 0
    kept = json.loads((results / "short.json").read_text())
    assert kept["server"]["device"].startswith("cpu")
    assert kept["measured_commit"] == "abc123"
    assert "gpu" not in kept, "of a server without one"
    assert kept["poisson"]["watched"]["cores"].keys() == {"load"}, "the server is another's"
    statuses = {name: set(one["by_status"]) for name, one in kept["poisson"]["by_class"].items()}
    assert statuses == {"clip": {"OK"}, "text": {"INVALID_ARGUMENT"}}
    mix.write_text(MIX.format("OK"))
    assert poisson.main(arguments) == 1  # text is no video


@pytest.mark.models
def test_a_short_saturation_of_a_real_server(server: ServerProcess, mix: Path, results: Path) -> None:
    arguments = ["--server", server.address, "--mix", str(mix), "--callers", "2", "--step-seconds", "2", "--keep", "short"]
    arguments += ["--steady-seconds", "2", "--overload", "1", "--overload-seconds", "2"]
    goals = ["--goal-goodput", "0", "--goal-slowdown", "1e6"]  # what the machine can do is not this test's affair
    assert saturation.main([*arguments, *goals, "--goal-p99-ms", "0"]) == 1
    kept = json.loads((results / "short.json").read_text())
    assert kept["peak_per_s"] == max(step["goodput_per_s"] for step in kept["closed_loop"])
    assert kept["steady"]["rate_per_s"] == pytest.approx(0.8 * kept["peak_per_s"], abs=1e-3)
    assert [row["holds"] for row in kept["goals"]] == [False, True, True]
    again = kept["peak_again"]
    assert (again["callers"], again["by_status"].keys()) == (2, {"OK", "INVALID_ARGUMENT"})
    peak = (kept["peak_per_s"] + again["goodput_per_s"]) / 2
    assert kept["goals"][1]["value"] == pytest.approx(kept["overload"]["goodput_per_s"] / peak, abs=1e-3)
    assert kept["faults"] == []


@pytest.mark.models
@pytest.mark.slow
def test_connections_compared_and_an_end_at_full_load(models_folder: Path, mix: Path, results: Path) -> None:
    arguments = [
        "--mix",
        str(mix),
        "--callers",
        "2",
        "--step-seconds",
        "1",
        "--keep",
        "short",
        "--compare-connections",
        "--drain",
    ]
    arguments += ["--steady-seconds", "1", "--overload", "2", "--overload-seconds", "1", "--set", 'models.enabled=["open-nsfw"]']
    assert saturation.main([*arguments, "--goal-goodput", "0", "--goal-slowdown", "1e6"]) == 0
    kept = json.loads((results / "short.json").read_text())
    assert {name: step["callers"] for name, step in kept["connections"].items()} == {"1": 2, "8": 2}
    assert all(step["goodput_per_s"] for step in kept["connections"].values())
    assert kept["drain"]["answered_by_server"] == kept["drain"]["answered_to_callers"] > 0
    assert kept["drain"]["faults"] == kept["faults"] == []


def test_a_server_of_others_is_not_ended(mix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        saturation.main(["--mix", str(mix), "--server", "127.0.0.1:1", "--drain"])
    assert "--drain ends the server" in capsys.readouterr().err


def test_a_mix_that_is_none_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert saturation.main(["--mix", str(tmp_path / "none.toml")]) == 1
    assert "none.toml" in capsys.readouterr().err
