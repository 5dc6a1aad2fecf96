import json
from pathlib import Path

import pytest

from loadtest import gate

FIGURES = {
    "count": 100,
    "rps": 12.5,
    "average": 30e6,
    "slowest": 90e6,
    "statusCodeDistribution": {"OK": 95, "Unavailable": 3, "ResourceExhausted": 2},
    "latencyDistribution": [{"percentage": p, "latency": p * 1_000_000} for p in (10, 25, 50, 75, 90, 95, 99)],
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "result.json").write_text(json.dumps(FIGURES))
    (tmp_path / "thresholds.toml").write_text("ok = 95\n")
    return str(tmp_path / "result.json"), str(tmp_path / "thresholds.toml")


def test_what_is_just_kept_holds() -> None:
    kept = {"ok": 95, "rps": 12.5, "p50_ms": 50, "p99_ms": 99, "average_ms": 30, "slowest_ms": 90}
    assert gate.broken(FIGURES, {**kept, "errors": {"total": 0.05, "Unavailable": 0.03, "Internal": 0.0}}) == []


@pytest.mark.parametrize(
    ("threshold", "line"),
    [
        ({"ok": 96}, "ok: 95, at least 96 wanted"),
        ({"rps": 13}, "rps: 12.5, at least 13 wanted"),
        ({"p95_ms": 94.9}, "p95_ms: 95.0, at most 94.9 allowed"),
        ({"average_ms": 29}, "average_ms: 30.0, at most 29 allowed"),
        ({"slowest_ms": 89}, "slowest_ms: 90.0, at most 89 allowed"),
        ({"errors": {"total": 0.04}}, "errors.total: 0.0500 (5 of 100 calls), at most 0.04 allowed"),
        ({"errors": {"ResourceExhausted": 0.0}}, "errors.ResourceExhausted: 0.0200 (2 of 100 calls), at most 0 allowed"),
    ],
)
def test_what_is_broken_is_told_with_value_and_limit(threshold: dict[str, object], line: str) -> None:
    assert gate.broken(FIGURES, threshold) == [line]


def test_every_broken_threshold_has_its_line() -> None:
    assert len(gate.broken(FIGURES, {"ok": 96, "rps": 13, "p50_ms": 1, "errors": {"total": 0, "Unavailable": 0}})) == 5


def test_a_run_without_an_answer_keeps_no_latency() -> None:
    nothing = {**FIGURES, "statusCodeDistribution": {"Unavailable": 4}, "latencyDistribution": None}
    assert gate.broken(nothing, {"p99_ms": 1000, "ok": 1}) == [
        "p99_ms: no call was answered, at most 1000 allowed",
        "ok: 0, at least 1 wanted",
    ]


def test_a_run_without_a_call_is_no_error_share() -> None:
    assert gate.broken({"statusCodeDistribution": {}}, {"errors": {"total": 0.0}, "ok": 1}) == ["ok: 0, at least 1 wanted"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("okay = 1", "did you mean ok"),
        ("p60_ms = 5", "no threshold 'p60_ms'"),
        ("[errors]\nunavailable = 0.1", "did you mean Unavailable"),
        ("[errors]\ntotal = 1.5", "share from 0 to 1"),
        ("p50_ms = -1", "0 or more"),
        ("ok = true", "a number"),
        ("rps = nan", "0 or more"),
        ("errors = 0.1", "a table"),
        ("", "no threshold in it"),
        ("ok = ", "thresholds.toml"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(files: tuple[str, str], text: str, message: str) -> None:
    path = Path(files[1])
    path.write_text(text)
    with pytest.raises(gate.GateError, match=message):
        gate.read_thresholds(path)


def test_the_statuses_are_those_that_ghz_writes(files: tuple[str, str]) -> None:
    names = ["Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "ResourceExhausted", "Unauthenticated"]
    Path(files[1]).write_text("[errors]\n" + "".join(f"{name} = 0.5\n" for name in names))
    assert list(gate.read_thresholds(Path(files[1]))["errors"]) == names


def test_the_command_line(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gate.main(files) == 0
    Path(files[1]).write_text("ok = 99\np99_ms = 1\n")
    assert gate.main(files) == 1
    assert capsys.readouterr().out.splitlines() == [
        "broken: ok: 95, at least 99 wanted",
        "broken: p99_ms: 99.0, at most 1 allowed",
    ]
    Path(files[0]).write_text("{}")
    assert gate.main(files) == 2
    assert "statusCodeDistribution" in capsys.readouterr().err
    assert gate.main([str(Path(files[0]).with_name("none.json")), files[1]]) == 2


def test_the_gate_of_ci_looks_at_answers_only() -> None:
    thresholds = gate.read_thresholds(Path(gate.__file__).parent / "ghz" / "gate.toml")
    assert set(thresholds) == {"ok", "errors"}
    assert gate.broken(FIGURES, thresholds)
