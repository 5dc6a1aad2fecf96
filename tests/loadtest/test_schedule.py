import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.mix import CallClass, Mix
from loadtest.schedule import Successors, poisson

MIX = Mix(
    (
        CallClass("often", b"", weight=3, timeout=(1.0, 2.0)),
        CallClass("cancelled", b"", weight=1, cancel=0.5, cancel_after=(0.1, 0.2)),
    )
)


@given(st.floats(0.1, 200), st.floats(0.1, 20), st.integers(0, 2**32))
def test_arrivals_ascend_within_the_time_and_are_the_same_for_a_seed(rate: float, seconds: float, seed: int) -> None:
    arrivals = poisson(MIX, rate, seconds, seed)
    times = [arrival.at for arrival in arrivals]
    assert times == sorted(times)
    assert all(0 <= time < seconds for time in times)
    assert arrivals == poisson(MIX, rate, seconds, seed)


def test_the_gaps_are_those_of_independent_callers() -> None:
    times = np.array([arrival.at for arrival in poisson(MIX, 100, 200, 1)])
    gaps = np.diff(times)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential: mean and deviation are the same
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), rel=0.05)


def test_classes_deadlines_and_cancellations_are_drawn_as_the_mix_says() -> None:
    arrivals = poisson(MIX, 100, 100, 2)
    often = [arrival for arrival in arrivals if arrival.kind == 0]
    others = [arrival for arrival in arrivals if arrival.kind == 1]
    assert len(often) / len(arrivals) == pytest.approx(0.75, abs=0.03)
    assert all(1 <= arrival.timeout <= 2 and arrival.cancel_after is None for arrival in often)
    cancelled = [arrival.cancel_after for arrival in others if arrival.cancel_after is not None]
    assert len(cancelled) / len(others) == pytest.approx(0.5, abs=0.06)
    assert all(0.1 <= after <= 0.2 for after in cancelled)


def test_two_mixes_of_one_seed_have_the_same_moments() -> None:
    other = Mix((CallClass("alone", b""),))
    assert [a.at for a in poisson(MIX, 5, 10, 7)] == [a.at for a in poisson(other, 5, 10, 7)]


def test_a_closed_loop_has_the_same_calls_for_a_seed() -> None:
    one, other = Successors(MIX, 3), Successors(MIX, 3)
    assert [one.next(1.0) for _ in range(20)] == [other.next(1.0) for _ in range(20)]


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_no_rate_is_no_schedule(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        poisson(MIX, rate, seconds, 1)
