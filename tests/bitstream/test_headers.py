"""The entry: what is taken from where, what is told, and what is left alone."""

from __future__ import annotations

from fractions import Fraction

import pytest

from keyglance.bitstream import (
    BitstreamError,
    Described,
    SampleFacts,
    SampleKind,
    SequenceFacts,
    StreamHeaders,
    describe,
    sample_kind,
)
from keyglance.video import Colour, ColourRange, StreamConfig

from .build import H264Sps, HevcSps, Vui, annexb, avcc, h264_pps, h264_slice, hevc_pps, hevc_slice, hvcc, prefixed

IDR = h264_slice(7, idr=True)


def h264(sps: H264Sps, **told: object) -> StreamConfig:
    return StreamConfig("h264", **{"width": 0, "height": 0, "extradata": avcc(sps.unit(), h264_pps())} | told)  # type: ignore[arg-type]


def test_the_bitstream_corrects_the_container() -> None:
    sps = H264Sps(width=80, height=45, profile=110, depth=10, vui=Vui((4, 3), False, True, (9, 16, 9)))
    config = h264(sps, width=640, height=360, colour=Colour(1, 1, 1, ColourRange.LIMITED), codec_tag=7, bits_per_coded_sample=24)
    told = describe(config, prefixed(IDR))
    assert told == Described(
        StreamConfig(
            "h264",
            1280,
            720,
            10,
            "420",
            "High 10",
            config.extradata,
            7,
            24,
            Fraction(4, 3),
            Colour(9, 16, 9, ColourRange.FULL, 0),
        ),
        1280,
        720,
        False,
        False,
        (
            "size: the container says 640x360, the bitstream 1280x720",
            "colour primaries: the container says 1, the bitstream 9",
            "colour transfer: the container says 1, the bitstream 16",
            "colour matrix: the container says 1, the bitstream 9",
            "colour range: the container says limited, the bitstream full",
        ),
    )


def test_what_the_bitstream_does_not_tell_stays() -> None:
    colour = Colour(9, 18, 9, ColourRange.FULL, 2)
    told = describe(h264(H264Sps(profile=77), width=32, height=32, colour=colour))
    assert told.config.colour == Colour(9, 18, 9, ColourRange.FULL, 0)
    assert told.disagreements == ()


def test_code_points_that_mean_the_same_are_no_disagreement() -> None:
    sps = H264Sps(vui=Vui(full=False, codes=(5, 6, 5)))
    assert describe(h264(sps, colour=Colour(5, 1, 6, ColourRange.LIMITED))).disagreements == ()
    assert len(describe(h264(sps, colour=Colour(6, 1, 1, ColourRange.LIMITED))).disagreements) == 2


def test_a_container_s_sample_aspect_stays() -> None:
    sps = H264Sps(vui=Vui((4, 3)))
    told = describe(h264(sps, sample_aspect=Fraction(16, 11)))
    assert told.config.sample_aspect == Fraction(16, 11)
    assert told.disagreements == ("sample aspect: the container says 16/11, the bitstream 4/3",)
    assert describe(h264(sps, sample_aspect=Fraction(4, 3))).disagreements == ()


@pytest.mark.parametrize(
    ("width", "height", "crop", "expected"),
    [
        (1920, 1080, None, (1920, 1080)),  # cropped by the container, less than a macroblock
        (1910, 1088, None, (1910, 1088)),
        (1900, 1080, None, (1920, 1088)),
        (1920, 1080, (0, 0, 0, 2), (1920, 1084)),
        (1920, 1090, None, (1920, 1088)),
        (0, 0, None, (1920, 1088)),
    ],
)
def test_sizes_of_h264(width: int, height: int, crop: tuple[int, int, int, int] | None, expected: tuple[int, int]) -> None:
    told = describe(h264(H264Sps(width=120, height=68, crop=crop), width=width, height=height))
    assert (told.config.width, told.config.height) == expected
    assert (told.coded_width, told.coded_height) == (1920, 1088)


