"""Builds MP4 files box by box, for tests: small, exact, and easy to break in one place."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

IDENTITY = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
#: A version 1 record of profile High, level 3.0, with one parameter set of each kind and the high profiles' last fields.
AVCC = bytes.fromhex("0164001effe1000467640010010004 68ee3cb0 fdf8f800".replace(" ", ""))


def box(kind: bytes, *parts: bytes) -> bytes:
    """A box with a size of 32 bits."""
    payload = b"".join(parts)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def wide_box(kind: bytes, *parts: bytes) -> bytes:
    """A box with a size of 64 bits."""
    payload = b"".join(parts)
    return struct.pack(">I4sQ", 1, kind, 16 + len(payload)) + payload


def full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    """A box with version and flags."""
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def u16(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


def u32(*values: int) -> bytes:
    return b"".join((value & 0xFFFFFFFF).to_bytes(4, "big") for value in values)


def u64(*values: int) -> bytes:
    return b"".join((value & (1 << 64) - 1).to_bytes(8, "big") for value in values)


def table(kind: bytes, rows: Sequence[Sequence[int]], version: int = 0, pack: Callable[..., bytes] = u32) -> bytes:
    """A full box with a count and rows of numbers."""
    return full(kind, version, 0, u32(len(rows)), *(pack(*row) for row in rows))


def runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Run lengths as `stts` and `ctts` have them."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][1] == value:
            found[-1] = (found[-1][0] + 1, value)
        else:
            found.append((1, value))
    return found


def visual_entry(
    kind: bytes = b"avc1",
    width: int = 320,
    height: int = 240,
    *boxes: bytes,
    data_reference: int = 1,
    config: bytes | None = None,
) -> bytes:
    """A visual sample entry; `config` (default: an `avcC` for avc1) comes before `boxes`."""
    if config is None:
        config = box(b"avcC", AVCC) if kind in (b"avc1", b"avc3", b"encv") else b""
    fixed = bytes(6) + u16(data_reference) + bytes(16) + u16(width, height) + u32(72 << 16, 72 << 16, 0) + u16(1)
    return box(kind, fixed, bytes(32), u16(24, 0xFFFF), config, *boxes)


def protection(original: bytes = b"avc1", *schemes: bytes) -> bytes:
    """A `sinf` box; `schemes` are what `schi` holds."""
    return box(b"sinf", box(b"frma", original), full(b"schm", 0, 0, b"cenc", u32(0x10000)), box(b"schi", *schemes))


def tenc(protected: bool = True) -> bytes:
    return full(b"tenc", 0, 0, bytes((0, 0, int(protected), 8)), bytes(16))


def edit_list(edits: Sequence[tuple[int, int, int]], version: int = 0) -> bytes:
    """`edts` of (duration in movie ticks, media time, rate as 16.16)."""
    if version:
        rows = [u64(duration, start) + u32(rate) for duration, start, rate in edits]
    else:
        rows = [u32(duration, start, rate) for duration, start, rate in edits]
    return box(b"edts", full(b"elst", version, 0, u32(len(edits)), *rows))


@dataclass
class Sample:
    size: int = 100
    duration: int = 512
    key: bool = True
    offset: int = 0
    entry: int = 1


@dataclass
class Track:
    """One track; what its tables say can be replaced or, by None, left out with `tables`."""

    samples: Sequence[Sample] = ()
    id: int = 1
    handler: bytes = b"vide"
    timescale: int = 12800
    entries: Sequence[bytes] = field(default_factory=lambda: [visual_entry()])
    chunk: int = 10  # samples in each
    wide: bool = False  # co64
    compact: int = 0  # bits of stz2's fields
    enabled: bool = True
    matrix: Sequence[int] = IDENTITY
    shown: tuple[int, int] = (320, 240)
    edits: bytes = b""
    references: bytes = b""  # tref
    data_references: Sequence[bytes] = field(default_factory=lambda: [full(b"url ", 0, 1)])
    tables: Mapping[bytes, bytes | None] = field(default_factory=dict)
    more: bytes = b""  # behind the tables
    version: int = 0  # of tkhd and mdhd

    def boxes(self, first_chunk: int) -> bytes:
        """The `trak` box, with the first of its chunks at an offset; further ones lie behind it."""
        samples = self.samples
        chunks = [samples[at : at + self.chunk] for at in range(0, len(samples), self.chunk)]
        offsets, at = [], first_chunk
        for chunk in chunks:
            offsets.append(at)
            at += sum(sample.size for sample in chunk)
        sizes = [sample.size for sample in samples]
        if self.compact == 4:
            padded = [*sizes, 0][: len(sizes) + len(sizes) % 2]
            packed = bytes(a << 4 | b for a, b in zip(padded[::2], padded[1::2], strict=True))
        elif self.compact:
            packed = b"".join(size.to_bytes(self.compact // 8, "big") for size in sizes)
        made: dict[bytes, bytes | None] = {
            b"stsd": full(b"stsd", 0, 0, u32(len(self.entries)), *self.entries),
            b"stts": table(b"stts", runs([sample.duration for sample in samples])),
            b"ctts": table(b"ctts", runs([sample.offset for sample in samples])) if any(s.offset for s in samples) else None,
            b"stss": table(b"stss", [(n + 1,) for n, sample in enumerate(samples) if sample.key]),
            b"stsc": table(b"stsc", [(n + 1, len(chunk), chunk[0].entry) for n, chunk in enumerate(chunks)]),
            b"stsz": full(b"stsz", 0, 0, u32(0, len(sizes), *sizes)),
            b"stco": table(b"stco", [(offset,) for offset in offsets]),
        }
        if self.compact:
            made[b"stsz"] = full(b"stz2", 0, 0, u32(self.compact, len(sizes)), packed)
        if self.wide:
            made[b"stco"] = table(b"co64", [(offset,) for offset in offsets], pack=u64)
        if all(sample.key for sample in samples) and samples:
            made[b"stss"] = None
        made.update(self.tables)
        stbl = box(b"stbl", *(each for each in made.values() if each is not None), self.more)
        duration = sum(sample.duration for sample in samples)
        dates = u64(0, 0) if self.version else u32(0, 0)
        length = u64(duration) if self.version else u32(duration)
        tkhd = full(
            b"tkhd", self.version, 6 | int(self.enabled), dates, u32(self.id, 0), length, bytes(16), u32(*self.matrix),
            u32(self.shown[0] << 16, self.shown[1] << 16),
        )  # fmt: skip
        mdia = box(
            b"mdia",
            full(b"mdhd", self.version, 0, dates, u32(self.timescale), length, bytes(4)),
            full(b"hdlr", 0, 0, bytes(4), self.handler, bytes(13)),
            box(b"minf", self._dinf(), stbl),
        )
        return box(b"trak", tkhd, self.edits, self.references, mdia)

    def _dinf(self) -> bytes:
        return box(b"dinf", full(b"dref", 0, 0, u32(len(self.data_references)), *self.data_references))


def mvhd(timescale: int = 1000, matrix: Sequence[int] = IDENTITY, version: int = 0) -> bytes:
    dates = u64(0, 0) if version else u32(0, 0)
    length = u64(0) if version else u32(0)
    return full(b"mvhd", version, 0, dates, u32(timescale), length, bytes(16), u32(*matrix), bytes(28))


FTYP = box(b"ftyp", b"isom", u32(512), b"isomiso2avc1mp41")


def movie(
    tracks: Sequence[Track],
    *,
    order: Literal["moov-first", "moov-last"] = "moov-first",
    ftyp: bytes = FTYP,
    head: bytes | None = None,
    extra: bytes = b"",
    between: bytes = b"",
) -> bytes:
    """A file of plain tracks: each one's samples lie behind each other, filled with the track's number.

    `head` replaces `mvhd`, `extra` goes into `moov` behind the tracks, `between` lies between `moov` and `mdat`.
    """
    payload = b"".join(bytes((track.id & 255,)) * sum(s.size for s in track.samples) for track in tracks)
    mdat = box(b"mdat", payload)

    def moov(at: int) -> bytes:
        parts = []
        for track in tracks:
            parts.append(track.boxes(at))
            at += sum(sample.size for sample in track.samples)
        return box(b"moov", mvhd() if head is None else head, *parts, extra)

    if order == "moov-last":
        return ftyp + mdat + between + moov(len(ftyp) + 8)
    start = len(ftyp) + len(moov(0)) + len(between) + 8
    return ftyp + moov(start) + between + mdat


# Fragments

BASE_OFFSET, ENTRY, DURATION, SIZE, FLAGS, BASE_IS_MOOF = 0x1, 0x2, 0x8, 0x10, 0x20, 0x20000
RUN_OFFSET, RUN_FIRST, RUN_DURATION, RUN_SIZE, RUN_FLAGS, RUN_COMPOSITION = 0x1, 0x4, 0x100, 0x200, 0x400, 0x800
SYNC, NOT_SYNC = 0x02000000, 0x01010000


def trex(track: int = 1, entry: int = 1, duration: int = 0, size: int = 0, flags: int = 0) -> bytes:
    return full(b"trex", 0, 0, u32(track, entry, duration, size, flags))


def mvex(*trexes: bytes) -> bytes:
    return box(b"mvex", *(trexes or (trex(),)))


def trun(
    samples: Sequence[Sample],
    *,
    offset: int | None = 0,
    flags: int = RUN_DURATION | RUN_SIZE | RUN_FLAGS,
    first: int | None = None,
) -> bytes:
    """A run that stores what `flags` say; `offset` None: its data lie behind those of the run before."""
    flags |= (RUN_OFFSET if offset is not None else 0) | (RUN_FIRST if first is not None else 0)
    rows = []
    for sample in samples:
        row = []
        if flags & RUN_DURATION:
            row.append(sample.duration)
        if flags & RUN_SIZE:
            row.append(sample.size)
        if flags & RUN_FLAGS:
            row.append(SYNC if sample.key else NOT_SYNC)
        if flags & RUN_COMPOSITION:
            row.append(sample.offset)
        rows.append(u32(*row))
    parts = [u32(len(samples))]
    parts += [u32(offset)] if offset is not None else []
    parts += [u32(first)] if first is not None else []
    return full(b"trun", 0, flags, *parts, *rows)


def tfhd(track: int = 1, flags: int = BASE_IS_MOOF, *values: bytes) -> bytes:
    return full(b"tfhd", 0, flags, u32(track), *values)


def tfdt(time: int, version: int = 1) -> bytes:
    return full(b"tfdt", version, 0, u64(time) if version else u32(time))


def moof(*trafs: bytes, number: int = 1) -> bytes:
    return box(b"moof", full(b"mfhd", 0, 0, u32(number)), *trafs)


def fragment(
    samples: Sequence[Sample], time: int | None = None, track: int = 1, flags: int = RUN_DURATION | RUN_SIZE | RUN_FLAGS
) -> bytes:
    """A `moof` of one track with one run, and its `mdat`."""

    def made(offset: int) -> bytes:
        parts = [tfhd(track), *([tfdt(time)] if time is not None else []), trun(samples, offset=offset, flags=flags)]
        return moof(box(b"traf", *parts))

    return made(len(made(0)) + 8) + box(b"mdat", bytes((track,)) * sum(sample.size for sample in samples))


def fragmented(track: Track, fragments: Sequence[bytes], *, defaults: bytes | None = None, ftyp: bytes = FTYP) -> bytes:
    """A file of fragments of one track; its `moov` has no samples."""
    init = replace(track, samples=())
    return movie_header(ftyp, init, defaults if defaults is not None else mvex(trex(track.id))) + b"".join(fragments)


def movie_header(ftyp: bytes, track: Track, extra: bytes) -> bytes:
    return ftyp + box(b"moov", mvhd(), track.boxes(0), extra)


def group_of_pictures(count: int, every: int = 30, size: int = 100, duration: int = 512, reorder: int = 0) -> list[Sample]:
    """`count` samples, every `every`-th a keyframe of five times the size; with `reorder`, B pictures in pairs."""
    pattern = (reorder, 3 * reorder, 0, 0) if reorder else (0,)
    return [
        Sample(
            5 * size if n % every == 0 else size,
            duration,
            n % every == 0,
            0 if not reorder else reorder + pattern[n % len(pattern)],
        )
        for n in range(count)
    ]
