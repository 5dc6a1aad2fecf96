"""MPEG-1 and MPEG-2 video: sequence, group and picture headers (ISO/IEC 11172-2, 2.4.2; ISO/IEC 13818-2, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import UNKNOWN, SampleFacts, SampleKind, SequenceFacts, aligned, colour
from keyglance.bitstream.start_codes import START_CODE, all_units, units

_PICTURE, _SEQUENCE, _EXTENSION, _GROUP = 0x00, 0xB3, 0xB5, 0xB8  # start codes, table 6-1
_FIRST_SYSTEM_CODE = 0xB0  # codes from 1 to below it are slices
_CODING_EXTENSION = 8  # picture_coding_extension, table 6-2
_KINDS = {1: SampleKind.I, 2: SampleKind.P, 3: SampleKind.B, 4: SampleKind.I}  # picture_coding_type; 4: MPEG-1's D pictures
_CHROMA = {1: "420", 2: "422", 3: "444"}
#: Profile by three bits of profile_and_level_indication (table 8-2), the escape bit left out as FFmpeg does.
_PROFILES = {0: "4:2:2", 1: "High", 2: "Spatially Scalable", 3: "SNR Scalable", 4: "Main", 5: "Simple"}
#: Display aspect ratio by aspect_ratio_information (table 6-3); 1 means square samples.
_DISPLAY_ASPECTS = {2: Fraction(4, 3), 3: Fraction(16, 9), 4: Fraction(221, 100)}
#: Height to width of a sample by pel_aspect_ratio of MPEG-1 from 1 on (ISO/IEC 11172-2, 2.4.3.2), times 10,000. The four
#: digits are rounded, so the simplest fraction near them is meant.
_PEL_ASPECTS = (10000, 6735, 7031, 7615, 8055, 8437, 8935, 9157, 9815, 10255, 10695, 10950, 11575, 12015)
_FRAME_PICTURE = 3  # picture_structure


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A sequence header and its extensions, as far as they have come."""

    width: int
    height: int
    aspect: int
    extended: bool = False
    profile: str = ""
    progressive: bool = True
    chroma: str = "420"
    low_delay: bool = False
    codes: tuple[int, int, int] = (2, 2, 2)
    display: tuple[int, int] | None = None

    @classmethod
    def parse(cls, unit: bytes) -> _Sequence:
        """sequence_header (6.2.2.1)."""
        bits = BitReader(unit[1:5])
        return cls(bits.u(12), bits.u(12), bits.u(4))

    def extend(self, unit: bytes) -> _Sequence:
        """With sequence_extension (6.2.2.3) or sequence_display_extension (6.2.2.4); others change nothing."""
        bits = BitReader(unit[1:12])
        match bits.u(4):
            case 1:  # sequence_extension
                bits.skip(1)
                profile = _PROFILES.get(bits.u(3), "")
                bits.skip(4)
                progressive, chroma = bits.flag(), bits.u(2)
                if chroma not in _CHROMA:
                    raise BitstreamError("an MPEG-2 chroma format of 0, 1 to 3 allowed")
                width, height = self.width & 0xFFF | bits.u(2) << 12, self.height & 0xFFF | bits.u(2) << 12
                bits.skip(21)
                return replace(
                    self,
                    width=width,
                    height=height,
                    extended=True,
                    profile=profile,
                    progressive=progressive,
                    chroma=_CHROMA[chroma],
                    low_delay=bits.flag(),
                )
            case 2:  # sequence_display_extension
                bits.skip(3)
                codes = (bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else self.codes
                width = bits.u(14)
                bits.skip(1)
                return replace(self, codes=codes, display=(width, bits.u(14)))
            case _:
                return self

    def facts(self, progressive_frame: bool) -> SequenceFacts:
        interlaced = False if self.progressive else None if progressive_frame else True
        # Chroma lies as in 4:2:0 left for MPEG-2, centred for MPEG-1, and on the luma samples of the left column else.
        location = (0 if self.chroma == "420" else 2) if self.extended else 1
        return SequenceFacts(
            self.width,
            self.height,
            aligned(self.width, 16),
            aligned(self.height, 16 if self.progressive else 32),
            8,
            self.chroma,
            self.profile,
            colour(*self.codes, False, location),
            self._sample_aspect(),
            interlaced,
        )

    def _sample_aspect(self) -> Fraction | None:
        """The sample aspect, as FFmpeg makes it of the display aspect.

        By the standard it goes with the display size, where there is one (6.3.3). Streams break that, so the display size
        counts only where it makes the coded picture 4:3 or 16:9.
        """
        if not self.extended:
            if not 1 <= self.aspect <= len(_PEL_ASPECTS):
                return None
            return Fraction(10000, _PEL_ASPECTS[self.aspect - 1]).limit_denominator(100)
        if self.aspect == 1:
            return Fraction(1)
        if (aspect := _DISPLAY_ASPECTS.get(self.aspect)) is None or not (self.width and self.height):
            return None
        if self.display and all(self.display):
            sample = aspect / Fraction(*self.display)
            if sample * Fraction(self.width, self.height) in (Fraction(4, 3), Fraction(16, 9)):
                return sample
        return aspect / Fraction(self.width, self.height)


class Mpeg2:
    """The headers of one MPEG-1 or MPEG-2 stream."""

    problem = ""

    def __init__(self, record: Record) -> None:
        self._sequence: _Sequence | None = None
        self._progressive_frame = True
        self.in_band = False
        for unit in record.units:
            self.read(unit)
        self.in_band = False

    @property
    def facts(self) -> SequenceFacts | None:
        """What the last sequence header says."""
        return None if self._sequence is None else self._sequence.facts(self._progressive_frame)

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds; a sequence header in it holds for later ones."""
        closed, kind, at, field = False, None, 0, False
        for start, unit in units(payload):
            code = unit[0]
            if kind is None:
                if code == _SEQUENCE:
                    self._sequence, self.in_band = _Sequence.parse(unit), True
                elif code == _EXTENSION and self._sequence is not None:
                    sequence, self._sequence = self._sequence, None  # a broken extension leaves none
                    self._sequence = sequence.extend(unit)
                elif code == _GROUP:
                    closed = bool(unit[4:5] and unit[4] & 0x40)
                elif code == _PICTURE and len(unit) >= 3:
                    kind, at = _KINDS.get(unit[2] >> 3 & 7, SampleKind.UNKNOWN), start
            elif code == _EXTENSION and unit[1:2] and unit[1] >> 4 == _CODING_EXTENSION:
                field = self._coding(unit)
                break
            elif code < _FIRST_SYSTEM_CODE:  # a slice, or the next picture: MPEG-1 has no coding extension
                break
        if kind is None:
            return UNKNOWN
        if kind is SampleKind.I:
            low_delay = self._sequence is not None and self._sequence.low_delay
            kind = SampleKind.IDR if closed or low_delay else SampleKind.RECOVERY_POINT
        return SampleFacts(kind, field and payload.find(START_CODE + b"\0", at + 1) < 0)

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every sequence header of a whole sample, each with its extensions."""
        found: list[SequenceFacts] = []
        sequence: _Sequence | None = None
        for unit in all_units(payload, frozenset({_SEQUENCE, _EXTENSION})):
            if unit[0] == _SEQUENCE:
                sequence = _Sequence.parse(unit)
            elif sequence is None:
                continue
            else:
                sequence = sequence.extend(unit)
                found.pop()
            found.append(sequence.facts(self._progressive_frame))
        self._sequence = sequence or self._sequence
        return found

    def _coding(self, unit: bytes) -> bool:
        """picture_coding_extension (6.2.3.1); True for a field picture."""
        bits = BitReader(unit[1:8])
        bits.skip(22)
        structure = bits.u(2)
        bits.skip(8)
        self._progressive_frame = bits.flag()
        return structure != _FRAME_PICTURE
