"""What cannot be answered gets one clear line, an error of its own, and an exit code."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keyglance import Client
from keyglance.answer import reason
from keyglance.errors import BadPolicy, CorruptVideo, EmptySource, NotAVideo, NoVideoStream, RequestError, UnknownModel
from loadtest import clips
from loadtest.server_process import ServerProcess

pytestmark = pytest.mark.models

TEXT = b"This is a letter, and no video, whatever its name says.\n" * 40


def keyglance(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("keyglance")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, coffee_clip: bytes) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("refused")
    contents = {
        "text.mp4": TEXT,
        "empty.mp4": b"",
        "sound.mp4": clips.tone(),
        "truncated.mp4": coffee_clip[: len(coffee_clip) // 2],  # its index lay at the end
        "good.mp4": coffee_clip,
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("text.mp4", NotAVideo),
        ("empty.mp4", EmptySource),
        ("sound.mp4", NoVideoStream),
        ("truncated.mp4", (NotAVideo, CorruptVideo)),
    ],
)
def test_the_client_raises_what_is_wrong(client: Client, files: dict[str, Path], name: str, error: type[RequestError]) -> None:
    with pytest.raises(error) as caught:
        client.label(files[name])
    assert caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["text.mp4", "empty.mp4", "sound.mp4", "truncated.mp4", "missing.mp4"])
def test_the_command_line_says_it_in_one_line(server: ServerProcess, files: dict[str, Path], name: str) -> None:
    path = files.get(name, Path("no") / "such" / name)
    done = keyglance("label", str(path), "--server", server.address)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert name in line
    assert "Traceback" not in line


def test_a_good_file_among_bad_ones_is_answered(server: ServerProcess, files: dict[str, Path]) -> None:
    done = keyglance("label", str(files["text.mp4"]), str(files["good.mp4"]), "--server", server.address)
    assert done.returncode == 1
    assert "espresso" in done.stdout
    assert "text.mp4" in done.stderr


def test_an_unreachable_server_has_an_exit_code_of_its_own(files: dict[str, Path]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    done = keyglance("label", str(files["good.mp4"]), "--server", address, "--timeout", "3")
    assert done.returncode == 3
    assert address in done.stderr.strip().splitlines()[0]


def test_a_clip_that_breaks_off_is_answered_as_far_as_it_goes(client: Client, coffee: clips.Picture) -> None:
    whole = clips.encode(clips.hold(coffee, 100), keyframe_interval=25, container="matroska")
    answer = client.label(whole[: len(whole) * 2 // 3])
    assert answer.coverage.frames >= 1
    assert "TRUNCATED" in {reason(item.reason) for item in answer.degradations}


def test_wrong_requests_are_told(client: Client, coffee_clip: bytes) -> None:
    with pytest.raises(UnknownModel, match="efficientnet-lite0"):
        client.label(coffee_clip, models=["no-such-model"])
    with pytest.raises(BadPolicy, match="frames"):
        client.label(coffee_clip, frames=100_000)
    with pytest.raises(BadPolicy, match="largest_gap"):
        client.label(coffee_clip, largest_gap=-1)
    with pytest.raises(BadPolicy, match="least_score"):
        client.label(coffee_clip, least_score=2)
