"""MPEG-4 part 2: visual object, video object layer and video object plane headers (ISO/IEC 14496-2, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import UNKNOWN, SampleFacts, SampleKind, SequenceFacts, aligned, colour
from keyglance.bitstream.start_codes import all_units, units
from keyglance.video import Colour

# Start codes, table 6-3.
_LAYERS = range(0x20, 0x30)
_VISUAL_SEQUENCE, _GROUP, _VISUAL_OBJECT, _PLANE = 0xB0, 0xB3, 0xB5, 0xB6
_KINDS = (SampleKind.I, SampleKind.P, SampleKind.B, SampleKind.P)  # vop_coding_type; the last is a sprite or global motion
_ASPECTS = {1: Fraction(1), 2: Fraction(12, 11), 3: Fraction(10, 11), 4: Fraction(16, 11), 5: Fraction(40, 33)}  # table 6-12
_ASPECT_CODED = 15
_RECTANGULAR, _GREY = 0, 3  # video_object_layer_shape
_STUDIO = 14  # the profile whose layers have another syntax
#: Profile by the upper four bits of profile_and_level_indication (table G-1), as FFmpeg names them.
_PROFILES = (
    "Simple Profile",
    "Simple Scalable Profile",
    "Core Profile",
    "Main Profile",
    "N-bit Profile",
    "Scalable Texture Profile",
    "Simple Face Animation Profile",
    "Basic Animated Texture Profile",
    "Hybrid Profile",
    "Advanced Real Time Simple Profile",
    "Code Scalable Profile",
    "Advanced Coding Profile",
    "Advanced Core Profile",
    "Advanced Scalable Texture Profile",
    "Simple Studio Profile",
    "Advanced Simple Profile",
)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A video object layer: pictures never reorder where `low_delay`."""

    width: int
    height: int
    low_delay: bool
    interlaced: bool
    bit_depth: int
    sample_aspect: Fraction | None

    @classmethod
    def parse(cls, unit: bytes) -> _Layer:
        """VideoObjectLayer (6.2.3) up to the bit depth; BitstreamError where it is broken or of another shape."""
        bits = BitReader(unit[1:])
        bits.skip(9)
        version = 1
        if bits.flag():
            version = bits.u(4)
            bits.skip(3)
        code = bits.u(4)
        aspect = _ASPECTS.get(code)
        if code == _ASPECT_CODED:
            across, down = bits.u(8), bits.u(8)
            aspect = Fraction(across, down) if across and down else None
        low_delay = False
        if bits.flag():  # vol_control_parameters
            bits.skip(2)
            low_delay = bits.flag()
            if bits.flag():
                bits.skip(79)
        shape = bits.u(2)
        if shape == _GREY and version != 1:
            bits.skip(4)
        bits.skip(1)
        resolution = bits.u(16)
        bits.skip(1)
        if bits.flag():  # fixed_vop_rate
            bits.skip(max(1, (resolution - 1).bit_length()))
        if shape != _RECTANGULAR:
            raise BitstreamError(f"an MPEG-4 layer of shape {shape}, only rectangles (0) are read")
        bits.skip(1)
        width = bits.u(13)
        bits.skip(1)
        height = bits.u(13)
        bits.skip(1)
        interlaced = bits.flag()
        return cls(width, height, low_delay, interlaced, _bit_depth(bits, version), aspect)


def _bit_depth(bits: BitReader, version: int) -> int:
    """The rest of the layer up to bits_per_pixel; 8 where it ends too soon."""
    try:
        bits.skip(1)
        sprite = bits.u(1 if version == 1 else 2)
        if sprite == 1:
            bits.skip(56)
        if sprite in (1, 2):
            bits.skip(9 + (sprite == 1))
        if not bits.flag():
            return 8
        bits.skip(4)
        return max(8, bits.u(4))
    except BitstreamError:
        return 8


class Mpeg4:
    """The headers of one MPEG-4 part 2 stream."""

    def __init__(self, record: Record) -> None:
        self._layer: _Layer | None = None
        self._profile: int | None = None
        self._colour = colour(chroma_location=0)
        self.in_band = False
        self.problem = ""
        for unit in record.units:
            self.read(unit)
        self.in_band = False

    @property
    def facts(self) -> SequenceFacts | None:
        """What the last video object layer says."""
        layer = self._layer
        if layer is None:
            return None
        return SequenceFacts(
            layer.width,
            layer.height,
            aligned(layer.width, 16),
            aligned(layer.height, 16),
            layer.bit_depth,
            "420",
            "" if self._profile is None else _PROFILES[self._profile],
            self._colour,
            layer.sample_aspect,
            layer.interlaced,
        )

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds, of several planes (packed B pictures) the first; headers in it hold for later ones."""
        closed = False
        for _, unit in units(payload):
            code = unit[0]
            if code == _PLANE and len(unit) >= 2:
                kind = _KINDS[unit[1] >> 6]
                if kind is SampleKind.I:
                    alone = closed or (self._layer is not None and self._layer.low_delay)
                    kind = SampleKind.IDR if alone else SampleKind.RECOVERY_POINT
                return SampleFacts(kind)
            if code in _LAYERS:
                self._take(unit)
            elif code == _VISUAL_SEQUENCE and len(unit) >= 2:
                self._profile = unit[1] >> 4
            elif code == _VISUAL_OBJECT:
                self._colour = _visual_object(unit)
            elif code == _GROUP and len(unit) >= 4:  # group_of_vop: 18 bits of time code, closed_gov (6.2.4)
                closed = bool(unit[3] & 0x20)
        return UNKNOWN

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every video object layer of a whole sample."""
        found = []
        for unit in all_units(payload, frozenset(_LAYERS)):
            self._take(unit, strict=True)
            assert self.facts is not None
            found.append(self.facts)
        return found

    def _take(self, unit: bytes, *, strict: bool = False) -> None:
        try:
            if self._profile == _STUDIO:
                raise BitstreamError("the Simple Studio profile, whose syntax is not read")
            layer = _Layer.parse(unit)
        except BitstreamError as error:
            self.problem = f"a video object layer that cannot be read: {error}"
            if strict:
                raise
            return
        self._layer, self.in_band = layer, True


def _visual_object(unit: bytes) -> Colour:
    """VisualObject (6.2.2.2) with video_signal_type."""
    bits = BitReader(unit[1:])
    try:
        if bits.flag():
            bits.skip(7)
        if bits.u(4) != 1 or not bits.flag():  # video ID, video_signal_type
            return colour(chroma_location=0)
        bits.skip(3)
        full = bits.flag()
        codes = (bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else (2, 2, 2)
    except BitstreamError:
        return colour(chroma_location=0)
    return colour(*codes, full, 0)