def test_records_that_disagree_with_their_own_headers() -> None:
    record = avcc(H264Sps(profile=122, chroma=2, depth=10).unit(), h264_pps(), extension=(1, 8))
    assert describe(StreamConfig("h264", 0, 0, extradata=record)).disagreements == (
        "bit depth: the configuration record says 8, the bitstream 10",
        "chroma format: the configuration record says 420, the bitstream 422",
    )
    sps = HevcSps(chroma=3, profile=4, vui=Vui(full=True, codes=(1, 1, 0)))
    record = hvcc(sps.unit(), hevc_pps(), chroma=3)
    assert describe(StreamConfig("hevc", 0, 0, extradata=record)).disagreements == ()  # RGB is a kind of 4:4:4
    inner = HevcSps(width=320, depth=10, chroma=2)
    told = describe(StreamConfig("hevc", 0, 0, extradata=record), prefixed(inner.unit(), hevc_pps(), hevc_slice(19)))
    assert told.in_band
    assert told.disagreements == (
        "bit depth: the configuration record says 8, the bitstream 10",
        "chroma format: the configuration record says 444, the bitstream 422",
        "size: the configuration record's header says 64x64, the bitstream 320x64",
        "bit depth: the configuration record's header says 8, the bitstream 10",
        "chroma format: the configuration record's header says rgb, the bitstream 422",
    )


def test_the_beginning_of_a_key_sample_is_enough() -> None:
    payload = prefixed(H264Sps(width=40).unit(), h264_pps(), IDR + bytes([0x55]) * 100_000)
    told = describe(StreamConfig("h264", 0, 0, extradata=avcc()), payload[: 1 << 16])
    assert (told.config.width, told.in_band) == (640, True)
    stream = StreamHeaders(StreamConfig("h264", 0, 0, extradata=avcc()))
    assert stream.kind(payload[: 1 << 16]).kind is SampleKind.UNKNOWN
    assert stream.kind(payload[: 1 << 16], whole=False).kind is SampleKind.IDR


def test_broken_records() -> None:
    config = StreamConfig("h264", 640, 360, extradata=b"\x01\x02")
    told = describe(config)
    assert (told.config, told.problem) == (config, "a configuration record that ends 2 bytes too soon")
    told = describe(config, annexb(H264Sps().unit(), h264_pps(), IDR))
    assert (told.config.width, told.problem) == (32, "")
    assert sample_kind(StreamConfig("av1", 0, 0, extradata=b"\x81"), b"\x12\0") == SampleFacts(SampleKind.UNKNOWN)
    assert describe(StreamConfig("av1", 8, 8, extradata=b"\x81\0\0\0\x80")).problem == "an AV1 unit whose forbidden bit is set"


def test_codecs_without_headers_here() -> None:
    jpeg, theora = StreamConfig("mjpeg", 8, 8), StreamConfig("theora", 8, 8)
    assert sample_kind(jpeg, b"\xff\xd8").kind is SampleKind.IDR
    assert sample_kind(jpeg, b"").kind is SampleKind.UNKNOWN
    assert sample_kind(theora, b"\x80").kind is SampleKind.UNKNOWN
    told = describe(theora, b"\x80")
    assert (told.config, told.problem) == (theora, "headers of theora are not read")


def test_representation() -> None:
    assert "width=32" in repr(StreamHeaders(h264(H264Sps())))


def test_words() -> None:
    intra = {kind for kind in SampleKind if kind.intra}
    assert intra - {kind for kind in SampleKind if kind.random_access} == {SampleKind.I}
    assert {SampleKind.IDR, SampleKind.CRA, SampleKind.BLA, SampleKind.RECOVERY_POINT} < intra


def test_facts_that_cannot_be() -> None:
    with pytest.raises(BitstreamError, match="17 bits"):
        SequenceFacts(16, 16, 16, 16, bit_depth=17)
    with pytest.raises(BitstreamError, match="65537x16"):
        SequenceFacts(65537, 16, 65552, 16)
