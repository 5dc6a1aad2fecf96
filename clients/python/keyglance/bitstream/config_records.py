"""Codec configuration records of ISO base media and Matroska, taken apart.

Sources: ISO/IEC 14496-15, 5.3.3.1 (avcC) and 8.3.3.1 (hvcC); the VP codec mapping of WebM, 'VP Codec Configuration Box'
(vpcC) and its CodecPrivate in Matroska; the AV1 codec mapping, 2.3 (av1C); ISO/IEC 14496-1, 7.2.6 (esds).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.facts import colour
from keyglance.video import Colour

_VPX_CHROMA = {0: "420", 1: "420", 2: "422", 3: "444"}
_CHROMA = ("400", "420", "422", "444")
_AVC_WITH_FORMAT = (100, 110, 122, 144, 244, 44)
_DESCRIPTORS = 16


@dataclass(frozen=True, slots=True)
class Record:
    """A configuration record.

    `length_size`: bytes of the lengths in front of NAL units, 0 where samples have start codes or no units. `units`:
    parameter sets without start codes, sequence header OBUs, or the elementary stream's headers. `bit_depth` and
    `chroma_format` as the record itself tells them, None and "" where it does not.
    """

    length_size: int = 0
    units: tuple[bytes, ...] = ()
    bit_depth: int | None = None
    chroma_format: str = ""
    profile: int | None = None
    colour: Colour = field(default_factory=Colour)


class _Bytes:
    """A record read from front to end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise BitstreamError(f"a configuration record that ends {size - len(part)} bytes too soon")
        self._at += size
        return part

    def rest(self) -> bytes:
        return self._data[self._at :]


def avcc(record: bytes) -> Record:
    """AVCDecoderConfigurationRecord; BitstreamError where it is none or ends too soon."""
    data = _Bytes(record)
    if data.number(1) != 1:
        raise BitstreamError(f"an avcC of version {record[0]}, 1 is known")
    profile = data.number(1)
    data.take(2)
    length_size = (data.number(1) & 3) + 1
    units: list[bytes] = []
    for mask in (0x1F, 0xFF):  # sequence, then picture parameter sets
        units += [data.take(data.number(2)) for _ in range(data.number(1) & mask)]
    depth, chroma = None, ""
    # Many writers leave these four bytes out, and some fill them with something else: the reserved bits tell.
    if profile in _AVC_WITH_FORMAT and len(rest := data.rest()) >= 4 and rest[0] >> 2 == 63 and rest[1] >> 3 == 31:
        chroma, depth = _CHROMA[rest[0] & 3], (rest[1] & 7) + 8
    return Record(length_size, tuple(unit for unit in units if unit), depth, chroma, profile)


def hvcc(record: bytes) -> Record:
    """HEVCDecoderConfigurationRecord; BitstreamError where it is none or ends too soon.

    Version 0 is taken too: early writers used it (as FFmpeg takes it).
    """
    data = _Bytes(record)
    if data.number(1) > 1:
        raise BitstreamError(f"an hvcC of version {record[0]}, 0 and 1 are known")
    profile = data.number(1) & 0x1F
    data.take(14)
    chroma = _CHROMA[data.number(1) & 3]
    depth = (data.number(1) & 7) + 8
    data.take(3)
    length_size = (data.number(1) & 3) + 1
    units: list[bytes] = []
    for _ in range(data.number(1)):
        data.take(1)
        units += [data.take(data.number(2)) for _ in range(data.number(2))]
    return Record(length_size, tuple(unit for unit in units if unit), depth, chroma, profile)


def vpcc(record: bytes) -> Record:
    """VPCodecConfigurationRecord with the four bytes of version and flags in front, or Matroska's triples; else empty."""
    if record[:4] == b"\1\0\0\0" and len(record) >= 10:
        bits = BitReader(record[4:12])
        profile, _, depth, chroma, full = bits.u(8), bits.u(8), bits.u(4), bits.u(3), bits.flag()
        codes = (bits.u(8), bits.u(8), bits.u(8)) if bits.left >= 24 else (2, 2, 2)
        location = {0: 0, 1: 2}.get(chroma)  # vertical, collocated with luma (0,0)
        name = "rgb" if codes[2] == 0 and chroma == 3 else _VPX_CHROMA.get(chroma, "")
        return Record(0, (), depth, name, profile, colour(*codes, full, location))
    features = dict(zip(record[0:12:3], record[2:12:3], strict=False)) if record[1:2] == b"\1" else {}
    return Record(0, (), features.get(3), _VPX_CHROMA.get(features.get(4, -1), ""), features.get(1))


def av1c(record: bytes) -> Record:
    """AV1CodecConfigurationRecord, or bare OBUs (as other containers keep them)."""
    if record[:1] != b"\x81":
        return Record(0, (record,) if record else ())
    if len(record) < 4:
        raise BitstreamError(f"an av1C of {len(record)} bytes, at least 4 are needed")
    flags = record[2]
    deep, twelve, mono, across, down = (flags >> shift & 1 for shift in (6, 5, 4, 3, 2))
    chroma = "400" if mono else ("444", "420")[down] if across == down else "422" if across else "440"
    return Record(0, (record[4:],) if record[4:] else (), 8 + 2 * deep + 2 * (deep & twelve), chroma, record[1] >> 5)


def decoder_specific_info(esds: bytes) -> bytes:
    """The DecoderSpecificInfo in an `esds` box's payload (version and flags in front or not), or `esds` itself if it is that.

    BitstreamError where there is none.
    """
    if esds[:3] == b"\0\0\1" or not esds:
        return esds
    data = _Bytes(esds[4:] if esds[:1] == b"\0" else esds)
    for _ in range(_DESCRIPTORS):
        tag, size = data.number(1), _descriptor_size(data)
        match tag:
            case 3:  # ES_Descriptor
                data.take(2)
                flags = data.number(1)
                data.take(2 * (flags >> 7))
                if flags >> 6 & 1:
                    data.take(data.number(1))
                data.take(2 * (flags >> 5 & 1))
            case 4:  # DecoderConfigDescriptor
                data.take(13)
            case 5:
                return data.take(min(size, len(data.rest())))
            case _:
                data.take(size)
    raise BitstreamError(f"an esds without decoder specific information in its first {_DESCRIPTORS} descriptors")


def _descriptor_size(data: _Bytes) -> int:
    size = 0
    for _ in range(4):
        byte = data.number(1)
        size = size << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return size
