"""Whether a sample that is flagged as a keyframe is in truth a predicted picture, by its own first bits.

Only for codecs whose decoders predict from grey without a word; the others say so, or give no picture.
"""

from __future__ import annotations

#: FFmpeg's names of the codecs that are looked into.
CODECS = frozenset(("h263", "flv1", "mpeg4", "mpeg1video", "mpeg2video", "theora"))


def is_predicted(codec: str, payload: bytes) -> bool:
    """True where the payload's first picture is certainly predicted; False where it is not, or nothing is known."""
    match codec:
        case "h263":
            return _h263(payload)
        case "flv1":
            return _sorenson(payload)
        case "mpeg4":  # ISO/IEC 14496-2, 6.2.5: vop_coding_type, 0 is intra
            return _after(payload, b"\0\0\1\xb6", 0, 2) in (1, 2, 3)
        case "mpeg1video" | "mpeg2video":  # ISO/IEC 13818-2, 6.2.3: picture_coding_type behind 10 bits, 1 is intra, 4 D
            return _after(payload, b"\0\0\1\0", 10, 3) in (2, 3)
        case "theora":  # Theora specification, 7.1: a data packet, and its FTYPE
            return bool(payload) and payload[0] & 0xC0 == 0x40
        case _:
            return False


def _bits(data: bytes, start: int, count: int) -> int:
    """`count` bits from bit `start` on, most significant first; bits behind the end are 0."""
    first, last = start // 8, (start + count + 7) // 8
    value = int.from_bytes(data[first:last].ljust(last - first, b"\0"), "big")
    return value >> (last * 8 - start - count) & ((1 << count) - 1)


def _after(payload: bytes, code: bytes, skip: int, count: int) -> int:
    at = payload.find(code, 0, 1 << 16)
    return -1 if at < 0 else _bits(payload, (at + len(code)) * 8 + skip, count)


def _h263(payload: bytes) -> bool:
    """ITU-T H.263, 5.1: PTYPE bit 9, or the picture type code of MPPTYPE behind an optional OPPTYPE."""
    if _bits(payload, 0, 22) != 0x20:
        return False
    if _bits(payload, 35, 3) != 7:
        return _bits(payload, 38, 1) == 1
    update = _bits(payload, 38, 3)
    return update in (0, 1) and _bits(payload, 41 + (18 if update else 0), 3) in (1, 2, 3, 4, 5)


def _sorenson(payload: bytes) -> bool:
    """Sorenson H.263 (Flash Video specification, H263VIDEOPACKET): the picture type behind the size."""
    if _bits(payload, 0, 17) != 1:
        return False
    size = _bits(payload, 30, 3)
    return _bits(payload, 33 + {0: 16, 1: 32}.get(size, 0), 2) in (1, 2)
