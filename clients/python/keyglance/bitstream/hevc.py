"""HEVC: sequence and picture parameter sets, slice segment headers (ITU-T H.265, 7.3 and annex E).

Layers above the base layer (multiview, scalable) are passed over.
"""

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

# nal_unit_type, table 7-1: 0 to 31 are slice segments, 16 to 23 of them of random access pictures.
_BLA, _IDR, _CRA, _RANDOM_ACCESS = range(16, 19), range(19, 21), 21, range(16, 24)
_SPS, _PPS, _PREFIX_SEI = 33, 34, 39
_CHROMA = ("400", "420", "422", "444")
_PROFILES = {1: "Main", 2: "Main 10", 3: "Main Still Picture", 4: "Rext", 6: "Multiview Main", 9: "Scc"}
_KINDS = (SampleKind.B, SampleKind.P, SampleKind.I)  # slice_type, table 7-7


@dataclass(frozen=True, slots=True)
class Sps:
    """A sequence parameter set: `fields` where every picture is a single field, and what it says of the pictures."""

    number: int
    fields: bool
    address_bits: int
    facts: SequenceFacts

    @classmethod
    def parse(cls, data: bytes) -> Sps:
        """Of the unescaped bytes behind the NAL unit header (7.3.2.2.1); BitstreamError where they are broken."""
        bits = BitReader(data)
        bits.skip(4)
        sub_layers = bits.u(3)
        if sub_layers > 6:
            raise BitstreamError("8 temporal sub-layers, at most 7 allowed")
        bits.skip(1)
        profile, progressive, interlaced = _profile(bits, sub_layers)
        number = bits.ue(15)
        chroma = bits.ue(3)
        separate = chroma == 3 and bits.flag()
        width, height = bits.ue(65535), bits.ue(65535)
        across, down = SUBSAMPLING["400" if separate else _CHROMA[chroma]]
        left = right = top = bottom = 0
        if bits.flag():
            left, right, top, bottom = (bits.ue(65535) for _ in range(4))
        depth = 8 + max(bits.ue(8), bits.ue(8))
        order_bits = bits.ue(12) + 4
        for _ in range(sub_layers + 1 if bits.flag() else 1):
            for _ in range(3):
                bits.ue()
        smallest = bits.ue(3) + 3
        tree = smallest + bits.ue(3)
        for _ in range(4):
            bits.ue()
        if bits.flag() and bits.flag():
            _skip_scaling_lists(bits)
        bits.skip(2)
        if bits.flag():  # pcm_enabled_flag
            bits.skip(8)
            bits.ue()
            bits.ue()
            bits.skip(1)
        _skip_reference_sets(bits)
        if bits.flag():  # long_term_ref_pics_present_flag
            for _ in range(bits.ue(32)):
                bits.skip(order_bits + 1)
        bits.skip(2)
        # The range is limited where it is not told (E.3.1), and chroma of 4:2:0 lies left.
        described, fields = Usability(colour=colour(full=False, chroma_location=0 if chroma == 1 else None)), False
        with contextlib.suppress(BitstreamError):
            if bits.flag():
                described = Usability.read(bits, described.colour.chroma_location, False)
                bits.skip(1)
                fields = bits.flag()
        block = 1 << smallest
        if width % block or height % block:
            raise BitstreamError(f"a coded size of {width}x{height}, multiples of {block} allowed")
        trees = -(-width >> tree) * -(-height >> tree)
        return cls(
            number,
            fields,
            (trees - 1).bit_length(),
            SequenceFacts(
                width - ((left + right) << across),
                height - ((top + bottom) << down),
                width,
                height,
                depth,
                "rgb" if chroma == 3 and described.colour.matrix == 0 else _CHROMA[chroma],
                _PROFILES.get(profile, ""),
                described.colour,
                described.sample_aspect,
                True if fields or (interlaced and not progressive) else False if progressive and not interlaced else None,
                (left << across, top << down),
            ),
        )


def _profile(bits: BitReader, sub_layers: int) -> tuple[int, bool, bool]:
    """profile_tier_level (7.3.3): general profile, general_progressive_source_flag, general_interlaced_source_flag."""
    bits.skip(3)
    profile, compatible = bits.u(5), bits.u(32)
    if profile == 0:  # the last profile that the stream says to be compatible with
        profile = next((number for number in range(31, 0, -1) if compatible >> (31 - number) & 1), 0)
    progressive, interlaced = bits.flag(), bits.flag()
    bits.skip(46 + 8)
    if sub_layers:
        present = [(bits.flag(), bits.flag()) for _ in range(8)]
        for has_profile, has_level in present[:sub_layers]:
            bits.skip(88 * has_profile + 8 * has_level)
    return profile, progressive, interlaced


def _skip_scaling_lists(bits: BitReader) -> None:
    """scaling_list_data (7.3.4)."""
    for size in range(4):
        for _ in range(2 if size == 3 else 6):
            if not bits.flag():
                bits.ue()
                continue
            for _ in range(min(64, 16 << (2 * size)) + (size > 1)):
                bits.se()


