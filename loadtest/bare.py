"""The other ways to label the same pictures of a clip, without our server: what `loadtest.cpu` and `loadtest.baselines` use.

All of them use the default models in plain ONNX Runtime sessions, swscale or OpenCV for scaling, and one process.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import av
import cv2
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from loadtest.server_process import checkout_models
from models.fusion import FrameScores, Fusion
from models.heads import make_head
from models.manifest import Manifest
from models.preprocess import Rendered, layout, normalise
from models.repository import ModelRepository
from models.result import FrameResult
from models.spec import Placement

#: A decoded picture, scaled on demand: width and height in pixels to uint8 RGB.
Scale = Callable[[int, int], NDArray[np.uint8]]
Tensor = NDArray[Any]
_Item = TypeVar("_Item")
#: A model's outputs of one batch, by name.
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shot:
    """A decoded picture and its size."""

    width: int
    height: int
    scale: Scale


#: A picture and its time in seconds.
TimedShot = tuple[float, Shot]


class BareModels:
    """The models that a server runs by default, each in one session of so many threads; by default one for every core."""

    def __init__(self, threads: int | None = None) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        options.log_severity_level = 3
        folder = None if os.environ.get("KEYGLANCE_MODELS__FOLDER") else checkout_models()
        installed = [model for model in ModelRepository(folder).load_all() if model.manifest.default_on]
        self.manifests = [model.manifest for model in installed]
        providers = ["CPUExecutionProvider"]
        self._sessions = [ort.InferenceSession(str(model.path), options, providers=providers) for model in installed]

    def prepare(self, shots: Sequence[Shot]) -> list[list[Tensor]]:
        """One list of tensors for each model, in the order of `shots`."""
        return [[_tensor(shot, manifest) for shot in shots] for manifest in self.manifests]

    def infer(self, tensors: Sequence[Sequence[Tensor]], *, batched: bool) -> list[list[Outputs]]:
        """Runs every model over its tensors, in its largest batches or one by one: for each model the outputs of its batches."""
        found: list[list[Outputs]] = []
        for session, manifest, own in zip(self._sessions, self.manifests, tensors, strict=True):
            step = manifest.largest_batch if batched else 1
            names, batches = list(manifest.outputs), []
            for start in range(0, len(own), step):
                arrays = session.run(names, {manifest.inputs.name: np.stack(own[start : start + step])})
                batches.append(dict(zip(names, arrays, strict=True)))
            found.append(batches)
        return found


class BareLabeler:
    """The job without a service: from the pictures of clips to the names of the labels that passed, with our heads and fusion."""

    def __init__(self, threads: int | None = None) -> None:
        self._models = BareModels(threads)
        self._heads = [make_head(manifest) for manifest in self._models.manifests]
        self._fusion = Fusion(self._models.manifests)

    def label(self, clips: Sequence[Sequence[TimedShot]], *, batched: bool = True) -> list[list[str]]:
        """Labels by clip, in the order of names; with `batched`, pictures of all clips share batches.

        The clips' pictures must want the same canvases: portrait beside landscape does not.
        """
        shots = [shot for clip in clips for _, shot in clip]
        outputs = self._models.infer(self._models.prepare(shots), batched=batched)
        seen: list[dict[str, FrameResult]] = [{} for _ in shots]
        for manifest, head, batches in zip(self._models.manifests, self._heads, outputs, strict=True):
            placements = [_placement(shot, manifest) for shot in shots]
            row = 0
            for batch in batches:
                count = len(next(iter(batch.values())))
                for result in head.read_batch(batch, placements[row : row + count]):
                    if isinstance(result, ValueError):
                        raise result
                    seen[row][manifest.name] = result
                    row += 1
        results = iter(seen)
        fused = (
            self._fusion.fuse([FrameScores(time, False, next(results)) for time, _ in clip], least_score=1.0) for clip in clips
        )
        return [sorted(label.name for label in labels.shown if label.passed) for labels in fused]


def _placement(shot: Shot, manifest: Manifest) -> Placement:
    placed = layout(manifest.inputs.geometry, shot.width, shot.height)
    return Placement(placed.left, placed.top, placed.width, placed.height)


def _tensor(shot: Shot, manifest: Manifest) -> Tensor:
    geometry = manifest.inputs.geometry
    placed = layout(geometry, shot.width, shot.height)
    picture = shot.scale(placed.width, placed.height)
    canvas = np.empty((placed.canvas_height, placed.canvas_width, 3), np.float32)
    canvas[:] = geometry.pad
    left, top = max(placed.left, 0), max(placed.top, 0)
    cut = picture[max(-placed.top, 0) :, max(-placed.left, 0) :][: placed.canvas_height - top, : placed.canvas_width - left]
    canvas[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
    return normalise(Rendered(canvas, Placement(0, 0, 0, 0)), manifest.inputs.normalisation)


def _shot(frame: av.VideoFrame) -> Shot:
    def scale(width: int, height: int) -> NDArray[np.uint8]:
        scaled = frame.reformat(width=width, height=height, format="rgb24", interpolation="BILINEAR")
        return np.asarray(scaled.to_ndarray())

    return Shot(frame.width, frame.height, scale)


def decode_keyframes(data: bytes, wanted: frozenset[int], *, threads: int = 1) -> list[Shot]:
    """Sends the packets numbered `wanted` (in decoding order), and no other, to one decoder."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = threads
        packets = [packet for packet in container.demux(stream) if packet.size]
        frames = [frame for number in sorted(wanted) for frame in stream.decode(packets[number])]
        return [_shot(frame) for frame in (*frames, *stream.codec_context.decode(None))]


