"""The frames of one call on their way through an ensemble on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext

from keyglance.errors import KeyglanceError
from models.result import FrameResult


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """What became of one frame. Times are on `time.monotonic()`'s clock.

    `tag` is what the frame was submitted with. `error` is set where a required model failed or the frame came too late; else
    `results` by model, and in `failed` why optional models have none. `since`: submitted, `began`: its batch began,
    `enqueued`: preprocessing and networks were enqueued, `ended`: results were there. `batch` is the batch's span.
    """

    tag: object
    error: KeyglanceError | None = None
    results: Mapping[str, FrameResult] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    tone_mapped: bool | None = None
    since: float = 0.0
    began: float = 0.0
    enqueued: float = 0.0
    ended: float = 0.0
    batch: SpanContext = INVALID_SPAN_CONTEXT


class FrameGroup:
    """One call's frames: how many are still to come, who hears of the answers. Its ensemble changes it, under its lock.

    `settled` is called on the event loop, once a frame. `models` are names, each of them sees every frame of the call.
    `arrived` frames have come, the first at `began` (on `time.monotonic()`'s clock).
    """

    def __init__(
        self,
        frames: int,
        models: tuple[str, ...],
        settled: Callable[[FrameAnswer], None],
        *,
        deadline: float = math.inf,
        priority: int = 0,
        caller: SpanContext = INVALID_SPAN_CONTEXT,
    ) -> None:
        if frames < 0:
            raise ValueError(f"{frames} frames expected: must be 0 or more")
        self.models = models
        self.settled = settled
        self.deadline = deadline
        self.priority = priority
        self.caller = caller
        self.discarded = False
        #: Frames that have neither been submitted nor given up.
        self.to_come = frames
        self.arrived = 0
        self.began = 0.0

    def less(self, frames: int = 1) -> int:
        """`frames` will not come any more; by how many that is fewer than was expected."""
        fewer = min(frames, self.to_come)
        self.to_come -= fewer
        return fewer

    def arrive(self, now: float) -> int:
        """One has come; as `less`."""
        self.began = self.began if self.arrived else now
        self.arrived += 1
        return self.less()

    def wait(self, now: float) -> float:
        """Seconds until the rest will have come, at the pace of those that have."""
        return (now - self.began) / max(1, self.arrived - 1) * self.to_come if self.arrived > 1 else math.inf

    def __repr__(self) -> str:
        return f"<FrameGroup {', '.join(self.models)}, {self.to_come} to come{', discarded' if self.discarded else ''}>"
