"""The deadline of a call."""

from __future__ import annotations

import time
from dataclasses import dataclass

import grpc

# A client gives up at its own deadline and says so with a reset that looks like a cancellation. It may arrive before the deadline
# as the server knows it: `grpc-timeout` carries three significant digits, rounded up (by at most 1 %), and clocks jitter.
_ROUNDING = 0.01
_JITTER = 0.02


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is on `time.monotonic()`'s clock; `timeout` is how many seconds the call had in all."""

    at: float
    timeout: float

    @classmethod
    def after(cls, timeout: float) -> Deadline:
        """The deadline that lies `timeout` seconds ahead."""
        return cls(time.monotonic() + timeout, timeout)

    @property
    def remaining(self) -> float:
        """Seconds left, 0 at the least."""
        return max(0.0, self.at - time.monotonic())

    def status_of_cancellation(self) -> grpc.StatusCode:
        """What a cancellation that arrives now means: DEADLINE_EXCEEDED at the deadline, else CANCELLED."""
        missed = self.remaining <= _JITTER + _ROUNDING * self.timeout
        return grpc.StatusCode.DEADLINE_EXCEEDED if missed else grpc.StatusCode.CANCELLED
