"""What of the GPU's baselines needs no GPU: decoder, models and memory are stood in for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadtest import baselines_gpu, clips
from models.result import FrameResult
from models.spec import Placement


class View:
    """A plane as PyNvVideoCodec shows it: shape and strides are lists."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        facts = plane.__array_interface__
        self.__cuda_array_interface__ = {**facts, "shape": list(plane.shape), "strides": list(plane.strides)}


def asarray(view: Any) -> Any:
    """As CuPy's, which takes tuples only; of host memory."""
    facts = view.__cuda_array_interface__
    if not isinstance(facts["shape"], tuple) or not isinstance(facts["strides"], tuple):
        raise TypeError("Expected tuple, got list")
    return np.asarray(SimpleNamespace(__array_interface__=facts, owner=view))


class Frame:
    """NV12 of `SimpleDecoder`, rows with a gap behind them, in the shape that is asked for."""

    def __init__(self, level: int, *, interleaved: bool) -> None:
        luma = np.full((48, 80, 1), level, np.uint8)
        chroma = np.arange(24 * 80, dtype=np.uint8).reshape(24, 80)
        self._planes = [View(luma[:, :64]), View(chroma[:, :64].reshape(24, 32, 2) if interleaved else chroma[:, :64])]

    def cuda(self) -> list[Any]:
        return self._planes


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_frame_becomes_a_picture_of_the_clip_s_size(interleaved: bool) -> None:
    picture = baselines_gpu.picture_of(Frame(7, interleaved=interleaved), 63, 47, asarray)
    luma, chroma = picture.planes
    assert (luma.shape, chroma.shape) == ((47, 63), (24, 32, 2))
    assert (luma == 7).all()
    assert chroma[1, 0].tolist() == [80, 81]
    assert picture.shown_size == (63, 47)


