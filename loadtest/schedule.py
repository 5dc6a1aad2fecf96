"""When calls come: fixed before a run, so that a slow server does not slow its callers.

Arrivals are a Poisson process: independent callers, exponential gaps. Latency counted from the scheduled moment has no
coordinated omission (Gil Tene, "How NOT to Measure Latency").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.mix import Mix


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call: `at` seconds after the run's begin, of class number `kind`, with a deadline of `timeout` seconds.

    `cancel_after` is in seconds from sending; None: the call is left alone.
    """

    at: float
    kind: int
    timeout: float
    cancel_after: float | None = None


def poisson(mix: Mix, rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Arrivals of `rate` calls a second over `seconds`, in order; the same for the same arguments."""
    if not (rate > 0 and seconds > 0):
        raise ValueError(f"rate is {rate} and seconds {seconds}; both must be more than 0")
    random = np.random.default_rng(seed)
    times: list[float] = []
    time = 0.0
    while True:
        time += float(random.exponential(1 / rate))
        if time >= seconds:
            break
        times.append(time)
    return [_arrival(mix, time, random) for time in times]


class Successors:
    """An endless row of calls for a closed loop, where the moment is the caller's; the same for the same seed."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self._mix = mix
        self._random = np.random.default_rng(seed)

    def next(self, at: float) -> Arrival:
        """The next call, made `at` seconds after the run's begin."""
        return _arrival(self._mix, at, self._random)


def _arrival(mix: Mix, at: float, random: np.random.Generator) -> Arrival:
    kind = int(random.choice(len(mix.classes), p=mix.shares))
    one = mix.classes[kind]
    timeout, cancelled, after = (
        float(random.uniform(*one.timeout)),
        float(random.random()),
        float(random.uniform(*one.cancel_after)),
    )
    return Arrival(at, kind, timeout, after if cancelled < one.cancel else None)
