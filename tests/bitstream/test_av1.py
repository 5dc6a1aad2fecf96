from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.bitstream import BitstreamError, SampleFacts, SampleKind, StreamHeaders, describe
from keyglance.bitstream.av1 import Sequence
from keyglance.video import Colour, ColourRange, StreamConfig

from .build import Av1Sequence, BitWriter, av1_frame, av1c, obu

AV1 = StreamConfig("av1", 0, 0)
PLAIN = Av1Sequence()
SEQUENCE, DELIMITER, HEADER, METADATA, FRAME = 1, 2, 3, 5, 6
KEY, INTER, INTRA_ONLY, SWITCH = range(4)


def unit(*frames: bytes, sequence: Av1Sequence | None = PLAIN) -> bytes:
    start = obu(DELIMITER, b"") + (obu(SEQUENCE, sequence.data()) if sequence else b"")
    return start + b"".join(obu(FRAME, frame + bytes(20)) for frame in frames)


@pytest.mark.parametrize(
    ("changes", "depth", "chroma", "colour", "profile"),
    [
        ({}, 8, "420", Colour(range=ColourRange.LIMITED), "Main"),
        ({"location": 1, "full": True}, 8, "420", Colour(range=ColourRange.FULL, chroma_location=0), "Main"),
        ({"depth": 10, "codes": (9, 16, 9), "location": 2}, 10, "420", Colour(9, 16, 9, ColourRange.LIMITED, 2), "Main"),
        ({"mono": True, "codes": (1, 1, 1)}, 8, "400", Colour(1, 1, 1, ColourRange.LIMITED), "Main"),
        ({"profile": 1}, 8, "444", Colour(range=ColourRange.LIMITED), "High"),
        ({"profile": 1, "codes": (1, 13, 0)}, 8, "rgb", Colour(1, 13, 0, ColourRange.FULL), "High"),
        ({"profile": 1, "codes": (1, 1, 0)}, 8, "rgb", Colour(1, 1, 0, ColourRange.LIMITED), "High"),
        ({"profile": 2}, 8, "422", Colour(range=ColourRange.LIMITED), "Professional"),
        ({"profile": 2, "depth": 12}, 12, "420", Colour(range=ColourRange.LIMITED), "Professional"),
        ({"profile": 2, "depth": 12, "sub": (1, 0)}, 12, "422", Colour(range=ColourRange.LIMITED), "Professional"),
        ({"profile": 2, "depth": 12, "sub": (0, 0)}, 12, "444", Colour(range=ColourRange.LIMITED), "Professional"),
        ({"reduced": True}, 8, "420", Colour(range=ColourRange.LIMITED), "Main"),
    ],
)
def test_sequence(changes: dict[str, Any], depth: int, chroma: str, colour: Colour, profile: str) -> None:
    sequence = Av1Sequence(width=853, height=479, **changes)
    told = describe(AV1, unit(av1_frame(sequence), sequence=sequence))
    config = told.config
    assert (config.width, config.height, told.coded_width, told.coded_height) == (853, 479, 856, 480)
    assert (config.bit_depth, config.chroma_format, config.colour, config.profile) == (depth, chroma, colour, profile)
    assert (told.in_band, told.interlaced, told.problem) == (True, False, "")


@given(
    st.builds(
        Av1Sequence,
        timing=st.booleans(),
        equal=st.booleans(),
        model=st.booleans(),
        delay=st.booleans(),
        points=st.integers(1, 32),
        idc=st.sampled_from([0, 0x101, 0x202]),
        level=st.sampled_from([4, 8]),
        width=st.integers(1, 65536),
        height=st.integers(1, 65536),
        ids=st.booleans(),
        order_bits=st.integers(0, 8),
        screen=st.integers(0, 2),
        motion=st.integers(0, 2),
        super_resolution=st.booleans(),
    ),
    st.sampled_from([(KEY, True), (KEY, False), (INTRA_ONLY, True), (INTRA_ONLY, False)]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 0xFF]),
    st.booleans(),
    st.none() | st.tuples(st.integers(1, 65536), st.integers(1, 65536)),
)
def test_the_size_of_a_frame_is_found_behind_whatever_stands_before_it(
    sequence: Av1Sequence,
    kind: tuple[int, bool],
    resilient: bool,
    screen: bool,
    removal: bool,
    refresh: int,
    shrunk: bool,
    render: tuple[int, int] | None,
) -> None:
    if sequence.model and sequence.timing and sequence.idc == 0x202:
        removal = False  # those operating points do not hold layer 0, so no time is written for them
    options: dict[str, Any] = {"shown": kind[1], "resilient": resilient, "screen": screen, "removal": removal}
    frame = av1_frame(sequence, kind[0], size=(501, 300), refresh=refresh, shrunk=shrunk, render=render, **options)
    told = describe(AV1, unit(frame, sequence=sequence))
    assert (told.config.width, told.config.height) == (501, 300)
    assert told.config.sample_aspect == (Fraction(render[0] * 300, render[1] * 501) if render else 1)


