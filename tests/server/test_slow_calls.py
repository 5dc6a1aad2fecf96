"""The running quantile: few are slow, by whatever they are measured, and what was long ago is forgotten."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from server.slow_calls import SlowCalls


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_slow_among_few():
    slow = SlowCalls(clock=Clock())
    for _ in range(49):
        slow.add(0.1)
    assert not slow.is_slow(1e9)
    slow.add(0.1)
    assert slow.is_slow(0.2)
    assert not slow.is_slow(0.1)


@given(st.lists(st.floats(1e-5, 1e3), min_size=100, max_size=400))
def test_at_most_one_of_a_hundred_is_slow(durations):
    clock = Clock()
    slow = SlowCalls(clock=clock)
    for seconds in durations:
        slow.add(seconds)
    clock.now = 2.0
    slow.add(durations[0])
    assert sum(slow.is_slow(seconds) for seconds in durations) <= len(durations) / 100 + 1


def test_the_slowest_of_a_usual_spread_are_found():
    clock, rng = Clock(), random.Random(1)
    slow = SlowCalls(clock=clock)
    kept = 0
    for number in range(20_000):
        clock.now = number / 200
        seconds = rng.lognormvariate(-2, 0.5)
        if number > 2000:
            kept += slow.is_slow(seconds)
        slow.add(seconds)
    assert 0.004 < kept / 18_000 < 0.011


def test_what_was_long_ago_is_forgotten():
    clock = Clock()
    slow = SlowCalls(clock=clock)
    for _ in range(100):
        slow.add(5.0)
    clock.now = 400.0
    for _ in range(100):
        slow.add(0.01)
    clock.now = 402.0
    slow.add(0.01)
    assert slow.is_slow(0.1)
