"""Streams of real encoders: what the headers say against what FFmpeg's decoders say, and each sample's kind."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import pytest
from av.video.frame import PictureType

from keyglance.bitstream import SampleKind, StreamHeaders
from keyglance.video import ColourRange, StreamConfig
from loadtest import clips

COUNT = 13
KEYS = (0, 6)


@dataclass(frozen=True)
class Case:
    encoder: str
    container: str = "mp4"
    pixels: str = "yuv420p"
    size: tuple[int, int] = (176, 98)
    options: dict[str, str] = field(default_factory=dict)
    b_frames: int = 0
    kinds: str = "IPPPPPIPPPPPP"  # letters of SampleKind by presentation order; I stands for a random access point
    interlaced: bool | None = False


X265 = "log-level=error:pools=1:scenecut=0:keyint=1000:min-keyint=1"
CASES = [
    Case("libx264"),
    Case("libx264", "matroska", b_frames=2, options={"bf": "2", "b-pyramid": "none", "b_strategy": "0"}, kinds=""),
    Case("libx264", "mpegts", size=(174, 100)),
    Case("libx264", pixels="yuv422p10le", container="mov"),
    Case("libx264", pixels="yuv444p", size=(175, 97)),
    Case("libx264", pixels="gray"),
    Case("libx264", pixels="yuvj420p"),
    Case("libx264", options={"flags": "+ildct+ilme"}, size=(176, 96), interlaced=True),
    Case("libx264", options={"x264-params": "slices=4"}),
    Case("libx265", options={"x265-params": X265 + ":bframes=0"}),
    Case("libx265", "mpegts", pixels="yuv420p10le", options={"x265-params": X265 + ":bframes=0:slices=2"}),
    Case("libx265", pixels="yuv444p", options={"x265-params": X265 + ":bframes=2:open-gop=1"}, kinds=""),
    Case("libvpx", "webm", size=(175, 97)),
    Case("libvpx-vp9", "webm", size=(175, 97)),
    Case("libvpx-vp9", pixels="yuv444p"),
    Case("libvpx-vp9", "webm", pixels="yuv422p"),
    Case("libvpx-vp9", "webm", pixels="gbrp"),
    Case("libvpx-vp9", "webm", options={"auto-alt-ref": "1", "lag-in-frames": "8", "deadline": "good"}, kinds=""),
    Case("libsvtav1", "mp4", options={"svtav1-params": "pred-struct=1:scd=0"}),
    Case("libsvtav1", "webm", pixels="yuv420p10le", size=(174, 98), kinds=""),
    Case("libsvtav1", "ivf", kinds=""),
    Case("mpeg4"),
    Case("mpeg4", "avi", size=(174, 98)),
    Case("mpeg2video", "mpegts", size=(174, 98)),
    Case("mpeg2video", "mpegts", options={"flags": "+qscale+ildct+ilme"}, size=(176, 96), interlaced=True),
    Case("mpeg1video", "mpeg"),
    Case("mjpeg", "avi", pixels="yuvj420p", kinds="I" * COUNT, interlaced=None),
    Case("prores_ks", "mov", pixels="yuv422p10le", kinds="I" * COUNT, interlaced=None),
]


def encoded(case: Case) -> bytes:
    try:
        av.Codec(case.encoder, "w")
    except av.FFmpegError:
        pytest.skip(f"no encoder {case.encoder} in this FFmpeg")
    return clips.encode(
        clips.pan(clips.text_page(), COUNT, *case.size),
        codec=case.encoder,
        container=case.container,
        pixel_format=case.pixels,
        keyframes=KEYS,
        b_frames=case.b_frames,
        options=case.options,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.encoder}-{case.container}-{case.pixels}-{len(case.options)}")
def test_streams_of_encoders(case: Case) -> None:
    with av.open(io.BytesIO(encoded(case))) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        headers = StreamHeaders(StreamConfig(codec, 0, 0, extradata=stream.codec_context.extradata or b""))
        packets = [packet for packet in container.demux(stream) if packet.size]
        found = [(packet, headers.kind(bytes(packet))) for packet in packets]
        sequences = {each for packet in packets for each in headers.sequences(bytes(packet)) or ()}
    with av.open(io.BytesIO(encoded(case))) as container:
        stream = container.streams.video[0]
        frames = {frame.pts: frame for frame in container.decode(stream)}
        first = frames[min(frames)]
        told = headers.describe()
        if case.encoder not in ("mjpeg", "prores_ks"):
            check_description(case, told.config, first, stream)
            assert (told.coded_width >= first.width, told.coded_height >= first.height) == (True, True)
            assert told.interlaced is case.interlaced
            assert told.disagreements == ()
            assert {(each.width, each.height, each.bit_depth) for each in sequences} <= {(*case.size, told.config.bit_depth)}
            assert sequences or codec == "mpeg4"  # whose headers are in the record alone
    kinds = [(packet.pts, facts.kind) for packet, facts in found if facts.shown]
    starts = [packet.pts for packet, facts in found if facts.kind.random_access]
    assert starts == [packet.pts for packet in packets if packet.is_keyframe]
    assert not any(facts.field for _, facts in found)
    assert SampleKind.UNKNOWN not in {kind for _, kind in kinds}
    if case.kinds:
        letters = {SampleKind.P: "P", SampleKind.B: "B"}
        ordered = [kind for _, kind in sorted(kinds, key=lambda pair: pair[0])]
        assert "".join(letters.get(kind, "I" if kind.random_access else "?") for kind in ordered) == case.kinds
    pictures = {PictureType.P: SampleKind.P, PictureType.B: SampleKind.B}
    for pts, kind in kinds:
        if pts in frames and frames[pts].pict_type in pictures and codec not in ("av1", "vp9"):
            assert kind is pictures[frames[pts].pict_type]


def check_description(case: Case, config: StreamConfig, frame: Any, stream: Any) -> None:
    assert (config.width, config.height) == (frame.width, frame.height) == case.size
    assert config.bit_depth == frame.format.components[0].bits
    formats = {"gray": "400", "gbrp": "rgb", "yuvj420p": "420"}
    chroma = formats.get(case.pixels) or next(name for name in ("420", "422", "444") if name in case.pixels)
    assert config.chroma_format == chroma
    assert config.profile == (stream.codec_context.profile or "")
    if config.codec not in ("vp8", "mpeg4"):  # those do not carry colour
        told = (config.colour.primaries, config.colour.transfer, config.colour.matrix)
        assert config.colour.matrix == int(frame.colorspace)
        if config.codec not in ("vp9", "mpeg1video"):
            assert told[:2] == (int(frame.color_primaries), int(frame.color_trc))
        extent = {0: ColourRange.UNSPECIFIED, 1: ColourRange.LIMITED, 2: ColourRange.FULL}[int(frame.color_range)]
        assert config.colour.range is extent


def test_sample_aspects() -> None:
    for codec, container, aspect in (("libx264", "mp4", "4/3"), ("mpeg4", "avi", "12/11"), ("libx265", "mp4", "2")):
        buffer = io.BytesIO()
        with av.open(buffer, "w", format=container) as output:
            stream: Any = output.add_stream(codec, rate=25, options={"x265-params": X265} if codec == "libx265" else {})
            stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
            stream.codec_context.sample_aspect_ratio = Fraction(aspect)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(clips.grey(64, 64), format="rgb24")))
            output.mux(stream.encode(None))
        buffer.seek(0)
        with av.open(buffer) as source:
            video = source.streams.video[0]
            config = StreamConfig(video.codec_context.codec.canonical_name, 0, 0, extradata=video.codec_context.extradata or b"")
            headers = StreamHeaders(config)
            headers.kind(bytes(next(source.demux(video))))
            assert headers.describe().config.sample_aspect == Fraction(aspect)
