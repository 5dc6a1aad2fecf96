"""The command line: its options and outputs in process, its exit codes and lines as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf import json_format
from PIL import Image

from keyglance.__main__ import main
from keyglance.cli import command
from keyglance.errors import NotAVideo, Overloaded
from keyglance.v1 import keyglance_pb2 as pb


@pytest.fixture
def files(tmp_path: Path, video: bytes) -> Path:
    """A folder with the usual troubles."""
    for name, content in {
        "a.mp4": video,
        "b.mp4": video + b"b",
        "text.mp4": b"hello\n",
        "empty.mp4": b"",
        "audio.mp4": video + b"audio",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def keyglance(server: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command in process, in the folder of files, against the fake server."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("KEYGLANCE_SERVER", server.target)
    return lambda *arguments, **how: CliRunner().invoke(command, arguments, **how)


def process(*arguments: str, cwd: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keyglance", *arguments],
        cwd=cwd,
        env={**os.environ, "KEYGLANCE_SERVER": target, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_line_for_each_trouble_and_the_rest_goes_on(server: Any, files: Path) -> None:
    names = ["a.mp4", "text.mp4", "missing.mp4", "empty.mp4", "audio.mp4", "folder", "b.mp4"]
    done = process("label", *names, cwd=files, target=server.target)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "text.mp4: NOT_A_VIDEO: the bytes are no known container",
        "missing.mp4: FILE_NOT_FOUND: No such file or directory",
        "empty.mp4: EMPTY_SOURCE: the source has no bytes",
        "audio.mp4: NO_VIDEO_STREAM: mp4 with 1 audio stream and no video",
        "folder: IS_A_DIRECTORY: Is a directory",
    ]
    assert [line.split() for line in done.stdout.splitlines() if "REVIEW" in line] == [["a.mp4", "REVIEW"], ["b.mp4", "REVIEW"]]
    assert "\x1b" not in done.stdout + done.stderr


def test_no_server_is_one_line_and_code_3(files: Path, closed_target: str) -> None:
    done = process("label", "a.mp4", "b.mp4", "text.mp4", cwd=files, target=closed_target)
    assert done.returncode == 3
    lost, left = done.stderr.splitlines()
    assert lost.startswith(f"a.mp4: SERVER_UNREACHABLE: no server answers at {closed_target}: ")
    assert left == "keyglance: 2 more files not sent"
    assert done.stdout == ""
    done = process("label", "a.mp4", "b.mp4", "--json", cwd=files, target=closed_target)
    assert [json.loads(line)["error"]["reason"] for line in done.stdout.splitlines()] == ["SERVER_UNREACHABLE"] * 2


def test_success_is_code_0_and_says_nothing_on_standard_error(server: Any, files: Path) -> None:
    done = process("label", "a.mp4", "b.mp4", cwd=files, target=server.target)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_unicode(server: Any, files: Path) -> None:
    done = process("label", "a.mp4", cwd=files, target=server.target, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "##########" in done.stdout


def test_the_servers_troubles_are_code_4_and_the_worst_counts(keyglance: Callable[..., Result], server: Any) -> None:
    server.failures = [Overloaded("full")]
    done = keyglance("label", "a.mp4")
    assert (done.exit_code, done.stderr) == (4, "a.mp4: OVERLOADED: full\n")
    server.before = lambda call: call.set_trailing_metadata((("keyglance-trace-id", "ab" * 16),))
    server.failures = [grpc.StatusCode.INTERNAL]
    assert (
        keyglance("label", "a.mp4").stderr
        == f"a.mp4: INTERNAL: {server.target} answered INTERNAL: by script (trace {'ab' * 16})\n"
    )
    server.failures = [NotAVideo("no"), Overloaded("full"), NotAVideo("no")]
    assert keyglance("label", "--jobs", "1", "a.mp4", "b.mp4", "a.mp4", "b.mp4").exit_code == 4


def test_a_missed_deadline(keyglance: Callable[..., Result], server: Any) -> None:
    released = threading.Event()
    server.before = lambda _: released.wait(10) and None
    try:
        done = keyglance("label", "--timeout", "0.2", "a.mp4")
    finally:
        released.set()
    assert done.exit_code == 4
    assert done.stderr == f"a.mp4: DEADLINE_EXCEEDED: no answer from {server.target} within 0.2 s\n"


def test_json_is_one_object_a_line_in_the_order_given(keyglance: Callable[..., Result], answer: pb.LabelResponse) -> None:
    done = keyglance("label", "--json", "b.mp4", "text.mp4", "a.mp4")
    assert done.exit_code == 1
    first, failed, last = (json.loads(line) for line in done.stdout.splitlines())
    assert [first["file"], failed["file"], last["file"]] == ["b.mp4", "text.mp4", "a.mp4"]
    assert failed["error"] == {"reason": "NOT_A_VIDEO", "message": "the bytes are no known container", "facts": {}}
    assert first["verdict"] == "VERDICT_REVIEW"
    assert first["labels"][0]["segments"][0] == {"start": 0.0, "end": 65.5, "peak": 3.0, "score": 0.97}
    assert first["video"]["hdr"] is False
    del first["file"]
    assert json_format.ParseDict(first, pb.LabelResponse()) == answer


def test_options_arrive_in_the_request(keyglance: Callable[..., Result], server: Any) -> None:
    options = ["--frames", "8", "--gap", "2.5", "--keyframes-only", "--models", "tags,faces", "--priority", "bulk"]
    options += ["--least-score", "0.25"]
    options += ["--frame-scores", "--timeout", "9"]
    assert keyglance("label", *options, "a.mp4").exit_code == 0
    (request,) = server.requests
    assert request.sampling == pb.SamplingPolicy(frames=8, largest_gap=2.5, add_non_keyframes=False)
    assert list(request.models) == ["tags", "faces"]
    assert request.least_score == 0.25
    assert request.priority == pb.PRIORITY_BULK
    assert request.returns == pb.ReturnOptions(frame_scores=True)
    assert 0 < server.deadlines[0] < 9.5


def test_files_are_asked_about_at_once_but_not_more_than_said(keyglance: Callable[..., Result], server: Any) -> None:
    together = threading.Barrier(3)  # Broken, and so an error, where less than three come at once.
    server.before = lambda _: together.wait(10) and None
    assert keyglance("label", "--jobs", "3", *["a.mp4"] * 9).exit_code == 0
    assert server.most_running == 3


def test_standard_input(keyglance: Callable[..., Result], server: Any, video: bytes) -> None:
    assert keyglance("label", "-", input=video).exit_code == 0
    assert server.requests[0].data == video


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["label"],
        ["label", "a.mp4", "--frames", "0"],
        ["label", "a.mp4", "--gap", "-1"],
        ["label", "a.mp4", "--tls-cert", "a.mp4"],
        ["label", "a.mp4", "--tls-ca", "a.mp4"],
        ["label", "a.mp4", "--server", "http://x:1"],
        ["label", "a.mp4", "--server", "labels.example:1", "--token", "t"],
        ["sheet", "a.mp4", "-o", "sheet.txt"],
        ["sheet", "a.mp4", "-o", "none/sheet.png"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_code_2_before_anything_is_sent(
    keyglance: Callable[..., Result], server: Any, arguments: list[str]
) -> None:
    assert keyglance(*arguments).exit_code == 2
    assert server.requests == []


def test_info(keyglance: Callable[..., Result], info: pb.GetServerInfoResponse, closed_target: str) -> None:
    done = keyglance("info")
    assert done.exit_code == 0
    assert "2 models, 3 labels" in done.stdout
    parsed = json.loads(keyglance("info", "--json").stdout)
    assert json_format.ParseDict(parsed, pb.GetServerInfoResponse()) == info
    done = keyglance("info", "--server", closed_target)
    assert done.exit_code == 3
    assert done.stderr.startswith("keyglance: SERVER_UNREACHABLE: ")


def test_health(keyglance: Callable[..., Result], server: Any, closed_target: str) -> None:
    done = keyglance("health")
    assert (done.exit_code, done.stdout) == (0, "SERVING\n")
    server.health.enter_graceful_shutdown()
    done = keyglance("health")
    assert (done.exit_code, done.stdout) == (1, "NOT_SERVING\n")
    done = keyglance("health", "--server", closed_target)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "SERVER_UNREACHABLE" in done.stderr


@pytest.mark.parametrize("name", ["sheet.png", "sheet.JPG", "sheet.webp"])
def test_sheet(keyglance: Callable[..., Result], server: Any, files: Path, name: str) -> None:
    done = keyglance("sheet", "a.mp4", "-o", name)
    assert (done.exit_code, done.output) == (0, "")
    with Image.open(files / name) as image:
        assert image.width > 3 * 256
    assert server.requests[0].returns == pb.ReturnOptions(frame_scores=True, thumbnails=True, thumbnail_size=256)


def test_sheet_of_what_is_no_video(keyglance: Callable[..., Result], files: Path) -> None:
    done = keyglance("sheet", "text.mp4", "-o", "sheet.png")
    assert (done.exit_code, done.stderr) == (1, "text.mp4: NOT_A_VIDEO: the bytes are no known container\n")
    assert not (files / "sheet.png").exists()


def test_an_interrupt_is_code_130_without_a_traceback(server: Any, files: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def hold(call: Any) -> None:
        call.add_callback(released.set)
        begun.set()
        released.wait(20)

    server.before = hold
    environment = {**os.environ, "KEYGLANCE_SERVER": server.target}
    running = subprocess.Popen(
        [sys.executable, "-m", "keyglance", "label", "a.mp4"], cwd=files, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert begun.wait(20)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    finally:
        running.kill()
        released.set()
    assert (running.returncode, errors) == (130, "")


def test_a_fault_of_the_server_is_one_line(server: Any, files: Path) -> None:
    server.answer = "no message"
    done = process("label", "a.mp4", cwd=files, target=server.target)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1


def test_a_fault_of_our_own_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("not\nexpected")

    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")  # So that main's own setting does not outlive the test.
    monkeypatch.setattr(command, "main", broken)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 4
    assert capsys.readouterr().err == "keyglance: INTERNAL: RuntimeError: not expected (KEYGLANCE_DEBUG=1 shows where)\n"
    monkeypatch.setenv("KEYGLANCE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main()
