"""Edit lists (ISO/IEC 14496-12, 8.6.6): which samples a player shows, and when."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from keyglance.errors import TooLarge
from keyglance.mp4.tables import Data, Ints, u32_at

#: Ticks beyond which a time is taken for "to the end".
_FAR = 1 << 62
_ONE = 1 << 16


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of the media, from `start` up to `end` in ticks of its clock, shown from `shown` seconds of the movie on."""

    start: int
    end: int
    shown: float
    rate: float = 1.0  # 0: the picture at `start` stands still


def read_edits(data: Data, movie_timescale: int, media_timescale: int, limit: int) -> list[Edit]:
    """The edits of an `elst` box in order, without empty ones, which only move those behind them.

    A duration of 0 means "to the end of the media". Rates below 0 are taken for 1.
    """
    long = len(data) > 0 and data[0] == 1
    width = 20 if long else 12
    count = min(u32_at(data, 4), max(0, len(data) - 8) // width)
    if count > limit:
        raise TooLarge.over("edits", count, limit)
    edits: list[Edit] = []
    shown = 0
    for at in range(8, 8 + width * count, width):
        half = 8 if long else 4
        duration = int.from_bytes(data[at : at + half], "big")
        start = int.from_bytes(data[at + half : at + 2 * half], "big", signed=True)
        rate = int.from_bytes(data[at + 2 * half : at + 2 * half + 4], "big", signed=True)
        if start != -1:
            speed = rate / _ONE if rate >= 0 else 1.0
            ticks = _rescaled(duration * (rate if rate > 0 else _ONE), media_timescale, movie_timescale * _ONE)
            end = start + ticks if duration else _FAR
            edits.append(Edit(max(-_FAR, min(start, _FAR)), max(-_FAR, min(end, _FAR)), shown / movie_timescale, speed))
        shown += duration
    return edits


def _rescaled(value: int, multiply: int, divide: int) -> int:
    """Rounded to the nearest, halves up."""
    return (2 * value * multiply + divide) // (2 * divide)


def first_edit(edits: list[Edit], presentation: Ints) -> Ints:
    """For each sample the number of the first edit that shows it, -1 for none."""
    edits = [_still(edit, presentation) if edit.rate == 0 else edit for edit in edits]
    if len(edits) == 1:
        inside = (presentation >= edits[0].start) & (presentation < edits[0].end)
        return inside.astype(np.int64) - 1
    bounds = sorted({edit.start for edit in edits} | {edit.end for edit in edits})
    begins: dict[int, list[int]] = {}
    for number, edit in enumerate(edits):
        begins.setdefault(edit.start, []).append(number)
    open_edits: list[int] = []
    owners = [-1]
    for bound in bounds:
        for number in begins.get(bound, ()):
            heapq.heappush(open_edits, number)
        while open_edits and edits[open_edits[0]].end <= bound:
            heapq.heappop(open_edits)
        owners.append(open_edits[0] if open_edits else -1)
    place = np.searchsorted(np.array(bounds, dtype=np.int64), presentation, side="right")
    return np.array(owners, dtype=np.int64)[place]


def _still(edit: Edit, presentation: Ints) -> Edit:
    """An edit of rate 0 shows the one picture that the media shows at its start."""
    before = presentation[presentation <= edit.start]
    start = int(before.max()) if len(before) else int(presentation.min())
    return replace(edit, start=start, end=start + 1)


def shown_times(
    edits: list[Edit], which: Ints, seconds: npt.NDArray[np.float64], media_timescale: int
) -> npt.NDArray[np.float64]:
    """When each sample is shown, from its time on the media's clock; for those outside, when it would be.

    Those outside keep their distance to the media time of the usual sample inside.
    """
    if len(edits) == 1:
        return seconds  # moved as a whole, and the zero is the first picture shown
    starts = np.array([float(Fraction(edit.start, media_timescale)) for edit in edits])
    begins = np.array([edit.shown for edit in edits])
    rates = np.array([edit.rate or 1.0 for edit in edits])
    inside = which >= 0
    place = np.maximum(which, 0)
    # A picture that stands still may have begun before the edit does.
    moved = begins[place] + np.maximum(0.0, (seconds - starts[place]) / rates[place])
    usual = float(np.median((moved - seconds)[inside])) if inside.any() else 0.0
    return np.where(inside, moved, seconds + usual)
