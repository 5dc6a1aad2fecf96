"""The frames of one call on their way through an ensemble on a device."""

from __future__ import annotations

import math
import threading
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
    `enqueued`: preprocessing and networks were enqueued, `ended`: results were there.
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


class FrameGroup:
    """One call's frames: how many are still to come, who hears of the answers. Thread-safe but for `settled`.

    `settled` is called on the event loop, once a frame. `models` are names, each of them sees every frame of the call.
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
        self._lock = threading.Lock()
        self._to_come = frames

    @property
    def to_come(self) -> int:
        """Frames that have neither been submitted nor given up."""
        return self._to_come

    def less(self, frames: int = 1) -> int:
        """`frames` have come, or never will; how many are left to come."""
        with self._lock:
            self._to_come = max(0, self._to_come - frames)
            return self._to_come

    def __repr__(self) -> str:
        return f"<FrameGroup {', '.join(self.models)}, {self._to_come} to come{', discarded' if self.discarded else ''}>"
