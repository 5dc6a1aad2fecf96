"""Steps under load: their order, their dwell, and that nothing makes them swing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.load_steps import LoadSteps

SETTLE, HOLD = 1.0, 10.0


def steps(*loads: float) -> LoadSteps:
    return LoadSteps(loads or (0.5, 0.8), settle=SETTLE, hold=HOLD)


def feed(it: LoadSteps, begin: float, seconds: float, *, load: float, rate: float, capacity: float | None = 100.0) -> float:
    """`rate` calls a second for so many seconds; returns the end."""
    for number in range(int(seconds * rate)):
        it.update(begin + number / rate, load, capacity)
    return begin + seconds


def test_no_steps_no_degradation() -> None:
    it = LoadSteps((), settle=SETTLE, hold=HOLD)
    assert it.update(0.0, 1.0, None) == 0


def test_nothing_happens_below_the_first_load() -> None:
    it = steps()
    feed(it, 0, 100, load=0.49, rate=50)
    assert it.step == 0


def test_one_step_at_a_time_each_with_time_to_show_its_effect() -> None:
    it = steps()
    assert it.update(0.0, 1.0, 100) == 1
    assert it.update(0.9, 1.0, 100) == 1
    assert it.update(1.0, 1.0, 100) == 2
    assert it.update(9.0, 1.0, 100) == 2


def test_a_step_whose_effect_suffices_is_kept_while_as_many_calls_come() -> None:
    it = steps()
    end = feed(it, 0, 2, load=0.6, rate=120)
    feed(it, end, 200, load=0.0, rate=120)  # the load is gone because of the step
    assert it.step == 1


def test_it_is_left_when_fewer_calls_come() -> None:
    it = steps()
    end = feed(it, 0, 5, load=1.0, rate=300)
    assert it.step == 2
    end = feed(it, end, 22, load=0.0, rate=60)
    assert it.step == 1, "one at a time"
    feed(it, end, 12, load=0.0, rate=60)
    assert it.step == 0


def test_what_could_be_done_a_step_lower_may_have_changed_so_it_is_tried_at_last() -> None:
    it = steps()
    end = feed(it, 0, 2, load=0.6, rate=120)
    feed(it, end, 31 * HOLD, load=0.0, rate=120)
    assert it.step == 0


def test_silence_is_calm() -> None:
    it = steps()
    feed(it, 0, 5, load=1.0, rate=300)
    assert it.update(5 + 2 * HOLD + 1, 0.0, 100) == 0, "the first call after a pause gets a full answer"


def test_a_step_left_too_early_is_held_twice_as_long() -> None:
    it = steps(0.5)
    now, held = 0.0, []
    for _ in range(5):
        it.update(now, 0.6, None)
        assert it.step == 1
        taken = now
        while it.step:
            now += 0.05
            it.update(now, 0.0, None)
        held.append(now - taken)
        now += SETTLE
    assert held == sorted(held)
    for before, after in itertools.pairwise(held):
        assert after == pytest.approx(2 * before, rel=0.05)


arrivals = st.lists(
    st.tuples(st.floats(0.001, 40.0), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1000))), min_size=1, max_size=400
)


@settings(max_examples=200, deadline=None)
@given(arrivals, st.lists(st.floats(0.01, 1), max_size=4).map(sorted))
def test_whatever_comes_steps_are_neighbours_and_held(calls: list[tuple[float, float, float | None]], loads: list[float]) -> None:
    it = LoadSteps(loads, settle=SETTLE, hold=HOLD)
    now, changed = 0.0, float("-inf")
    for gap, load, capacity in calls:
        now += gap
        before = it.step
        it.update(now, load, capacity)
        assert 0 <= it.step <= len(loads)
        at = it._changed  # within a pause that may have been before the call
        if it.step > before:
            assert it.step == before + 1
            assert load >= loads[before]
            assert at - changed >= SETTLE - 1e-6
        elif it.step < before:
            assert it.step == before - 1 or gap >= HOLD, "several only after a pause"
            assert load < loads[before - 1] or gap >= HOLD
            assert at - changed >= HOLD - 1e-6
        changed = at


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1, 20), st.floats(1, 20), st.floats(0.5, 1), st.floats(0, 0.2), st.floats(5, 50), st.one_of(st.none(), st.just(1e9))
)
def test_a_load_that_comes_and_goes_changes_less_and_less(
    on: float, off: float, high: float, low: float, rate: float, capacity: float | None
) -> None:
    """Even if every recovery seems to be one (the capacity is unknown, or said to be endless)."""
    it = steps(0.5)
    now, changes = 0.0, []
    while now < 3600:
        for seconds, load in ((on, high), (off, low)):
            end = now + seconds
            while now < end:
                before = it.step
                if it.update(now, load, capacity) != before:
                    changes.append(now)
                now += 1 / rate
    # In an hour at most: up and down with dwells of 10, 20, 40, … 640 s, and those again where one was long enough.
    assert len(changes) <= 2 * 12
    assert len([at for at in changes if at > 1800]) <= 2 * 4


@pytest.mark.parametrize("loads", [(0.8, 0.5), (0.0, 0.5), (0.5, 1.1)])
def test_loads_that_are_none(loads: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        LoadSteps(loads, settle=SETTLE, hold=HOLD)