def _skip_reference_sets(bits: BitReader) -> None:
    """st_ref_pic_set for each set of the sequence (7.3.7)."""
    pictures = 0  # in the set before
    for index in range(bits.ue(64)):
        if index and bits.flag():
            bits.skip(1)
            bits.ue(1 << 15)
            # used_by_curr_pic_flag, and where it is 0 use_delta_flag: a picture is in the set if either is 1.
            pictures = sum(bits.flag() or bits.flag() for _ in range(pictures + 1))
        else:
            pictures = bits.ue(16) + bits.ue(16)
            for _ in range(pictures):
                bits.ue(1 << 15)
                bits.skip(1)
        if pictures > 32:
            raise BitstreamError(f"{pictures} pictures in a reference picture set, at most 16 allowed")


@dataclass(frozen=True, slots=True)
class _Pps:
    """Of a picture parameter set what slice segment headers need."""

    dependent: bool
    extra_bits: int


def _sequence(data: bytes) -> tuple[int, Sps]:
    sps = Sps.parse(data)
    return sps.number, sps


def _picture(data: bytes) -> tuple[int, tuple[int, _Pps]]:
    bits = BitReader(data[:SLICE_BYTES])  # 7.3.2.3.1
    number, sequence = bits.ue(63), bits.ue(15)
    dependent, _ = bits.flag(), bits.flag()
    return number, (sequence, _Pps(dependent, bits.u(3)))


class Hevc:
    """The headers of one HEVC stream; parameter sets in samples hold for later ones."""

    def __init__(self, record: Record) -> None:
        self._length_size = record.length_size
        self._sets: ParameterSets[Sps, _Pps] = ParameterSets(_sequence, _picture)
        self._transfer: int | None = None
        self._active: Sps | None = None
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
        return None if sps is None else with_transfer(sps.facts, self._transfer, interlaced=sps.facts.interlaced)

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample holds; parameter sets in it are kept."""
        self._sets.begin()
        recovery = False
        found = units(payload, form_of(payload, self._length_size), whole=whole)
        for unit in found:
            kind = _type(unit)
            if kind is not None and kind < 32:
                return self._picture(kind, recovery, unit, found)
            recovery = self._take(unit) or recovery
        return UNKNOWN

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every sequence parameter set that a whole sample holds or that a slice of it refers to."""
        self._sets.begin()
        found = []
        for unit in all_units(payload, form_of(payload, self._length_size)):
            kind = _type(unit)
            if kind == _SPS:
                found.append(self._sets.require_sequence(unescaped(unit)[2:]).facts)
            elif kind is not None and kind < 32:
                if (sps := self._slice(kind, unit)[0]) is None:
                    raise BitstreamError("a slice whose parameter sets are missing")
                found.append(sps.facts)
            else:
                self._take(unit)
        return found

    def _take(self, unit: bytes) -> bool:
        """Takes in a unit that is no slice segment; True where it marks a recovery point (D.2.8)."""
        recovery = False
        kind = _type(unit)
        if kind == _SPS:
            self.in_band = self._sets.add_sequence(unescaped(unit)[2:]) or self.in_band
        elif kind == _PPS:
            self._sets.add_picture(unescaped(unit)[2:])
        elif kind == _PREFIX_SEI:
            for number, payload in sei_messages(unescaped(unit)[2:]):
                if number == RECOVERY_POINT:
                    recovery = True
                elif number == ALTERNATIVE_TRANSFER and payload:
                    self._transfer = payload[0]
        return recovery

    def _picture(self, kind: int, recovery: bool, unit: bytes, rest: Iterator[bytes]) -> SampleFacts:
        sps, coded = self._slice(kind, unit)
        self._active = sps or self._active
        field = sps is not None and sps.fields
        if kind in _IDR:
            return SampleFacts(SampleKind.IDR, field)
        if kind == _CRA:
            return SampleFacts(SampleKind.CRA, field)
        if kind in _BLA:
            return SampleFacts(SampleKind.BLA, field)
        if coded is SampleKind.I:
            coded = next((other for other in self._others(rest) if other is not SampleKind.I), coded)
            if coded is SampleKind.I and recovery:
                coded = SampleKind.RECOVERY_POINT
        return SampleFacts(coded or SampleKind.UNKNOWN, field)

    def _others(self, rest: Iterator[bytes]) -> Iterator[SampleKind]:
        """The types of a picture's further slices, as far as they can be read."""
        for unit in rest:
            kind = _type(unit)
            if kind is not None and kind < 32:
                try:
                    _, coded = self._slice(kind, unit)
                except BitstreamError:
                    return
                if coded is not None:
                    yield coded

    def _slice(self, kind: int, unit: bytes) -> tuple[Sps | None, SampleKind | None]:
        """The sequence and the type of a slice segment (7.3.6.1); no type where it depends on the one before."""
        bits = BitReader(unescaped(unit[:SLICE_BYTES])[2:])
        first = bits.flag()
        if kind in _RANDOM_ACCESS:  # no_output_of_prior_pics_flag
            bits.skip(1)
        sps, pps = self._sets.of_picture(bits.ue(63))
        if sps is None or pps is None:
            return sps, None
        if not first:
            if pps.dependent and bits.flag():
                return sps, None
            bits.skip(sps.address_bits)
        bits.skip(pps.extra_bits)
        return sps, _KINDS[bits.ue(2)]


def _type(unit: bytes) -> int | None:
    """nal_unit_type, None for units of layers above the base layer (7.3.1.2)."""
    if len(unit) < 2 or unit[0] & 1 or unit[1] >> 3:
        return None
    return unit[0] >> 1 & 63
