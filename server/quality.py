"""How thoroughly a call is looked at: in full, or with less where the server is too busy for that."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyglance.sampling import PlannedFrame, Run, SamplingPlan, spread
from models.manifest import Manifest
from server.degradation import Degradation, DegradationReason

_TOLERANCE = 1e-6  # seconds


@dataclass(frozen=True, slots=True)
class Quality:
    """At most `frames` pictures, 0 for as many as are asked for, and without the optional models `leave_out`."""

    frames: int = 0
    leave_out: frozenset[str] = frozenset()

    def models(self, asked: Sequence[str], manifests: Iterable[Manifest]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(the models to ask for, those left out). Whoever names models gets them; required ones are never left out."""
        if asked or not self.leave_out:
            return tuple(asked), ()
        usual = [model for model in manifests if model.default_on]
        left_out = tuple(model.name for model in usual if not model.required and model.name in self.leave_out)
        if not left_out or len(left_out) == len(usual):  # an answer without any model is none
            return (), ()
        return tuple(model.name for model in usual if model.name not in left_out), left_out

    @property
    def sampling(self) -> tuple[int, ...]:
        """What a digest of the sampling as applied has to have beside the policy."""
        return (self.frames,) if self.frames else ()

    def plan(self, full: SamplingPlan, largest_gap: float) -> SamplingPlan:
        """A part of the full plan: callers have sent the bytes of that one. The largest gap still wins over the number."""
        return thinned(full, self.frames, largest_gap) if self.frames else full


#: Everything that is asked for.
FULL = Quality()


def told(full: SamplingPlan, applied: SamplingPlan, left_out: Sequence[str]) -> list[Degradation]:
    """What an answer has to say of it."""
    found = []
    wanted, seen = len(full.frames), len(applied.frames)
    if seen < wanted:
        detail = f"under load {seen} of {wanted} pictures were looked at"
        found.append(Degradation(DegradationReason.FEWER_FRAMES, wanted - seen, detail))
    if left_out:
        detail = f"under load without {', '.join(left_out)}"
        found.append(Degradation(DegradationReason.MODEL_LEFT_OUT, len(left_out), detail))
    return found


def thinned(plan: SamplingPlan, most: int, largest_gap: float) -> SamplingPlan:
    """`plan` with about `most` of its pictures, 2 or more, spread over the time, and as many more as keep its gaps to
    `largest_gap` seconds where it keeps them itself. Needs no sample that `plan` does not need.
    """
    if len(plan.frames) <= most:
        return plan
    shown = [frame for frame in plan.frames if not frame.outside_edit]
    hidden = [frame for frame in plan.frames if frame.outside_edit]
    # What a player does not show is another stretch of time, and may be what somebody hides: it keeps its share.
    share = round(most * len(hidden) / len(plan.frames))
    kept = {frame.sample for frame in (*_thinned(shown, most - share, largest_gap), *_thinned(hidden, share, largest_gap))}
    runs = tuple(short for run in plan.runs if (short := _shortened(run, kept)) is not None)
    return replace(plan, frames=tuple(frame for frame in plan.frames if frame.sample in kept), runs=runs)


def _thinned(frames: Sequence[PlannedFrame], number: int, largest_gap: float) -> list[PlannedFrame]:
    """The first, the last, and between them at least so many that `number` are there and no gap is too large."""
    times = [frame.time for frame in frames]
    kept = spread(np.array(times), max(2, number))
    for left, right in itertools.pairwise(tuple(kept)):
        while times[right] - times[left] > largest_gap + _TOLERANCE and right - left > 1:
            left = max(bisect.bisect_right(times, times[left] + largest_gap + _TOLERANCE, left + 1, right) - 1, left + 1)
            kept.append(left)
    return [frames[place] for place in sorted(kept)]


def _shortened(run: Run, kept: set[int]) -> Run | None:
    """The run as far as it is needed for the kept pictures."""
    wanted = tuple(sample for sample in run.wanted if sample in kept)
    if not wanted:
        return None
    last = run.samples.index(wanted[-1])
    return Run(run.samples[: last + 1 + run.spare], wanted, min(run.spare, len(run.samples) - last - 1))
