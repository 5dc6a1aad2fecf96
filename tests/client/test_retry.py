import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.errors import (
    ERRORS,
    DeadlineExceeded,
    Draining,
    GpuLost,
    KeyglanceError,
    Overloaded,
    ServerUnreachable,
    WorkerLost,
)
from keyglance.retry import Attempts, RetryPolicy

RETRIED_BY_CLASS = {ServerUnreachable, Draining, WorkerLost}

policies = st.builds(
    RetryPolicy,
    retries=st.integers(0, 10),
    first_delay=st.floats(1e-3, 1),
    factor=st.floats(1, 10),
    largest_delay=st.floats(1, 60),
)
errors = st.builds(
    lambda cls, after: cls("x", retry_after=after), st.sampled_from(list(ERRORS.values())), st.none() | st.floats(0, 100)
)
chances = st.floats(0, 1)
remainings = st.none() | st.floats(0, 1000)


@given(policies, errors, st.integers(0, 20), remainings, chances)
def test_a_delay_stays_within_every_bound(
    policy: RetryPolicy, error: KeyglanceError, made: int, remaining: float | None, chance: float
) -> None:
    delay = policy.delay(error, made, remaining, chance)
    if delay is None:
        return
    assert made < policy.retries
    assert remaining is None or delay < remaining
    assert delay >= 0
    if error.retry_after is None:
        assert type(error) in RETRIED_BY_CLASS
        assert delay <= policy.largest_delay
    else:
        assert error.retry_after <= delay <= error.retry_after * 1.25


@given(policies, st.sampled_from([cls for cls in ERRORS.values() if cls not in RETRIED_BY_CLASS]), chances)
def test_what_does_not_say_so_is_never_repeated(policy: RetryPolicy, cls: type[KeyglanceError], chance: float) -> None:
    assert policy.delay(cls("x"), 0, None, chance) is None


@pytest.mark.parametrize("cls", sorted(RETRIED_BY_CLASS, key=lambda cls: cls.reason))
def test_what_says_so_is_repeated(cls: type[KeyglanceError]) -> None:
    assert RetryPolicy().delay(cls("x"), 0, 60.0, 0.5) is not None


def test_a_lost_worker_is_given_one_more_try_only() -> None:
    assert RetryPolicy(retries=5).delay(WorkerLost("x"), 1, None, 0.0) is None
    assert RetryPolicy(retries=5).delay(ServerUnreachable("x"), 1, None, 0.0) is not None


def test_delays_grow_by_the_factor_up_to_the_largest() -> None:
    policy = RetryPolicy(retries=5, first_delay=0.2, factor=2, largest_delay=1)
    assert [policy.delay(Draining("x"), made, None, 0.0) for made in range(5)] == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0])
    assert policy.delay(Draining("x"), 0, None, 1.0) == pytest.approx(0.1)


def test_many_retries_do_not_overflow() -> None:
    assert RetryPolicy(retries=10_000).delay(Draining("x"), 9_999, None, 0.0) == 5.0


@given(policies, st.lists(errors, min_size=1, max_size=20), st.floats(0.01, 100))
def test_all_attempts_together_end_by_the_deadline_and_the_count(
    policy: RetryPolicy, failures: list[KeyglanceError], timeout: float
) -> None:
    now, calls, final = 0.0, 0, None
    attempts = Attempts(policy, timeout, clock=lambda: now, chance=lambda: 0.3)
    for failure in failures:
        assert attempts.remaining() == pytest.approx(timeout - now)
        calls += 1
        try:
            now += attempts.wait_after(failure)
        except KeyglanceError as error:
            final = error
            break
        assert now < timeout
    assert calls <= policy.retries + 1
    assert final is (failures[calls - 1] if final else None)


def test_no_attempt_begins_after_the_deadline() -> None:
    now = 0.0
    attempts = Attempts(RetryPolicy(), 1.0, clock=lambda: now)
    now = 1.5
    with pytest.raises(DeadlineExceeded, match="1 s"):
        attempts.remaining()


def test_without_a_deadline_attempts_have_none() -> None:
    attempts = Attempts(RetryPolicy(retries=1), None, chance=lambda: 0.0)
    assert attempts.remaining() is None
    assert attempts.wait_after(Overloaded("x", retry_after=3.0)) == 3.0
    with pytest.raises(Overloaded):
        attempts.wait_after(Overloaded("x", retry_after=3.0))


def test_a_gpu_lost_is_repeated_only_where_the_server_names_a_time() -> None:
    assert RetryPolicy().delay(GpuLost("x"), 0, None, 0.0) is None
    assert RetryPolicy().delay(GpuLost("x", retry_after=1.0), 0, None, 0.0) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"first_delay": 0.0},
        {"first_delay": 9.0},
        {"largest_delay": math.inf},
        {"factor": 0.5},
        {"factor": math.nan},
    ],
)
def test_policies_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan])
def test_timeouts_out_of_range_are_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Attempts(RetryPolicy(), timeout)
