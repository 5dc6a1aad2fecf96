"""Which codec a sample entry's four-character code stands for, and what the container alone tells of it."""

from __future__ import annotations

from dataclasses import dataclass

from keyglance.video import Colour, ColourRange

Data = bytes | memoryview

#: By sample entry (RFC 6381, the MP4 registration authority, QuickTime); FFmpeg's names.
CODECS = {
    b"avc1": "h264", b"avc2": "h264", b"avc3": "h264", b"avc4": "h264", b"dva1": "h264", b"dvav": "h264",
    b"hvc1": "hevc", b"hev1": "hevc", b"hvc2": "hevc", b"hev2": "hevc", b"dvh1": "hevc", b"dvhe": "hevc",
    b"vp08": "vp8", b"vp09": "vp9", b"av01": "av1", b"dav1": "av1",
    b"mp4v": "mpeg4", b"s263": "h263", b"h263": "h263", b"H263": "h263",
    b"jpeg": "mjpeg", b"mjpa": "mjpeg", b"AVDJ": "mjpeg", b"dmb1": "mjpeg",
    b"apch": "prores", b"apcn": "prores", b"apcs": "prores", b"apco": "prores", b"ap4h": "prores", b"ap4x": "prores",
}  # fmt: skip
#: The box whose payload is what FFmpeg hands its decoder as extradata.
CONFIGURATIONS = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C", "vp9": b"vpcC", "vp8": b"vpcC"}
#: Sample entries of protected tracks (ISO/IEC 14496-12, 8.12; the last two are Apple's).
PROTECTED = (b"encv", b"drmi", b"drms")

_OBJECT_TYPES = {0x20: "mpeg4", 0x6A: "mpeg1video", 0x6C: "mjpeg", **dict.fromkeys(range(0x60, 0x66), "mpeg2video")}
_PRORES = {b"apch": "HQ", b"apcn": "Standard", b"apcs": "LT", b"apco": "Proxy", b"ap4h": "4444", b"ap4x": "XQ"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the container tells, its bitstream not or not well; the defaults are those of most streams."""

    bit_depth: int = 8
    chroma_format: str = "420"
    profile: str = ""
    colour: Colour | None = None


def facts_of(codec: str, kind: bytes, record: Data) -> Facts:
    """From a codec's configuration record (empty where there is none) and the sample entry's code."""
    if codec == "prores":
        high = kind in (b"ap4h", b"ap4x")
        return Facts(12 if high else 10, "444" if high else "422", _PRORES[kind], Colour(range=ColourRange.LIMITED))
    if codec == "mjpeg":
        return Facts(colour=Colour(matrix=5, range=ColourRange.FULL))  # JFIF (ITU-T T.871, 7)
    return _vp9(record) if codec == "vp9" else Facts()


def _vp9(record: Data) -> Facts:
    """VPCodecConfigurationRecord behind version and flags (VP Codec ISO Media File Format Binding, v1.0)."""
    if len(record) < 12 or record[0] != 1:
        return Facts()
    depth, chroma = record[6] >> 4, record[6] >> 1 & 7
    return Facts(
        bit_depth=depth if depth in (8, 10, 12) else 8,
        chroma_format={0: "420", 1: "420", 2: "422", 3: "444"}.get(chroma, "420"),
        profile=f"Profile {record[4]}" if record[4] < 4 else "",
        colour=Colour(
            primaries=code_point(record[7]),
            transfer=code_point(record[8]),
            matrix=record[9] if record[9] <= 22 else 2,  # 0, identity, is a matrix
            range=ColourRange.FULL if record[6] & 1 else ColourRange.LIMITED,
        ),
    )


def code_point(value: int) -> int:
    """A number of ITU-T H.273; 2, 'unspecified', for what is none."""
    return value if 0 < value <= 22 else 2


def elementary_stream(data: Data) -> tuple[str, bytes] | None:
    """The payload of an `esds` box: codec (empty if unknown) and decoder specific information (ISO/IEC 14496-1, 7.2.6).

    None where it holds no decoder configuration.
    """
    at, end = 4, len(data)
    codec: str | None = None
    for _ in range(16):
        head = _descriptor(data, at, end)
        if head is None:
            break
        tag, at, stop = head
        if tag == 3 and at + 3 <= stop:
            flags = data[at + 2]
            at += 3 + (2 if flags & 0x80 else 0)
            if flags & 0x40 and at < stop:
                at += 1 + data[at]
            at += 2 if flags & 0x20 else 0
        elif tag == 4 and at + 13 <= stop:
            codec = _OBJECT_TYPES.get(data[at], "")
            at += 13
        elif tag == 5 and codec is not None:
            return codec, bytes(data[at:stop])
        else:
            at = stop
    return None if codec is None else (codec, b"")


def _descriptor(data: Data, at: int, end: int) -> tuple[int, int, int] | None:
    """Tag, begin and end of a descriptor's content; its length is at most four bytes of seven bits."""
    if at + 2 > end:
        return None
    tag, size = data[at], 0
    at += 1
    for _ in range(4):
        if at >= end:
            return None
        byte = data[at]
        size, at = size << 7 | byte & 127, at + 1
        if byte < 128:
            break
    return tag, at, min(end, at + size)
