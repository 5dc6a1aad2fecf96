"""What part of the places each front gets, in this process and between processes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_pool.shared_bytes import SharedBytes
from server.engine import Priority
from server.front_share import FrontBoard, FrontShare
from server.recent_count import RecentCount

DEMANDS = st.lists(st.floats(0, 1e6), min_size=1, max_size=16)


@given(DEMANDS)
def test_parts_are_as_the_demands_and_together_the_whole(told: list[float]) -> None:
    board = FrontBoard.allocate(fronts=len(told), engines=0)
    shares = [board.shares(front)[0] for front in range(len(told))]
    for share, demand in zip(shares, told, strict=True):
        share.tell(demand)
    parts = [share.of(demand) for share, demand in zip(shares, told, strict=True)]
    for part, demand in zip(parts, told, strict=True):
        assert part == pytest.approx(demand / sum(told) if sum(told) > demand else 1.0)
    if sum(told) > max(told):
        assert sum(parts) == pytest.approx(1.0)
    board.close()


def test_a_front_that_is_alone_has_everything() -> None:
    share = FrontShare()
    assert share.of(0) == share.of(7) == 1.0
    share.tell(7)
    assert share.of(0) == 1.0


def test_lanes_are_apart_and_a_front_that_is_gone_needs_nothing() -> None:
    board = FrontBoard.allocate(fronts=2, engines=3)
    (main, software), (other, _) = board.shares(0), board.shares(1)
    main.tell(3)
    other.tell(9)
    other.strain(Priority.NORMAL, 50.0)
    assert (main.of(3), software.of(3)) == (0.25, 1.0)
    assert [share.strained_until(Priority.NORMAL) for share in (main, software)] == [50.0, 0.0]
    assert main.strained_until(Priority.BULK) == 0.0
    ours, theirs = board.loads(0), board.loads(1)
    ours.tell(2, 5)
    theirs.tell(2, 7)
    assert [ours.of(engine) for engine in range(3)] == [0, 0, 12]
    board.forget(1)
    assert (main.of(3), main.strained_until(Priority.NORMAL), ours.of(2)) == (1.0, 0.0, 5)
    assert repr(theirs) == "<EngineLoads 0, 0, 5>"
    assert "3, 0" in repr(main)
    board.close()


def test_they_reach_another_process_by_descriptor() -> None:
    ours = FrontBoard.allocate(fronts=3, engines=1)
    theirs = FrontBoard.adopt(os.dup(ours.fd), fronts=3, engines=1)
    share = theirs.shares(2)[1]
    theirs.close()  # what is shared stays for as long as somebody has a part
    share.tell(5)
    assert ours.shares(0)[1].of(15) == 0.75
    ours.close()


def test_mistakes_are_refused() -> None:
    board = FrontBoard.allocate(fronts=2, engines=3)
    with pytest.raises(ValueError, match="front 2 of 2; 0 to 1 is allowed"):
        board.shares(2)
    board.close()
    with pytest.raises(ValueError, match="what 3 fronts tell of 2 engines takes 240 bytes, not 40"):
        FrontBoard(SharedBytes.allocate(40), fronts=3, engines=2)


@given(st.floats(0.5, 200), st.floats(0.01, 5))
def test_a_steady_rate_counts_as_what_comes_within_the_time(rate: float, within: float) -> None:
    count, now = RecentCount(), 0.0
    while now < 20 * within:
        now += 1 / rate
        count.add(now, within)
    assert count.value(now + 0.5 / rate, within) == pytest.approx(rate * within, rel=0.3, abs=1.0)
    assert count.value(now + 50 * within, within) < 1e-6


def test_nothing_is_none() -> None:
    assert RecentCount().value(1e9, 1.0) == 0.0