class FakeRunner:
    """Says the level of each picture as the score of one label; knows its batches and the threads that it was used on."""

    def __init__(self) -> None:
        self.manifest = SimpleNamespace(name="m")
        self.head = self
        self.batches: list[int] = []
        self.threads: set[int] = set()
        self.released = 0

    def enqueue(self, pictures: Sequence[Any]) -> Any:
        self.threads.add(threading.get_ident())
        self.batches.append(len(pictures))
        values = np.array([picture.planes[0][0, 0] / 100 for picture in pictures])

        def release() -> None:
            self.released += 1
            values[:] = -1  # the memory is another batch's

        results = SimpleNamespace(outputs=lambda: {"score": values}, release=release)
        return SimpleNamespace(results=results, prepared=[SimpleNamespace(placement=Placement(0, 0, 1, 1)) for _ in pictures])

    def read_batch(self, outputs: Mapping[str, Any], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        return [FrameResult({"level": float(score)}) for score in outputs["score"]]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    monkeypatch.setattr(baselines_gpu, "locate", lambda picture: picture)

    class FakeFusion:
        def __init__(self, manifests: Any) -> None: ...

        def fuse(self, frames: Any, *, least_score: float) -> Any:
            best = max(frame.results["m"].scores["level"] for frame in frames)
            return SimpleNamespace(shown=[SimpleNamespace(name=f"level {best}", passed=True)])

    monkeypatch.setattr(baselines_gpu, "Fusion", FakeFusion)
    return FakeRunner()


@contextmanager
def runners(runner: FakeRunner) -> Iterator[list[Any]]:
    runner.threads.add(threading.get_ident())
    yield [runner]


class FakeDecoder:
    """`SimpleDecoder`: the level of a frame is its place."""

    made: list[str] = []  # noqa: RUF012
    opened: list[str] = []  # noqa: RUF012

    def __init__(self, path: str, **_: object) -> None:
        self.made.append(path)

    def reconfigure_decoder(self, path: str) -> None:
        self.opened.append(path)

    def get_batch_frames_by_index(self, places: Sequence[int]) -> list[Frame]:
        return [Frame(place, interleaved=True) for place in places]


@pytest.fixture
def clip(tmp_path: Path) -> baselines_gpu.Clip:
    return baselines_gpu.Clip(clips.encode(clips.pan(clips.photograph("coffee"), 40, 64, 48), keyframe_interval=10), tmp_path)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(FakeDecoder, "made", [])
    monkeypatch.setattr(FakeDecoder, "opened", [])
    stream = SimpleNamespace(ptr=1, synchronize=lambda: None)
    cuda = SimpleNamespace(Device=lambda number: SimpleNamespace(use=lambda: None), Stream=lambda non_blocking: stream)
    cupy = SimpleNamespace(cuda=cuda, asarray=asarray)
    return SimpleNamespace(cupy=cupy, codec=SimpleNamespace(SimpleDecoder=FakeDecoder), device=0, context=0)


def test_the_clip_s_keyframes_by_their_place(clip: baselines_gpu.Clip) -> None:
    assert clip.places == [0, 10, 20, 30]
    assert clip.times == pytest.approx([0, 0.4, 0.8, 1.2])
    assert [file.read_bytes() for file in clip.files] == [clip.content] * 2


def test_a_clip_whose_keyframes_do_not_suffice_is_refused(tmp_path: Path) -> None:
    content = clips.encode(clips.pan(clips.photograph("coffee"), 300, 64, 48), fps=10)
    with pytest.raises(ValueError, match="only keyframes"):
        baselines_gpu.Clip(content, tmp_path)


def test_frame_by_frame_makes_a_decoder_for_each_call(runner: FakeRunner, clip: baselines_gpu.Clip, gpu: Any) -> None:
    with baselines_gpu.Inference(runners(runner)) as inference:
        callers = baselines_gpu.Callers(gpu, clip, inference)
        assert [callers.frame_by_frame() for _ in range(2)] == [["level 0.3"]] * 2
    assert len(FakeDecoder.made) == 2
    assert runner.batches == [1] * 8
    assert runner.released == 8


def test_reconfigured_keeps_its_decoder_and_infers_once_a_call(runner: FakeRunner, clip: baselines_gpu.Clip, gpu: Any) -> None:
    with baselines_gpu.Inference(runners(runner)) as inference:
        callers = baselines_gpu.Callers(gpu, clip, inference)
        found = baselines_gpu.closed_loop(callers.reconfigured, 3, 0.2)
    assert found["labels"] == ["level 0.3"]
    assert found["calls_per_s"] > 0
    assert len(FakeDecoder.made) == 3  # one for each caller
    assert len(FakeDecoder.opened) == len(runner.batches) == found["latency_ms"]["n"] + 3
    assert FakeDecoder.made[0] == str(clip.files[0])
    assert FakeDecoder.opened[0] == str(clip.files[1])  # never the file that is open already
    assert set(runner.batches) == {4}
    assert len(runner.threads) == 1
    assert threading.get_ident() not in runner.threads


def test_a_caller_that_fails_fails_the_loop_and_leaves_nobody_waiting() -> None:
    calls = iter(range(100))

    def way() -> list[str]:
        if next(calls) == 1:
            raise RuntimeError("the decoder broke")
        return []

    with pytest.raises(RuntimeError, match="the decoder broke"):
        baselines_gpu.closed_loop(way, 3, 5.0)


def test_ratios_are_ours_to_theirs() -> None:
    ways = {
        "a": {"1": {"calls_per_s": 2.0}, "8": {"failed": "x"}},
        "b": {"1": {"calls_per_s": 5.0}},
        "keyglance": {"1": {"calls_per_s": 10.0}, "8": {"calls_per_s": 40.0}},
    }
    assert baselines_gpu.ratios(ways) == {"a": {"1": 5.0}, "b": {"1": 2.0}}


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: int) -> None:
        raise baselines_gpu.GpuUnusable("no device")

    monkeypatch.setattr(baselines_gpu.Gpu, "open", none)
    assert baselines_gpu.main(["clip.mp4", "--models", str(tmp_path)]) == 1
    assert "no device" in capsys.readouterr().err
