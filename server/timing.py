"""Time spent in each step of a call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One step: begin and end on `time.monotonic()`'s clock, seconds waited in it, things created on its way."""

    step: str
    begin: float
    end: float
    wait: float = 0.0
    created: int = 0
