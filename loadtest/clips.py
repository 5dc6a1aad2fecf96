"""Synthetic clips for tests and benchmarks: pictures in, an encoded file in memory out, keyframes exactly where wanted."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

#: A picture: uint8 RGB, height x width x 3.
Picture = NDArray[np.uint8]

#: Encoder options that leave the choice of keyframes to the caller.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "libx264": {"preset": "veryfast", "crf": "18", "forced-idr": "1", "sc_threshold": "0"},
    "libx265": {"preset": "ultrafast", "forced-idr": "1", "x265-params": "log-level=error:scenecut=0:pools=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "4M", "auto-alt-ref": "0"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "0", "auto-alt-ref": "0"},
    "libsvtav1": {"preset": "12", "crf": "25", "svtav1-params": "scd=0"},
    "mpeg4": {"flags": "+qscale", "global_quality": "354", "sc_threshold": "1000000000"},
    "mjpeg": {"flags": "+qscale", "global_quality": "236"},
    "mpeg2video": {"flags": "+qscale", "global_quality": "354", "sc_threshold": "1000000000"},
}


def encode(
    pictures: Iterable[Picture],
    *,
    fps: float | Fraction = 25,
    keyframe_interval: int | None = None,
    keyframes: Collection[int] = (0,),
    codec: str = "libx264",
    container: str = "mp4",
    pixel_format: str = "yuv420p",
    b_frames: int = 0,
    rotation: int = 0,
    options: Mapping[str, str] | None = None,
    muxing: Mapping[str, str] | None = None,
) -> bytes:
    """Encodes `pictures`, all of one size, and returns the file's bytes.

    Keyframes are at multiples of `keyframe_interval` (pictures), or else exactly at the numbers in `keyframes`. `container` is
    FFmpeg's name of a muxer. Width and height must be even for 4:2:0. The RGB pictures become BT.601, tagged as such, of full
    range in `yuvj…` formats and else of limited range. `rotation` (0, 90, 180, 270 degrees clockwise) is how a player has to
    turn the picture. `options` go to the encoder, `muxing` to the muxer (`{"movflags": "frag_keyframe+empty_moov"}`).
    """
    rate = Fraction(fps).limit_denominator(1001)
    full_range = pixel_format.startswith("yuvj")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=dict(muxing or {})) as output:
        stream: av.VideoStream | None = None
        for number, picture in enumerate(pictures):
            if stream is None:
                chosen = {**_OPTIONS.get(codec, {}), **(options or {})}
                added = output.add_stream(codec, rate=rate, options=chosen)
                assert isinstance(added, av.VideoStream)
                stream = added
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt = pixel_format
                context = stream.codec_context
                context.gop_size = 1_000_000
                context.max_b_frames = b_frames
                context.thread_count = 1
                context.colorspace, context.color_primaries, context.color_trc, context.color_range = (
                    6,
                    6,
                    6,
                    2 if full_range else 1,
                )
                if rotation:
                    stream.set_display_rotation(-rotation)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame = frame.reformat(format=pixel_format, dst_colorspace="ITU601", dst_color_range="JPEG" if full_range else "MPEG")
            frame.pts = number
            frame.time_base = 1 / rate
            wanted = number % keyframe_interval == 0 if keyframe_interval else number in keyframes
            frame.pict_type = av.video.frame.PictureType.I if wanted else av.video.frame.PictureType.NONE
            output.mux(stream.encode(frame))
        if stream is None:
            raise ValueError("a clip needs at least one picture")
        output.mux(stream.encode(None))
    return buffer.getvalue()


def fit(picture: Picture, width: int, height: int) -> Picture:
    """The picture scaled to cover `width` x `height` pixels and cropped at its centre."""
    return np.asarray(ImageOps.fit(Image.fromarray(picture), (width, height), Image.Resampling.BICUBIC))


def photograph(name: str) -> Picture:
    """One of the photographs that scikit-image carries: coffee, astronaut, chelsea (a cat), rocket."""
    from skimage import data  # not at the top: what needs no photograph needs no scikit-image

    return np.asarray(getattr(data, name)())


def grey(width: int, height: int, level: int = 128) -> Picture:
    """A picture of one grey."""
    return np.full((height, width, 3), level, np.uint8)


def hold(picture: Picture, count: int) -> Iterator[Picture]:
    """The same picture `count` times."""
    for _ in range(count):
        yield picture


def pan(picture: Picture, count: int, width: int, height: int) -> Iterator[Picture]:
    """`count` pictures of `width` x `height`: a window that wanders over the picture, which is scaled to a quarter more."""
    canvas = fit(picture, width * 5 // 4, height * 5 // 4)
    for number in range(count):
        phase = 2 * np.pi * number / max(count, 1)
        x = round((np.sin(phase) + 1) / 2 * (canvas.shape[1] - width))
        y = round((np.sin(2 * phase) + 1) / 2 * (canvas.shape[0] - height))
        yield np.ascontiguousarray(canvas[y : y + height, x : x + width])


def text_page(width: int = 640, height: int = 480, lines: int = 14) -> Picture:
    """Black words on white paper, filling the page."""
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    step = height / (lines + 1)
    font = ImageFont.load_default(size=step * 0.7)
    words = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seventy", "grey", "geese", "fly", "south")
    for line in range(lines):
        text = " ".join(words[(line * 5 + n) % len(words)] for n in range(9))
        draw.text((step / 2, step * (line + 0.5)), text, fill="black", font=font)
    return np.asarray(page)


def tone(seconds: float = 1.0, *, container: str = "mp4") -> bytes:
    """A file with sound and no pictures: one AAC track of 440 Hz."""
    buffer = io.BytesIO()
    rate, block = 48_000, 1024
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream("aac", rate=rate)
        assert isinstance(stream, av.AudioStream)
        for start in range(0, int(seconds * rate), block):
            wave = np.sin(2 * np.pi * 440 * np.arange(start, start + block) / rate).astype(np.float32) * 0.25
            frame = av.AudioFrame.from_ndarray(wave[None, :], format="fltp", layout="mono")
            frame.sample_rate = rate
            frame.pts = start
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()
