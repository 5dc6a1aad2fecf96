"""What FFmpeg keeps for itself: display matrices and protection, read from the containers' own structures.

Everything here is bounded and reads memory only; it runs in the index worker, on hostile bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from keyglance.display_matrix import IDENTITY, Matrix, product

_MOST_BOXES = 50_000
_DEPTH = 8


@dataclass(slots=True)
class TrackFacts:
    """One `trak` box (ISO/IEC 14496-12, 8.3)."""

    matrix: Matrix = IDENTITY
    #: Four-character codes of the sample entries, `encv` and the like where they are protected.
    entries: list[bytes] = field(default_factory=list)
    #: Which entry the fragments use where they do not say, from 1.
    default_entry: int = 1
    #: Whether the sample entries' protection scheme says that samples are encrypted by default; None: no scheme told.
    protected: bool | None = None
    #: Samples by the sample table (`stsz`, `stz2`); 0 where all are in fragments.
    samples: int = 0

    @property
    def encrypted(self) -> bool:
        """Whether every sample is encrypted, whichever sample entry it uses."""
        return bool(self.entries) and all(self.entry_encrypted(n + 1) for n in range(len(self.entries)))

    def entry_encrypted(self, number: int) -> bool:
        """Whether samples of a sample entry, counted from 1, are encrypted."""
        return 1 <= number <= len(self.entries) and self.entries[number - 1] in _PROTECTED and self.protected is not False


@dataclass(frozen=True, slots=True)
class Fragment:
    """One `traf` box (ISO/IEC 14496-12, 8.8.6): its samples lie behind `position`, where its `moof` begins."""

    position: int
    track: int
    encrypted: bool


@dataclass(slots=True)
class IsoFacts:
    """An ISO base media or QuickTime file, as far as it can be read."""

    tracks: dict[int, TrackFacts] = field(default_factory=dict)  # by track id, of the first `moov`
    fragments: list[Fragment] = field(default_factory=list)  # by position


_PROTECTED = (b"encv", b"enca", b"enct", b"encs", b"drmi", b"drms")
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"sinf", b"schi", b"mvex", b"moof", b"traf")
#: 'tenc' and 'senc' as PIFF 1.1 spells them (5.3.3, 5.3.2).
_PIFF_TENC = bytes.fromhex("8974dbce7be74c5184f97148f9882554")
_PIFF_SENC = bytes.fromhex("a2394f525a9b4f14a2446c427c648df4")


def iso_facts(data: memoryview) -> IsoFacts:
    """What the boxes of a file say beside FFmpeg's demuxer."""
    reader = _Iso(data)
    reader.walk(0, len(data), 0)
    return reader.facts


