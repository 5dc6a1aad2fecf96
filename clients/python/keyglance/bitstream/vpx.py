"""VP8 frame tags (RFC 6386, 9.1) and VP9 uncompressed headers (VP9 bitstream specification, 6.2 and annex B)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import UNKNOWN, SampleFacts, SampleKind, SequenceFacts, aligned, colour, together
from keyglance.video import Colour, ColourRange

_HEADER = 32  # bytes of a frame that are looked at
#: H.273 matrix coefficients by VP9's color_space (7.2.2): unknown, BT.601, BT.709, SMPTE 170, SMPTE 240, BT.2020, reserved, RGB.
_MATRICES = (2, 5, 1, 6, 7, 9, 2, 0)
_RGB = 7
#: RFC 6386, 9.2: BT.601, the only colour space that it defines, and so its range.
_VP8_COLOUR = Colour(matrix=5, range=ColourRange.LIMITED)


class Vp8:
    """The headers of one VP8 stream."""

    problem = ""

    def __init__(self, record: Record) -> None:
        self.facts: SequenceFacts | None = None
        self.in_band = False

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds."""
        tag = payload[:10]
        if len(tag) < 3:
            return UNKNOWN
        shown = bool(tag[0] & 0x10)
        if tag[0] & 1:
            return SampleFacts(SampleKind.P if shown else SampleKind.HIDDEN, shown=shown)
        if len(tag) < 10 or tag[3:6] != b"\x9d\x01\x2a":
            raise BitstreamError("a VP8 key frame without its start code")
        width, height = (int.from_bytes(tag[at : at + 2], "little") & 0x3FFF for at in (6, 8))
        self.facts = SequenceFacts(width, height, aligned(width, 16), aligned(height, 16), colour=_VP8_COLOUR, interlaced=False)
        self.in_band = True
        return SampleFacts(SampleKind.IDR, shown=shown)

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of the frame, if it is a key frame; all others have its size."""
        return [self.facts] if self.read(payload).kind is SampleKind.IDR and self.facts is not None else []


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: SampleKind  # IDR, I, P or REPEAT
    shown: bool
    facts: SequenceFacts | None = None  # of key and intra-only frames
    size: tuple[int, int] | None = None  # of inter frames that do not take a reference's


class Vp9:
    """The headers of one VP9 stream."""

    problem = ""

    def __init__(self, record: Record) -> None:
        self.facts: SequenceFacts | None = None
        self.in_band = False

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds: of a superframe, the key frame it starts with or else the frame that it shows."""
        frames = [_vp9_frame(part) for part in (_superframe(payload) if whole else [payload[:_HEADER]])]
        if not frames:
            return UNKNOWN
        for frame in frames:
            if frame.facts is not None:
                self.facts, self.in_band = frame.facts, True
                break
        if frames[0].kind is SampleKind.IDR:  # it refreshes every reference: what follows in the superframe needs it alone
            return SampleFacts(SampleKind.IDR, shown=any(frame.shown for frame in frames))
        return together([(frame.kind, frame.shown) for frame in frames])

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every frame of a whole sample that tells a size of its own; inter frames have the last key frame's format."""
        found = []
        for part in _superframe(payload):
            frame = _vp9_frame(part)
            if frame.facts is not None:
                self.facts = frame.facts
                found.append(frame.facts)
            elif frame.size is not None:
                if self.facts is None:
                    raise BitstreamError("a VP9 inter frame before any key frame")
                width, height = frame.size
                changed = replace(self.facts, width=width, height=height)
                found.append(replace(changed, coded_width=aligned(width, 8), coded_height=aligned(height, 8)))
        return found


def _superframe(payload: bytes) -> list[bytes]:
    """The beginnings of the frames of a sample (annex B); a frame without bytes is left out."""
    marker = payload[-1] if payload else 0
    if marker & 0xE0 == 0xC0:
        count, size = (marker & 7) + 1, (marker >> 3 & 3) + 1
        index = payload[-(2 + count * size) :]
        if len(index) == 2 + count * size and index[0] == marker:
            frames, at = [], 0
            for number in range(count):
                length = int.from_bytes(index[1 + number * size : 1 + (number + 1) * size], "little")
                if length > len(payload) - len(index) - at:
                    raise BitstreamError(f"a superframe whose frame {number} of {length} bytes leads past its end")
                if length:
                    frames.append(payload[at : at + min(length, _HEADER)])
                at += length
            return frames
    return [payload[:_HEADER]] if payload else []


def _vp9_frame(data: bytes) -> _Frame:
    """uncompressed_header (6.2) up to the frame size."""
    bits = BitReader(data)
    if bits.u(2) != 2:
        raise BitstreamError("a VP9 frame without its marker")
    profile = bits.u(1) | bits.u(1) << 1
    if profile == 3 and bits.flag():
        raise BitstreamError("a VP9 profile above 3")
    if bits.flag():
        return _Frame(SampleKind.REPEAT, True)
    key, shown, resilient = not bits.flag(), bits.flag(), bits.flag()
    if not key:
        intra = not shown and bits.flag()
        if not intra:
            return _Frame(SampleKind.P, shown, size=_inter_size(bits, resilient))
        bits.skip(0 if resilient else 2)
    if bits.u(24) != 0x498342:
        raise BitstreamError("a VP9 frame without its synchronisation code")
    # An intra-only frame of profile 0 has no color_config (7.2: 8 bits, 4:2:0, BT.601).
    depth, chroma, described = _color_config(bits, profile) if key or profile else (8, "420", colour(matrix=5, full=False))
    if not key:
        bits.skip(8)
    width, height = bits.u(16) + 1, bits.u(16) + 1
    return _Frame(
        SampleKind.IDR if key else SampleKind.I,
        shown,
        SequenceFacts(
            width, height, aligned(width, 8), aligned(height, 8), depth, chroma, f"Profile {profile}", described, interlaced=False
        ),
    )


def _inter_size(bits: BitReader, resilient: bool) -> tuple[int, int] | None:
    """frame_size_with_refs (6.2.5) and what stands before it; None for a reference's size, or where the header ends before."""
    try:
        bits.skip((0 if resilient else 2) + 8 + 3 * 4)
        if any(bits.flag() for _ in range(3)):
            return None
        return bits.u(16) + 1, bits.u(16) + 1
    except BitstreamError:
        return None


def _color_config(bits: BitReader, profile: int) -> tuple[int, str, Colour]:
    """color_config (6.2.2): bit depth, chroma format, colour."""
    depth = (12 if bits.flag() else 10) if profile >= 2 else 8
    space = bits.u(3)
    if space == _RGB:
        if not profile & 1:
            raise BitstreamError(f"RGB in VP9 profile {profile}, only 1 and 3 have it")
        bits.skip(1)
        return depth, "rgb", colour(matrix=0, full=True)
    full = bits.flag()
    across, down = (bits.flag(), bits.flag()) if profile & 1 else (True, True)
    if profile & 1:
        bits.skip(1)
        if across and down:
            raise BitstreamError(f"4:2:0 in VP9 profile {profile}, only 0 and 2 have it")
    chroma = ("420" if down else "422") if across else "440" if down else "444"
    return depth, chroma, colour(matrix=_MATRICES[space], full=full)
