"""H.264: sequence and picture parameter sets, slice headers, recovery points (ITU-T H.264, 7.3 and annex E)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import SUBSAMPLING, UNKNOWN, SampleFacts, SampleKind, SequenceFacts, colour
from keyglance.bitstream.nal import (
    ALTERNATIVE_TRANSFER,
    RECOVERY_POINT,
    SLICE_BYTES,
    Usability,
    all_units,
    form_of,
    sei_messages,
    unescaped,
    units,
)
from keyglance.bitstream.parameters import ParameterSets, with_transfer

_SLICE, _PARTITION_A, _IDR_SLICE, _SEI, _SPS, _PPS = 1, 2, 5, 6, 7, 8  # nal_unit_type, table 7-1
_SLICES = frozenset({_SLICE, _PARTITION_A, _IDR_SLICE})
_CHROMA = ("400", "420", "422", "444")
#: profile_idc with chroma format, bit depth and scaling lists in the sequence parameter set (7.3.2.1.1).
_WITH_FORMAT = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})
_INTRA_PROFILES = frozenset({110, 122, 244})
_PROFILES = {
    66: "Baseline",
    77: "Main",
    88: "Extended",
    100: "High",
    110: "High 10",
    118: "Multiview High",
    122: "High 4:2:2",
    128: "Stereo High",
    144: "High 4:4:4",
    244: "High 4:4:4 Predictive",
    44: "CAVLC 4:4:4",
}
_KINDS = (SampleKind.P, SampleKind.B, SampleKind.I, SampleKind.P, SampleKind.I)  # P, B, I, SP, SI: slice_type modulo 5


@dataclass(frozen=True, slots=True)
class Sps:
    """A sequence parameter set: what slice headers need, and what it says of the pictures."""

    number: int
    separate_planes: bool
    frame_number_bits: int
    frames_only: bool
    facts: SequenceFacts

    @classmethod
    def parse(cls, data: bytes) -> Sps:
        """Of the unescaped bytes behind the NAL unit header (7.3.2.1.1); BitstreamError where they are broken."""
        bits = BitReader(data)
        profile, constraints, _ = bits.u(8), bits.u(8), bits.u(8)
        number = bits.ue(31)
        chroma, separate, depth = 1, False, 8
        if profile in _WITH_FORMAT:
            chroma = bits.ue(3)
            separate = chroma == 3 and bits.flag()
            depth = 8 + max(bits.ue(6), bits.ue(6))
            bits.skip(1)
            if bits.flag():
                _skip_scaling_lists(bits, 8 if chroma != 3 else 12)
        frame_number_bits = bits.ue(12) + 4
        order = bits.ue(2)
        if order == 0:
            bits.ue(12)
        elif order == 1:
            bits.skip(1)
            for _ in range(2):
                bits.ue()
            for _ in range(bits.ue(255)):
                bits.ue()
        bits.ue()
        bits.skip(1)
        width = 16 * (bits.ue(4095) + 1)
        map_units = bits.ue(4095) + 1
        frames_only = bits.flag()
        adaptive = not frames_only and bits.flag()
        height = 16 * map_units * (1 if frames_only else 2)
        bits.skip(1)
        across, down = SUBSAMPLING["400" if separate else _CHROMA[chroma]]
        left = right = top = bottom = 0
        if bits.flag():
            left, right, top, bottom = (bits.ue(65535) for _ in range(4))
        described = Usability(colour=colour(chroma_location=0 if chroma == 1 else None))
        with contextlib.suppress(BitstreamError):
            if bits.flag():
                described = Usability.read(bits, described.colour.chroma_location, None)
        name = _PROFILES.get(profile, "")
        if profile == 66 and constraints & 0x40:
            name = "Constrained Baseline"
        elif profile in _INTRA_PROFILES and constraints & 0x10:
            name = "High 4:4:4 Intra" if profile == 244 else f"{name} Intra"
        format_name = "rgb" if chroma == 3 and described.colour.matrix == 0 else _CHROMA[chroma]
        return cls(
            number,
            separate,
            frame_number_bits,
            frames_only,
            SequenceFacts(
                width - ((left + right) << across),
                height - ((top + bottom) << down << (not frames_only)),
                width,
                height,
                depth,
                format_name,
                name,
                described.colour,
                described.sample_aspect,
                False if frames_only else True if adaptive else None,
                (left << across, top << down << (not frames_only)),
            ),
        )


def _skip_scaling_lists(bits: BitReader, count: int) -> None:
    """seq_scaling_matrix (7.3.2.1.1.1)."""
    for index in range(count):
        if bits.flag():
            scale = 8
            for _ in range(16 if index < 6 else 64):
                scale = (scale + bits.se()) % 256
                if scale == 0:
                    break


def _sequence(data: bytes) -> tuple[int, Sps]:
    sps = Sps.parse(data)
    return sps.number, sps


def _picture(data: bytes) -> tuple[int, tuple[int, None]]:
    bits = BitReader(data[:SLICE_BYTES])  # pic_parameter_set_id, seq_parameter_set_id (7.3.2.2)
    number = bits.ue(255)
    return number, (bits.ue(31), None)


@dataclass(frozen=True, slots=True)
class _Slice:
    kind: SampleKind
    all_alike: bool  # every slice of the picture has this kind
    sps: Sps | None
    field: bool
    bottom: bool


class H264:
    """The headers of one H.264 stream; parameter sets in samples hold for later ones."""

    def __init__(self, record: Record) -> None:
        self._length_size = record.length_size
        self._sets = ParameterSets(_sequence, _picture)
        self._transfer: int | None = None
        self._active: Sps | None = None
        self._field: bool | None = None
        self.in_band = False
        for unit in record.units:
            self._take(unit)
        self.in_band = False

    @property
    def problem(self) -> str:
        """What was wrong with the last parameter set that could not be read, "" if nothing."""
        return self._sets.problem

    @property
    def facts(self) -> SequenceFacts | None:
        """Of the sequence that the last sample read belongs to; before one, of the first parameter set."""
        sps = self._active or self._sets.first
        if sps is None:
            return None
        return with_transfer(sps.facts, self._transfer, interlaced=True if self._field else sps.facts.interlaced)

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds; parameter sets in it are kept."""
        self._sets.begin()
        recovery = False
        found = iter(units(payload, form_of(payload, self._length_size), whole=whole))
        for unit in found:
            kind = unit[0] & 31
            if kind in _SLICES:
                return self._picture(kind == _IDR_SLICE, recovery, self._slice(unit), found)
            if kind == _SEI:
                recovery = self._sei(unit) or recovery
            else:
                self._take(unit)
        return UNKNOWN

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every sequence parameter set that a whole sample holds or that a slice of it refers to."""
        self._sets.begin()
        found = []
        for unit in all_units(payload, form_of(payload, self._length_size)):
            kind = unit[0] & 31
            if kind == _SPS:
                found.append(self._sets.require_sequence(unescaped(unit)[1:]).facts)
            elif kind in _SLICES:
                if (sps := self._slice(unit).sps) is None:
                    raise BitstreamError("a slice whose parameter sets are missing")
                found.append(sps.facts)
            else:
                self._take(unit)
        return found

    def _take(self, unit: bytes) -> None:
        kind = unit[0] & 31
        if kind == _SPS:
            self.in_band = self._sets.add_sequence(unescaped(unit)[1:]) or self.in_band
        elif kind == _PPS:
            self._sets.add_picture(unescaped(unit)[1:])
        elif kind == _SEI:
            self._sei(unit)

    def _sei(self, unit: bytes) -> bool:
        """Takes in what counts of supplemental information; True where it marks a recovery point (D.1.8)."""
        recovery = False
        for kind, payload in sei_messages(unescaped(unit)[1:]):
            if kind == RECOVERY_POINT:
                recovery = True
            elif kind == ALTERNATIVE_TRANSFER and payload:
                self._transfer = payload[0]
        return recovery

    def _slice(self, unit: bytes) -> _Slice:
        """The first fields of a slice header (7.3.3); those behind the type only where the parameter sets are known."""
        bits = BitReader(unescaped(unit[:SLICE_BYTES])[1:])
        bits.ue()
        kind = bits.ue(9)
        sps, _ = self._sets.of_picture(bits.ue(255))
        field = bottom = False
        if sps is not None and not sps.frames_only:
            if sps.separate_planes:
                bits.skip(2)
            bits.skip(sps.frame_number_bits)
            field = bits.flag()
            bottom = field and bits.flag()
        return _Slice(_KINDS[kind % 5], kind >= 5, sps, field, bottom)

    def _picture(self, idr: bool, recovery: bool, first: _Slice, rest: Iterator[bytes]) -> SampleFacts:
        self._active, self._field = first.sps or self._active, first.field
        kind = first.kind
        alone = first.field
        if alone or (kind is SampleKind.I and not idr and not first.all_alike):
            for other in self._slices(rest):
                if other.field and other.bottom != first.bottom:
                    alone = False
                    break
                if kind is SampleKind.I and not idr and other.kind is not SampleKind.I:
                    kind = other.kind
                    if not alone:
                        break
        if idr:
            kind = SampleKind.IDR
        elif kind is SampleKind.I and recovery:
            kind = SampleKind.RECOVERY_POINT
        return SampleFacts(kind, alone)

    def _slices(self, rest: Iterator[bytes]) -> Iterator[_Slice]:
        for unit in rest:
            if unit[0] & 31 in _SLICES:
                try:
                    yield self._slice(unit)
                except BitstreamError:
                    return
