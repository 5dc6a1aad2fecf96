"""When calls have to be refused in any case: from loads and refusals, and from what other fronts say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.engine import Priority
from server.front_share import FrontBoard, FrontShare
from server.lane_name import LaneName
from server.strain import Strain

NORMAL, BULK = Priority.NORMAL, Priority.BULK
RATE = 100  # calls a second


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def strain(clock: Clock, share: FrontShare | None = None, *, settle: float = 1.0, steps: int = 0) -> Strain:
    return Strain(settle, share or FrontShare(), clock, steps=steps)


def seconds_until(clock: Clock, tell: Callable[[int], object], on: Callable[[], bool], most: float = 60.0) -> float | None:
    """Calls come evenly, each tells something; how long until there is strain, None if there never is."""
    begin = clock.now
    for number in range(int(most * RATE)):
        tell(number)
        if on():
            return clock.now - begin
        clock.now += 1 / RATE
    return None


@pytest.mark.parametrize(("refused_of_ten", "least", "most"), [(1, None, None), (3, 2.0, 4.0), (7, 0.5, 1.5), (10, 0.3, 1.0)])
def test_the_more_calls_find_no_room_the_sooner_it_is_seen(refused_of_ten: int, least: float | None, most: float | None) -> None:
    clock = Clock()
    one = strain(clock)
    one.has_room(NORMAL, True)
    took = seconds_until(clock, lambda number: one.has_room(NORMAL, number % 10 >= refused_of_ten), lambda: one.is_on(NORMAL))
    if least is None or most is None:
        assert took is None
    else:
        assert took is not None
        assert least <= took <= most
        assert not one.is_on(BULK), "each priority by itself"


def test_a_burst_that_finds_no_room_is_no_strain() -> None:
    clock = Clock()
    one = strain(clock)
    one.has_room(NORMAL, True)
    for _ in range(1000):
        one.has_room(NORMAL, False)
        clock.now += 0.0005
    assert seconds_until(clock, lambda _: one.has_room(NORMAL, True), lambda: one.is_on(NORMAL)) is None


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_are_taken_first(steps: int) -> None:
    clock, other = Clock(), Clock()
    plain, degrading = strain(clock), strain(other, steps=steps)
    for one in (plain, degrading):
        one.has_room(NORMAL, True)
    sooner = seconds_until(clock, lambda _: plain.has_room(NORMAL, False), lambda: plain.is_on(NORMAL))
    later = seconds_until(other, lambda _: degrading.has_room(NORMAL, False), lambda: degrading.is_on(NORMAL))
    assert sooner is not None
    assert later == pytest.approx(sooner + 2 * steps, abs=0.05)


@pytest.mark.parametrize("settle", [0.5, 1.0, 4.0])
def test_a_full_room_is_strain_and_ends_half_a_minute_after_it_is_not(settle: float) -> None:
    clock = Clock()
    one = strain(clock, settle=settle)
    one.meets(NORMAL, 0.0)
    took = seconds_until(clock, lambda _: one.meets(NORMAL, 1.0), lambda: one.is_on(NORMAL))
    assert took == pytest.approx(2.3 * settle, rel=0.05)
    calm = seconds_until(clock, lambda _: one.meets(NORMAL, 0.1), lambda: not one.is_on(NORMAL), most=90)
    assert calm is not None
    assert 30 <= calm <= 36 + settle


def test_what_one_front_knows_all_know_for_a_while() -> None:
    clock = Clock()
    board = FrontBoard.allocate(fronts=2, engines=0)
    lane = list(LaneName).index(LaneName.MAIN)
    here, there = (strain(clock, board.shares(number)[lane]) for number in range(2))
    here.has_room(NORMAL, True)
    begins = [here.has_room(NORMAL, False) for _ in range(200) if not setattr(clock, "now", clock.now + 0.01)]
    assert begins.count(True) == 1, "it is told once that it begins"
    assert there.is_on(NORMAL)
    assert not there.is_on(BULK)
    assert there.meets(NORMAL, 0.0), "for this front it begins with its next call"
    clock.now += 6
    assert not there.is_on(NORMAL), "who says nothing any more is not believed for ever"