def test_operating_points_of_layers() -> None:
    """Removal times are written only for the points that hold the frame's layer."""
    sequence = Av1Sequence(timing=True, model=True, idc=0x202, points=2)
    frame = av1_frame(sequence, size=(501, 300), removal=True)
    payload = obu(SEQUENCE, sequence.data()) + obu(FRAME, frame + bytes(20), layer=1 << 5 | 1 << 3)
    assert describe(AV1, payload).config.width == 501


KEYFRAME, P, HIDDEN = av1_frame(PLAIN), av1_frame(PLAIN, INTER), av1_frame(PLAIN, INTER, shown=False)
EXISTING, FORWARD = av1_frame(PLAIN, None), av1_frame(PLAIN, KEY, shown=False)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([KEYFRAME], SampleFacts(SampleKind.IDR)),
        ([P], SampleFacts(SampleKind.P)),
        ([av1_frame(PLAIN, SWITCH)], SampleFacts(SampleKind.P)),
        ([av1_frame(PLAIN, INTRA_ONLY)], SampleFacts(SampleKind.I)),
        ([HIDDEN], SampleFacts(SampleKind.HIDDEN, shown=False)),
        ([HIDDEN, P], SampleFacts(SampleKind.P)),
        ([EXISTING], SampleFacts(SampleKind.REPEAT)),
        ([HIDDEN, EXISTING], SampleFacts(SampleKind.P)),
        ([FORWARD], SampleFacts(SampleKind.I, shown=False)),
        ([FORWARD, P], SampleFacts(SampleKind.P)),
        ([FORWARD, EXISTING], SampleFacts(SampleKind.I)),
        ([], SampleFacts(SampleKind.UNKNOWN)),
    ],
)
def test_kinds(frames: list[bytes], expected: SampleFacts) -> None:
    assert StreamHeaders(AV1).kind(unit(*frames)) == expected
    bare = StreamHeaders(StreamConfig("av1", 0, 0, extradata=av1c(obu(SEQUENCE, PLAIN.data()))))
    assert bare.kind(unit(*frames, sequence=None)) == expected
    assert not bare.describe().in_band
    assert StreamHeaders(AV1).kind(unit(*frames, sequence=None)) == expected


def test_a_still_picture_is_a_key_frame() -> None:
    sequence = Av1Sequence(reduced=True)
    payload = unit(av1_frame(sequence), sequence=sequence)
    assert StreamHeaders(AV1).kind(payload) == SampleFacts(SampleKind.IDR)


def test_units_without_size_and_the_beginning_of_a_sample() -> None:
    payload = obu(SEQUENCE, PLAIN.data()) + obu(METADATA, bytes(300)) + obu(FRAME, KEYFRAME + bytes(500), sized=False)
    stream = StreamHeaders(AV1)
    assert stream.kind(payload).kind is SampleKind.IDR
    payload = unit(KEYFRAME)
    assert stream.kind(payload[:-10]).kind is SampleKind.UNKNOWN
    assert stream.kind(payload[:-10], whole=False).kind is SampleKind.IDR


def test_sizes_in_a_sample() -> None:
    small = Av1Sequence(width=16, height=16)
    payload = unit(KEYFRAME) + unit(av1_frame(PLAIN, size=(64, 48)), P, sequence=None) + unit(av1_frame(small), sequence=small)
    found = StreamHeaders(AV1).sequences(payload)
    assert found is not None
    assert [(each.width, each.height) for each in found] == [(640, 360), (64, 48), (16, 16)]
    assert StreamHeaders(AV1).sequences(b"\x80") is None


def test_broken_units() -> None:
    stream = StreamHeaders(AV1)
    for broken in (b"\x80", b"\x12\xff\xff", b"\x0a" + b"\xff" * 9, b"\x16", b"\x32\x05a"):
        assert stream.kind(broken).kind is SampleKind.UNKNOWN
    assert stream.kind(b"\x12\0" * 2000).kind is SampleKind.UNKNOWN
    assert stream.kind(obu(SEQUENCE, b"\xff")).kind is SampleKind.UNKNOWN
    assert stream.describe().problem.startswith("a sequence header that cannot be read: AV1 profile 7")
    with pytest.raises(BitstreamError, match="does not end"):
        Sequence.parse(BitWriter().fields("3 1 1 1 32 32 1 32 8", 0, 0, 0, 1, 1, 25, 1, 0, 0).data())


def test_a_frame_header_that_ends_too_soon_leaves_the_sequence_s_size() -> None:
    frame = av1_frame(PLAIN, size=(501, 300))
    payload = obu(SEQUENCE, PLAIN.data()) + obu(HEADER, frame[:3])
    told = describe(AV1, payload)
    assert (told.config.width, told.config.height) == (640, 360)
