"""The limit against engines that can be reckoned: it settles where they are busy, and stays within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.concurrency_limit import ConcurrencyLimit


def settle(limit: ConcurrencyLimit, workers: float, *, rounds: int = 60) -> int:
    """Calls of an engine with so many workers and a queue before them: of L calls at once, `workers` are worked on."""
    for _ in range(rounds):
        for _ in range(64):
            at_once = limit.value
            served = max(at_once, workers) / workers  # Little's law, each worker one call a second
            limit.observe(served, 1.0, short=True)
    return limit.value


@given(st.integers(1, 40), st.integers(4, 64), st.sampled_from([1.25, 1.5, 2.0]))
def test_it_settles_at_the_headroom_times_what_is_worked_on(workers: int, first: int, headroom: float) -> None:
    limit = ConcurrencyLimit(first=first, least=1, most=1000, headroom=headroom)
    assert workers < settle(limit, workers) <= workers * headroom + 2


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 200), st.booleans()), max_size=300),
    st.integers(1, 8),
    st.integers(0, 8),
    st.integers(0, 40),
)
def test_it_stays_within_its_bounds(times: list[tuple[float, float, bool]], least: int, over: int, more: int) -> None:
    limit = ConcurrencyLimit(first=least + over, least=least, most=least + over + more, headroom=1.5)
    for served, worked, short in times:
        before = limit.value
        limit.observe(served, worked, short=short)
        assert limit.least <= limit.value <= limit.most
        assert short or limit.value == before, "calls say nothing while places are free"
        assert limit.value <= before * 1.5 + 2


def test_it_follows_an_engine_that_becomes_slower_and_faster() -> None:
    limit = ConcurrencyLimit(first=16, least=1, most=100, headroom=1.5)
    slow, fast = settle(limit, 4), settle(limit, 20)
    assert slow < 10 < 20 < fast
    assert settle(limit, 4) == slow


def test_calls_that_are_held_up_outside_the_engine_get_no_more_places_for_it() -> None:
    quick, slow = (ConcurrencyLimit(first=32, least=1, most=64, headroom=1.25) for _ in range(2))
    for _ in range(2000):
        quick.observe(0.3, 0.2, short=True)
        slow.observe(1.3, 0.2, short=True)
    assert slow.value < quick.value


def test_times_that_make_no_sense_do_no_harm() -> None:
    limit = ConcurrencyLimit(first=8, least=2, most=64, headroom=1.5)
    for _ in range(200):
        limit.observe(0.0, 0.0, short=True)
        limit.observe(1.0, -50.0, short=True)
    assert limit.value == 2
    for _ in range(200):
        limit.observe(1.0, 50.0, short=True)
    assert limit.value == 64


@pytest.mark.parametrize("bounds", [(0, 0, 1), (4, 5, 8), (9, 1, 8)])
def test_bounds_that_contradict_each_other(bounds: tuple[int, int, int]) -> None:
    first, least, most = bounds
    with pytest.raises(ValueError, match="least <= first <= most"):
        ConcurrencyLimit(first=first, least=least, most=most, headroom=1.5)
    with pytest.raises(ValueError, match="more than 1"):
        ConcurrencyLimit(first=1, least=1, most=1, headroom=1.0)
