"""Presentation times that can be relied on, from what containers say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]

#: Where neither container nor bitstream tells a rate (also FFmpeg's default for raw streams).
DEFAULT_RATE = 25.0
#: Pictures a second beyond which times are not believed: the fastest cameras in phones store 960.
FASTEST = 1000.0
#: Composition offsets and forward jumps beyond these many seconds are not believed.
FARTHEST_OFFSET = 60.0
FARTHEST_JUMP = 3600.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Finite presentation seconds of samples in decoding order, the time from one to the next, and what was repaired."""

    times: Seconds
    step: float
    notes: tuple[str, ...]


def repair(presentation: Seconds, decoding: Seconds, rate: float | None) -> Timeline:
    """Repairs times; NaN stands for a missing one. `rate` is the declared number of pictures a second, None if unknown.

    The result has no missing times, no absurd composition offsets, and does not run backwards in decoding order by more
    than reordering explains: each stored picture has its own place.
    """
    notes: list[str] = []
    count = len(presentation)
    times, clock = presentation.copy(), decoding.copy()
    believed = rate if rate is not None and 0.001 <= rate <= FASTEST else None
    step = 1 / believed if believed else _median_step(clock if np.isfinite(clock).any() else times)
    if not np.isfinite(times).any():
        if np.isfinite(clock).any():
            notes.append("no presentation times: decoding times taken")
            times = clock.copy()
        else:
            notes.append(f"no times: counted at {1 / step:.6g} pictures a second")
            return Timeline(_counted(count, step), step, tuple(notes))
    if missing := int(np.isnan(times).sum()):
        notes.append(f"{missing} of {count} presentation times missing: filled in")
        times = _fill(np.where(np.isnan(times), clock, times), step)
    clock = np.where(np.isnan(clock), times, clock)

    offset = times - clock
    usual = float(np.median(offset)) if count else 0.0
    if (absurd := np.abs(offset - usual) > FARTHEST_OFFSET).any():
        notes.append(f"{int(absurd.sum())} of {count} composition offsets absurd: replaced")
        times, clock = _reconcile(times, clock, usual, absurd)

    moves = np.diff(clock)
    slack = max(1.0, 32 * step)
    jumps = (moves < -slack) | (moves > FARTHEST_JUMP)
    if jumps.any():
        notes.append(f"{int(jumps.sum())} jumps in time: closed")
        times = times + np.concatenate(([0.0], np.cumsum(np.where(jumps, step - moves, 0.0))))

    span = float(times.max() - times.min()) if count else 0.0
    if count > 2 and span < (count - 1) / FASTEST:
        step = 1 / believed if believed else 1 / DEFAULT_RATE
        notes.append(f"{count} samples within {span:.6g} s: counted at {1 / step:.6g} pictures a second")
        times = _counted(count, step)
    return Timeline(times, step, tuple(notes))


def _counted(count: int, step: float) -> Seconds:
    return np.arange(count, dtype=np.float64) * step


def _median_step(times: Seconds) -> float:
    known = np.unique(times[np.isfinite(times)])
    steps = np.diff(known)
    steps = steps[(steps >= 1 / FASTEST) & (steps <= FARTHEST_JUMP)]
    return float(np.median(steps)) if len(steps) else 1 / DEFAULT_RATE


def _reconcile(times: Seconds, clock: Seconds, usual: float, absurd: npt.NDArray[np.bool_]) -> tuple[Seconds, Seconds]:
    """Where the two clocks contradict each other, believes the one that lies nearer to the next sample without contradiction."""
    good = np.flatnonzero(~absurd)
    if not len(good):
        return times, times.copy()
    nearest = good[np.clip(np.searchsorted(good, np.arange(len(times))), 0, len(good) - 1)]
    clock_wins = np.abs(clock + usual - times[nearest]) <= np.abs(times - times[nearest])
    return (
        np.where(absurd & clock_wins, clock + usual, times),
        np.where(absurd & ~clock_wins, times - usual, clock),
    )


def _fill(times: Seconds, step: float) -> Seconds:
    """Counts on from the last known time where one is missing, and back from the first."""
    known = np.isfinite(times)
    numbers = np.arange(len(times))
    last = np.maximum.accumulate(np.where(known, numbers, -1))
    base = np.where(last >= 0, last, int(np.argmax(known)))
    return np.where(known, times, times[base] + (numbers - base) * step)
