from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.bitstream import BitstreamError, SampleFacts, SampleKind, StreamHeaders, sample_kind
from keyglance.bitstream.h264 import Sps
from keyglance.bitstream.nal import unescaped
from keyglance.video import Colour, ColourRange, StreamConfig

from .build import RECOVERY, H264Sps, Vui, annexb, avcc, h264_pps, h264_slice, prefixed, sei

INTRA, P, B = 7, 5, 6  # slice_type: all slices of the picture are alike


def headers(sps: H264Sps | None = None) -> StreamHeaders:
    return StreamHeaders(StreamConfig("h264", 0, 0, extradata=avcc((sps or H264Sps()).unit(), h264_pps())))


def parse(sps: H264Sps) -> Sps:
    return Sps.parse(unescaped(sps.unit())[1:])


SETS = st.builds(
    H264Sps,
    profile=st.sampled_from([66, 77, 88, 100, 110, 122, 244]),
    constraints=st.sampled_from([0, 0x40, 0x10]),
    number=st.integers(0, 31),
    chroma=st.integers(0, 3),
    separate=st.booleans(),
    depth=st.integers(8, 14),
    scaling=st.integers(0, 2),
    frame_number_bits=st.integers(4, 16),
    order=st.integers(0, 2),
    width=st.integers(2, 300),
    height=st.integers(2, 300),
    frames_only=st.booleans(),
    adaptive=st.booleans(),
    crop=st.none() | st.tuples(*[st.integers(0, 3)] * 4),
    vui=st.none()
    | st.builds(
        Vui,
        aspect=st.none() | st.integers(0, 16) | st.tuples(st.integers(1, 65535), st.integers(1, 65535)),
        full=st.none() | st.booleans(),
        codes=st.none() | st.tuples(st.sampled_from([1, 9]), st.sampled_from([1, 16]), st.sampled_from([1, 9])),
        chroma_location=st.none() | st.integers(0, 5),
    ),
)


@given(SETS)
def test_a_written_set_is_read(sps: H264Sps) -> None:
    read = parse(sps)
    facts = read.facts
    chroma = sps.chroma if sps.profile >= 100 else 1
    separate = sps.separate and chroma == 3
    assert (read.number, read.frame_number_bits, read.frames_only) == (sps.number, sps.frame_number_bits, sps.frames_only)
    assert read.separate_planes == separate
    assert facts.coded_width == 16 * sps.width
    assert facts.coded_height == 16 * sps.height * (1 if sps.frames_only else 2)
    across, down = (1, 1) if separate else {0: (1, 1), 1: (2, 2), 2: (2, 1), 3: (1, 1)}[chroma]
    left, right, top, bottom = sps.crop or (0, 0, 0, 0)
    assert facts.width == facts.coded_width - across * (left + right)
    assert facts.height == facts.coded_height - down * (top + bottom) * (1 if sps.frames_only else 2)
    assert facts.bit_depth == (sps.depth if sps.profile >= 100 else 8)
    assert facts.chroma_format == ("400", "420", "422", "444")[chroma]
    assert facts.interlaced is (False if sps.frames_only else True if sps.adaptive else None)
    vui = sps.vui or Vui()
    codes = vui.codes if vui.full is not None and vui.codes else (2, 2, 2)
    assert (facts.colour.primaries, facts.colour.transfer, facts.colour.matrix) == codes
    assert facts.colour.range is {None: ColourRange.UNSPECIFIED, True: ColourRange.FULL, False: ColourRange.LIMITED}[vui.full]
    default = 0 if chroma == 1 else None
    assert facts.colour.chroma_location == (default if vui.chroma_location is None else vui.chroma_location)
    if isinstance(vui.aspect, tuple):
        assert facts.sample_aspect == Fraction(*vui.aspect)


@pytest.mark.parametrize(
    ("profile", "constraints", "name"),
    [
        (66, 0, "Baseline"),
        (66, 0x40, "Constrained Baseline"),
        (77, 0x40, "Main"),
        (110, 0x10, "High 10 Intra"),
        (122, 0, "High 4:2:2"),
        (244, 0x10, "High 4:4:4 Intra"),
        (44, 0, "CAVLC 4:4:4"),
        (99, 0, ""),
    ],
)
def test_profile_names(profile: int, constraints: int, name: str) -> None:
    assert parse(H264Sps(profile=profile, constraints=constraints)).facts.profile == name


