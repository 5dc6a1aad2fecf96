"""The bitstream side of a hardware decoder: what may be fed to it, in which form, and which size is to be announced.

A hardware decoder trusts. A picture below its smallest size breaks it for good; a size that was not announced comes back
scaled, without a word; a predicted picture without its references shows what another call left behind. So every packet's
headers are read here, in memory-safe code, before it gets there. Raises `Unfit` for what software has to decode.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from decoder_pool.decoder import DecodeUnit
from decoder_pool.nvdec.intake import Intake, Ready, memmem
from decoder_pool.nvdec.surface import CHROMA_FORMATS, Layout, Surface
from keyglance.bitstream import Described, SampleFacts, SampleKind, StreamHeaders
from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.config_records import Record, av1c, avcc, decoder_specific_info, hvcc
from keyglance.bitstream.facts import aligned
from keyglance.bitstream.nal import form_of, unescaped
from keyglance.video import StreamConfig

_CODE = b"\0\0\1"
_START_CODE = b"\0\0\0\1"
_PLANE = b"\0\0\1\xb6"  # vop_start_code of MPEG-4 part 2
_LENGTH = struct.Struct(">I")  # of a NAL unit in MP4 and Matroska, nearly always
_HEAD = 4096  # bytes of parameter sets that an intake has room for
_START = 5  # bytes of a slice that tell whether it starts a picture
_STARTS = 64  # of those that are remembered
_UNITS = 1024  # of one packet; a picture of 4096x4096 in slices of one row of macroblocks has 256
_IDR_FACTS = SampleFacts(SampleKind.IDR)
# nal_unit_type (H.264, table 7-1; H.265, table 7-1): IDR slices; SEI, delimiters, ends, filler.
_IDR_H264, _HARMLESS_H264 = (5,), (6, 9, 10, 11, 12)
_IDR_HEVC, _HARMLESS_HEVC = (19, 20), (35, 36, 37, 38, 39, 40)
_INTRA_SLICES = (2, 4)  # slice_type modulo 5: I and SI, the only ones of an IDR picture
_NAL_CODECS = ("h264", "hevc")
_INTERLACED_AS_TOLD = ("h264", "mpeg1video", "mpeg2video", "mpeg4")
_RASL = (8, 9)  # HEVC nal_unit_type of leading pictures that refer to pictures before a random access point (H.265, table 7-1)


class Unfit(Exception):
    """Hardware cannot decode this as it should be; the message is one sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes in coded pixels that a decoder can be set to."""

    least_width: int
    least_height: int
    width: int
    height: int
    macroblocks: int

    def refusal(self, width: int, height: int) -> str | None:
        """Why a coded size is out of bounds."""
        if width < self.least_width or height < self.least_height:
            return f"pictures of {width}x{height} are smaller than {self.least_width}x{self.least_height}"
        if width > self.width or height > self.height:
            return f"pictures of {width}x{height} are larger than {self.width}x{self.height}"
        if (blocks := -(-width // 16) * -(-height // 16)) > self.macroblocks:
            return f"pictures of {width}x{height} have {blocks} macroblocks, at most {self.macroblocks} allowed"
        return None


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a run of pictures has in common, as far as a decoder has to be set to it: the size before cropping, and the
    sequence parameter sets, by which it may need more surfaces.
    """

    coded: tuple[int, int]
    parameter_sets: frozenset[bytes] = frozenset()


