"""The clips of the GPU decoding measurements, made where encoders and processor time are, read where the GPU is.

`python -m loadtest.gpu_clips DIRECTORY` writes them; `loadtest.gpu_decode` reads that directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest.clips import Picture, encode, pan, photograph

#: The clip of the latency goals: 60 s of upright phone video, a keyframe every five seconds.
PHONE = "phone_720x1280_60s.mp4"


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """One clip: what `loadtest.clips.encode` needs to make it."""

    file: str
    codec: str
    width: int
    height: int
    pictures: int = 12
    keyframe_interval: int = 4
    container: str = "mp4"
    pixel_format: str = "yuv420p"
    b_frames: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


#: Every size and format of the parity runs. Sizes that share their coded size (530 and 532 rows), both orientations, the
#: smallest and the largest, odd ones where the codec has them.
PLANS = (
    ClipPlan("h264_640x530.mp4", "libx264", 640, 530),
    ClipPlan("h264_640x532.mp4", "libx264", 640, 532),
    ClipPlan("h264_720x1280.mp4", "libx264", 720, 1280),
    ClipPlan("h264_1280x720.mp4", "libx264", 1280, 720, pictures=24, keyframe_interval=8),
    ClipPlan("h264_1920x1080.mp4", "libx264", 1920, 1080),
    ClipPlan("h264_3840x2160.mp4", "libx264", 3840, 2160, pictures=4, keyframe_interval=2),
    ClipPlan("h264_640x360.mp4", "libx264", 640, 360),
    ClipPlan("h264_48x48.mp4", "libx264", 48, 48),
    ClipPlan("h264_32x32.mp4", "libx264", 32, 32),
    ClipPlan("h264_4128x128.mp4", "libx264", 4128, 128, pictures=2, keyframe_interval=1),
    ClipPlan("h264_b_frames_1280x720.mp4", "libx264", 1280, 720, pictures=30, keyframe_interval=30, b_frames=3),
    ClipPlan("h264_10bit_640x360.mp4", "libx264", 640, 360, pixel_format="yuv420p10le"),
    ClipPlan("hevc_640x360.mp4", "libx265", 640, 360),
    ClipPlan("hevc_640x362.mp4", "libx265", 640, 362),
    ClipPlan("hevc_10bit_640x360.mp4", "libx265", 640, 360, pixel_format="yuv420p10le"),
    ClipPlan("hevc_10bit_1280x720.mp4", "libx265", 1280, 720, pixel_format="yuv420p10le", b_frames=2),
    ClipPlan("hevc_444_640x360.mp4", "libx265", 640, 360, pixel_format="yuv444p"),
    ClipPlan("vp8_640x360.webm", "libvpx", 640, 360, container="webm"),
    ClipPlan("vp8_175x143.webm", "libvpx", 175, 143, container="webm"),
    ClipPlan("vp9_640x360.webm", "libvpx-vp9", 640, 360, container="webm"),
    ClipPlan("vp9_175x143.webm", "libvpx-vp9", 175, 143, container="webm"),
    ClipPlan("mpeg4_640x360.mp4", "mpeg4", 640, 360),
    ClipPlan("mpeg4_1280x720.mp4", "mpeg4", 1280, 720),
    ClipPlan("mpeg2_640x360.ts", "mpeg2video", 640, 360, container="mpegts"),
)


def grainy(pictures: Iterator[Picture], seed: int, amount: int) -> Iterator[Picture]:
    """The pictures with noise as a phone's sensor has it, so that they cost what real ones cost."""
    noise = np.random.default_rng(seed)
    for picture in pictures:
        grain = noise.integers(-amount, amount + 1, picture.shape[:2], np.int16)[..., None]
        yield np.clip(picture.astype(np.int16) + grain, 0, 255).astype(np.uint8)


def make(directory: Path) -> None:
    """Writes every clip that is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, plan in enumerate(PLANS):
        if (path := directory / plan.file).exists():
            continue
        source = photograph(("coffee", "astronaut", "chelsea", "rocket")[number % 4])
        width, height = plan.width + plan.width % 2, plan.height + plan.height % 2
        frames = (picture[: plan.height, : plan.width] for picture in pan(source, plan.pictures, width, height))
        clip = encode(
            grainy(frames, number, 6),
            keyframe_interval=plan.keyframe_interval,
            codec=plan.codec,
            container=plan.container,
            pixel_format=plan.pixel_format,
            b_frames=plan.b_frames,
            options={"crf": "24", **plan.options} if plan.codec in ("libx264", "libx265") else plan.options,
        )
        path.write_bytes(clip)
    if not (path := directory / PHONE).exists():
        pictures = grainy(pan(photograph("coffee"), 1800, 720, 1280), 1, 10)
        rate = {"crf": "-1", "b": "1650k", "maxrate": "3M", "bufsize": "6M", "preset": "ultrafast"}
        path.write_bytes(encode(pictures, fps=30, keyframe_interval=150, options=rate))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