def test_rgb() -> None:
    assert parse(H264Sps(profile=244, chroma=3, vui=Vui(full=True, codes=(1, 1, 0)))).facts.chroma_format == "rgb"


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(BitstreamError, match="0x32"):
        parse(H264Sps(crop=(8, 8, 0, 0)))
    with pytest.raises(BitstreamError, match="does not end"):
        Sps.parse(unescaped(H264Sps().unit())[1:5])


def test_a_set_cut_short_in_its_usability_keeps_its_size() -> None:
    data = unescaped(H264Sps(vui=Vui(aspect=(64, 45), full=True, codes=(9, 16, 9))).unit())[1:]
    assert Sps.parse(data[:-6]).facts.width == 32


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([h264_slice(INTRA, idr=True)], SampleKind.IDR),
        ([h264_slice(INTRA)], SampleKind.I),
        ([h264_slice(2)], SampleKind.I),
        ([h264_slice(9)], SampleKind.I),  # SI
        ([h264_slice(P)], SampleKind.P),
        ([h264_slice(8)], SampleKind.P),  # SP
        ([h264_slice(B)], SampleKind.B),
        ([h264_slice(INTRA, nal=2)], SampleKind.I),  # data partition A
        ([sei(RECOVERY), h264_slice(INTRA)], SampleKind.RECOVERY_POINT),
        ([sei((5, b"x" * 300), RECOVERY), h264_slice(INTRA)], SampleKind.RECOVERY_POINT),
        ([sei(RECOVERY), h264_slice(P)], SampleKind.P),  # gradual refresh
        ([b"\x09\xf0", sei((5, b"user data")), h264_slice(INTRA)], SampleKind.I),
        ([h264_slice(2), h264_slice(0, first=3)], SampleKind.P),  # the first slice alone is I
        ([h264_slice(2), h264_slice(1, first=3)], SampleKind.B),
        ([h264_slice(2), h264_slice(2, first=3)], SampleKind.I),
        ([h264_slice(2), b"\x41"], SampleKind.I),  # a second slice that cannot be read says nothing
        ([b"\x09\xf0", sei(RECOVERY)], SampleKind.UNKNOWN),
        ([b"\x65"], SampleKind.UNKNOWN),
    ],
)
@pytest.mark.parametrize("size", [0, 2, 4])
def test_kinds(units: list[bytes], expected: SampleKind, size: int) -> None:
    if size:
        record = avcc(H264Sps().unit(), h264_pps(), size=size)
        payload = prefixed(*units, size=size)
    else:
        record = annexb(H264Sps().unit(), h264_pps())
        payload = annexb(*units)
    assert sample_kind(StreamConfig("h264", 0, 0, extradata=record), payload).kind is expected
    assert sample_kind(StreamConfig("h264", 0, 0, extradata=record), payload, length_size=size).kind is expected


def test_lengths_of_one_byte() -> None:
    config = StreamConfig("h264", 0, 0, extradata=avcc(H264Sps().unit(), h264_pps(), size=1))
    assert sample_kind(config, prefixed(sei(RECOVERY), h264_slice(INTRA), size=1)).kind is SampleKind.RECOVERY_POINT


PAFF = H264Sps(frames_only=False, frame_number_bits=7)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([h264_slice(P, sps=PAFF)], SampleFacts(SampleKind.P)),
        ([h264_slice(P, sps=PAFF, bottom=False)], SampleFacts(SampleKind.P, field=True)),
        ([h264_slice(P, sps=PAFF, bottom=True)], SampleFacts(SampleKind.P, field=True)),
        ([h264_slice(P, sps=PAFF, bottom=False), h264_slice(P, sps=PAFF, bottom=True)], SampleFacts(SampleKind.P)),
        (
            [h264_slice(INTRA, idr=True, sps=PAFF, bottom=False), h264_slice(P, sps=PAFF, bottom=True)],
            SampleFacts(SampleKind.IDR),
        ),
        (
            [h264_slice(2, sps=PAFF, bottom=False), h264_slice(0, sps=PAFF, bottom=False, first=4)],
            SampleFacts(SampleKind.P, field=True),
        ),
        (
            [sei(RECOVERY), h264_slice(INTRA, sps=PAFF, bottom=False), h264_slice(P, sps=PAFF, bottom=True)],
            SampleFacts(SampleKind.RECOVERY_POINT),
        ),
    ],
)
def test_fields(units: list[bytes], expected: SampleFacts) -> None:
    stream = headers(PAFF)
    assert stream.kind(prefixed(*units)) == expected
    assert stream.describe().interlaced is (True if units[-1] != h264_slice(P, sps=PAFF) else None)


