"""The ghz files are what ghz takes, and what they send is what the client sends. ghz itself runs in `make ghz`."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from keyglance.v1 import keyglance_pb2 as pb
from loadtest import clips
from loadtest.ghz import __main__ as ghz

ROOT = Path(ghz.ROOT)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clips.encode(clips.pan(clips.photograph("coffee"), 100, 640, 360), keyframe_interval=50))
    return path


def settings(load: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((Path(ghz.__file__).parent / f"{load}.json").read_text())
    return parsed


@pytest.mark.parametrize("load", ghz.LOADS)
def test_each_file_names_what_exists(load: str) -> None:
    config = settings(load)
    assert (ROOT / config["proto"]).is_file()
    service, _, method = config["call"].rpartition(".")
    assert method in pb.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name
    assert ROOT / config["binary-file"] == ghz.REQUESTS / "ranges.bin"
    assert config["duration-stop"] == "wait"
    assert config.get("async", False) == load.startswith("rate")


def test_the_closed_loops_have_the_calls_in_flight_of_their_names() -> None:
    assert {settings(load)["concurrency"] for load in ghz.LOADS if load.startswith("unary")} == {1, 8, 32}
    assert all(settings(f"unary-{calls}")["concurrency"] == calls for calls in (1, 8, 32))


def test_requests_are_whole_and_in_ranges(clip: Path, tmp_path: Path) -> None:
    files = ghz.write_requests(clip, 2, tmp_path / "requests")
    whole, ranges = (pb.LabelRequest.FromString(files[sending].read_bytes()) for sending in ("whole", "ranges"))
    assert whole.data == clip.read_bytes()
    assert ranges.WhichOneof("source") == "ranges"
    assert ranges.ranges.file_size == len(whole.data)
    assert ranges.ByteSize() < whole.ByteSize() * 0.9
    assert {whole.sampling.frames, ranges.sampling.frames} == {2}


def fake_ghz(folder: Path, figures: dict[str, Any]) -> str:
    program = folder / "ghz"
    (folder / "figures.json").write_text(json.dumps(figures))
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/arguments\ncat {folder}/figures.json\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def figures(**codes: int) -> dict[str, Any]:
    latency = [{"percentage": percentage, "latency": 5_000_000} for percentage in (50, 95, 99)]
    numbers = {"count": sum(codes.values()), "total": 1, "average": 1, "fastest": 1, "slowest": 1, "rps": 2.0}
    return {**numbers, "statusCodeDistribution": codes, "latencyDistribution": latency, "errorDistribution": {}}


@pytest.fixture(autouse=True)
def requests_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ghz.write_requests, "__defaults__", (tmp_path / "requests",))


def test_a_failed_call_fails_the_run(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["unary-1", "--clip", str(clip), "--server", "127.0.0.1:1", "--ghz"]
    assert ghz.main([*common, fake_ghz(tmp_path, figures(OK=3))]) == 0
    assert ghz.main([*common, fake_ghz(tmp_path, figures(OK=3, Unavailable=1))]) == 1
    assert "broken: unary-1, ranges: errors.total: 0.2500 (1 of 4 calls)" in capsys.readouterr().out
    assert ghz.main([*common, fake_ghz(tmp_path, figures())]) == 1
    assert "ok: 0, at least 1" in capsys.readouterr().out


def test_a_stepped_load_has_all_its_steps_in_the_time_given(clip: Path, tmp_path: Path) -> None:
    program = fake_ghz(tmp_path, figures(OK=1))
    given = ["rate-stepped", "--clip", str(clip), "--server", "h:1", "--ghz", program, "--seconds", "8", "--", "--rps", "7"]
    assert ghz.main(given) == 0
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[arguments.index("--load-step-duration") + 1] == "2s"
    assert arguments[arguments.index("--duration") + 1] == "8s"
    assert arguments[-3:] == ["--rps", "7", "h:1"]


def test_a_missing_ghz_is_an_error_in_words(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ghz.main(["unary-1", "--clip", str(clip), "--server", "h:1", "--ghz", str(tmp_path / "none")]) == 1
    assert "ghz could not run" in capsys.readouterr().err
