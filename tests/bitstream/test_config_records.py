from __future__ import annotations

import pytest

from keyglance.bitstream import BitstreamError
from keyglance.bitstream.config_records import Record, av1c, avcc, decoder_specific_info, hvcc, vpcc
from keyglance.video import Colour, ColourRange

from . import build
from .build import H264Sps, HevcSps, esds, h264_pps, hevc_pps

SPS, PPS = H264Sps().unit(), h264_pps()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_avcc(size: int) -> None:
    assert avcc(build.avcc(SPS, PPS, size=size)) == Record(size, (SPS, PPS), None, "", 100)


def test_avcc_extension() -> None:
    assert avcc(build.avcc(SPS, PPS, extension=(2, 10))) == Record(4, (SPS, PPS), 10, "422", 100)
    assert avcc(build.avcc(SPS, PPS) + b"\0\0\0\0").bit_depth is None  # something else than the extension
    main = H264Sps(profile=77).unit()
    assert avcc(build.avcc(main, PPS, extension=(2, 10))).bit_depth is None


def test_hvcc() -> None:
    sps, pps = HevcSps().unit(), hevc_pps()
    assert hvcc(build.hvcc(sps, pps, size=2, chroma=3, depth=12)) == Record(2, (sps, pps), 12, "444", 1)


@pytest.mark.parametrize("parse", [avcc, hvcc])
def test_records_that_end_too_soon(parse: object) -> None:
    record = build.avcc(SPS, PPS) if parse is avcc else build.hvcc(HevcSps().unit(), hevc_pps())
    assert callable(parse)
    for length in range(len(record)):
        with pytest.raises(BitstreamError, match="too soon"):
            parse(record[:length])
    with pytest.raises(BitstreamError, match="version 9"):
        parse(b"\x09" + record[1:])


def test_vpcc() -> None:
    record = bytes([1, 0, 0, 0, 2, 31, 10 << 4 | 1 << 1 | 1, 9, 16, 9, 0, 0])
    assert vpcc(record) == Record(0, (), 10, "420", 2, Colour(9, 16, 9, ColourRange.FULL, 2))
    assert vpcc(record[:10]) == Record(0, (), 10, "420", 2, Colour(9, 16, 9, ColourRange.FULL, 2))
    assert vpcc(bytes([1, 0, 0, 0, 1, 31, 8 << 4 | 3 << 1, 1, 13, 0, 0, 0])).chroma_format == "rgb"
    assert vpcc(bytes([1, 1, 2, 2, 1, 31, 3, 1, 10, 4, 1, 3])) == Record(0, (), 10, "444", 2)  # Matroska
    assert vpcc(b"") == vpcc(b"whatever") == Record()


def test_av1c() -> None:
    assert av1c(build.av1c(b"\x0a\x01x", profile=1, flags=0x40)) == Record(0, (b"\x0a\x01x",), 10, "444", 1)
    assert av1c(build.av1c(profile=2, flags=0x68)) == Record(0, (), 12, "422", 2)
    assert av1c(build.av1c(flags=0x1C)).chroma_format == "400"
    assert av1c(build.av1c(flags=0x04)).chroma_format == "440"
    assert av1c(b"\x0a\x01x").units == (b"\x0a\x01x",)
    assert av1c(b"") == Record()
    with pytest.raises(BitstreamError, match="3 bytes"):
        av1c(b"\x81\0\0")


def test_esds() -> None:
    info = build.mpeg4_layer()
    assert decoder_specific_info(esds(info)) == info
    assert decoder_specific_info(esds(info)[4:]) == info
    assert decoder_specific_info(esds(info, flags=0xE0, extra=[0, 7, 2, 65, 66, 0, 9])) == info
    assert decoder_specific_info(info) == info
    assert decoder_specific_info(b"") == b""
    with pytest.raises(BitstreamError, match="too soon"):
        decoder_specific_info(esds(info)[:12])
    with pytest.raises(BitstreamError, match="without decoder specific"):
        decoder_specific_info(b"\x06\x01\x02" * 40)
