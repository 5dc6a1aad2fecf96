from pathlib import Path

import pytest

from keyglance.v1 import keyglance_pb2 as pb
from loadtest import clips, mix_clips
from loadtest.mix import MIXES, CallClass, Mix, MixError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures = clips.pan(clips.photograph("coffee"), 100, 640, 360)
    (tmp_path / "clip.mp4").write_bytes(clips.encode(pictures, keyframe_interval=50))
    return tmp_path


def load(folder: Path, text: str) -> Mix:
    (folder / "mix.toml").write_text(text)
    return Mix.load(folder / "mix.toml")


def test_a_class_has_what_its_table_says(folder: Path) -> None:
    mix = load(
        folder,
        '[[class]]\nname = "a"\nclip = "clip.mp4"\nweight = 3\nframes = 2\ntimeout = [1, 2]\ncancel = 0.5\ncancel_after = 0.25\n'
        'models = ["m"]\nmetadata = { x-caller = "me" }\nexpect = ["OK", "INVALID_ARGUMENT"]\n'
        '[[class]]\nname = "b"\nclip = "clip.mp4"\nsend = "whole"\n',
    )
    one, other = mix.classes
    assert mix.shares == [0.75, 0.25]
    assert (one.timeout, one.cancel, one.cancel_after) == ((1.0, 2.0), 0.5, (0.25, 0.25))
    assert one.metadata == (("x-caller", "me"),)
    assert one.expect == {"OK", "INVALID_ARGUMENT"}
    request = pb.LabelRequest.FromString(one.request)
    assert (request.WhichOneof("source"), request.sampling.frames, list(request.models)) == ("ranges", 2, ["m"])
    assert pb.LabelRequest.FromString(other.request).data == (folder / "clip.mp4").read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("wieght = 2", "did you mean weight"),
        ("weight = 0", "weight is 0"),
        ('send = "half"', "ranges or whole"),
        ("cancel = 1.5", "share from 0 to 1"),
        ("timeout = 0", "more than 0"),
        ("timeout = [3, 1]", "least, most"),
        ('expect = ["FINE"]', "FINE, which gRPC does not know"),
        ("frames = -1", "frames is -1"),
        ('priority = "utmost"', "priority is 'utmost'"),
        ('[[class]]\nname = "a"\nclip = "clip.mp4"', "its own name"),
        ('[server]\nlisten = "x"', "nothing else"),
        ("weight = [", "mix.toml"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, more: str, message: str) -> None:
    with pytest.raises(MixError, match=message):
        load(folder, f'[[class]]\nname = "a"\nclip = "clip.mp4"\n{more}\n')


def test_a_clip_that_is_nowhere_is_told(folder: Path) -> None:
    with pytest.raises(MixError, match="neither a file"):
        load(folder, '[[class]]\nname = "a"\nclip = "none.mp4"\n')


def test_a_mix_needs_classes() -> None:
    with pytest.raises(MixError, match="one class or more"):
        Mix(())


@pytest.mark.parametrize("path", sorted(MIXES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_mixes_here_can_be_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix_clips, "clip", lambda name: name.encode())
    mix = Mix.load(path)
    assert sum(mix.shares) == pytest.approx(1)


def test_broken_clips_are_the_same_each_time_and_are_kept(tmp_path: Path) -> None:
    made = mix_clips.clip("overwritten", tmp_path)
    assert made == mix_clips.clip("overwritten", tmp_path / "again")
    (tmp_path / "overwritten").write_bytes(b"kept")
    assert mix_clips.clip("overwritten", tmp_path) == b"kept"
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(KeyError):
        mix_clips.clip("none", tmp_path)


def test_a_description_has_no_bytes() -> None:
    (told,) = Mix((CallClass("a", b"12345"),)).describe()
    assert told == {"name": "a", "share": 1.0, "request_bytes": 5, "timeout": [10.0, 10.0], "cancel": 0.0}
