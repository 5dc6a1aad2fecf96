"""Which pictures of a video to look at, and what must be decoded to see them. Pure: no input, no output, no state.

The rule is "no blind spot": keyframes alone can be evaded (one harmless keyframe and a minute of predicted pictures), so
where keyframes lie further apart than the policy's largest gap, pictures between them are decoded up to the wanted times.
Pictures that a player does not show (outside the edit list) are stored all the same; they are looked at by the same rule,
on their own. Key flags lie, in both directions: a run carries spare samples for the decoder to go on with.

Client and server plan by the same rules: the client to know which bytes to send, the server to know what to decode.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from keyglance.errors import BadPolicy
from keyglance.video import SampleFlag, VideoIndex

#: Samples behind the last wanted one of a run that a decoder may feed until a picture appears: reordering delay (16 is the
#: most of H.264 and HEVC), second fields, pictures before a recovery point, flags that lie.
SPARE = 16
#: Where entry points lie close together, the spare samples end behind the second of them, but there are at least so many.
_LEAST_SPARE = 4
#: Differences of times below this many seconds do not count.
_TOLERANCE = 1e-6

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """What a caller wants to be looked at.

    `frames`: pictures wanted, 1 or more. `largest_gap`: the largest time in seconds, more than 0, between neighbouring
    pictures looked at and from the video's ends to the nearest one; it wins over `frames`. `add_non_keyframes`: whether to
    decode predicted pictures to keep it.
    """

    frames: int = 16
    largest_gap: float = 10.0
    add_non_keyframes: bool = True

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise BadPolicy(f"frames is {self.frames}, allowed are 1 and more")
        if not (self.largest_gap > 0 and math.isfinite(self.largest_gap)):
            raise BadPolicy(f"largest_gap is {self.largest_gap} s, allowed is more than 0")


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """What a server allows one call: pictures looked at, and samples decoded for them (spare ones included)."""

    frames: int = 64
    decoded_samples: int = 20_000


@dataclass(frozen=True, slots=True)
class PlannedFrame:
    """A picture to look at: its sample's number, its time in seconds, and what the container says of it."""

    sample: int
    time: float
    keyframe: bool
    outside_edit: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring samples that begin at an entry point; the last `spare` ones are fed only until the wanted appear."""

    samples: tuple[int, ...]
    wanted: tuple[int, ...]
    spare: int


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Pictures by time, runs in decoding order. Each frame's sample is wanted by exactly one run.

    `gap_exceeded`: pictures would be left unseen for longer than the policy's largest gap, even if all goes well.
    """

    frames: tuple[PlannedFrame, ...]
    runs: tuple[Run, ...]
    gap_exceeded: bool

    @property
    def decoded_samples(self) -> int:
        """The most samples that decoding the plan takes."""
        return sum(len(run.samples) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the shown video was seen.

    `largest_gap` is the largest time in seconds, ends of the video included, in which stored pictures lie that were not
    looked at, and `largest_gap_start` where it begins. A picture that stays on the screen leaves no gap.
    """

    frames: int
    largest_gap: float
    largest_gap_start: float


def coverage(index: VideoIndex, times_seen: Iterable[float]) -> Coverage:
    """The coverage that looking at the pictures of these times gives; those outside the edit list do not close a gap."""
    seen = np.sort(np.fromiter(times_seen, dtype=np.float64))
    shown = np.sort(index.samples.time[~index.samples.having(SampleFlag.OUTSIDE_EDIT)])
    near = np.searchsorted(shown, seen - _TOLERANCE) < np.searchsorted(shown, seen + _TOLERANCE)
    gap, start = _largest_gap(shown, seen[near].tolist(), 0.0, index.duration)
    return Coverage(len(seen), gap, start)


def _largest_gap(times: Seconds, seen: Sequence[float], begin: float, end: float) -> tuple[float, float]:
    """The largest distance of neighbouring seen times between which one of the sorted `times` lies, and where it begins."""
    marks = np.array([-np.inf, *(t for t in seen if begin - _TOLERANCE <= t <= end + _TOLERANCE), np.inf])
    first = np.searchsorted(times, marks[:-1] + _TOLERANCE, side="right")
    last = np.searchsorted(times, marks[1:] - _TOLERANCE, side="left")
    edges = np.clip(marks, begin, max(begin, end))
    gaps = np.where(last > first, np.diff(edges), 0.0)
    widest = int(np.argmax(gaps))
    return (float(gaps[widest]), float(edges[widest])) if gaps[widest] > 0 else (0.0, float(begin))


def plan(index: VideoIndex, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
    """Chooses pictures to look at, at most `limits.frames`; near linear in the number of samples, and deterministic.

    Up to `policy.frames` keyframes spread over the time; then whatever the largest gap still needs, keyframes before
    predicted pictures, and of those the cheapest to reach. No frames at all only where nothing can be decoded.
    """
    if limits.frames < 1 or limits.decoded_samples < 1:
        raise BadPolicy(f"{limits} allow nothing")
    stream = _Stream.of(index)
    hidden = stream.outside
    parts = [_Part(stream, ~hidden, 0.0, index.duration)] if not hidden.all() else []
    if hidden.any():
        times = stream.time[hidden]
        parts.append(_Part(stream, hidden, float(times.min()), float(times.max())))
    shares = _shares([max(part.end - part.begin, _TOLERANCE) for part in parts], min(policy.frames, limits.frames))
    gap = policy.largest_gap
    rooms = _shares([1.0] * len(parts), limits.frames) if len(parts) > 1 else [limits.frames]
    chosen: list[int] = []
    for part, share, room in reversed(list(zip(parts, shares, rooms, strict=True))):  # hidden first: it leaves room for shown
        allowed = limits.frames - len(chosen) if part is parts[0] else room
        chosen += part.choose(share, gap, allowed, policy.add_non_keyframes)
    chosen = _affordable(stream, chosen, limits.decoded_samples)
    runs = _runs(stream, chosen, limits.decoded_samples)
    picked = sorted(chosen, key=lambda sample: (float(stream.time[sample]), sample))
    frames = tuple(
        PlannedFrame(sample, float(stream.time[sample]), bool(stream.flagged[sample]), bool(hidden[sample])) for sample in picked
    )
    exceeded = any(part.gap_left(chosen) > gap + _TOLERANCE for part in parts)
    return SamplingPlan(frames, runs, exceeded)


@dataclass(frozen=True, slots=True)
class _Stream:
    """The samples, with where decoding has to begin to see each: `entry`, -1 where nothing leads to the picture."""

    time: Seconds
    flagged: Mask
    clear: Mask
    outside: Mask
    entry: Numbers
    entries: Numbers

    @classmethod
    def of(cls, index: VideoIndex) -> _Stream:
        samples = index.samples
        count = len(samples)
        numbers = np.arange(count, dtype=np.int64)
        clear = ~samples.having(SampleFlag.ENCRYPTED)
        flagged = samples.having(SampleFlag.KEY)
        starts = flagged & clear
        # Without a flag before it the stream's first sample is where decoding begins: it may be a picture of its own whose
        # flag is missing; if not, the decoder says so.
        if count and clear[0]:
            starts = starts.copy()
            starts[0] = True
        entries = numbers[starts]
        if not len(entries):
            return cls(samples.time, flagged, clear, samples.having(SampleFlag.OUTSIDE_EDIT), np.full(count, -1), entries)
        rank = np.cumsum(starts) - 1
        entry = np.where(rank >= 0, entries[np.maximum(rank, 0)], -1)
        # A picture shown before the entry point that it follows in decoding order may be predicted from the one before.
        leading = (entry >= 0) & (samples.time < samples.time[np.maximum(entry, 0)] - _TOLERANCE) & (rank > 0)
        entry = np.where(leading, entries[np.maximum(rank - 1, 0)], entry)
        encrypted = np.concatenate(([0], np.cumsum(~clear)))
        between = encrypted[numbers + 1] - encrypted[np.maximum(entry, 0)]
        entry = np.where((entry >= 0) & (between == 0), entry, -1)
        return cls(samples.time, flagged, clear, samples.having(SampleFlag.OUTSIDE_EDIT), entry, entries)


class _Part:
    """The shown samples, or those outside the edit list, on their own stretch of time."""

    def __init__(self, stream: _Stream, mask: Mask, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self._stream = stream
        self._mask = mask
        self._all_times = np.sort(stream.time[mask])
        usable = np.flatnonzero(mask & (stream.entry >= 0))
        order = np.argsort(stream.time[usable], kind="stable")
        self._usable = usable[order]
        self._times = stream.time[self._usable]
        is_key = stream.flagged[self._usable] & stream.clear[self._usable]
        self._keys = self._usable[is_key]
        self._key_times = self._times[is_key]

    def gap_left(self, chosen: Iterable[int]) -> float:
        """The largest gap that the chosen samples leave in this part."""
        seen = sorted(float(self._stream.time[sample]) for sample in chosen if self._mask[sample])
        return _largest_gap(self._all_times, seen, self.begin, self.end)[0]

    def choose(self, wanted: int, gap: float, room: int, add: bool) -> list[int]:
        """Numbers of samples to look at, at most `room`; the gap grows until they fit."""
        if not len(self._usable) or room < 1:
            return []
        places = spread(self._key_times, max(0, min(wanted, room)))
        base = [int(self._keys[n]) for n in places]
        if not len(self._keys):
            # Nothing here is flagged: the picture that takes the fewest samples stands for the missing keyframe.
            cost = self._usable - self._stream.entry[self._usable]
            base = [int(self._usable[int(np.argmin(cost))])]
        filled = self._fill(base, gap, room, add)
        if filled is not None:
            return filled
        low, high = gap, max(gap, self.end - self.begin) * 2
        best = base
        for _ in range(24):
            middle = (low + high) / 2
            attempt = self._fill(base, middle, room, add)
            if attempt is None:
                low = middle
            else:
                best, high = attempt, middle
        return best

    def _fill(self, base: list[int], gap: float, room: int, add: bool) -> list[int] | None:
        """`base` and what keeps the gap, None if that is more than `room` samples."""
        chosen = list(base)
        seen = sorted({float(self._stream.time[sample]) for sample in base})
        for left, right in zip([None, *seen], [*seen, None], strict=True):
            chosen += self._between(left, right, gap, room - len(chosen) + 1, add)
            if len(chosen) > room:
                return None
        return chosen

    def _between(self, left: float | None, right: float | None, gap: float, most: int, add: bool) -> list[int]:
        """Samples between two seen times (None: the part's end), so that no gap is left; stops at `most`."""
        added: list[int] = []
        now = left if left is not None else self.begin
        stop = right if right is not None else self.end
        fresh = left is None  # whether a picture at `now` itself is still unseen
        while stop - now > gap + _TOLERANCE and len(added) < most:
            key = self._key_between(now, min(now + gap, stop), fresh)
            if key is not None:
                added.append(key)
            elif add:
                following = self._next_key(now, stop)
                goal = float(self._stream.time[following]) if following is not None else stop
                steps = self._predicted(now, goal, gap, most - len(added), fresh, closed=following is None and right is None)
                added += steps
                if following is None:
                    break
                added.append(following)
            else:
                following = self._next_key(now, stop)
                if following is None:
                    break
                added.append(following)
            now, fresh = float(self._stream.time[added[-1]]), False
        return added

    def _key_between(self, low: float, high: float, fresh: bool) -> int | None:
        """The latest keyframe in (low, high], or [low, high] if `fresh`, that is not at `high`'s seen picture itself."""
        at = int(np.searchsorted(self._key_times, high + _TOLERANCE, side="right")) - 1
        first = int(np.searchsorted(self._key_times, low - _TOLERANCE if fresh else low + _TOLERANCE, side="left"))
        return int(self._keys[at]) if at >= first else None

    def _next_key(self, low: float, stop: float) -> int | None:
        at = int(np.searchsorted(self._key_times, low + _TOLERANCE, side="right"))
        return int(self._keys[at]) if at < len(self._keys) and self._key_times[at] < stop - _TOLERANCE else None

    def _predicted(self, low: float, high: float, gap: float, most: int, fresh: bool, *, closed: bool) -> list[int]:
        """The fewest predicted pictures in (low, high) that leave no gap, each as early, so as cheap to reach, as it may be.

        From `high` backwards: the earliest picture not more than a gap before the next one. Where no picture lies so
        near, the nearest one is taken. `fresh`: a picture at `low` counts; `closed`: one at `high` does.
        """
        first = int(np.searchsorted(self._times, low - _TOLERANCE if fresh else low + _TOLERANCE, side="left"))
        last = int(np.searchsorted(self._times, high + _TOLERANCE if closed else high - _TOLERANCE, side="left"))
        found: list[int] = []
        now = high
        while now - low > gap + _TOLERANCE and last > first and len(found) < most:
            at = bisect.bisect_left(self._times, now - gap - _TOLERANCE, first, last)
            if at >= last:  # none within a gap: the pictures before a hole, the nearest of them
                at = last - 1
            found.append(int(self._usable[at]))
            now, last = float(self._times[at]), at
        return found[::-1]


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Splits `total` over one or two weights; the second gets at least 1 where there are 2 or more to give."""
    if len(weights) < 2:
        return [total] * len(weights)
    second = min(total - 1, max(1, round(total * weights[1] / sum(weights))))
    return [total - second, second]


def spread(times: Seconds, count: int) -> list[int]:
    """At most `count` indices into sorted times, spread evenly: nearest to even steps, then middles of the widest gaps."""
    if len(times) <= count:
        return list(range(len(times)))
    if count == 0:
        return []
    targets = np.linspace(times[0], times[-1], count) if count > 1 else times[:1]
    right = np.clip(np.searchsorted(times, targets), 1, len(times) - 1)
    nearest = np.where(targets - times[right - 1] <= times[right] - targets, right - 1, right)
    chosen = sorted({int(n) for n in nearest})
    gaps = [(float(times[a] - times[b]), a, b) for a, b in itertools.pairwise(chosen) if b - a > 1]
    heapq.heapify(gaps)
    while len(chosen) < count and gaps:
        _, a, b = heapq.heappop(gaps)
        middle = bisect.bisect_left(times, (times[a] + times[b]) / 2, a + 1, b - 1)
        chosen.append(middle)
        for low, high in ((a, middle), (middle, b)):
            if high - low > 1:
                heapq.heappush(gaps, (float(times[low] - times[high]), low, high))
    return sorted(chosen)


def _affordable(stream: _Stream, chosen: list[int], budget: int) -> list[int]:
    """Those of the chosen samples that can be decoded within the budget, as many as possible: cheapest first.

    Within one entry point's samples reaching one picture pays for all before it.
    """
    by_entry: dict[int, list[int]] = {}
    for sample in sorted(set(chosen)):
        by_entry.setdefault(int(stream.entry[sample]), []).append(sample)
    waiting = [(wanted[0] - entry + 1, entry, 0) for entry, wanted in by_entry.items()]
    heapq.heapify(waiting)
    kept: list[int] = []
    while waiting:
        cost, entry, n = heapq.heappop(waiting)
        if cost > budget:
            break
        budget -= cost
        wanted = by_entry[entry]
        kept.append(wanted[n])
        if n + 1 < len(wanted):
            heapq.heappush(waiting, (wanted[n + 1] - wanted[n], entry, n + 1))
    return sorted(kept)


def _runs(stream: _Stream, chosen: Sequence[int], budget: int) -> tuple[Run, ...]:
    """Runs for the chosen samples, ascending; those that overlap are one, so no picture is decoded twice."""
    spans: list[tuple[int, int, list[int]]] = []
    for start, sample in sorted((int(stream.entry[sample]), sample) for sample in chosen):
        if spans and start <= spans[-1][1]:
            begin, end, wanted = spans[-1]
            spans[-1] = (begin, max(end, sample), [*wanted, sample])
        else:
            spans.append((start, sample, [sample]))
    left = max(0, budget - sum(end - start + 1 for start, end, _ in spans))
    runs = []
    for n, (start, end, wanted) in enumerate(spans):
        spare = min(_spare(stream, end), left // (len(spans) - n))
        left -= spare
        runs.append(Run(tuple(range(start, end + 1 + spare)), tuple(sorted(wanted)), spare))
    return tuple(runs)


def _spare(stream: _Stream, end: int) -> int:
    """How many samples behind `end` a run may have: not across encrypted ones, not far across entry points."""
    stop = min(len(stream.time), end + 1 + SPARE)
    beyond = stream.clear[end + 1 : stop]
    if not beyond.all():
        stop = end + 1 + int(beyond.argmin())  # the first that is encrypted
    second = bisect.bisect_right(stream.entries, end) + 1
    if second < len(stream.entries):
        stop = min(stop, max(int(stream.entries[second]) + 1, end + 1 + _LEAST_SPARE))
    return stop - end - 1
