"""Profiles: what is recorded, the lanes, and the parts of several processes joined."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

from server import profile as profiles
from server.config import Config
from server.deadline import Deadline
from server.main import main
from server.profile import Profile, ProfileJoiner, join, profile_of
from server.telemetry import Telemetry


def read(profile: Profile) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = json.loads(profile.file.read_text())
    return found, [event for event in found["traceEvents"] if event["ph"] == "X"]


def recording(profile: Profile, process: str = "server") -> Telemetry:
    return Telemetry.create(version="1", process=process, profile=profile)


def a_call(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("keyglance.v1.ShortVideoLabeler/Label", context=Context()):
        steps = telemetry.steps(Deadline.after(10))
        with steps.step("index", codec="h264"):
            time.sleep(0.002)


def test_a_profile_of_several_processes(tmp_path: Path):
    profile = Profile(60, tmp_path / "profile.json")
    joiner = ProfileJoiner(profile)
    before = time.time()
    for process in ("front-0", "engine-0"):
        telemetry = recording(profile, process)
        for _ in range(3):
            a_call(telemetry)
        telemetry.shutdown()
    joiner.close()
    found, spans = read(profile)
    assert found["displayTimeUnit"] == "ms"
    assert found["otherData"] == {"spans": 12, "spans left out": 0}
    names = {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}
    assert sorted(names.values()) == ["engine-0", "front-0"]
    for pid in names:
        assert sorted(span["name"] for span in spans if span["pid"] == pid) == ["Label"] * 3 + ["index"] * 3
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert {(span["pid"], span["tid"]) for span in spans} == set(lanes)
    assert set(lanes.values()) == {"Label 1", "index 1"}, "calls one after the other share a lane"
    index = next(span for span in spans if span["name"] == "index")
    assert index["args"]["codec"] == "h264"
    assert 2e3 <= index["dur"] < 5e6
    assert before * 1e6 - 1e3 <= index["ts"] <= time.time() * 1e6
    call = next(span for span in spans if span["name"] == "Label" and span["args"]["trace"] == index["args"]["trace"])
    assert call["ts"] <= index["ts"]
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_the_window_ends_by_itself_and_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiles, "_GRACE", 0.1)
    profile = Profile(0.2, tmp_path / "profile.json")
    joiner = ProfileJoiner(profile)
    telemetry = recording(profile)
    a_call(telemetry)
    end = time.monotonic() + 10
    while not profile.file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    a_call(telemetry)
    telemetry.shutdown()
    joiner.close()
    assert len(read(profile)[1]) == 2
    assert profile.parts() == []


def test_no_call_no_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    profile = Profile(1, tmp_path / "profile.json")
    joiner = ProfileJoiner(profile)
    recording(profile).shutdown()
    joiner.close()
    assert not profile.file.exists()
    assert "no profile" in caplog.text


def test_parts_of_a_killed_server_are_not_taken(tmp_path: Path):
    profile = Profile(1, tmp_path / "profile.json")
    profile.part("front-7").write_text("{")
    ProfileJoiner(profile).close()
    assert list(tmp_path.iterdir()) == []


def test_too_many_spans_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiles, "MOST_SPANS", 5)
    profile = Profile(60, tmp_path / "profile.json")
    telemetry = recording(profile)
    for _ in range(4):
        a_call(telemetry)
    telemetry.shutdown()
    assert join(profile) == 5
    assert read(profile)[0]["otherData"] == {"spans": 5, "spans left out": 3}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=40))
def test_spans_of_a_lane_do_not_overlap(intervals: list[tuple[int, int]]):
    tracer = TracerProvider().get_tracer("test")
    spans = []
    for begin, duration in intervals:
        span = tracer.start_span("decode", context=Context(), start_time=begin + 1)
        span.end(begin + duration + 1)
        spans.append(span)
    lanes = defaultdict(list)
    for event in profiles._events(spans, "p"):
        if event["ph"] == "X":
            lanes[event["tid"]].append((event["ts"] * 1e3, (event["ts"] + event["dur"]) * 1e3))
    assert sum(map(len, lanes.values())) == len(intervals)
    for lane in lanes.values():
        assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(sorted(lane)))
    most = max(sum(b <= at < b + d or (d == 0 and b == at) for b, d in intervals) for at in range(75))
    assert len(lanes) <= most + sum(d == 0 for _, d in intervals)


def test_settings(monkeypatch: pytest.MonkeyPatch):
    assert profile_of(Config()) is None
    monkeypatch.setenv("KEYGLANCE_TELEMETRY__PROFILE_SECONDS", "2.5")
    monkeypatch.setenv("KEYGLANCE_TELEMETRY__PROFILE_FILE", "there.json")
    assert profile_of(Config.load()) == Profile(2.5, Path.cwd() / "there.json")


def test_the_option_and_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    shown = CliRunner().invoke(main, ["--profile", "3", "--print-config"])
    assert "profile_seconds = 3.0" in shown.output
    monkeypatch.setenv("KEYGLANCE_TELEMETRY__PROFILE_FILE", "/no/such/folder/p.json")
    refused = CliRunner().invoke(main, ["--profile", "3"])
    assert refused.exit_code == 2
    assert "there is no folder /no/such/folder" in refused.output
