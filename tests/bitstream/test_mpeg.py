"""MPEG-1, MPEG-2 and MPEG-4 part 2."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from keyglance.bitstream import SampleFacts, SampleKind, StreamHeaders, describe
from keyglance.video import Colour, ColourRange, StreamConfig

from . import build
from .build import (
    MPEG2_SLICE,
    mpeg2_coding,
    mpeg2_display,
    mpeg2_extension,
    mpeg2_group,
    mpeg2_picture,
    mpeg2_sequence,
    mpeg4_group,
    mpeg4_layer,
    mpeg4_object,
    mpeg4_plane,
)

MPEG2, MPEG4 = StreamConfig("mpeg2video", 0, 0), StreamConfig("mpeg4", 0, 0)
I, P, B = 1, 2, 3  # noqa: E741 - the field's words


def test_mpeg2_sequence() -> None:
    extension = mpeg2_extension(profile=0, chroma=2, more=(1, 0))
    told = describe(MPEG2, mpeg2_sequence(4096 + 104, 90) + extension + mpeg2_display(720, 80, (9, 16, 9)))
    config = told.config
    assert (config.width, config.height, told.coded_width, told.coded_height) == (4200, 90, 4208, 96)
    assert (config.chroma_format, config.profile, config.bit_depth) == ("422", "4:2:2", 8)
    assert config.colour == Colour(9, 16, 9, ColourRange.LIMITED, 2)
    assert told.interlaced is False


@pytest.mark.parametrize(
    ("headers", "aspect"),
    [
        (mpeg2_sequence(aspect=1) + mpeg2_extension(), Fraction(1)),
        (mpeg2_sequence(720, 576, aspect=2) + mpeg2_extension(), Fraction(16, 15)),
        (mpeg2_sequence(720, 576, aspect=3) + mpeg2_extension(), Fraction(64, 45)),
        (mpeg2_sequence(720, 576, aspect=9) + mpeg2_extension(), Fraction(1)),
        (mpeg2_sequence(544, 576, aspect=3) + mpeg2_extension() + mpeg2_display(0, 0), Fraction(32, 17)),
        (mpeg2_sequence(720, 576, aspect=2) + mpeg2_extension() + mpeg2_display(540, 576), Fraction(64, 45)),  # makes it 16:9
        (mpeg2_sequence(720, 576, aspect=2) + mpeg2_extension() + mpeg2_display(400, 576), Fraction(16, 15)),  # makes no sense
        (mpeg2_sequence(352, 288, aspect=3), Fraction(64, 45)),  # MPEG-1
        (mpeg2_sequence(352, 288, aspect=15), Fraction(1)),
    ],
)
def test_mpeg2_sample_aspect(headers: bytes, aspect: Fraction) -> None:
    assert describe(MPEG2, headers).config.sample_aspect == aspect


def picture(kind: int, *, closed: bool | None = None, structure: int = 3, progressive: bool = True) -> bytes:
    group = b"" if closed is None else mpeg2_group(closed)
    return group + mpeg2_picture(kind) + mpeg2_coding(structure=structure, progressive=progressive) + MPEG2_SLICE


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (picture(I), SampleFacts(SampleKind.RECOVERY_POINT)),
        (picture(I, closed=False), SampleFacts(SampleKind.RECOVERY_POINT)),
        (picture(I, closed=True), SampleFacts(SampleKind.IDR)),
        (mpeg2_sequence() + mpeg2_extension(low_delay=True) + picture(I), SampleFacts(SampleKind.IDR)),
        (picture(P), SampleFacts(SampleKind.P)),
        (picture(B), SampleFacts(SampleKind.B)),
        (picture(4, closed=True), SampleFacts(SampleKind.IDR)),
        (picture(7), SampleFacts(SampleKind.UNKNOWN)),
        (picture(P, structure=1), SampleFacts(SampleKind.P, field=True)),
        (picture(P, structure=1) + picture(P, structure=2), SampleFacts(SampleKind.P)),
        (picture(I, closed=True, structure=2) + picture(P, structure=1), SampleFacts(SampleKind.IDR)),
        (mpeg2_picture(P) + MPEG2_SLICE, SampleFacts(SampleKind.P)),  # MPEG-1
        (mpeg2_picture(P) + b"\0\0\1\xb2user" + MPEG2_SLICE, SampleFacts(SampleKind.P)),
        (mpeg2_picture(P), SampleFacts(SampleKind.P)),
        (MPEG2_SLICE, SampleFacts(SampleKind.UNKNOWN)),
        (b"\0\0\1", SampleFacts(SampleKind.UNKNOWN)),
        (b"", SampleFacts(SampleKind.UNKNOWN)),
    ],
)
def test_mpeg2_kinds(payload: bytes, expected: SampleFacts) -> None:
    assert StreamHeaders(MPEG2).kind(payload) == expected


@pytest.mark.parametrize(("progressive", "frame", "interlaced"), [(True, True, False), (False, True, None), (False, False, True)])
def test_mpeg2_interlacing(progressive: bool, frame: bool, interlaced: bool | None) -> None:
    payload = mpeg2_sequence(352, 240) + mpeg2_extension(progressive=progressive) + picture(I, progressive=frame)
    told = describe(MPEG2, payload)
    assert told.interlaced is interlaced
    assert told.coded_height == (240 if progressive else 256)


def test_mpeg2_broken() -> None:
    for broken in (mpeg2_sequence()[:6], mpeg2_sequence() + mpeg2_extension(chroma=0), mpeg2_sequence(0, 0) + mpeg2_extension()):
        told = describe(MPEG2, broken)
        assert told.coded_width == 0
        assert told.problem
    assert describe(MPEG2, mpeg2_extension() + mpeg2_sequence() + b"\0\0\1\xb5\x40").coded_width == 352


def test_mpeg2_configuration() -> None:
    config = StreamConfig("mpeg2video", 352, 200, extradata=mpeg2_sequence() + mpeg2_extension())
    told = describe(config)
    assert (told.config.height, told.in_band) == (288, False)
    assert told.disagreements == ("size: the container says 352x200, the bitstream 352x288",)
    assert describe(StreamConfig("mpeg2video", 0, 0, extradata=mpeg2_sequence()[:5])).problem


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"aspect": 5}, {"sample_aspect": Fraction(40, 33)}),
        ({"aspect": 15, "pixels": (9, 10)}, {"sample_aspect": Fraction(9, 10)}),
        ({"aspect": 15, "pixels": (9, 0)}, {}),
        ({"version": 2, "control": True, "buffer": True}, {}),
        ({"fixed": True, "resolution": 30000}, {}),
        ({"fixed": True, "resolution": 1}, {}),
        ({"interlaced": True}, {}),
        ({"sprite": 1, "depth": 5}, {}),
        ({"version": 2, "sprite": 2, "depth": 12}, {"bit_depth": 12}),
    ],
)
def test_mpeg4_layer(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    told = describe(MPEG4, mpeg4_layer(350, 286, **changes))
    assert (told.config.width, told.config.height, told.coded_width, told.coded_height) == (350, 286, 352, 288)
    assert told.interlaced is bool(changes.get("interlaced"))
    for name, value in ({"sample_aspect": Fraction(1), "bit_depth": 8} | expected).items():
        assert getattr(told.config, name) == value


def test_mpeg4_visual_object() -> None:
    start = b"\0\0\1\xb0\xf5"
    told = describe(MPEG4, start + mpeg4_object(version=2, signal=(True, (9, 16, 9))) + mpeg4_layer())
    assert told.config.profile == "Advanced Simple Profile"
    assert told.config.colour == Colour(9, 16, 9, ColourRange.FULL, 0)
    for other in (mpeg4_object(), mpeg4_object(kind=2), mpeg4_object(signal=(True, (9, 16, 9)))[:7], b"\0\0\1\xb5"):
        assert describe(MPEG4, other + mpeg4_layer()).config.colour == Colour(chroma_location=0)
    assert describe(MPEG4, mpeg4_object(signal=(False, None)) + mpeg4_layer()).config.colour.range is ColourRange.LIMITED


@pytest.mark.parametrize("wrap", [bytes, build.esds])
def test_mpeg4_configuration(wrap: Any) -> None:
    stream = StreamHeaders(StreamConfig("mpeg4", 0, 0, extradata=wrap(b"\0\0\1\xb0\x01" + mpeg4_layer(320, 240))))
    assert stream.describe().config.width == 320
    assert not stream.describe().in_band
    assert stream.kind(mpeg4_plane(1)).kind is SampleKind.P
    assert stream.kind(mpeg4_layer(640, 480) + mpeg4_plane(0)).kind is SampleKind.RECOVERY_POINT
    told = stream.describe()
    assert (told.config.width, told.in_band) == (640, True)
    assert told.disagreements == ("size: the configuration record's header says 320x240, the bitstream 640x480",)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (mpeg4_plane(0), SampleKind.RECOVERY_POINT),
        (mpeg4_group(False) + mpeg4_plane(0), SampleKind.RECOVERY_POINT),
        (mpeg4_group(True) + mpeg4_plane(0), SampleKind.IDR),
        (mpeg4_layer(control=True, low_delay=True) + mpeg4_plane(0), SampleKind.IDR),
        (mpeg4_plane(1) + mpeg4_plane(2), SampleKind.P),  # packed
        (mpeg4_plane(2), SampleKind.B),
        (mpeg4_plane(3), SampleKind.P),
        (b"\0\0\1\xb6", SampleKind.UNKNOWN),
        (b"\0\0\1\xb2DivX503b1393p", SampleKind.UNKNOWN),
        (b"", SampleKind.UNKNOWN),
    ],
)
def test_mpeg4_kinds(payload: bytes, kind: SampleKind) -> None:
    assert StreamHeaders(MPEG4).kind(payload).kind is kind


def test_sizes_in_a_sample() -> None:
    def sizes(config: StreamConfig, payload: bytes) -> list[tuple[int, int]] | None:
        found = StreamHeaders(config).sequences(payload)
        return None if found is None else [(each.width, each.height) for each in found]

    first = mpeg2_sequence(640, 480) + mpeg2_extension(more=(1, 0)) + mpeg2_display(9, 9) + picture(I)
    assert sizes(MPEG2, first + mpeg2_sequence(16, 32) + picture(I)) == [(4736, 480), (16, 32)]
    assert sizes(MPEG2, picture(I)) == []
    assert sizes(MPEG2, mpeg2_sequence() * 300) is None
    assert sizes(MPEG2, mpeg2_sequence()[:6] + b"\0\0\1") is None
    assert sizes(MPEG4, mpeg4_layer() + mpeg4_plane(0) + mpeg4_layer(16, 32) + mpeg4_plane(0)) == [(176, 144), (16, 32)]
    assert sizes(MPEG4, mpeg4_plane(0)) == []
    assert sizes(MPEG4, mpeg4_layer(shape=1)) is None
    assert sizes(StreamConfig("theora", 0, 0), b"") is None


def test_mpeg4_layers_that_are_not_read() -> None:
    assert "shape 3" in describe(MPEG4, mpeg4_layer(shape=3, version=2)).problem
    assert "Simple Studio" in describe(MPEG4, b"\0\0\1\xb0\xe1" + mpeg4_layer()).problem
    assert "cannot be read" in describe(MPEG4, mpeg4_layer()[:7]).problem
    assert describe(MPEG4, mpeg4_layer(320, 240)[:14]).config.width == 320
    assert "0x0" in describe(MPEG4, mpeg4_layer(0, 0)).problem
