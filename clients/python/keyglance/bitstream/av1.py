"""AV1: sequence headers and frame headers in temporal units (AV1 bitstream specification, 5.3 to 5.9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from keyglance.bitstream.bits import HEADER_BYTES, BitReader, BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import UNKNOWN, SampleFacts, SampleKind, SequenceFacts, aligned, colour, together
from keyglance.video import Colour

_SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6  # obu_type, 6.2.2
_KEY, _INTRA_ONLY = 0, 2  # frame_type, 6.8.2
_UNITS = 512
_FRAME_BYTES = 256  # of a frame header that are looked at; operating points may put 32 long numbers in front of the size
_PROFILES = ("Main", "High", "Professional")
_SELECT = 2  # SELECT_SCREEN_CONTENT_TOOLS, SELECT_INTEGER_MV
_CHROMA_LOCATIONS = {1: 0, 2: 2}  # chroma_sample_position: vertical is H.273's left, colocated its top-left


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence header: what frame headers need, and what it says of the pictures."""

    reduced: bool
    facts: SequenceFacts
    size_bits: tuple[int, int] = (0, 0)
    id_bits: int = 0  # 0: frames carry no ids
    order_bits: int = 0
    screen_content: int = _SELECT
    integer_motion: int = _SELECT
    time_bits: int = 0  # of frame_presentation_time, 0: none
    removal_bits: int = 0  # of buffer_removal_time, 0: no decoder model
    super_resolution: bool = False
    points: tuple[tuple[int, bool], ...] = ()  # operating_point_idc, decoder_model_present_for_this_op

    @classmethod
    def parse(cls, data: bytes) -> Sequence:
        """sequence_header_obu (5.5.1); BitstreamError where it is broken."""
        bits = BitReader(data)
        profile = bits.u(3)
        if profile > 2:
            raise BitstreamError(f"AV1 profile {profile}, 0 to 2 are known")
        bits.skip(1)
        reduced = bits.flag()
        time_bits = removal_bits = 0
        points: list[tuple[int, bool]] = []
        if reduced:
            bits.skip(5)
        else:
            delay_bits = 0
            if bits.flag():  # timing_info_present_flag
                bits.skip(64)
                equal = bits.flag()
                if equal:
                    _uvlc(bits)
                if bits.flag():  # decoder_model_info_present_flag
                    delay_bits = bits.u(5) + 1
                    bits.skip(32)
                    removal_bits, presentation = bits.u(5) + 1, bits.u(5) + 1
                    time_bits = 0 if equal else presentation
            initial_delay = bits.flag()
            for _ in range(bits.u(5) + 1):
                idc, level = bits.u(12), bits.u(5)
                bits.skip(level > 7)
                model = removal_bits > 0 and bits.flag()
                if model:
                    bits.skip(2 * delay_bits + 1)
                if initial_delay and bits.flag():
                    bits.skip(4)
                points.append((idc, model))
        size_bits = (bits.u(4) + 1, bits.u(4) + 1)
        width, height = (bits.u(count) + 1 for count in size_bits)
        id_bits = 0
        if not reduced and bits.flag():  # frame_id_numbers_present_flag
            delta = bits.u(4) + 2
            id_bits = delta + bits.u(3) + 1
        bits.skip(3)
        order_bits, screen_content, integer_motion = 0, _SELECT, _SELECT
        if not reduced:
            bits.skip(4)
            ordered = bits.flag()
            bits.skip(2 * ordered)
            screen_content = _SELECT if bits.flag() else bits.u(1)
            if screen_content:
                integer_motion = _SELECT if bits.flag() else bits.u(1)
            if ordered:
                order_bits = bits.u(3) + 1
        super_resolution = bits.flag()
        bits.skip(2)
        depth, chroma, described = _color_config(bits, profile)
        return cls(
            reduced,
            SequenceFacts(
                width,
                height,
                aligned(width, 8),
                aligned(height, 8),
                depth,
                chroma,
                _PROFILES[profile],
                described,
                interlaced=False,
            ),
            size_bits,
            id_bits,
            order_bits,
            screen_content,
            integer_motion,
            time_bits,
            removal_bits,
            super_resolution,
            tuple(points),
        )


