import io
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import BadPolicy, EmptySource, RangesNeeded, TooLarge
from keyglance.request import Prepared, label_request
from keyglance.v1 import keyglance_pb2 as pb

DEFAULTS: dict[str, Any] = {
    "frames": None,
    "largest_gap": None,
    "add_non_keyframes": None,
    "models": (),
    "least_score": None,
    "frame_scores": False,
    "thumbnails": False,
    "thumbnail_size": None,
    "request_id": "",
    "whole": False,
    "max_message_bytes": 1000,
}


def request(source: Any, **changed: Any) -> pb.LabelRequest:
    with label_request(source, **{**DEFAULTS, **changed}) as prepared:
        return prepared.message


@given(st.binary(min_size=1, max_size=900))
def test_every_kind_of_source_gives_the_same_request(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "clip.mp4"
    path.write_bytes(data)
    with path.open("rb") as file:
        kinds = [data, bytearray(data), memoryview(data), str(path), path, file, io.BytesIO(data)]
        assert [request(kind).data for kind in kinds] == [data] * len(kinds)


def test_what_is_not_said_is_left_to_the_server() -> None:
    made = request(b"x")
    assert not made.sampling.HasField("largest_gap")
    assert not made.sampling.HasField("add_non_keyframes")
    assert not made.HasField("least_score")
    assert made.sampling.frames == 0
    assert made == pb.LabelRequest(data=b"x", sampling=pb.SamplingPolicy(), returns=pb.ReturnOptions())


def test_what_is_said_arrives() -> None:
    made = request(
        b"x",
        frames=8,
        largest_gap=2.5,
        add_non_keyframes=False,
        models=("a", "b"),
        least_score=0.0,
        frame_scores=True,
        thumbnails=True,
        thumbnail_size=128,
        request_id="clip-7",
    )
    assert made == pb.LabelRequest(
        data=b"x",
        sampling=pb.SamplingPolicy(frames=8, largest_gap=2.5, add_non_keyframes=False),
        models=["a", "b"],
        least_score=0.0,
        returns=pb.ReturnOptions(frame_scores=True, thumbnails=True, thumbnail_size=128),
        request_id="clip-7",
    )
    assert made.HasField("least_score")


def test_one_model_by_its_name_alone_is_not_a_list_of_letters() -> None:
    assert list(request(b"x", models="faces").models) == ["faces"]


def test_a_file_object_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(b"headvideo")
    file.seek(4)
    assert request(file).data == b"video"


def test_a_pipe_has_no_size_and_is_read_all_the_same() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"video")
    os.close(writing)
    with open(reading, "rb") as file:
        assert request(file).data == b"video"


@pytest.mark.parametrize("empty", [b"", bytearray(), io.BytesIO()])
def test_nothing_is_not_sent(empty: Any) -> None:
    with pytest.raises(EmptySource):
        request(empty)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(EmptySource):
        request(tmp_path / "empty.mp4")
    with pytest.raises(FileNotFoundError):
        request(tmp_path / "missing.mp4")
    with pytest.raises(IsADirectoryError):
        request(tmp_path)


class Endless:
    """A file object that never ends, and counts what was taken from it."""

    taken = 0

    def read(self, size: int, /) -> bytes:
        self.taken += size
        return bytes(size)


def test_what_is_too_large_is_refused_before_it_is_all_read(tmp_path: Path) -> None:
    (tmp_path / "large.mp4").write_bytes(bytes(1001))
    for source in (tmp_path / "large.mp4", bytes(1001), memoryview(bytes(1004)).cast("I")):
        with pytest.raises(TooLarge) as error:
            request(source)
        assert error.value.facts["limit"] == "1000"
    endless = Endless()
    with pytest.raises(TooLarge):
        request(endless)
    assert endless.taken <= 2 * 1024 * 1024


def test_the_message_around_the_bytes_counts_too() -> None:
    with pytest.raises(TooLarge):
        request(bytes(1000))
    assert request(bytes(900)).ByteSize() <= 1000


def test_large_sizes_keep_their_last_digits() -> None:
    error = TooLarge.over("bytes", 67_108_865, 67_108_864)
    assert error.message == "too many bytes: 67,108,865, at most 67,108,864 allowed"
    assert error.facts == {"what": "bytes", "value": "67108865", "limit": "67108864"}
    assert TooLarge.over("seconds", 600.25, 600.0).message == "too many seconds: 600.25, at most 600 allowed"


@pytest.mark.parametrize("source", [io.StringIO("text"), 7, None, ["clip.mp4"]])
def test_what_is_no_source_is_a_type_error(source: Any) -> None:
    with pytest.raises(TypeError):
        request(source)


@pytest.mark.parametrize("wrong", [{"frames": -1}, {"frames": 2**32}, {"thumbnail_size": -5}])
def test_numbers_that_the_message_cannot_carry(wrong: dict[str, int]) -> None:
    with pytest.raises(BadPolicy, match=next(iter(wrong))):
        request(b"x", **wrong)


def prepared(source: Any, **changed: Any) -> Prepared:
    return label_request(source, **{**DEFAULTS, "max_message_bytes": 1 << 24, **changed})


def is_of(message: pb.LabelRequest, data: bytes) -> bool:
    parts = sorted(message.ranges.ranges, key=lambda part: part.offset)
    apart = all(a.offset + len(a.data) <= b.offset for a, b in itertools.pairwise(parts))
    return apart and all(data[part.offset : part.offset + len(part.data)] == part.data for part in parts)


def test_of_a_file_that_can_be_indexed_here_only_what_matters_travels(long_clip: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(long_clip)
    for source in (long_clip, path, io.BytesIO(long_clip)):
        with prepared(source) as made:
            assert made.message.ranges.file_size == len(long_clip)
            assert is_of(made.message, long_clip)
            assert made.message.ByteSize() < len(long_clip) / 2
    with prepared(path, whole=True) as made:
        assert made.message.data == long_clip


def test_what_a_server_lacks_is_added_once(long_clip: bytes) -> None:
    with prepared(long_clip) as made:
        before = sum(len(part.data) for part in made.message.ranges.ranges)
        held = made.message.ranges.ranges[0]
        needed = RangesNeeded("more", ranges=[(held.offset, len(held.data) + 100), (len(long_clip) - 50, 50)])
        made.complete(needed)
        assert is_of(made.message, long_clip)
        assert before < sum(len(part.data) for part in made.message.ranges.ranges) <= before + 150
        with pytest.raises(RangesNeeded):
            made.complete(needed)


@pytest.mark.parametrize("ranges", [[], [(0, 1 << 40)], [(-1, 5)], [(5, 0)]])
def test_ranges_that_no_honest_server_asks_for_are_not_sent(long_clip: bytes, ranges: list[tuple[int, int]]) -> None:
    with prepared(long_clip) as made:
        before = made.message.SerializeToString()
        with pytest.raises(RangesNeeded):
            made.complete(RangesNeeded("more", ranges=ranges))
        assert made.message.SerializeToString() == before


def test_a_whole_file_cannot_be_completed() -> None:
    with prepared(b"no video") as made, pytest.raises(RangesNeeded):
        made.complete(RangesNeeded("more", ranges=[(0, 4)]))


@pytest.mark.parametrize("source", ["a folder", "a missing file"])
def test_paths_that_are_no_files_are_errors_of_the_system(source: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory" if source == "a folder" else "No such file"):
        prepared(tmp_path if source == "a folder" else tmp_path / "none.mp4")
