"""Short work one after the other, long work beside it: with real threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from decoder_pool.turns import Turns

LONG = 30.0  # seconds of patience that no test waits for


class Work:
    """Work that counts how many do it at once, and ends when it is told to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_once = self.most = self.done = 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, number: int, until: threading.Event | None = None) -> int:
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            if until is None:
                time.sleep(0.002)
            else:
                self.begun.set()
                assert until.wait(20)
        finally:
            with self.lock:
                self.at_once -= 1
                self.done += 1
        return number


def test_one_after_the_other() -> None:
    async def go() -> list[int]:
        turns = Turns(LONG)
        return list(await asyncio.gather(*(turns.run(work, number) for number in range(20))))

    work = Work()
    assert asyncio.run(go()) == list(range(20))
    assert work.most == 1


def test_something_long_holds_up_nobody_for_longer_than_their_patience() -> None:
    async def go() -> None:
        turns = Turns(0.01)
        long = asyncio.create_task(turns.run(work, -1, work.go_on))
        assert await asyncio.to_thread(work.begun.wait, 20)
        assert [await turns.run(work, number) for number in range(3)] == [0, 1, 2]
        assert not long.done()
        work.go_on.set()
        assert await long == -1

    work = Work()
    asyncio.run(go())
    assert work.most == 2


def test_patience_is_everyones_who_comes_between_two_turns_too() -> None:
    """A turn that has just ended is the next waiter's, who may take long: whoever comes in that moment waits behind him."""

    async def go() -> None:
        turns = Turns(0.01)
        await turns._turn.acquire()
        long = asyncio.create_task(turns.run(work, 1, work.go_on))
        await asyncio.sleep(0)
        turns._turn.release()  # free, and promised to the long one
        async with asyncio.timeout(5):  # no task between: it is this very moment
            assert await turns.run(work, 2) == 2
        assert not long.done()
        work.go_on.set()
        assert await long == 1

    work = Work()
    asyncio.run(go())


def test_a_turn_ends_with_its_work_not_with_its_caller() -> None:
    async def go() -> None:
        turns = Turns(LONG)
        left = asyncio.create_task(turns.run(work, 1, work.go_on))
        assert await asyncio.to_thread(work.begun.wait, 20)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        waiting = asyncio.create_task(turns.run(work, 2))
        await asyncio.sleep(0.02)
        assert work.at_once == 1
        assert "one works" in repr(turns)
        work.go_on.set()
        assert await waiting == 2
        assert "idle" in repr(turns)

    work = Work()
    asyncio.run(go())
    assert work.most == 1


def test_who_is_cancelled_while_waiting_takes_no_turn() -> None:
    async def go() -> None:
        turns = Turns(LONG)
        first = asyncio.create_task(turns.run(work, 1, work.go_on))
        assert await asyncio.to_thread(work.begun.wait, 20)
        waiting = asyncio.create_task(turns.run(work, 2))
        await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        work.go_on.set()
        assert await first == 1
        assert await turns.run(work, 3) == 3

    work = Work()
    asyncio.run(go())
    assert work.done == 2


@pytest.mark.parametrize("watched", [True, False])
def test_an_error_is_the_callers_and_frees_the_turn(watched: bool) -> None:
    """Also one that comes when nobody is there any more: nothing is told of it then."""
    unheard: list[object] = []

    def fail() -> None:
        raise ValueError("no such box")

    def fail_late() -> None:
        assert ended.wait(20)
        fail()

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        turns = Turns(LONG)
        work: Callable[[], None] = fail if watched else fail_late
        task = asyncio.create_task(turns.run(work))
        if watched:
            with pytest.raises(ValueError, match="no such box"):
                await task
        else:
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            ended.set()
        assert await turns.run(int, "7") == 7

    ended = threading.Event()
    asyncio.run(go())
    assert not unheard