def _uvlc(bits: BitReader) -> None:
    """uvlc (4.10.3)."""
    zeros = 0
    while not bits.flag():
        zeros += 1
        if zeros == 32:  # the specification lets such a number go on, to no effect; no encoder writes one
            raise BitstreamError("a variable length number that does not end")
    bits.skip(zeros)


def _color_config(bits: BitReader, profile: int) -> tuple[int, str, Colour]:
    """color_config (5.5.2): bit depth, chroma format, colour."""
    depth = 10 if bits.flag() else 8
    if profile == 2 and depth == 10 and bits.flag():
        depth = 12
    mono = profile != 1 and bits.flag()
    codes = (bits.u(8), bits.u(8), bits.u(8)) if bits.flag() else (2, 2, 2)
    if mono:
        return depth, "400", colour(*codes, bits.flag())
    if codes == (1, 13, 0):  # sRGB: 4:4:4 of full range
        return depth, "rgb", colour(*codes, True)
    full = bits.flag()
    match profile:
        case 0:
            chroma = "420"
        case 1:
            chroma = "444"
        case _ if depth < 12:
            chroma = "422"
        case _:
            chroma = ("420" if bits.flag() else "422") if bits.flag() else "444"
    location = _CHROMA_LOCATIONS.get(bits.u(2)) if chroma == "420" else None
    return depth, "rgb" if codes[2] == 0 and chroma == "444" else chroma, colour(*codes, full, location)


@dataclass(frozen=True, slots=True)
class _Frame:
    type: int | None  # None: an earlier frame is shown again
    shown: bool
    facts: SequenceFacts | None = None  # of key and intra-only frames