def all_keyframes(data: bytes, most: int) -> list[TimedShot]:
    """Every keyframe as the container flags them, on one thread; of more than `most` an even choice."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.skip_frame = "NONKEY"
        frames = list(container.decode(stream))
    return [(frame.time or 0.0, _shot(frame)) for frame in _even(frames, most)]


def keyframe_times(data: bytes, most: int) -> list[float]:
    """Times in seconds of every keyframe as the container flags them; of more than `most` an even choice. Decodes nothing."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        packets = [packet for packet in container.demux(stream) if packet.is_keyframe and packet.pts is not None]
        times = sorted(float(packet.pts * stream.time_base) for packet in packets if packet.pts is not None)
    return _even(times, most)


def _even(items: list[_Item], most: int) -> list[_Item]:
    return items if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def decode_everything(data: bytes, times: Sequence[float]) -> Iterator[Shot]:
    """Decodes the whole clip frame by frame and gives the pictures at `times` (seconds, ascending)."""
    waiting = iter(times)
    time = next(waiting)
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            if time is not None and frame.time is not None and frame.time >= time - 1e-3:
                yield _shot(frame)
                time = next(waiting, float("inf"))


def seek_with_pyav(data: bytes, times: Sequence[float]) -> Iterator[Shot]:
    """Seeks to each of `times` and decodes up to it."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for time in times:
            assert stream.time_base is not None
            container.seek(round((time + 1e-3) / stream.time_base), stream=stream, backward=True)
            yield _shot(next(frame for frame in container.decode(stream) if frame.time is not None and frame.time >= time - 1e-3))


def seek_with_opencv(path: Path, times: Sequence[float]) -> Iterator[Shot]:
    """The usual loop: set the position, read, for each of `times`."""
    capture = cv2.VideoCapture(str(path))
    try:
        for time in times:
            capture.set(cv2.CAP_PROP_POS_MSEC, time * 1000)
            read, picture = capture.read()
            if not read:
                raise ValueError(f"OpenCV gave no picture at {time} s")
            yield _bgr_shot(np.asarray(picture, np.uint8))
    finally:
        capture.release()


def grab_with_opencv(path: Path, times: Sequence[float]) -> Iterator[Shot]:
    """The other usual loop: decode everything, convert the pictures at `times` (seconds, ascending) alone."""
    capture = cv2.VideoCapture(str(path))
    try:
        for time in times:
            while True:
                if not capture.grab():
                    raise ValueError(f"OpenCV gave no picture at {time} s")
                if capture.get(cv2.CAP_PROP_POS_MSEC) >= time * 1000 - 1:
                    break
            yield _bgr_shot(np.asarray(capture.retrieve()[1], np.uint8))
    finally:
        capture.release()


def _bgr_shot(picture: NDArray[np.uint8]) -> Shot:
    def scale(width: int, height: int) -> NDArray[np.uint8]:
        return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)[..., ::-1])

    return Shot(picture.shape[1], picture.shape[0], scale)
