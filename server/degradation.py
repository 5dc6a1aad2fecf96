"""Degradations: what makes an answer less than a full one, as values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class DegradationReason(enum.Enum):
    """As in the API, by number."""

    FRAME_DAMAGED = 1
    FRAME_UNDECODABLE = 2
    GAP_EXCEEDED = 3
    SOFTWARE_FALLBACK = 4
    FEWER_FRAMES = 5
    MODEL_LEFT_OUT = 6
    TRACK_NOT_SEEN = 7
    TRUNCATED = 8
    PARTLY_ENCRYPTED = 9
    NOT_TONE_MAPPED = 10
    CONTAINER_LIES = 11


@dataclass(frozen=True, slots=True)
class Degradation:
    """What happened, how often, and one sentence with the values."""

    reason: DegradationReason
    count: int
    detail: str


def merge(degradations: Iterable[Degradation]) -> tuple[Degradation, ...]:
    """One degradation a reason: counts added, the first detail kept."""
    merged: dict[DegradationReason, Degradation] = {}
    for item in degradations:
        held = merged.get(item.reason)
        merged[item.reason] = item if held is None else Degradation(item.reason, held.count + item.count, held.detail)
    return tuple(merged[reason] for reason in sorted(merged, key=lambda reason: reason.value))