class Av1:
    """The headers of one AV1 stream; a sequence header in a sample holds for later ones."""

    def __init__(self, record: Record) -> None:
        self.facts: SequenceFacts | None = None
        self.in_band = False
        self.problem = ""
        self._sequence: Sequence | None = None
        self._known: bytes = b""
        for unit in record.units:
            for _ in self._frames(unit, True):
                break
        self.in_band = False

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a temporal unit holds: a shown key frame in front, or else the frame that it shows."""
        frames: list[tuple[SampleKind, bool]] = []
        for frame in self._frames(payload, whole):
            if frame.facts is not None and not frames:
                self.facts = frame.facts
            # A hidden key frame starts nothing yet (7.6.2: a delayed random access point).
            kind = SampleKind.I if frame.type == _KEY and not frame.shown else _kind(frame.type)
            frames.append((kind, frame.shown))
            if frame.shown:
                break
        return together(frames) if frames else UNKNOWN

    def sequences(self, payload: bytes) -> list[SequenceFacts]:
        """Of every sequence header and intra frame of a whole sample; no frame is larger than its sequence header says."""
        found = []
        for kind, layer, data in _units(payload, True):
            if kind == _SEQUENCE:
                found.append(Sequence.parse(data).facts)
                self._take(data)
            elif kind in (_FRAME_HEADER, _FRAME):
                facts = _frame(data[:_FRAME_BYTES], self._sequence, layer).facts
                found += [] if facts is None else [facts]
        return found

    def _frames(self, payload: bytes, whole: bool) -> Iterator[_Frame]:
        """The frame headers of a temporal unit; sequence headers are taken in on the way."""
        for kind, layer, data in _units(payload, whole):
            if kind == _SEQUENCE:
                self._take(data)
            elif kind in (_FRAME_HEADER, _FRAME):
                yield _frame(data[:_FRAME_BYTES], self._sequence, layer)

    def _take(self, data: bytes) -> None:
        if data != self._known:
            try:
                self._sequence = Sequence.parse(data)
            except BitstreamError as error:
                self.problem = f"a sequence header that cannot be read: {error}"
                return
            self._known, self.facts = data, self._sequence.facts
        self.in_band = True


def _kind(frame_type: int | None) -> SampleKind:
    if frame_type is None:
        return SampleKind.REPEAT
    return {_KEY: SampleKind.IDR, _INTRA_ONLY: SampleKind.I}.get(frame_type, SampleKind.P)


def _units(payload: bytes, whole: bool) -> Iterator[tuple[int, tuple[int, int], bytes]]:
    """(type, temporal and spatial layer, beginning) of the open bitstream units of a sample (5.3)."""
    at = 0
    for _ in range(_UNITS):
        if at >= len(payload):
            return
        header = payload[at]
        if header & 0x80:
            raise BitstreamError("an AV1 unit whose forbidden bit is set")
        extension = payload[at + 1] if header & 4 and at + 1 < len(payload) else 0
        at += 1 + (header >> 2 & 1)
        size = len(payload) - at
        if header & 2:
            size, at = _leb128(payload, at)
        if whole and size > len(payload) - at:
            raise BitstreamError(f"an AV1 unit of {size} bytes that leads past its sample's end")
        yield header >> 3 & 15, (extension >> 5, extension >> 3 & 3), payload[at : at + min(size, HEADER_BYTES)]
        at += size


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """leb128 (4.10.5): the value, and where it ends."""
    value = 0
    for number, byte in enumerate(data[at : at + 8]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise BitstreamError("a number in leb128 that does not end")


def _frame(data: bytes, sequence: Sequence | None, layer: tuple[int, int]) -> _Frame:
    """uncompressed_header (5.9.2); of intra frames up to the frame size."""
    bits = BitReader(data)
    if sequence is not None and sequence.reduced:
        return _Frame(_KEY, True, _sized(bits, sequence, _KEY, True, layer))
    if bits.flag():
        return _Frame(None, True)
    kind, shown = bits.u(2), bits.flag()
    if sequence is None or kind not in (_KEY, _INTRA_ONLY):
        return _Frame(kind, shown)
    return _Frame(kind, shown, _sized(bits, sequence, kind, shown, layer))


def _sized(bits: BitReader, sequence: Sequence, kind: int, shown: bool, layer: tuple[int, int]) -> SequenceFacts:
    """The sequence's facts with the size of this intra frame; the sequence's own where the header ends too soon."""
    try:
        return _frame_size(bits, sequence, kind, shown, layer)
    except BitstreamError:
        return sequence.facts


def _frame_size(bits: BitReader, sequence: Sequence, kind: int, shown: bool, layer: tuple[int, int]) -> SequenceFacts:
    resilient = kind == _KEY and shown
    if not sequence.reduced:
        if shown:
            bits.skip(sequence.time_bits)
        else:
            bits.skip(1)
        resilient = resilient or bits.flag()
    bits.skip(1)
    if bits.flag() if sequence.screen_content == _SELECT else sequence.screen_content:
        bits.skip(sequence.integer_motion == _SELECT)
    bits.skip(sequence.id_bits)
    override = not sequence.reduced and bits.flag()
    bits.skip(sequence.order_bits)
    if sequence.removal_bits and bits.flag():
        for idc, model in sequence.points:
            if model and (idc == 0 or (idc >> layer[0] & 1 and idc >> (layer[1] + 8) & 1)):
                bits.skip(sequence.removal_bits)
    if not (kind == _KEY and shown) and bits.u(8) != 0xFF and resilient:
        bits.skip(8 * sequence.order_bits)
    facts = sequence.facts
    width, height = facts.width, facts.height
    if override:
        width, height = (bits.u(count) + 1 for count in sequence.size_bits)
    if sequence.super_resolution and bits.flag():
        bits.skip(3)
    aspect = None
    if bits.flag():  # render_and_frame_size_different
        aspect = Fraction((bits.u(16) + 1) * height, (bits.u(16) + 1) * width)
    if (width, height, aspect) == (facts.width, facts.height, None):
        return facts
    return replace(
        facts,
        width=width,
        height=height,
        coded_width=aligned(width, 8),
        coded_height=aligned(height, 8),
        sample_aspect=aspect,
    )
