"""The samples of one track on the media's own clock, from the sample table of its `trak` box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np

from keyglance.mp4 import tables
from keyglance.mp4.boxes import Boxes
from keyglance.mp4.limits import Declined
from keyglance.mp4.movie import Track
from keyglance.mp4.tables import Data, Ints, Mask


@dataclass(slots=True)
class Media:
    """N samples in decoding order; times are ticks of the media's clock and may be anything that is stored."""

    position: Ints
    size: Ints
    decoding: Ints
    presentation: Ints
    duration: Ints
    key: Mask
    entry: Ints  # sample description, from 1
    encrypted: Mask
    hidden: Mask  # overlaid by other fragments
    declared: int  # samples that the container claims to have
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.size)

    def keep(self, mask: Mask) -> None:
        """Forgets the samples outside a mask."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                setattr(self, each.name, value[mask])

    @classmethod
    def joined(cls, first: Media, second: Media) -> Media:
        """The samples of both, one behind the other."""
        parts = {
            each.name: np.concatenate((getattr(first, each.name), getattr(second, each.name)))
            for each in fields(cls)
            if each.name not in ("declared", "notes")
        }
        return cls(**parts, declared=first.declared + second.declared, notes=first.notes + second.notes)


def declared_samples(boxes: Boxes, track: Track) -> int:
    """How many samples a track's table claims."""
    box = track.tables.get(b"stsz") or track.tables.get(b"stz2")
    return tables.sample_count(boxes.read(box, 12)) if box else 0


def read_media(boxes: Boxes, track: Track) -> Media | None:
    """The samples of a track's own table, None where it has none."""

    def payload(kind: bytes) -> Data | None:
        box = track.tables.get(kind)
        return None if box is None else boxes.read(box)

    sizes_box = track.tables.get(b"stsz") or track.tables.get(b"stz2")
    chunk_box = track.tables.get(b"stco") or track.tables.get(b"co64")
    to_chunk = payload(b"stsc")
    if sizes_box is None or chunk_box is None or to_chunk is None:
        return None
    declared = declared_samples(boxes, track)
    chunks = tables.chunk_offsets(boxes.read(chunk_box), chunk_box.kind == b"co64")
    if not declared or not len(chunks):
        return None
    per_chunk = tables.samples_of_chunks(to_chunk, len(chunks))
    if per_chunk is None:
        raise Declined("the sample-to-chunk table contradicts itself")
    in_chunk, entry_of_chunk = per_chunk
    count = min(declared, int(in_chunk.sum()))
    if not tables.u32_at(boxes.read(sizes_box, 8), 4) or sizes_box.kind == b"stz2":
        count = min(count, 2 * sizes_box.size)  # what the table has bytes for
    boxes.budget.samples(count)
    size = tables.sizes(boxes.read(sizes_box), count, compact=sizes_box.kind == b"stz2")
    count = len(size)
    if not count:
        return None
    notes: list[str] = []
    decoding, presentation, duration = _times(payload(b"stts"), payload(b"ctts"), count, notes)
    if len(entry_of_chunk) and (entry_of_chunk == entry_of_chunk[0]).all():
        entry = np.full(count, entry_of_chunk[0], dtype=np.int64)
    else:
        entry, _ = tables.stretch(entry_of_chunk, in_chunk, count)
    groups = [boxes.read(box) for box in track.groups]
    if groups and (roll := tables.group_indices(groups, b"roll", count)) is not None:
        distances = tables.roll_distances([boxes.read(box) for box in track.group_descriptions])
        gradual = (roll > 0) & (roll <= len(distances))
        if gradual.any() and (distances[roll[gradual] - 1] > 0).any():
            notes.append(f"{int(gradual.sum())} samples begin a gradual refresh")
    return Media(
        position=tables.positions(chunks, in_chunk, size),
        size=size,
        decoding=decoding,
        presentation=presentation,
        duration=duration,
        key=_keys(payload, groups, count, notes),
        entry=entry,
        encrypted=np.zeros(count, dtype=np.bool_),
        hidden=np.zeros(count, dtype=np.bool_),
        declared=declared,
        notes=notes,
    )


def _times(stts: Data | None, ctts: Data | None, count: int, notes: list[str]) -> tuple[Ints, Ints, Ints]:
    """Decoding and presentation time and duration of each sample."""
    duration, covered = tables.durations(stts or b"", count)
    if covered < count:
        notes.append(f"the time table covers {covered} of {count} samples")
    decoding = np.cumsum(duration) - duration
    offsets = None
    if ctts is not None and (offsets := tables.composition_offsets(ctts, count)) is None:
        notes.append("composition offsets absurd: left out")
    return decoding, decoding if offsets is None else decoding + offsets, duration


def _keys(payload: Callable[[bytes], Data | None], groups: list[Data], count: int, notes: list[str]) -> Mask:
    """Which samples can be decoded alone: sync and partial sync samples, and members of a group 'rap '."""
    stss = payload(b"stss")
    if stss is None:
        sdtp = payload(b"sdtp")
        if sdtp is not None and (lying := int((tables.dependencies(sdtp, count) == 1).sum())):
            notes.append(f"all samples are flagged as keyframes, but {lying} are said to depend on others")
        return np.ones(count, dtype=np.bool_)
    keys = tables.listed(stss, count)
    if (stps := payload(b"stps")) is not None:
        keys |= tables.listed(stps, count)
    if groups and (rap := tables.group_indices(groups, b"rap ", count)) is not None:
        keys |= rap > 0
    if not tables.u32_at(stss, 4) and not keys.any():
        keys[0] = True  # an empty table says that none is a sync sample; decoding has to begin somewhere
    return keys
