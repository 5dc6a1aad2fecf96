"""One entry to the headers of every codec: what a stream is by its bitstream, and what each sample holds.

Nothing here raises on any bytes: what cannot be read is `SampleKind.UNKNOWN`, or a configuration left as it was with the
problem told. Work is bounded: of a sample the units before its first slice and the first bytes of that are read, further
ones only where a picture may consist of two fields or of slices of different types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from keyglance.bitstream import config_records
from keyglance.bitstream.av1 import Av1
from keyglance.bitstream.bits import BitstreamError
from keyglance.bitstream.config_records import Record
from keyglance.bitstream.facts import UNKNOWN, SampleFacts, SampleKind, SequenceFacts, aligned
from keyglance.bitstream.h264 import H264
from keyglance.bitstream.hevc import Hevc
from keyglance.bitstream.mpeg2 import Mpeg2
from keyglance.bitstream.mpeg4 import Mpeg4
from keyglance.bitstream.nal import units
from keyglance.bitstream.vpx import Vp8, Vp9
from keyglance.video import Colour, ColourRange, StreamConfig

_UNSPECIFIED = 2
#: Code points that H.273 calls functionally the same as another (tables 3 and 4): no disagreement.
_SAME_TRANSFER, _SAME_MATRIX = {6: 1, 14: 1, 15: 1}, {6: 5}
#: Codecs (FFmpeg's names) whose every picture decodes alone.
INTRA_ONLY = frozenset(
    {
        *("asv1", "asv2", "cfhd", "cllc", "dnxhd", "dvvideo", "ffvhuff", "hap", "huffyuv", "magicyuv", "prores", "prores_raw"),
        *("bmp", "exr", "jpeg2000", "jpegls", "jpegxl", "ljpeg", "mjpeg", "mjpegb", "png", "qoi", "sgi", "targa", "tiff", "webp"),
        *("r10k", "r210", "rawvideo", "utvideo", "v210", "v308", "v408", "v410", "y41p", "yuv4"),
    }
)


class _Headers(Protocol):
    """The headers of one stream of some codec."""

    in_band: bool  # a sample carried headers of the sequence

    @property
    def problem(self) -> str: ...

    @property
    def facts(self) -> SequenceFacts | None: ...

    def read(self, payload: bytes, *, whole: bool = True) -> SampleFacts: ...

    def sequences(self, payload: bytes) -> list[SequenceFacts]: ...


def _plain(record: bytes) -> Record:
    return Record(units=(record,) if record else ())


def _elementary(record: bytes) -> Record:
    return _plain(config_records.decoder_specific_info(record))


def _nal(parse: Callable[[bytes], Record]) -> Callable[[bytes], Record]:
    def read(record: bytes) -> Record:
        if not record or record.startswith((b"\0\0\1", b"\0\0\0\1")):
            return Record(units=tuple(units(record, 0)))
        return parse(record)

    return read


#: By FFmpeg's name: how extradata is taken apart, and what reads the headers.
_CODECS: dict[str, tuple[Callable[[bytes], Record], Callable[[Record], _Headers]]] = {
    "h264": (_nal(config_records.avcc), H264),
    "hevc": (_nal(config_records.hvcc), Hevc),
    "vp8": (config_records.vpcc, Vp8),
    "vp9": (config_records.vpcc, Vp9),
    "av1": (config_records.av1c, Av1),
    "mpeg4": (_elementary, Mpeg4),
    "mpeg2video": (_elementary, Mpeg2),
    "mpeg1video": (_elementary, Mpeg2),
}


@dataclass(frozen=True, slots=True)
class Described:
    """A stream by its bitstream.

    `config`: the one given, corrected; where no header could be read it is the one given. `coded_width`, `coded_height`:
    before cropping, in whole coding blocks (see `SequenceFacts`), what a hardware decoder allocates; 0 where not known.
    `interlaced`: None where not known, or where pictures may be frames or fields. `in_band`: the headers came with a
    sample. `disagreements`: one sentence each, both values in it. `problem`: why no header could be read, "" if one was.
    `origin`: as in `SequenceFacts`.
    """

    config: StreamConfig
    coded_width: int = 0
    coded_height: int = 0
    interlaced: bool | None = None
    in_band: bool = False
    disagreements: tuple[str, ...] = ()
    problem: str = ""
    origin: tuple[int, int] = (0, 0)


class StreamHeaders:
    """The headers of one stream, sample after sample: parameter sets in a sample hold for later ones.

    `length_size`: bytes of the lengths in front of NAL units, 0 for start codes; None: as the configuration record says.
    """

    def __init__(self, config: StreamConfig, *, length_size: int | None = None) -> None:
        self._config = config
        self._problem = ""
        self._record = Record()
        self._headers: _Headers | None = None
        self._recorded: SequenceFacts | None = None  # by the configuration record alone
        if config.codec not in _CODECS:
            self._problem = f"headers of {config.codec} are not read"
            return
        parse, headers = _CODECS[config.codec]
        try:
            self._record = parse(config.extradata)
        except BitstreamError as error:
            self._problem = str(error)
        if length_size is not None:
            self._record = replace(self._record, length_size=length_size)
        try:
            self._headers = headers(self._record)
        except BitstreamError as error:
            self._problem = str(error)
            self._headers = headers(replace(self._record, units=()))
        self._recorded = self._facts()

    def __repr__(self) -> str:
        return f"StreamHeaders({self._config.codec}, {self._facts()})"

    def kind(self, payload: bytes, *, whole: bool = True) -> SampleFacts:
        """What a sample really holds; `UNKNOWN` where that cannot be read.

        `whole` False: `payload` is only the beginning of the sample. Then a second field, the end of a VP9 superframe and
        slices of another type behind that beginning are not seen, and lengths may lead past it.
        """
        if self._headers is None:
            intra = self._config.codec in INTRA_ONLY and len(payload) > 0
            return SampleFacts(SampleKind.IDR) if intra else UNKNOWN
        try:
            return self._headers.read(payload, whole=whole)
        except BitstreamError as error:
            self._problem = str(error)
            return UNKNOWN

    def sequences(self, payload: bytes) -> tuple[SequenceFacts, ...] | None:
        """All that a whole sample says of its pictures' format, for what is fed to a decoder that a wrong size breaks.

        `kind` looks no further than the first picture, but a decoder reads on: a sample may hide a second picture, or
        parameter sets for later samples. Empty: nothing new. None: it cannot be told, so better do not feed it.
        """
        if self._headers is None:
            return None
        try:
            return tuple(dict.fromkeys(self._headers.sequences(payload)))
        except BitstreamError as error:
            self._problem = str(error)
            return None

    def describe(self) -> Described:
        """The stream as its bitstream has it, after the samples read so far.

        The bitstream wins over the container and its records, with two exceptions, both as FFmpeg's players have it: a
        container's sample aspect other than 1 stays, and so does an H.264 size by which a container crops less than one
        macroblock from a picture that is not cropped otherwise.
        """
        config, record, facts = self._config, self._record, self._facts()
        if facts is None:
            problem = (self._headers.problem if self._headers else "") or self._problem or "no headers of the sequence yet"
            return Described(_with_record(config, record), problem=problem)
        disagreements = [
            *_of_container(config, facts),
            *(_of_record(record, facts)),
            *(_of_sequences(self._recorded, facts) if self._recorded is not None else ()),
        ]
        width, height = (config.width, config.height) if self._container_crops(facts) else (facts.width, facts.height)
        told = facts.sample_aspect
        described = replace(
            config,
            width=width,
            height=height,
            bit_depth=facts.bit_depth,
            chroma_format=facts.chroma_format,
            profile=facts.profile or config.profile,
            sample_aspect=config.sample_aspect if config.sample_aspect != 1 or told is None else told,
            colour=_merged(facts.colour, _merged(record.colour, config.colour)),
        )
        in_band = self._headers is not None and self._headers.in_band
        return Described(
            described,
            facts.coded_width,
            facts.coded_height,
            facts.interlaced,
            in_band,
            tuple(disagreements),
            origin=facts.origin,
        )

    def _facts(self) -> SequenceFacts | None:
        if self._headers is None:
            return None
        try:
            return self._headers.facts
        except BitstreamError as error:  # extensions that make the size absurd
            self._problem = str(error)
            return None

    def _container_crops(self, facts: SequenceFacts) -> bool:
        config = self._config
        return (
            config.codec == "h264"
            and (facts.width, facts.height) == (facts.coded_width, facts.coded_height)
            and 0 < config.width <= facts.width
            and 0 < config.height <= facts.height
            and (aligned(config.width, 16), aligned(config.height, 16)) == (facts.coded_width, facts.coded_height)
        )


def describe(config: StreamConfig, first_key_sample: bytes | None = None, *, length_size: int | None = None) -> Described:
    """The stream as its configuration record and its first key sample, or the first 64 KiB of it, have it; never raises."""
    headers = StreamHeaders(config, length_size=length_size)
    if first_key_sample is not None:
        headers.kind(first_key_sample, whole=False)
    return headers.describe()


def sample_kind(config: StreamConfig, payload: bytes, *, length_size: int | None = None) -> SampleFacts:
    """What one whole sample holds by itself; for many samples of a stream keep a `StreamHeaders`. Never raises."""
    return StreamHeaders(config, length_size=length_size).kind(payload)


def _with_record(config: StreamConfig, record: Record) -> StreamConfig:
    return replace(
        config,
        bit_depth=record.bit_depth if record.bit_depth is not None and 8 <= record.bit_depth <= 16 else config.bit_depth,
        chroma_format=record.chroma_format or config.chroma_format,
        colour=_merged(record.colour, config.colour),
    )


def _merged(first: Colour, second: Colour) -> Colour:
    """What the first tells, else the second."""
    primaries, transfer, matrix = (
        mine if mine != _UNSPECIFIED else other for mine, other in zip(_code_points(first), _code_points(second), strict=True)
    )
    return Colour(
        primaries,
        transfer,
        matrix,
        first.range if first.range is not ColourRange.UNSPECIFIED else second.range,
        first.chroma_location if first.chroma_location is not None else second.chroma_location,
    )


def _code_points(colour: Colour) -> tuple[int, int, int]:
    return colour.primaries, colour.transfer, colour.matrix


def _sentence(what: str, who: str, theirs: object, ours: object) -> str:
    return f"{what}: the {who} says {theirs}, the bitstream {ours}"


def _of_container(config: StreamConfig, facts: SequenceFacts) -> list[str]:
    """Where the container disagrees; what it does not tell, or tells by a default, is no disagreement."""
    found = []
    if config.width and config.height and (config.width, config.height) != (facts.width, facts.height):
        found.append(_sentence("size", "container", f"{config.width}x{config.height}", f"{facts.width}x{facts.height}"))
    names = ("colour primaries", "colour transfer", "colour matrix")
    same: tuple[dict[int, int], ...] = ({}, _SAME_TRANSFER, _SAME_MATRIX)
    for what, theirs, ours, names_of in zip(names, _code_points(config.colour), _code_points(facts.colour), same, strict=True):
        if _UNSPECIFIED not in (theirs, ours) and names_of.get(theirs, theirs) != names_of.get(ours, ours):
            found.append(_sentence(what, "container", theirs, ours))
    extents = (config.colour.range, facts.colour.range)
    if ColourRange.UNSPECIFIED not in extents and extents[0] is not extents[1]:
        found.append(_sentence("colour range", "container", *extents))
    aspect = facts.sample_aspect
    if aspect is not None and config.sample_aspect not in (1, aspect):
        found.append(_sentence("sample aspect", "container", config.sample_aspect, aspect))
    return found


def _of_record(record: Record, facts: SequenceFacts) -> list[str]:
    found = []
    if record.bit_depth not in (None, facts.bit_depth):
        found.append(_sentence("bit depth", "configuration record", record.bit_depth, facts.bit_depth))
    if record.chroma_format and record.chroma_format != {"rgb": "444"}.get(facts.chroma_format, facts.chroma_format):
        found.append(_sentence("chroma format", "configuration record", record.chroma_format, facts.chroma_format))
    return found


def _of_sequences(recorded: SequenceFacts, facts: SequenceFacts) -> list[str]:
    """Where headers in the configuration record disagree with those in the samples."""
    pairs = (
        ("size", f"{recorded.width}x{recorded.height}", f"{facts.width}x{facts.height}"),
        ("bit depth", recorded.bit_depth, facts.bit_depth),
        ("chroma format", recorded.chroma_format, facts.chroma_format),
    )
    return [_sentence(what, "configuration record's header", theirs, ours) for what, theirs, ours in pairs if theirs != ours]
