"""The ways that are compared look at the same pictures."""

from pathlib import Path

import numpy as np
import pytest

from loadtest import bare, clips

TIMES = [0.0, 0.4, 0.8]


@pytest.fixture(scope="module")
def clip() -> bytes:
    y, x = np.mgrid[0:200, 0:240]
    scene = np.stack([x, y, (x + y) / 2], axis=-1).astype(np.uint8)
    return clips.encode(clips.pan(scene, 30, 160, 96), keyframe_interval=10)


@pytest.fixture(scope="module")
def alone(clip: bytes) -> list[np.ndarray]:
    return [shot.scale(160, 96) for shot in bare.decode_keyframes(clip, frozenset({0, 10, 20}))]


def test_the_packets_named_are_decoded_and_no_other(alone: list[np.ndarray]) -> None:
    assert len(alone) == 3
    assert np.abs(alone[0].astype(int) - alone[1]).mean() > 3


@pytest.mark.parametrize("way", [bare.decode_everything, bare.seek_with_pyav])
def test_pyav_sees_the_same(clip: bytes, alone: list[np.ndarray], way: object) -> None:
    seen = [shot.scale(160, 96) for shot in way(clip, TIMES)]  # type: ignore[operator]
    assert all((one == other).all() for one, other in zip(seen, alone, strict=True))


def test_opencv_sees_the_same_but_for_its_conversion(clip: bytes, alone: list[np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(clip)
    seen = [shot.scale(160, 96) for shot in bare.seek_with_opencv(tmp_path / "clip.mp4", TIMES)]
    assert all(np.abs(one.astype(int) - other).mean() < 3 for one, other in zip(seen, alone, strict=True))
