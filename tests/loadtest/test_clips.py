import io

import av
import numpy as np
import pytest

from loadtest import clips


def demuxed(data: bytes) -> list[bool]:
    """The key flag of each packet of the first video stream."""
    with av.open(io.BytesIO(data)) as container:
        return [bool(packet.is_keyframe) for packet in container.demux(video=0) if packet.size]


def decoded(data: bytes) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(data)) as container:
        return list(container.decode(video=0))


CODECS = [
    ("libx264", "mp4"),
    ("libx265", "mp4"),
    ("libvpx", "webm"),
    ("libvpx-vp9", "webm"),
    ("libsvtav1", "mp4"),
    ("mpeg4", "avi"),
    ("mpeg2video", "mpegts"),
]


@pytest.fixture
def scene() -> clips.Picture:
    y, x = np.mgrid[0:200, 0:240]
    return np.stack([x, y, (x + y) / 2], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(("codec", "container"), CODECS)
def test_keyframes_are_where_they_are_wanted_and_the_pictures_come_back(codec: str, container: str, scene: clips.Picture) -> None:
    pictures = list(clips.pan(scene, 30, 160, 96))
    data = clips.encode(pictures, codec=codec, container=container, keyframes=(0, 12, 20))
    keys = demuxed(data)
    assert [number for number, key in enumerate(keys) if key] == [0, 12, 20]
    frames = decoded(data)
    assert len(frames) == 30
    for number in (0, 11, 12, 29):
        assert np.abs(frames[number].to_ndarray(format="rgb24").astype(int) - pictures[number]).mean() < 6


def test_an_interval_puts_keyframes_at_its_multiples(scene: clips.Picture) -> None:
    keys = demuxed(clips.encode(clips.pan(scene, 25, 160, 96), keyframe_interval=10, b_frames=2))
    assert sum(keys) == 3
    assert len(keys) == 25


def test_rotation_is_written_as_a_player_reads_it(scene: clips.Picture) -> None:
    frame = decoded(clips.encode(clips.hold(clips.fit(scene, 64, 48), 2), rotation=90))[0]
    assert frame.rotation == -90  # PyAV counts counter-clockwise


def test_a_tone_has_no_pictures() -> None:
    with av.open(io.BytesIO(clips.tone(0.2))) as container:
        assert [stream.type for stream in container.streams] == ["audio"]


def test_no_picture_is_no_clip() -> None:
    with pytest.raises(ValueError, match="at least one picture"):
        clips.encode([])