class _Iso:
    def __init__(self, data: memoryview) -> None:
        self.facts = IsoFacts()
        self._data = data
        self._left = _MOST_BOXES
        self._movie: Matrix = IDENTITY
        self._tracks: dict[int, TrackFacts] = {}  # of the latest `moov`: an initialisation segment may come again
        self._track = TrackFacts()
        self._moof = 0
        self._fragment: tuple[int, int, bool] = (0, 0, False)  # track, entry, marked as encrypted

    def walk(self, start: int, end: int, depth: int) -> None:
        for kind, body, stop in self._boxes(start, end):
            if kind == b"moov":
                self._tracks = {} if self.facts.tracks else self.facts.tracks
            elif kind == b"trak":
                self._track = TrackFacts()
            elif kind == b"moof":
                self._moof = body - 8
            elif kind == b"traf":
                self._fragment = (0, 0, False)
            if kind in _CONTAINERS and depth < _DEPTH:
                self.walk(body, stop, depth + 1)
            else:
                try:
                    self._leaf(kind, body, stop)
                except (struct.error, IndexError):
                    continue  # a box too short for what it says it holds: as if it were not there
            if kind == b"traf":
                self._end_fragment()

    def _boxes(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        while start + 8 <= end and self._left > 0:
            self._left -= 1
            size, kind = struct.unpack_from(">I4s", self._data, start)
            body = start + 8
            if size == 1 and start + 16 <= end:
                size, body = struct.unpack_from(">Q", self._data, start + 8)[0], start + 16
            stop = end if size == 0 else start + size
            if stop < body:
                return
            yield kind, body, min(stop, end)
            start = stop

    def _leaf(self, kind: bytes, body: int, stop: int) -> None:
        data = self._data[:stop]
        match kind:
            case b"mvhd":
                self._movie = struct.unpack_from(">9i", data, body + (48 if data[body] == 1 else 36))
            case b"tkhd":
                long = data[body] == 1
                self._tracks[struct.unpack_from(">I", data, body + (20 if long else 12))[0]] = self._track
                own: Matrix = struct.unpack_from(">9i", data, body + (52 if long else 40))
                self._track.matrix = product(own, self._movie)
            case b"stsz" | b"stz2":
                self._track.samples = struct.unpack_from(">I", data, body + 8)[0]
            case b"stsd":
                self._entries(body + 8, stop)
            case b"tenc":  # ISO/IEC 23001-7, 8.2
                self._protects(bool(data[body + 6]))
            case b"trex":
                number, entry = struct.unpack_from(">II", data, body + 4)
                if number in self._tracks:
                    self._tracks[number].default_entry = entry
            case b"tfhd":
                flags, number = struct.unpack_from(">II", data, body)
                entry = struct.unpack_from(">I", data, body + (16 if flags & 1 else 8))[0] if flags & 2 else 0
                self._fragment = (number, entry, self._fragment[2])
            case b"senc":
                self._fragment = (*self._fragment[:2], True)
            case b"uuid":
                if data[body : body + 16] == _PIFF_TENC:
                    self._protects(any(data[body + 20 : body + 23]))
                elif data[body : body + 16] == _PIFF_SENC:
                    self._fragment = (*self._fragment[:2], True)

    def _protects(self, value: bool) -> None:
        self._track.protected = bool(self._track.protected) or value

    def _entries(self, start: int, stop: int) -> None:
        for kind, body, end in self._boxes(start, stop):
            self._track.entries.append(kind)
            if kind in _PROTECTED and len(self._track.entries) <= 64:
                # The fixed fields of a visual sample entry are 78 bytes (ISO/IEC 14496-12, 12.1.3); `sinf` follows.
                self.walk(body + 78, end, _DEPTH - 3)

    def _end_fragment(self) -> None:
        number, entry, marked = self._fragment
        track = self._tracks.get(number, TrackFacts())
        encrypted = marked or track.entry_encrypted(entry or track.default_entry)
        self.facts.fragments.append(Fragment(self._moof, number, encrypted))


def matroska_encrypted(data: memoryview) -> bool:
    """Whether a video track of a Matroska or WebM file is encrypted (ContentEncryption, RFC 9559, 5.1.4.1.31.8)."""
    for segment in _children(data, 0, len(data), {0x18538067}):
        for tracks in _children(data, *segment, {0x1654AE6B}):
            for track in _children(data, *tracks, {0xAE}):
                kinds = [data[start] for start, end in _children(data, *track, {0x83}) if end > start]
                if kinds[:1] == [1] and _has(data, track, (0x6D80, 0x6240, 0x5035)):
                    return True
    return False


def _has(data: memoryview, parent: tuple[int, int], path: tuple[int, ...]) -> bool:
    if not path:
        return True
    return any(_has(data, child, path[1:]) for child in _children(data, *parent, {path[0]}))


def _children(data: memoryview, start: int, end: int, wanted: set[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of the payloads of EBML elements (RFC 8794) with a wanted id among those from `start` to `end`."""
    for _ in range(_MOST_BOXES):
        head = _vint(data, start, end, keep_marker=True)
        length = _vint(data, head[1], end, keep_marker=False) if head else None
        if head is None or length is None:
            return
        size, body = length
        stop = end if size is None else min(body + size, end)
        if head[0] in wanted:
            yield body, stop
        if size is None:
            return
        start = stop


def _vint(data: memoryview, at: int, end: int, *, keep_marker: bool) -> tuple[int | None, int] | None:
    """A variable-size integer and where it ends; None for its value where all bits are set ('unknown')."""
    if at >= end or data[at] == 0:
        return None
    length = 9 - data[at].bit_length()
    if at + length > end:
        return None
    value = int.from_bytes(data[at : at + length], "big")
    bits = value & ((1 << 7 * length) - 1)
    if keep_marker:
        return value, at + length
    return (None if bits == (1 << 7 * length) - 1 else bits), at + length


#: Content encryption, extended and advanced content encryption objects (ASF specification 3.14, 3.15, 4.9).
_ASF_PROTECTION = (
    bytes.fromhex("fbb3112223bdd211b4b700a0c955fc6e"),
    bytes.fromhex("14e68a292226174cb935dae07ee9289c"),
    bytes.fromhex("b69b077aa4da124ea5ca91d38dc11a8d"),
)


def asf_encrypted(data: memoryview) -> bool:
    """Whether an ASF header holds a protection object."""
    head = bytes(data[: min(len(data), 1 << 16, int.from_bytes(data[16:24], "little"))])
    return any(guid in head for guid in _ASF_PROTECTION)


def mpegts_scrambled(data: memoryview, pid: int) -> bool:
    """Whether most packets of a transport stream's PID are scrambled (ISO/IEC 13818-1, 2.4.3.3)."""
    stride = next((s for s in (188, 192, 204) if all(_sync(data, s, n) for n in range(4))), 0)
    if not stride:
        return False
    start = 4 if stride == 192 else 0
    scrambled = clear = 0
    for at in range(start, min(len(data) - 4, 8 << 20), stride):
        if int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF == pid:
            scrambled += data[at + 3] >> 7
            clear += not data[at + 3] >> 7
    return scrambled > clear


def _sync(data: memoryview, stride: int, number: int) -> bool:
    at = number * stride + (4 if stride == 192 else 0)
    return at >= len(data) or data[at] == 0x47
