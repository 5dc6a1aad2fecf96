"""Sample entries: codec, configuration and what the configuration tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.mp4 import BytesSource, Declined, as_the_container_says, read_index
from keyglance.mp4.codecs import elementary_stream, facts_of
from keyglance.video import Colour, ColourRange, StreamConfig
from tests.mp4.build import AVCC, Sample, Track, box, full, movie, visual_entry

HVCC = bytes.fromhex("010220000000b0000000000078f000fcfdfafa00000f") + bytes((1,)) + bytes.fromhex("20000100024001")

VPCC = full(b"vpcC", 1, 0, bytes((2, 31, 0xA3, 9, 16, 9, 0, 0)))


def config(entry: bytes) -> StreamConfig:
    return read_index(BytesSource(movie([Track([Sample()], entries=[entry])])), describe=as_the_container_says).config


def descriptor(tag: int, payload: bytes, length: int = 1) -> bytes:
    size = len(payload)
    coded = bytes((size >> 7 * n & 127) | (128 if n else 0) for n in reversed(range(length)))
    return bytes((tag,)) + coded + payload


def esds(object_type: int, info: bytes | None, flags: int = 0, extra: bytes = b"", length: int = 4) -> bytes:
    decoder = bytes((object_type,)) + bytes(12) + (b"" if info is None else descriptor(5, info, length))
    return full(b"esds", 0, 0, descriptor(3, bytes((0, 1, flags)) + extra + descriptor(4, decoder, length), length))


@pytest.mark.parametrize(
    ("entry", "codec", "depth", "chroma", "profile", "extradata"),
    [
        (visual_entry(), "h264", 8, "420", "", AVCC),
        (visual_entry(b"avc3"), "h264", 8, "420", "", AVCC),
        (visual_entry(config=b""), "h264", 8, "420", "", b""),
        (visual_entry(b"hvc1", 64, 64, box(b"hvcC", HVCC)), "hevc", 8, "420", "", HVCC),
        (visual_entry(b"dvh1", 64, 64, box(b"hvcC", HVCC)), "hevc", 8, "420", "", HVCC),
        (visual_entry(b"hev1", 64, 64, box(b"hvcC", b"short")), "hevc", 8, "420", "", b"short"),
        (visual_entry(b"av01", 64, 64, box(b"av1C", b"\x81\x00\x0c\x00")), "av1", 8, "420", "", b"\x81\x00\x0c\x00"),
        (visual_entry(b"av01", 64, 64, box(b"av1C", b"\x81\x24\x60\x00")), "av1", 8, "420", "", b"\x81\x24\x60\x00"),
        (visual_entry(b"av01", 64, 64, box(b"av1C", b"\x81\xe0\x48\x00")), "av1", 8, "420", "", b"\x81\xe0\x48\x00"),
        (visual_entry(b"av01", 64, 64, box(b"av1C", b"\x81\x00\x10\x00")), "av1", 8, "420", "", b"\x81\x00\x10\x00"),
        (visual_entry(b"av01"), "av1", 8, "420", "", b""),
        (visual_entry(b"vp09", 64, 64, VPCC), "vp9", 10, "420", "Profile 2", b""),
        (visual_entry(b"vp09"), "vp9", 8, "420", "", b""),
        (visual_entry(b"vp08", 64, 64, full(b"vpcC", 1, 0, bytes(8))), "vp8", 8, "420", "", b""),
        (visual_entry(b"apcn"), "prores", 10, "422", "Standard", b""),
        (visual_entry(b"ap4h"), "prores", 12, "444", "4444", b""),
        (visual_entry(b"s263"), "h263", 8, "420", "", b""),
        (visual_entry(b"jpeg"), "mjpeg", 8, "420", "", b""),
        (visual_entry(b"mp4v", 64, 64, esds(0x20, b"vol")), "mpeg4", 8, "420", "", b"vol"),
        (visual_entry(b"mp4v", 64, 64, esds(0x61, b"seq", length=1)), "mpeg2video", 8, "420", "", b"seq"),
        (visual_entry(b"mp4v", 64, 64, esds(0x6A, None)), "mpeg1video", 8, "420", "", b""),
        (visual_entry(b"mp4v", 64, 64, esds(0x6C, b"")), "mjpeg", 8, "420", "", b""),
        (visual_entry(b"mp4v", 64, 64, esds(0x20, b"vol", 0xE0, b"\0\0" + b"\3url" + b"\0\0")), "mpeg4", 8, "420", "", b"vol"),
        (visual_entry(b"mp4v", 64, 64, box(b"glbl", b"global")), "mpeg4", 8, "420", "", b"global"),
    ],
)  # fmt: skip
def test_configurations(entry: bytes, codec: str, depth: int, chroma: str, profile: str, extradata: bytes) -> None:
    found = config(entry)
    assert (found.codec, found.bit_depth, found.chroma_format, found.profile) == (codec, depth, chroma, profile)
    assert found.extradata == extradata
    assert found.codec_tag == int.from_bytes(entry[4:8], "little")


def test_an_unknown_object_type_is_left_to_others() -> None:
    with pytest.raises(Declined, match="codec 'mp4v'"):
        config(visual_entry(b"mp4v", 64, 64, esds(0x6D, b"png")))


def test_colour_of_vp9() -> None:
    found = config(visual_entry(b"vp09", 64, 64, full(b"vpcC", 1, 0, bytes((0, 31, 0x83, 1, 1, 0, 0, 0)))))
    assert found.colour == Colour(1, 1, 0, ColourRange.FULL)
    limited = config(visual_entry(b"vp09", 64, 64, full(b"vpcC", 1, 0, bytes((0, 31, 0x82, 1, 1, 1, 0, 0)))))
    assert limited.colour.range is ColourRange.LIMITED


def test_further_layers_come_behind_the_first() -> None:
    layers = bytes.fromhex("01f000fccb01a1000100024201")
    found = config(visual_entry(b"hvc1", 64, 64, box(b"hvcC", HVCC), box(b"lhvC", layers)))
    assert found.extradata == HVCC[:22] + b"\2" + HVCC[23:] + layers[6:]
    assert config(visual_entry(b"hvc1", 64, 64, box(b"hvcC", HVCC), box(b"lhvC", b"x"))).extradata == HVCC


@given(st.binary(max_size=80))
def test_any_record_is_read_without_an_error(data: bytes) -> None:
    assert facts_of("vp9", b"vp09", data).bit_depth in (8, 10, 12)
    assert elementary_stream(data) is None or isinstance(elementary_stream(data), tuple)


def test_elementary_streams_that_end_early() -> None:
    whole = esds(0x20, b"vol")[8:]
    for end in range(len(whole)):
        found = elementary_stream(whole[:end])
        assert found is None or found[0] == "mpeg4"
    assert elementary_stream(bytes(4) + descriptor(6, b"") * 20) is None
    assert elementary_stream(bytes(4) + descriptor(5, b"early") + whole[4:]) == ("mpeg4", b"vol")
