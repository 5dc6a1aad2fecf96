"""What H.264 and HEVC share: NAL units in samples, SEI messages, and the first part of video usability information."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.facts import colour
from keyglance.video import Colour

_START_CODE = b"\0\0\1"
#: Bytes of one NAL unit that are ever looked at, units of one sample, messages of one SEI unit.
_UNIT_BYTES, _UNITS, _MESSAGES = 1 << 14, 1024, 64
#: Bytes of a slice that are looked at: what is read of its header is far shorter.
SLICE_BYTES = 64

RECOVERY_POINT, ALTERNATIVE_TRANSFER = 6, 147  # SEI payload types (ITU-T H.274, 7; H.264, D.1)

#: Sample aspect by `aspect_ratio_idc` (ITU-T H.264, table E-1; H.273, 8.6); 0 is 'unspecified', 255 'coded in the header'.
_ASPECTS = (
    None,
    *(Fraction(1), Fraction(12, 11), Fraction(10, 11), Fraction(16, 11), Fraction(40, 33), Fraction(24, 11), Fraction(20, 11)),
    *(Fraction(32, 11), Fraction(80, 33), Fraction(18, 11), Fraction(15, 11), Fraction(64, 33), Fraction(160, 99)),
    *(Fraction(4, 3), Fraction(3, 2), Fraction(2)),
)
_ASPECT_CODED = 255


def form_of(payload: bytes, length_size: int) -> int:
    """Bytes of the lengths in front of this sample's NAL units, 0 for start codes.

    The record's word counts, except where the bytes contradict it: files exist that mix both forms (FFmpeg's decoder looks
    in the same way).
    """
    head = payload[:9]
    if length_size == 4 and head[:4] == b"\0\0\0\1" and int.from_bytes(head[5:9], "big") > len(payload):
        return 0
    if length_size == 0 and not head.startswith((_START_CODE, b"\0" + _START_CODE)):
        return 4 if 3 < int.from_bytes(head[:4], "big") <= len(payload) - 4 else 0
    return length_size


def units(payload: bytes, length_size: int, *, whole: bool = True) -> Iterator[bytes]:
    """The NAL units of a sample, each up to its first `_UNIT_BYTES` bytes; the next is looked for only when asked for.

    `length_size` 0: byte stream format (ITU-T H.264, annex B), else lengths of so many bytes (ISO/IEC 14496-15, 5.3.2).
    A unit in byte stream format may carry the beginning of the next: `unescaped` cuts it off. A length that leads past the
    end of a `whole` sample ends it: decoders refuse such a unit.
    """
    at = 0
    if length_size:
        for _ in range(_UNITS):
            start = at + length_size
            at = start + int.from_bytes(payload[at:start], "big")
            if start >= len(payload) or (whole and at > len(payload)):
                return
            if at > start:
                yield payload[start : min(at, start + _UNIT_BYTES)]
    else:
        for _ in range(_UNITS):
            at = payload.find(_START_CODE, at)
            if at < 0:
                return
            at += 3
            if unit := payload[at : at + _UNIT_BYTES]:
                yield unit


def all_units(payload: bytes, length_size: int) -> list[bytes]:
    """All NAL units of a sample; BitstreamError where it has too many."""
    found = list(itertools.islice(units(payload, length_size), _UNITS))
    if len(found) == _UNITS:
        raise BitstreamError(f"{_UNITS} NAL units in a sample, fewer allowed")
    return found


def unescaped(unit: bytes) -> bytes:
    """The unit without emulation prevention bytes (ITU-T H.264, 7.3.1; H.265, 7.3.1.1), in one linear pass.

    `replace` looks for the next match behind the last one, as the standard counts zeros anew behind each removed byte.
    """
    return unit.partition(_START_CODE)[0].replace(b"\0\0\3", b"\0\0")


def sei_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(payload type, payload) of an unescaped SEI unit behind its header (ITU-T H.264, 7.3.2.3.1)."""
    at = 0
    for _ in range(_MESSAGES):
        kind, at = _sei_number(data, at)
        size, at = _sei_number(data, at)
        if at >= len(data):
            return
        yield kind, data[at : at + size]
        at += size


def _sei_number(data: bytes, at: int) -> tuple[int, int]:
    rest = data[at:]
    high = len(rest) - len(rest.lstrip(b"\xff"))  # bytes of 255, each of which adds so much
    at += high
    return 255 * high + (data[at] if at < len(data) else 0), at + 1


@dataclass(frozen=True, slots=True)
class Usability:
    """The first part of VUI parameters; where they end too soon, the size in front of them still counts (as for FFmpeg)."""

    sample_aspect: Fraction | None = None
    colour: Colour = field(default_factory=Colour)

    @classmethod
    def read(cls, bits: BitReader, chroma_location: int | None, full: bool | None) -> Usability:
        """ITU-T H.264, E.1.1 and H.265, E.2.1, which agree up to the chroma location.

        `chroma_location` and `full` (range) hold where they are not told.
        """
        aspect = None
        if bits.flag():
            code = bits.u(8)
            if code == _ASPECT_CODED:
                width, height = bits.u(16), bits.u(16)
                aspect = Fraction(width, height) if width and height else None
            elif code < len(_ASPECTS):
                aspect = _ASPECTS[code]
        if bits.flag():  # overscan_info_present_flag
            bits.skip(1)
        codes = (2, 2, 2)
        if bits.flag():  # video_signal_type_present_flag
            bits.skip(3)
            full = bits.flag()
            if bits.flag():
                codes = (bits.u(8), bits.u(8), bits.u(8))
        if bits.flag():  # chroma_loc_info_present_flag
            top, _ = bits.ue(), bits.ue()
            chroma_location = top if top <= 5 else None
        return cls(aspect, colour(*codes, full, chroma_location))