def test_separate_colour_planes() -> None:
    sps = H264Sps(profile=244, chroma=3, separate=True, frames_only=False)
    assert headers(sps).kind(prefixed(h264_slice(P, sps=sps, bottom=True))) == SampleFacts(SampleKind.P, field=True)


def test_sets_in_samples_hold_for_later_samples() -> None:
    stream = headers(H264Sps())
    assert stream.describe().config.width == 32
    assert not stream.describe().in_band
    assert stream.kind(prefixed(H264Sps(width=4).unit(), h264_pps(), h264_slice(INTRA, idr=True))).kind is SampleKind.IDR
    told = stream.describe()
    assert (told.config.width, told.coded_width, told.in_band) == (64, 64, True)
    stream.kind(prefixed(h264_slice(P)))
    assert stream.describe().config.width == 64


def test_the_set_that_the_slice_refers_to_counts() -> None:
    record = avcc(H264Sps(number=0).unit(), H264Sps(number=3, width=9).unit(), h264_pps(0, 0), h264_pps(7, 3))
    stream = StreamHeaders(StreamConfig("h264", 0, 0, extradata=record))
    assert stream.describe().config.width == 32
    stream.kind(prefixed(h264_slice(INTRA, idr=True, pps=7)))
    assert stream.describe().config.width == 144
    stream.kind(prefixed(h264_slice(P, pps=99)))  # refers to none: the one before stays
    assert stream.describe().config.width == 144


def test_a_broken_set_leaves_the_one_before_it() -> None:
    stream = headers()
    assert stream.kind(prefixed(H264Sps().unit()[:5], h264_slice(P))).kind is SampleKind.P
    assert stream.describe().config.width == 32
    told = StreamHeaders(StreamConfig("h264", 7, 5, extradata=avcc(H264Sps().unit()[:5]))).describe()
    assert (told.config.width, told.coded_width) == (7, 0)
    assert "sequence parameter set that cannot be read" in told.problem


def test_many_different_sets_are_forgotten() -> None:
    stream = headers()
    for width in range(2, 200):
        stream.kind(prefixed(H264Sps(width=width).unit(), h264_slice(INTRA, idr=True)))
        assert stream.describe().config.width == 16 * width


def test_a_second_picture_hidden_in_a_sample() -> None:
    stream = headers(H264Sps(width=80))
    tiny = H264Sps(width=1, height=1)
    payload = prefixed(h264_slice(INTRA, idr=True), tiny.unit(), h264_pps(), h264_slice(INTRA, idr=True))
    assert stream.kind(payload).kind is SampleKind.IDR
    assert stream.describe().config.width == 1280
    assert [each.width for each in stream.sequences(payload) or ()] == [1280, 16]
    assert [each.width for each in stream.sequences(prefixed(h264_slice(P))) or ()] == [16]  # the set holds on
    assert stream.sequences(prefixed(b"\x09\xf0")) == ()
    assert stream.sequences(prefixed(h264_slice(P, pps=9))) is None
    assert stream.sequences(prefixed(tiny.unit()[:4])) is None
    assert stream.sequences(prefixed(b"\x09\xf0") * 2000) is None


def test_more_new_sets_than_a_sample_may_bring_are_left_aside() -> None:
    stream = StreamHeaders(StreamConfig("h264", 0, 0))
    sets = [H264Sps(number=number, width=number + 2).unit() for number in range(20)]
    stream.kind(annexb(*sets, h264_pps(0, 15), h264_pps(1, 16), h264_slice(INTRA, idr=True)))
    assert stream.describe().config.width == 16 * 17
    assert stream.kind(annexb(h264_slice(INTRA, idr=True, pps=1))).kind is SampleKind.IDR
    stream.kind(annexb(*sets, h264_slice(INTRA, idr=True, pps=1)))  # the first sixteen are known now
    assert stream.describe().config.width == 16 * 18


def test_preferred_transfer_function() -> None:
    sps = H264Sps(vui=Vui(full=False, codes=(9, 14, 9)))
    stream = headers(sps)
    stream.kind(prefixed(sei((147, b"\x12")), h264_slice(INTRA, idr=True)))
    assert stream.describe().config.colour == Colour(9, 18, 9, ColourRange.LIMITED, 0)
    stream.kind(prefixed(sei((147, b"\x02")), h264_slice(INTRA, idr=True)))
    assert stream.describe().config.colour.transfer == 14
