from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.bitstream import BitstreamError, SampleFacts, SampleKind, StreamHeaders, sample_kind
from keyglance.bitstream.hevc import Sps
from keyglance.bitstream.nal import unescaped
from keyglance.video import Colour, ColourRange, StreamConfig

from .build import RECOVERY, HevcSps, Vui, annexb, hevc_pps, hevc_slice, hvcc, prefixed, sei

B, P, INTRA = 0, 1, 2  # slice_type
TRAIL, RADL, BLA, IDR, CRA = 1, 6, 16, 19, 21  # nal_unit_type
PREFIX_SEI = b"\x4e\x01"


def headers(sps: HevcSps | None = None, pps: bytes | None = None) -> StreamHeaders:
    return StreamHeaders(StreamConfig("hevc", 0, 0, extradata=hvcc((sps or HevcSps()).unit(), pps or hevc_pps())))


def parse(sps: HevcSps) -> Sps:
    return Sps.parse(unescaped(sps.unit())[2:])


@given(
    st.builds(
        HevcSps,
        profile=st.sampled_from([1, 2, 3, 4]),
        sub_layers=st.integers(0, 6),
        number=st.integers(0, 15),
        chroma=st.integers(0, 3),
        separate=st.booleans(),
        width=st.integers(4, 500).map(lambda n: 8 * n),
        height=st.integers(4, 500).map(lambda n: 8 * n),
        window=st.none() | st.tuples(*[st.integers(0, 3)] * 4),
        depth=st.integers(8, 16),
        scaling=st.integers(0, 2),
        pcm=st.booleans(),
        sets=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5),
        long_term=st.integers(0, 32),
        vui=st.none()
        | st.builds(
            Vui,
            aspect=st.none() | st.tuples(st.integers(1, 65535), st.integers(1, 65535)),
            full=st.none() | st.booleans(),
            codes=st.none() | st.tuples(st.sampled_from([1, 9]), st.sampled_from([1, 16]), st.sampled_from([1, 9])),
            chroma_location=st.none() | st.integers(0, 5),
        ),
        fields=st.booleans(),
    )
)
def test_a_written_set_is_read(sps: HevcSps) -> None:
    read = parse(sps)
    facts = read.facts
    separate = sps.separate and sps.chroma == 3
    across, down = (1, 1) if separate else {0: (1, 1), 1: (2, 2), 2: (2, 1), 3: (1, 1)}[sps.chroma]
    left, right, top, bottom = sps.window or (0, 0, 0, 0)
    assert (facts.coded_width, facts.coded_height) == (sps.width, sps.height)
    assert (facts.width, facts.height) == (sps.width - across * (left + right), sps.height - down * (top + bottom))
    assert (read.number, facts.bit_depth) == (sps.number, sps.depth)
    assert facts.chroma_format == ("400", "420", "422", "444")[sps.chroma]
    assert facts.profile == {1: "Main", 2: "Main 10", 3: "Main Still Picture", 4: "Rext"}[sps.profile]
    vui = sps.vui or Vui()
    assert read.fields == (sps.vui is not None and sps.fields)
    codes = vui.codes if vui.full is not None and vui.codes else (2, 2, 2)
    default = 0 if sps.chroma == 1 else None
    extent = ColourRange.FULL if vui.full else ColourRange.LIMITED
    location = default if vui.chroma_location is None else vui.chroma_location
    assert facts.colour == Colour(*codes, extent, location)
    assert facts.sample_aspect == (Fraction(*vui.aspect) if isinstance(vui.aspect, tuple) else None)


def test_predicted_reference_sets() -> None:
    """A set predicted from one of n pictures lists n + 1 of them, and the next counts those that are in it."""
    predicted = [(True, False), (False, True), (False, False), (True, False)]
    sps = HevcSps(sets=[(2, 1), predicted, [(True, False)] * 4], vui=Vui(full=True, codes=(9, 16, 9)))
    assert parse(sps).facts.colour.transfer == 16


def test_what_cannot_be() -> None:
    with pytest.raises(BitstreamError, match="8 temporal"):
        parse(HevcSps(sub_layers=7))
    with pytest.raises(BitstreamError, match="multiples of 8"):
        parse(HevcSps(width=65))
    with pytest.raises(BitstreamError, match="0x64"):
        parse(HevcSps(window=(16, 16, 0, 0)))
    growing = [(True, False)] * 33
    with pytest.raises(BitstreamError, match="reference picture set"):
        parse(HevcSps(sets=[(16, 16), growing]))


@pytest.mark.parametrize(
    ("progressive", "interlaced", "fields", "expected"),
    [(True, False, False, False), (False, True, False, True), (True, True, False, None), (True, False, True, True)],
)
def test_interlacing(progressive: bool, interlaced: bool, fields: bool, expected: bool | None) -> None:
    sps = HevcSps(progressive=progressive, interlaced=interlaced, fields=fields, vui=Vui())
    assert parse(sps).facts.interlaced is expected


