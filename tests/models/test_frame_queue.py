"""Which frames go into the next batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.batch_plan import BatchPlan
from models.frame_queue import FrameQueue, urgency


@dataclass(eq=False)
class Frame:
    since: float = 0.0
    deadline: float = math.inf
    priority: int = 0
    to_come: int = 0


def queue(largest_batch: int = 4, largest_wait: float = 1.0, limit: int = 16) -> FrameQueue[Frame]:
    return FrameQueue(largest_batch=largest_batch, largest_wait=largest_wait, limit=limit)


frames = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.builds(
            Frame,
            since=st.floats(0, 10),
            deadline=st.one_of(st.just(math.inf), st.floats(0, 20)),
            priority=st.integers(0, 2),
            to_come=st.integers(0, 1),
        ),
    ),
    max_size=24,
)


@given(frames, st.floats(0, 12), st.integers(1, 6))
def test_a_batch_has_the_most_urgent_frames_of_one_key_and_what_was_late_is_told(given_frames, now, most):
    q = queue()
    for key, frame in sorted(given_frames, key=lambda each: each[1].since):
        q.add(key, frame)
    keys = {id(frame): key for key, frame in given_frames}
    before = len(q)
    batch, late = q.take(now, most)
    assert len(q) == before - len(batch) - len(late)
    assert not {id(frame) for frame in (*batch, *late)} & {id(frame) for frame in q}
    assert len({keys[id(frame)] for frame in (*batch, *late)}) <= 1
    assert len(batch) <= most
    assert all(frame.deadline > now for frame in batch)
    assert all(frame.deadline <= now for frame in late)
    assert batch == sorted(batch, key=urgency)
    if batch:
        rest = [frame for frame in q if keys[id(frame)] == keys[id(batch[0])] and frame.deadline > now]
        assert all(urgency(batch[-1]) <= urgency(frame) for frame in rest)
        assert not rest or len(batch) == most


@given(frames, st.floats(10, 12))
def test_no_key_is_ready_before_one_of_its_reasons(given_frames, now):
    q = queue()
    for key, frame in sorted(given_frames, key=lambda each: each[1].since):
        q.add(key, frame)
    head = q.head(now)
    assert (head is None) == (not given_frames)
    if head is not None and head.ready_at > now:
        by_key = {key: [frame for k, frame in given_frames if k == key] for key in {k for k, _ in given_frames}}
        assert len(q) < q.limit
        for mine in by_key.values():
            assert len(mine) < q.largest_batch
            first = min(map(urgency, mine))
            assert any(frame.to_come for frame in mine if urgency(frame) == first)
            assert min(frame.since for frame in mine) + q.largest_wait > now


def test_priority_goes_before_deadline_before_arrival():
    q = queue(largest_batch=1)
    bulk, late, early, first = Frame(0, 5, 2), Frame(1, 9, 1), Frame(2, 8, 1), Frame(3, math.inf, 0)
    for frame in (bulk, late, early, first):
        q.add("k", frame)
    assert dict(q.by_priority) == {0: 1, 1: 2, 2: 1}
    assert [q.take(4)[0][0] for _ in range(4)] == [first, early, late, bulk]
    assert not any(q.by_priority.values())


def test_a_frame_leaves_once():
    q, frame = queue(), Frame()
    q.add("k", frame)
    assert q.remove(frame)
    assert not q.remove(frame)
    assert q.head(0.0) is None
    assert q.take(0.0) == ([], [])


costs = st.dictionaries(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16)), st.floats(0.1, 10), min_size=1)


@given(costs, st.integers(0, 40))
def test_no_way_to_cut_the_waiting_frames_is_cheaper(prices, waiting):
    plan = BatchPlan(prices)
    total, left = 0.0, min(waiting, plan.largest)
    while left:
        first = plan.first(left)
        assert 1 <= first <= left
        total += min(cost for size, cost in prices.items() if size >= first)
        left -= first
    cheapest = [0.0]
    for frames_ in range(1, min(waiting, plan.largest) + 1):
        cheapest.append(min(cost + cheapest[max(0, frames_ - size)] for size, cost in prices.items()))
    assert total == pytest.approx(cheapest[-1])
    assert plan.cost(min(waiting, plan.largest)) == pytest.approx(cheapest[-1])


def test_equally_cheap_ways_begin_with_the_largest_batch():
    assert BatchPlan({4: 1.0, 8: 2.0}).first(8) == 8
    assert BatchPlan({4: 1.0, 8: 2.0}).first(6) == 6


def test_twenty_frames_run_as_sixteen_and_four_where_thirty_two_are_dear():
    plan = BatchPlan({4: 6.5, 16: 11.6, 32: 22.4})
    assert plan.first(20) == 16
    assert plan.first(30) == 30
    assert plan.cost(36) == pytest.approx(28.9)


@given(prices=st.dictionaries(st.integers(1, 40), st.floats(0.1, 50), min_size=1, max_size=6), waiting=st.integers(1, 60))
def test_where_more_are_to_come_no_other_batch_costs_less_for_each_of_its_frames(prices, waiting):
    plan = BatchPlan(prices)

    def each(frames: int) -> float:
        return min(cost for size, cost in prices.items() if size >= frames) / frames

    first = plan.first(waiting, more=True)
    assert 1 <= first <= min(waiting, plan.largest)
    assert each(first) == pytest.approx(min(each(frames) for frames in range(1, min(waiting, plan.largest) + 1)))


def test_what_would_run_alone_waits_for_what_is_to_come():
    plan = BatchPlan({4: 3.4, 8: 5.5, 12: 7.7, 16: 9.9})
    assert (plan.first(13), plan.first(13, more=True)) == (13, 12)
    flat = BatchPlan({4: 1.0, 8: 1.1, 12: 1.2, 16: 1.25})
    assert flat.first(13, more=True) == 13


@pytest.mark.parametrize("prices", [{}, {0: 1.0}, {4: 0.0}])
def test_prices_must_be_prices(prices):
    with pytest.raises(ValueError, match="at least one batch size"):
        BatchPlan(prices)


def test_calls_that_are_kept_apart_share_no_batch_and_wait_for_all_of_their_frames() -> None:
    q = queue(largest_wait=0.1)
    q.across_calls = False
    for number in range(6):
        frame = Frame(since=float(number) / 100, to_come=2)
        q.add("k", frame, "one call" if number % 2 else "another")
    assert q.head(0.2) is not None
    assert q.head(0.2).ready_at == 1.0  # type: ignore[union-attr]
    batch, late = q.take(2.0)
    assert (len(batch), late) == (3, [])
    q.across_calls = True
    mixed = [Frame(since=3.0) for _ in range(2)]
    for number, frame in enumerate(mixed):
        q.add("k", frame, f"call {number}")
    assert q.remove(mixed[0])
    assert len(q) == 4  # what was queued before stays as it was
    assert sorted(len(q.take(9.0)[0]) for _ in range(2)) == [1, 3]
