"""When a failed call is made again, and after how long. Every call of the API is free of side effects, so asking twice is safe.

A call is repeated where the error says that it makes sense: it carries `retry_after` (`google.rpc.RetryInfo`), the server
was not reached, it was draining, or a worker was lost. Nothing else is repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from keyglance.errors import DeadlineExceeded, Draining, KeyglanceError, ServerUnreachable, WorkerLost

#: A hostile video can end the worker that reads it, so one more try and no more.
_RETRIES_OF_A_LOST_WORKER = 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after how long a failed call is made again.

    `retries` counts the calls after the first, 0 for none. The delay before the n-th of them (from 0) is
    `first_delay * factor**n` seconds, at most `largest_delay`, less up to half of it by chance (jitter), so that callers
    that failed together do not come back together. Where the server names a delay, that one holds, plus up to a quarter.
    """

    retries: int = 3
    first_delay: float = 0.2
    factor: float = 2.0
    largest_delay: float = 5.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; 0 or more is allowed")
        if not 0 < self.first_delay <= self.largest_delay < float("inf"):
            raise ValueError(
                f"delays are {self.first_delay} and {self.largest_delay} s; 0 < first_delay <= largest_delay is allowed"
            )
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"factor is {self.factor}; 1 or more is allowed")

    def delay(self, error: KeyglanceError, retries_made: int, remaining: float | None, chance: float) -> float | None:
        """Seconds to wait before the call is made again, or None where `error` is final.

        `remaining` is the time in seconds left to the call's deadline, None without one; a delay that would use it up is
        not waited for. `chance` is a random number from 0 to 1.
        """
        if retries_made >= self.retries:
            return None
        if error.retry_after is not None:
            delay = max(error.retry_after, 0.0) * (1 + chance / 4)
        elif isinstance(error, ServerUnreachable | Draining) or (
            isinstance(error, WorkerLost) and retries_made < _RETRIES_OF_A_LOST_WORKER
        ):
            try:
                grown = self.first_delay * self.factor**retries_made
            except OverflowError:
                grown = self.largest_delay
            delay = min(self.largest_delay, grown) * (1 - chance / 2)
        else:
            return None
        return delay if remaining is None or delay < remaining else None


class Attempts:
    """The attempts of one call: its deadline, which holds for all of them together, and what is left of its retries."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is {timeout} s; more than 0, or None for none, is allowed")
        self.timeout = timeout
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._deadline = None if timeout is None else clock() + timeout
        self._retries_made = 0

    def remaining(self) -> float | None:
        """Seconds left for the next attempt, None without a deadline; raises `DeadlineExceeded` where none are."""
        if self._deadline is None:
            return None
        left = self._deadline - self._clock()
        if left <= 0:
            raise DeadlineExceeded(f"the call's {self.timeout:g} s passed before the server was asked")
        return left

    def wait_after(self, error: KeyglanceError) -> float:
        """Seconds to wait before the next attempt; raises `error` where there is to be none."""
        left = None if self._deadline is None else self._deadline - self._clock()
        delay = self._policy.delay(error, self._retries_made, left, self._chance())
        if delay is None:
            raise error
        self._retries_made += 1
        return delay