def test_the_profile_that_it_is_compatible_with() -> None:
    assert parse(HevcSps(profile=0, compatible=1 << (31 - 2))).facts.profile == "Main 10"
    assert parse(HevcSps(profile=0)).facts.profile == ""


def test_rgb() -> None:
    assert parse(HevcSps(profile=4, chroma=3, vui=Vui(full=True, codes=(1, 13, 0)))).facts.chroma_format == "rgb"


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([hevc_slice(IDR)], SampleKind.IDR),
        ([hevc_slice(20)], SampleKind.IDR),
        ([hevc_slice(CRA)], SampleKind.CRA),
        ([hevc_slice(BLA)], SampleKind.BLA),
        ([hevc_slice(18)], SampleKind.BLA),
        ([hevc_slice(TRAIL, P)], SampleKind.P),
        ([hevc_slice(RADL, B)], SampleKind.B),
        ([hevc_slice(TRAIL, INTRA)], SampleKind.I),
        ([sei(RECOVERY, header=PREFIX_SEI), hevc_slice(TRAIL, INTRA)], SampleKind.RECOVERY_POINT),
        ([sei(RECOVERY, header=PREFIX_SEI), hevc_slice(TRAIL, P)], SampleKind.P),
        ([hevc_slice(TRAIL, INTRA), hevc_slice(TRAIL, P, first=False)], SampleKind.P),
        ([hevc_slice(TRAIL, INTRA), b"\x46\x01\x50", hevc_slice(TRAIL, INTRA, first=False)], SampleKind.I),
        ([hevc_slice(TRAIL, INTRA), b"\x02\x01"], SampleKind.I),
        ([b"\x26\x09abcd", hevc_slice(TRAIL, B)], SampleKind.B),  # an IDR picture of another layer
        ([hevc_slice(TRAIL, B, pps=9)], SampleKind.UNKNOWN),  # without its parameter set
        ([hevc_slice(IDR, pps=9)], SampleKind.IDR),
        ([b"\x26"], SampleKind.UNKNOWN),
        ([b"\x46\x01\x50"], SampleKind.UNKNOWN),
    ],
)
def test_kinds(units: list[bytes], expected: SampleKind) -> None:
    sps = HevcSps()
    config = StreamConfig("hevc", 0, 0, extradata=hvcc(sps.unit(), hevc_pps()))
    assert sample_kind(config, prefixed(*units)).kind is expected
    config = StreamConfig("hevc", 0, 0, extradata=annexb(sps.unit(), hevc_pps()))
    assert sample_kind(config, annexb(*units)).kind is expected


def test_dependent_slices_and_extra_bits() -> None:
    stream = headers(HevcSps(width=128, height=128), hevc_pps(dependent=True, extra=3))
    first = hevc_slice(TRAIL, INTRA, extra=3)
    rest = [
        hevc_slice(TRAIL, first=False, address_bits=6, dependent=True),
        hevc_slice(TRAIL, P, first=False, address_bits=6, extra=3, dependent=False),
    ]
    assert stream.kind(prefixed(first, rest[0])).kind is SampleKind.I
    assert stream.kind(prefixed(first, *rest)).kind is SampleKind.P


def test_fields() -> None:
    stream = headers(HevcSps(vui=Vui(), fields=True))
    assert stream.kind(prefixed(hevc_slice(IDR))) == SampleFacts(SampleKind.IDR, field=True)
    assert stream.kind(prefixed(hevc_slice(TRAIL, P))) == SampleFacts(SampleKind.P, field=True)


def test_a_second_picture_hidden_in_a_sample() -> None:
    stream = headers(HevcSps(width=1280))
    tiny = HevcSps(width=16, height=16)
    payload = prefixed(hevc_slice(IDR), b"\x46\x01\x50", tiny.unit(), hevc_pps(), hevc_slice(IDR))
    assert [each.width for each in stream.sequences(payload) or ()] == [1280, 16]
    assert stream.sequences(prefixed(hevc_slice(TRAIL, P, pps=9))) is None
    assert stream.sequences(prefixed(tiny.unit()[:9])) is None


def test_sets_in_samples_hold_for_later_samples() -> None:
    stream = StreamHeaders(StreamConfig("hevc", 64, 64))
    assert stream.describe().problem
    stream.kind(annexb(HevcSps(width=320, depth=10).unit(), hevc_pps(), sei((147, b"\x12"), header=PREFIX_SEI), hevc_slice(IDR)))
    told = stream.describe()
    assert (told.config.width, told.config.bit_depth, told.config.colour.transfer, told.in_band) == (320, 10, 18, True)
    assert told.disagreements == ("size: the container says 64x64, the bitstream 320x64",)
    assert stream.kind(annexb(hevc_slice(TRAIL, B))).kind is SampleKind.B