class Feed(NamedTuple):
    """One packet as the decoder takes it, what it holds, and how its picture will lie in memory."""

    data: bytes | Ready
    facts: SampleFacts
    layout: Layout
    sequence: Sequence

    @property
    def surface(self) -> Surface:
        """What the picture will be before it is cropped."""
        return self.layout.surface


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is known of a stream before its first sample: how pictures lie, if its headers are known, or why it is unfit."""

    layout: Layout | None
    unfit: str = ""
    #: With the parameter sets that fit: they need no second look.
    sequence: Sequence = Sequence((0, 0))
    #: Whether the configuration record has one sequence parameter set only, so that every picture without others in its
    #: packet is of that.
    single: bool = False

    @classmethod
    def of(cls, config: StreamConfig, bounds: Bounds) -> StreamPlan:
        """For a decoder of `bounds`."""
        try:
            stream = HardwareStream(config, bounds)
            told = stream._headers.describe()
            layout = None if told.problem or not told.coded_width else stream._layout(told)
            single = layout is not None and sum(map(stream._is_sequence, stream._record.units)) == 1
            return cls(layout, "", stream._sequence(told), single)
        except Unfit as unfit:
            return cls(None, str(unfit))

    @property
    def surface(self) -> Surface | None:
        """What pictures will be before they are cropped."""
        return self.layout.surface if self.layout is not None else None


class HardwareStream:
    """One stream set on a decoder of `bounds`."""

    def __init__(self, config: StreamConfig, bounds: Bounds, plan: StreamPlan | None = None) -> None:
        self._config = config
        self._bounds = bounds
        self._plan = plan
        #: Whether it has read headers that its decoder was spared: what it knows is not what the decoder knows.
        self.refused = False
        self._record = _record(config)
        self._head = self._plain_head()
        self._starts: dict[bytes, bool] = {}  # whether a slice that begins so starts a picture
        self._checked: set[bytes] = set(plan.sequence.parameter_sets if plan is not None else ())
        self._laid: tuple[object, Layout] | None = None  # the last layout, and what of the headers it follows from
        self._skipping_leading = False
        self._last: Feed | None = None  # of the unit
        self._first: SampleFacts | Feed | None = None  # of the packet that `begin` has looked at
        if plan is None:
            self._check_record()

    @functools.cached_property
    def _headers(self) -> StreamHeaders:
        # Without the container's size, so that the size is the bitstream's own: the one that has to be announced.
        return StreamHeaders(replace(self._config, width=0, height=0))

    def begin(self, unit: DecodeUnit, first: bytes | Intake) -> SampleKind:
        """What a unit that starts with this payload starts with; Unfit where that may need a picture before it.

        A payload in an intake may be made ready for the decoder there, after which `feed` takes nothing else for it.
        """
        self._last = None
        if isinstance(first, Intake):
            self._first = self._plain_idr(first)
            if self._first is not None:
                self._skipping_leading = False
                return SampleKind.IDR
            first = first.payload()
        self._first = facts = self._headers.kind(first)
        self._skipping_leading = facts.kind in (SampleKind.CRA, SampleKind.BLA)
        if not facts.kind.intra:
            raise Unfit(f"the first sample holds no picture that is known to decode alone ({facts.kind.value})")
        alone = unit.wanted == (unit.packets[0].sample,)
        exact = facts.kind in (SampleKind.IDR, SampleKind.CRA, SampleKind.BLA) or (
            facts.kind is SampleKind.RECOVERY_POINT and self._config.codec not in _NAL_CODECS
        )
        if not (alone or exact):
            raise Unfit(f"predicted pictures behind a sample that is no sure start ({facts.kind.value})")
        return facts.kind

    def feed(self, payload: bytes | Intake, *, key: bool) -> Feed | None:
        """A packet, ready to be fed once the decoder follows its surface and sequence; None where it is to be left out."""
        first, self._first = self._first, None
        if isinstance(first, Feed):
            self._last = first
            return first
        if isinstance(payload, Intake):
            payload = payload.payload()
        facts = first or self._headers.kind(payload)
        if self._skipping_leading and self._last is not None:
            if self._leading(payload):
                return None
            self._skipping_leading = not facts.kind.random_access
        key = key or self._last is None
        data = self._annexb(payload, key) if self._config.codec in _NAL_CODECS else self._plain(payload, key)
        told = self._headers.describe()
        if told.problem or not told.coded_width:
            raise Unfit(told.problem or "no size is told by the bitstream")
        self._check(told)
        feed = Feed(data, facts, self._layout(told), self._sequence(told))
        last, self._last = self._last, feed
        if last is not None and not facts.kind.intra and (last.surface, last.sequence) != (feed.surface, feed.sequence):
            raise Unfit(f"the headers change at a predicted picture (now {told.config.width}x{told.config.height})")
        return feed

    def _plain_head(self) -> bytes | None:
        """What goes in front of a plain IDR picture; None where there is none that would be known at a glance."""
        plan, record = self._plan, self._record
        if plan is None or plan.layout is None or not plan.single or record.length_size != _LENGTH.size:
            return None
        head = b"".join(_START_CODE + unit for unit in record.units)
        hides_none = head.count(_CODE) == len(record.units)
        return head if hides_none and len(head) <= _HEAD else None

    def _plain_idr(self, intake: Intake) -> Feed | None:
        """The usual first packet, recognised at a glance: an IDR picture by the only parameter sets there are.

        Its lengths become start codes where they lie, which are as long. None, and nothing is changed, if it is another one.
        """
        if self._head is None or self._plan is None or self._plan.layout is None:
            return None
        h264 = self._config.codec == "h264"
        pictures, harmless = (_IDR_H264, _HARMLESS_H264) if h264 else (_IDR_HEVC, _HARMLESS_HEVC)
        memory, at, end = intake.memory, intake.begin, intake.end
        lengths: list[int] = []
        coded = False
        while at + 4 < end and len(lengths) < _UNITS:
            begin = at + 4
            following = begin + _LENGTH.unpack_from(memory, at)[0]
            if following > end:
                return None
            kind = memory[begin] & 31 if h264 else memory[begin] >> 1 & 63
            if kind in pictures:
                if not coded and not self._starts_picture(bytes(memory[begin : min(begin + _START, following)])):
                    raise Unfit("a slice that starts no picture, or of a picture parameter set that is not there")
                coded = True
            elif kind not in harmless:
                return None
            if intake.has(_CODE, begin, following):  # a start code in there would start something hidden
                return None
            lengths.append(at)
            at = following
        if not coded or at != end:
            return None
        for at in lengths:
            memory[at : at + 4] = _START_CODE
        return Feed(intake.ready(self._head), _IDR_FACTS, self._plan.layout, self._plan.sequence)

    def _starts_picture(self, beginning: bytes) -> bool:
        """Whether a slice is the first of its picture and has a picture parameter set (H.264, 7.3.3; H.265, 7.3.6.1), by its
        first bytes. Where it does, no byte against emulation can lie among them.
        """
        if (starts := self._starts.get(beginning)) is None:
            if len(self._starts) >= _STARTS:
                self._starts.clear()
            starts = self._starts[beginning] = self._read_start(beginning)
        return starts

    def _read_start(self, beginning: bytes) -> bool:
        h264 = self._config.codec == "h264"
        try:
            bits = BitReader(beginning[1 if h264 else 2 :])
            if h264:
                first = bits.ue() == 0 and bits.ue(9) % 5 in _INTRA_SLICES
            else:
                first = bits.flag()
                bits.skip(1)
            return first and bits.ue(255) in self._picture_sets
        except BitstreamError:
            return False

    @functools.cached_property
    def _picture_sets(self) -> frozenset[int]:
        """The numbers of the picture parameter sets in the configuration record."""
        numbers = set()
        for unit in self._record.units:
            if self._config.codec == "h264" and unit[0] & 31 == 8:
                numbers.add(BitReader(unescaped(unit[:16])[1:]).ue(255))
            elif self._config.codec == "hevc" and unit[0] >> 1 & 63 == 34:
                numbers.add(BitReader(unescaped(unit[:16])[2:]).ue(63))
        return frozenset(numbers)

    def _check_record(self) -> None:
        """Whether the codec configuration record, by itself, describes pictures that fit."""
        for unit in self._record.units:
            if self._config.codec in _NAL_CODECS:
                self._check_unit(unit)
        told = self._headers.describe()
        if told.coded_width:
            self._check(told)

    def _sequence(self, told: Described) -> Sequence:
        return Sequence((told.coded_width, told.coded_height), frozenset(self._checked))

    def _layout(self, told: Described) -> Layout:
        """Containers crop less than a macroblock from H.264 pictures that are not cropped otherwise (as FFmpeg has it)."""
        coded, wanted = (told.coded_width, told.coded_height), (self._config.width, self._config.height)
        shape = (told.config.width, told.config.height, told.config.bit_depth, told.config.chroma_format)
        if self._laid is not None and self._laid[0] == (coded, shape):
            return self._laid[1]
        surface = Surface(*shape)
        uncropped = self._config.codec == "h264" and (surface.width, surface.height) == coded and min(wanted) > 0
        crops = uncropped and (aligned(wanted[0], 16), aligned(wanted[1], 16)) == coded
        crop = wanted if crops else (surface.width, surface.height)
        layout = Layout(surface, crop, self._config.colour, self._config.sample_aspect)
        self._laid = (coded, shape), layout
        return layout

    def _check(self, told: Described) -> None:
        config = told.config
        if (config.bit_depth, config.chroma_format) != (self._config.bit_depth, self._config.chroma_format):
            raise Unfit(
                f"the bitstream has {config.bit_depth} bits of {config.chroma_format}, "
                f"the decoder was made for {self._config.bit_depth} of {self._config.chroma_format}"
            )
        if config.chroma_format not in CHROMA_FORMATS:
            raise Unfit(f"surfaces of {config.chroma_format} are not known")
        if self._config.codec in _INTERLACED_AS_TOLD and told.interlaced is not False:
            raise Unfit("pictures may be interlaced: the driver would mix fields with those of pictures before")
        if config.chroma_format == "420" and (config.width % 2 or config.height % 2):
            raise Unfit(f"pictures of {config.width}x{config.height}: the driver scales odd sizes to even ones")
        if told.origin != (0, 0):
            raise Unfit(f"pictures cropped at the left or the top, by {told.origin}: the library cuts them elsewhere")
        if reason := self._bounds.refusal(told.coded_width, told.coded_height):
            raise Unfit(reason)

    def _annexb(self, payload: bytes, key: bool) -> bytes:
        """Start codes for lengths, parameter sets in front of keyframes, and a look at every parameter set that is inside."""
        if size := form_of(payload, self._record.length_size):
            payload = b"".join(_with_start_codes(payload, size))
        inside = [unit.partition(_CODE)[0].rstrip(b"\0") for unit in _units(payload) if self._is_sequence(unit)]
        for unit in inside:
            self._check_unit(unit)
        if not key:
            return payload
        if not inside and not self._checked.issubset(self._record.units):
            raise Unfit("parameter sets came with a sample before, which the decoder may not have had")
        return b"".join((*(_START_CODE + unit for unit in self._record.units), payload))

    def _plain(self, payload: bytes, key: bool) -> bytes:
        if self._config.codec == "mpeg4" and payload.count(_PLANE) > 1:
            raise Unfit("a packet of several pictures (packed B pictures)")
        if not key or not self._record.units or self._config.codec not in ("mpeg4", "mpeg1video", "mpeg2video", "av1"):
            return payload
        head = b"".join(self._record.units)
        return payload if payload.startswith(head) else head + payload

    def _check_unit(self, unit: bytes) -> None:
        """A sequence parameter set by itself: another one than the active may become active inside the decoder."""
        if not self._is_sequence(unit) or unit in self._checked:
            return
        told = StreamHeaders(replace(self._config, width=0, height=0, extradata=_START_CODE + unit)).describe()
        if told.problem or not told.coded_width:
            raise Unfit(f"a sequence parameter set cannot be read: {told.problem}")
        self._check(told)
        if len(self._checked) > 64:
            self._checked.clear()
        self._checked.add(unit)

    def _is_sequence(self, unit: bytes) -> bool:
        if not unit:
            return False
        return unit[0] & 31 in (7, 15) if self._config.codec == "h264" else unit[0] >> 1 & 63 == 33

    def _leading(self, payload: bytes) -> bool:
        """Whether this is a picture of HEVC that only whoever has decoded the pictures before can decode."""
        size = form_of(payload, self._record.length_size)
        data = b"".join(_with_start_codes(payload, size)) if size else payload
        coded = next((unit[0] >> 1 & 63 for unit in _units(data) if unit and unit[0] >> 1 & 63 < 32), None)
        return self._config.codec == "hevc" and coded in _RASL


def _record(config: StreamConfig) -> Record:
    """The configuration record taken apart; empty where it is broken or holds nothing to be fed."""
    data = config.extradata
    try:
        match config.codec:
            case "h264" | "hevc" if data.startswith((_CODE, _START_CODE)):
                return Record(0, tuple(unit.rstrip(b"\0") for unit in _whole_units(data)))
            case "h264" if data:
                return avcc(data)
            case "hevc" if data:
                return hvcc(data)
            case "mpeg4" | "mpeg1video" | "mpeg2video" if data:
                return Record(0, (decoder_specific_info(data),))
            case "av1":
                return av1c(data)
    except BitstreamError:
        pass
    return Record()


def _with_start_codes(payload: bytes, size: int) -> Iterator[bytes]:
    at = 0
    for _ in range(_UNITS):
        length = int.from_bytes(payload[at : at + size], "big")
        at += size
        if at >= len(payload):
            return
        yield _START_CODE
        yield payload[at : at + length]
        at += length
    raise Unfit(f"a packet of more than {_UNITS} NAL units")


def _units(data: bytes) -> Iterator[bytes]:
    """The beginning of each unit behind a start code, wherever it lies: the decoder looks for them in the same way."""
    find = memmem()
    begin = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    at = 0
    for _ in range(_UNITS):
        found = find(begin + at, len(data) - at, _CODE, len(_CODE))
        if found is None:
            return
        at = found - begin + len(_CODE)
        yield data[at : at + 1024]
    raise Unfit(f"a packet of more than {_UNITS} NAL units")


def _whole_units(data: bytes) -> Iterator[bytes]:
    for unit in data.split(_CODE)[1:]:
        if unit := unit.rstrip(b"\0"):
            yield unit
