from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from server.service_times import ServiceTimes


def test_little_is_nothing() -> None:
    times = ServiceTimes()
    assert (times.mean(0), times.median(0, 0)) == (None, None)
    for _ in range(7):
        times.add(0, 1.0, 0.0)
    assert (times.mean(0), times.median(0, 0)) == (None, None)
    times.add(0, 1.0, 0.0)
    assert (times.mean(0), times.median(0, 0)) == (1.0, 1.0)


def test_a_kind_has_its_own_median_and_others_that_of_all() -> None:
    times = ServiceTimes()
    for _ in range(10):
        times.add("short", 1.0, 0.0)
        times.add("long", 5.0, 0.0)
    assert (times.median("short", 0), times.median("long", 0)) == (1.0, 5.0)
    assert times.median("new", 0) in (1.0, 5.0)
    assert times.mean(0) == 3.0


def test_what_is_old_is_forgotten() -> None:
    times = ServiceTimes(memory=60)
    for _ in range(20):
        times.add(0, 9.0, 0.0)
    assert times.median(0, 59.0) == 9.0
    assert (times.mean(61.0), times.median(0, 61.0)) == (None, None)


def test_times_can_be_scaled() -> None:
    times = ServiceTimes()
    for number in range(1, 9):
        times.add(number % 2, float(number), 0.0)
    times.scale(0.5)
    assert (times.mean(0), times.median("other", 0)) == (2.25, 2.0)


@given(st.lists(st.floats(0.001, 100), min_size=8, max_size=200))
def test_the_last_ones_count(seconds: list[float]) -> None:
    times = ServiceTimes()
    for number, each in enumerate(seconds):
        times.add(0, each, number / 10)
    now = len(seconds) / 10
    assert times.median(0, now) == statistics.median_low(seconds[-64:])
    mean = times.mean(now)
    assert mean is not None
    assert abs(mean - statistics.fmean(seconds[-32:])) < 1e-9 * max(seconds)
