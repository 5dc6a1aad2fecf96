"""Visual sample entries (ISO/IEC 14496-12, 12.1.3; QuickTime File Format, video sample description)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from keyglance.mp4.boxes import Box, Boxes
from keyglance.mp4.codecs import CODECS, CONFIGURATIONS, PROTECTED, Facts, code_point, elementary_stream, facts_of
from keyglance.mp4.tables import Data, u32_at
from keyglance.video import Colour, ColourRange

#: Bytes of the fixed fields; boxes follow.
_FIXED = 78
#: Sample entries of one track that are read; more make no sense.
MOST_ENTRIES = 1024
_LARGEST_RECORD = 1 << 20
#: An entry is as much work as so many boxes of other kinds.
_WORK = 5
#: 'tenc' as PIFF 1.1 spells it (5.3.3).
_PIFF_TENC = bytes.fromhex("8974dbce7be74c5184f97148f9882554")


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """How the samples that refer to it are coded."""

    kind: bytes  # the four-character code; the original one where the entry is protected
    codec: str  # FFmpeg's name; empty: not known here
    width: int
    height: int
    extradata: bytes
    facts: Facts
    data_reference: int  # from 1
    depth: int = 0  # bits of a pixel as displayed, 32 with transparency
    encrypted: bool = False
    scheme: str = ""  # of protection, a four-character code: cenc, cbcs, piff, …
    sample_aspect: Fraction | None = None
    colour: Colour | None = None
    clean_aperture: tuple[Fraction, Fraction] | None = None  # width and height


def read_entries(boxes: Boxes, stsd: Box) -> list[SampleEntry]:
    """The sample entries of an `stsd` box, in order."""
    entries: list[SampleEntry] = []
    for box in boxes.children(stsd.body + 8, stsd.end):
        if len(entries) == MOST_ENTRIES:
            break
        entries.append(_entry(boxes, box))
    return entries


def _entry(boxes: Boxes, box: Box) -> SampleEntry:
    boxes.budget.box(_WORK)
    fixed = boxes.read(box, _FIXED)
    if len(fixed) < _FIXED:
        return SampleEntry(box.kind, "", 0, 0, b"", Facts(), 1)
    kind, encrypted, scheme = box.kind, box.kind in PROTECTED, ""
    parts: dict[bytes, Data] = {}
    # ISO entries hold boxes; some writers of QuickTime files put a terminator of four zero bytes behind them.
    for child in boxes.children(box.body + _FIXED, box.end):
        if child.kind == b"sinf":
            original, scheme, clear = _protection(boxes, child)
            kind = original or kind
            encrypted = encrypted and not clear
        elif child.kind in _PARTS and child.kind not in parts:
            parts[child.kind] = boxes.read(child, _LARGEST_RECORD)
    codec = CODECS.get(kind, "")
    record: Data = parts.get(CONFIGURATIONS.get(codec, b""), b"")
    if codec == "hevc" and b"lhvC" in parts:
        record = _with_layers(bytes(record), bytes(parts[b"lhvC"]))
    extradata = b"" if codec in ("vp8", "vp9") else bytes(record)
    if codec == "mpeg4":
        stream = elementary_stream(parts.get(b"esds", b""))
        if stream is not None:
            codec, extradata = stream
    if not extradata and codec not in ("vp8", "vp9") and b"glbl" in parts:
        extradata = bytes(parts[b"glbl"])
    return SampleEntry(
        kind=kind,
        codec=codec,
        width=int.from_bytes(fixed[24:26], "big"),
        height=int.from_bytes(fixed[26:28], "big"),
        extradata=extradata,
        facts=facts_of(codec, kind, record),
        data_reference=int.from_bytes(fixed[6:8], "big"),
        depth=int.from_bytes(fixed[74:76], "big"),
        encrypted=encrypted,
        scheme=scheme,
        sample_aspect=_aspect(parts.get(b"pasp", b"")),
        colour=_colour(parts.get(b"colr", b"")),
        clean_aperture=_aperture(parts.get(b"clap", b"")),
    )


_PARTS = {b"esds", b"glbl", b"lhvC", b"pasp", b"colr", b"clap", *CONFIGURATIONS.values()}


def _with_layers(record: bytes, layers: bytes) -> bytes:
    """An `hvcC` record with the parameter sets of the `lhvC` record of further layers behind its own, as FFmpeg has them."""
    if len(record) < 23 or len(layers) < 6 or record[22] + layers[5] > 255:
        return record
    return record[:22] + bytes((record[22] + layers[5],)) + record[23:] + layers[6:]


def _protection(boxes: Boxes, sinf: Box) -> tuple[bytes, str, bool]:
    """Of a `sinf` box: the entry's original code, the scheme, and whether it says that samples are clear by default."""
    original, scheme, said = b"", "", []
    for child in boxes.inside(sinf):
        if child.kind == b"frma":
            original = bytes(boxes.read(child, 4))
        elif child.kind == b"schm":
            scheme = bytes(boxes.read(child, 8)[4:]).decode("latin-1")
        elif child.kind == b"schi":
            for box in boxes.inside(child):
                data = boxes.read(box, 32)
                if box.kind == b"tenc" and len(data) > 6:
                    said.append(data[6] != 0)  # ISO/IEC 23001-7, 8.2
                elif box.kind == b"uuid" and bytes(data[:16]) == _PIFF_TENC and len(data) > 22:
                    said.append(any(data[20:23]))
    scheme = scheme if scheme.isascii() and scheme.isalnum() else ""
    return original if len(original) == 4 else b"", scheme, bool(said) and not any(said)


def _aspect(data: Data) -> Fraction | None:
    """`pasp`: width over height of a pixel."""
    wide, high = u32_at(data, 0), u32_at(data, 4)
    return Fraction(wide, high) if wide and high else None


def _colour(data: Data) -> Colour | None:
    """`colr` of types nclx and nclc; a profile of the ICC is no code point."""
    kind = bytes(data[:4])
    if kind not in (b"nclx", b"nclc") or len(data) < 10:
        return None
    points = [code_point(int.from_bytes(data[at : at + 2], "big")) for at in (4, 6)]
    matrix = int.from_bytes(data[8:10], "big")
    matrix = matrix if matrix <= 22 else 2  # 0, identity, is a matrix
    value_range = ColourRange.UNSPECIFIED
    if kind == b"nclx" and len(data) > 10:
        value_range = ColourRange.FULL if data[10] & 0x80 else ColourRange.LIMITED
    return Colour(points[0], points[1], matrix, value_range)


def _aperture(data: Data) -> tuple[Fraction, Fraction] | None:
    """`clap`: width and height of the part that is to be shown."""
    numbers = [u32_at(data, at) for at in (0, 4, 8, 12)]
    return (Fraction(*numbers[:2]), Fraction(*numbers[2:])) if all(numbers) else None
