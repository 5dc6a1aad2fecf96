"""The usual ways to label a clip, each as one function from its bytes to names of labels; they run in processes of their own.

A process has single-threaded sessions and there is one for each core, which is faster than the same work in threads. All look
at the same pictures: those at the times of the clip's keyframes, which is a gift to them, since they need not look for these.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from loadtest import bare
from loadtest.bare import BareLabeler, TimedShot

#: Pictures looked at, at most.
FRAMES = 16


@functools.cache
def _labeler() -> BareLabeler:
    return BareLabeler(threads=1)  # one for each process


def opencv_shots(video: bytes) -> list[TimedShot]:
    """The pictures by OpenCV, which wants a file. It decodes everything: seeking to each picture took longer on every clip."""
    times = bare.keyframe_times(video, FRAMES)
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(video)
        file.flush()
        return list(zip(times, bare.grab_with_opencv(Path(file.name), times), strict=True))


def frame_by_frame(video: bytes) -> list[str]:
    """(a) A decoder for the call, which decodes everything; one inference for each picture."""
    times = bare.keyframe_times(video, FRAMES)
    (labels,) = _labeler().label([list(zip(times, bare.decode_everything(video, times), strict=True))], batched=False)
    return labels


def opencv(video: bytes) -> list[str]:
    """(c) OpenCV decodes everything; the pictures of a call in batches."""
    (labels,) = _labeler().label([opencv_shots(video)])
    return labels


def keyframes(video: bytes) -> list[str]:
    """What is left without any service: only keyframes decoded, the pictures of a call in batches."""
    (labels,) = _labeler().label([bare.all_keyframes(video, FRAMES)])
    return labels
