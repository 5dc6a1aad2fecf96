"""What a model says of one picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Region:
    """A place in the picture as shown; `x`, `y`, `width`, `height` are shares of its sides, 0 to 1, from the top left."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class FrameResult:
    """One model's scores by label, each 0 to 1, and the regions behind them."""

    scores: Mapping[str, float] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
