"""The ways that the server is compared with do the same job. mosec itself runs in `make baselines`; here it is stood in for."""

from __future__ import annotations

import http.client
import json
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from keyglance import Client
from loadtest import bare, baseline_ways, baselines, clips, report
from loadtest.server_process import ServerProcess


@pytest.fixture(scope="module")
def clip() -> bytes:
    return clips.encode(clips.pan(clips.photograph("chelsea"), 60, 320, 240), keyframe_interval=15)


def test_all_keyframes_and_their_times(clip: bytes) -> None:
    times = bare.keyframe_times(clip, 16)
    assert times == pytest.approx([0.0, 0.6, 1.2, 1.8])
    assert [time for time, _ in bare.all_keyframes(clip, 16)] == times
    assert bare.keyframe_times(clip, 2) == [times[0], times[2]]
    assert [time for time, _ in bare.all_keyframes(clip, 2)] == [times[0], times[2]]


def test_opencv_sees_the_pictures_that_pyav_sees(clip: bytes) -> None:
    seen, keyframes = baseline_ways.opencv_shots(clip), bare.all_keyframes(clip, 16)
    assert [time for time, _ in seen] == [time for time, _ in keyframes]
    for (_, one), (_, other) in zip(seen, keyframes, strict=True):
        assert abs(one.scale(320, 240).astype(int) - other.scale(320, 240)).mean() < 3


@pytest.mark.models
def test_every_way_gives_the_server_s_labels(
    clip: bytes, models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYGLANCE_MODELS__FOLDER", str(models_folder))
    with ServerProcess(tmp_path) as server, Client(server.address, timeout=60) as client:
        labels = sorted(baselines.keyglance(client)(clip))
        assert labels
        for way in (baseline_ways.frame_by_frame, baseline_ways.opencv, baseline_ways.keyframes):
            assert sorted(way(clip)) == labels
        one_keyframe = clips.encode(clips.pan(clips.photograph("coffee"), 300, 320, 240), fps=10)
        with pytest.raises(baselines.BaselineFailed, match="keyframes"):
            baselines.keyglance(client)(one_keyframe)


@pytest.mark.models
def test_clips_of_two_calls_in_one_batch_have_their_own_labels(clip: bytes, models_folder: Path) -> None:
    labeler = bare.BareLabeler(threads=1)
    first = bare.all_keyframes(clip, 16)
    other = bare.all_keyframes(clips.encode(clips.hold(clips.grey(320, 240), 20), keyframe_interval=10), 16)
    (alone,), (grey,) = labeler.label([first]), labeler.label([other])
    assert alone != grey
    assert labeler.label([other, first, other]) == [grey, alone, grey]


def test_a_turn_has_so_many_callers_and_counts_all_their_calls() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def way(clip: bytes) -> list[str]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return []

    one = baselines.turn(way, b"", callers=3, seconds=0.2)
    assert most == 3
    assert len(one.seconds) >= 3
    assert one.rate > 0


def test_a_way_that_fails_fails_the_turn() -> None:
    def way(clip: bytes) -> list[str]:
        raise baselines.BaselineFailed("no answer")

    with pytest.raises(baselines.BaselineFailed):
        baselines.turn(way, b"", callers=2, seconds=0.1)


def test_ratios_are_ours_to_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"keyglance": iter([4.0, 6.0, 5.0]), "c": iter([2.0, 2.5, 9.0])}
    ways: dict[str, Any] = {"keyglance": lambda clip: ["b", "a"], "c": lambda clip: ["a"]}
    names = {way: name for name, way in ways.items()}
    monkeypatch.setattr(baselines, "turn", lambda way, clip, **_: baselines.Turn(next(rates[names[way]]), (0.1,)))
    found = baselines.compare(ways, {"clip": b""}, callers=1, seconds=1, rounds=3)["clip"]
    assert (found["keyglance"]["calls_per_s"], found["c"]["calls_per_s"], found["c"]["ours_to_it"]) == (5.0, 2.5, 2.0)
    assert (found["keyglance"]["same_labels"], found["c"]["same_labels"]) == (True, False)


#: Speaks HTTP as mosec does, without its packages.
STAND_IN = """
    import http.server, json, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = json.dumps({"labels": [self.path, body.decode()], "pictures": 1}).encode()
            self.send_response(200 if body != b"bad" else 500)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_the_model_server_is_asked_over_http_and_ended(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(textwrap.dedent(STAND_IN))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "stand_in.py"} "$@"\n')
    python.chmod(0o755)
    with baselines.model_server(python, tmp_path) as at:
        assert at("/keyframes")(b"clip") == ["/keyframes", "clip"]
        assert at("/opencv")(b"other") == ["/opencv", "other"]
        with pytest.raises(baselines.BaselineFailed, match="500"):
            at("/opencv")(b"bad")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        at("/keyframes")(b"clip")


def test_a_model_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(baselines.BaselineFailed, match="no such module"), baselines.model_server(python, tmp_path):
        pass


@pytest.mark.models
@pytest.mark.slow
def test_a_short_comparison(clip: bytes, models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYGLANCE_MODELS__FOLDER", str(models_folder))
    monkeypatch.setattr(report.write, "__kwdefaults__", {"directory": tmp_path})
    monkeypatch.setattr(baselines, "ROOT", tmp_path)
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip)
    baselines.main([str(path), "--callers", "2", "--seconds", "0.5", "--rounds", "1"])  # who is ahead is not this test's affair
    kept = json.loads((tmp_path / "baselines.json").read_text())
    figures = kept["clips"]["clip.mp4"]
    assert set(figures) == {"keyglance", "a", "c", "no service"}
    assert all(one["same_labels"] and one["calls_per_s"] > 0 for one in figures.values())
