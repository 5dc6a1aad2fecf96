"""The movie box and its tracks (ISO/IEC 14496-12, 8.2 to 8.5): everything but the samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from keyglance.display_matrix import IDENTITY, Matrix, matrix_at, product
from keyglance.errors import NotAVideo, TooLarge
from keyglance.mp4.boxes import Box, Boxes
from keyglance.mp4.limits import Declined, Mp4Limits
from keyglance.mp4.sample_entry import SampleEntry, read_entries
from keyglance.mp4.tables import u32_at

#: Boxes of a sample table that are read; of each the first counts.
_TABLES = {b"stts", b"ctts", b"stss", b"stps", b"sdtp", b"stsz", b"stz2", b"stsc", b"stco", b"co64"}
_MOST_GROUPS = 32
_MOST_REFERENCES = 4096  # bytes of track references that are looked at


@dataclass(slots=True)
class Track:
    """One `trak` box. Tables are not read yet: where they lie is kept."""

    number: int  # among the tracks of the movie, from 0
    id: int = 0
    enabled: bool = False
    matrix: Matrix = IDENTITY  # its own, not yet combined with the movie's
    width: int = 0  # as shown, 16.16 fixed point
    height: int = 0
    timescale: int = 1  # ticks a second
    handler: bytes = b""
    chapters: tuple[int, ...] = ()  # ids of the tracks that hold this one's chapters
    edits: Box | None = None
    external: tuple[bool, ...] = ()  # by data reference: whether it names another file
    tables: dict[bytes, Box] = field(default_factory=dict)
    groups: list[Box] = field(default_factory=list)  # sbgp of types 'rap ' and 'roll'
    group_descriptions: list[Box] = field(default_factory=list)  # sgpd of these types
    entries: list[SampleEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What fragments of a track leave out, `trex` (8.8.3)."""

    entry: int = 1
    duration: int = 0
    size: int = 0
    flags: int = 0


@dataclass(slots=True)
class Movie:
    """One `moov` box."""

    timescale: int = 1
    matrix: Matrix = IDENTITY
    tracks: list[Track] = field(default_factory=list)
    fragmented: bool = False  # it says that fragments may follow
    defaults: dict[int, Defaults] = field(default_factory=dict)  # by track id


def read_movie(boxes: Boxes, moov: Box, limits: Mp4Limits) -> Movie:
    """The movie, its tracks in order; of tracks that hold no pictures little more than the handler."""
    movie = Movie()
    for box in boxes.inside(moov):
        match box.kind:
            case b"mvhd":
                data = boxes.read(box, 112)
                long = len(data) > 0 and data[0] == 1
                movie.timescale = u32_at(data, 20 if long else 12) or 1
                movie.matrix = matrix_at(data, 48 if long else 36)
            case b"trak":
                if len(movie.tracks) == limits.tracks:
                    raise TooLarge.over("tracks", limits.tracks + 1, limits.tracks)
                movie.tracks.append(_track(boxes, box, len(movie.tracks)))
            case b"mvex":
                movie.fragmented = True
                for child in boxes.inside(box):
                    if child.kind == b"trex":
                        data = boxes.read(child, 24)
                        movie.defaults[u32_at(data, 4)] = Defaults(*(u32_at(data, at) for at in (8, 12, 16, 20)))
            case b"cmov":
                raise Declined("the movie box is compressed")
            case b"rmra":
                raise NotAVideo("a QuickTime reference movie: it holds no pictures but names other files")
    return movie


def combined(movie: Movie, track: Track) -> Matrix:
    """The matrix by which a track's pictures are shown."""
    return product(track.matrix, movie.matrix)


def _track(boxes: Boxes, trak: Box, number: int) -> Track:
    track = Track(number)
    for box in boxes.inside(trak):
        match box.kind:
            case b"tkhd":
                data = boxes.read(box, 96)
                long = len(data) > 0 and data[0] == 1
                track.enabled = bool(u32_at(data, 0) & 1)
                track.id = u32_at(data, 20 if long else 12)
                track.matrix = matrix_at(data, 52 if long else 40)
                track.width, track.height = u32_at(data, 88 if long else 76), u32_at(data, 92 if long else 80)
            case b"edts":
                track.edits = next((child for child in boxes.inside(box) if child.kind == b"elst"), None)
            case b"tref":
                for child in boxes.inside(box):
                    if child.kind == b"chap":
                        data = boxes.read(child, _MOST_REFERENCES)
                        track.chapters = tuple(u32_at(data, at) for at in range(0, len(data) - 3, 4))
            case b"mdia":
                _media(boxes, box, track)
    return track


def _media(boxes: Boxes, mdia: Box, track: Track) -> None:
    information: Box | None = None
    for box in boxes.inside(mdia):
        match box.kind:
            case b"mdhd":
                data = boxes.read(box, 32)
                track.timescale = u32_at(data, 20 if len(data) > 0 and data[0] == 1 else 12) or 1
            case b"hdlr":
                track.handler = bytes(boxes.read(box, 12)[8:12])
            case b"minf":
                information = box
    if information is None or track.handler not in (b"vide", b""):
        return
    for box in boxes.inside(information):
        if box.kind == b"dinf":
            for child in boxes.inside(box):
                if child.kind == b"dref":
                    track.external = tuple(_is_external(boxes, entry) for entry in boxes.children(child.body + 8, child.end))
        elif box.kind == b"stbl":
            for child in boxes.inside(box):
                if child.kind in _TABLES:
                    track.tables.setdefault(child.kind, child)
                elif child.kind == b"stsd":
                    track.entries = track.entries or read_entries(boxes, child)
                elif child.kind in (b"sbgp", b"sgpd") and bytes(boxes.read(child, 8)[4:8]) in (b"rap ", b"roll"):
                    kept = track.groups if child.kind == b"sbgp" else track.group_descriptions
                    if len(kept) < _MOST_GROUPS:
                        kept.append(child)


def _is_external(boxes: Boxes, entry: Box) -> bool:
    """Whether a data reference (8.7.2) names another file; some writers forget the flag but name none."""
    boxes.budget.box(2)  # as much work as so many boxes of other kinds
    data = boxes.read(entry, 64)
    return not u32_at(data, 0) & 1 and any(data[4:])
