"""The waiting room against a plain list that is searched for the same rules, and what the rules are for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.engine import Priority
from server.urgency import Urgency
from server.waiting_room import Waiter, WaitingRoom

PRIORITIES = st.sampled_from(list(Priority))
CALLERS = st.sampled_from(["", "a", "b", "c"])
DEADLINES = st.integers(0, 20).map(float)


@dataclass
class PlainRoom:
    """The rules as they are written, over a list in order of arrival."""

    waiters: list[Waiter[int]] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    turn: int = 0

    def of(self, priority: int, caller: str | None = None) -> list[Waiter[int]]:
        found = [w for w in self.waiters if w.urgency.priority == priority]
        return found if caller is None else [w for w in found if w.urgency.caller == caller]

    def remove(self, waiter: Waiter[int]) -> None:
        self.waiters.remove(waiter)
        self.turns = {name: turn for name, turn in self.turns.items() if any(w.urgency.caller == name for w in self.waiters)}


class RoomMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.room: WaitingRoom[int] = WaitingRoom()
        self.plain = PlainRoom()
        self.in_work: Counter[str] = Counter()
        self.items = 0

    @rule(priority=PRIORITIES, caller=CALLERS, deadline=DEADLINES)
    def add(self, priority: Priority, caller: str, deadline: float) -> None:
        self.items += 1
        self.plain.waiters.append(self.room.add(Urgency(priority, deadline, caller), self.items))

    @precondition(lambda self: self.plain.waiters)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.plain.waiters))
        self.room.remove(waiter)
        self.plain.remove(waiter)

    @precondition(lambda self: self.plain.waiters)
    @rule()
    def take(self) -> None:
        taken = self.room.take(self.in_work)
        assert taken is not None
        urgency = taken.urgency
        assert urgency.priority == min(w.urgency.priority for w in self.plain.waiters)
        others = {w.urgency.caller for w in self.plain.of(urgency.priority)}
        mine = (self.in_work[urgency.caller], self.plain.turns.get(urgency.caller, -1))
        assert all(mine <= (self.in_work[name], self.plain.turns.get(name, -1)) for name in others)
        own = self.plain.of(urgency.priority, urgency.caller)
        assert taken is min(own, key=lambda w: (w.urgency.deadline, w.number))
        self.plain.turn += 1
        self.plain.turns[urgency.caller] = self.plain.turn
        self.plain.remove(taken)
        self.in_work[urgency.caller] += 1

    @precondition(lambda self: self.in_work)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(sorted(self.in_work)))
        self.in_work[caller] -= 1
        self.in_work += Counter()

    @rule(priority=PRIORITIES, caller=CALLERS, own_only=st.booleans())
    def weakest(self, priority: Priority, caller: str, own_only: bool) -> None:
        found = self.room.weakest(Urgency(priority, 5.0, caller), self.in_work, priority if own_only else None)
        if not (self.plain.of(priority) if own_only else self.plain.waiters):
            assert found is None
            return
        last = priority if own_only else max(w.urgency.priority for w in self.plain.waiters)
        waiting = Counter(w.urgency.caller for w in self.plain.of(last))
        counts = {name: number + self.in_work[name] for name, number in waiting.items()}
        own = counts.get(caller, self.in_work[caller])
        may = last > priority or (last == priority and max(counts.values()) >= own + 2)
        assert (found is not None) == may
        if found is not None:
            assert counts[found.urgency.caller] == max(counts.values())
            theirs = self.plain.of(last, found.urgency.caller)
            assert found.urgency.deadline == max(w.urgency.deadline for w in theirs)

    @invariant()
    def the_same_calls_are_there(self) -> None:
        if not hasattr(self, "room"):
            return
        assert len(self.room) == len(self.plain.waiters)
        for priority in Priority:
            assert self.room.count(priority) == len(self.plain.of(priority))
        lines = [line for callers in self.room._lines.values() for line in callers.values()]
        assert all(line.count for line in lines), "callers without calls are forgotten"
        assert all(len(line.heap) <= 2 * line.count for line in lines), "so are calls that are gone"
        assert set(self.room._turns) <= {w.urgency.caller for w in self.plain.waiters}


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def emptied(room: WaitingRoom[int]) -> list[int]:
    order = []
    while (waiter := room.take({})) is not None:
        order.append(waiter.item)
    return order


@given(st.lists(st.tuples(PRIORITIES, DEADLINES), max_size=30))
def test_without_callers_it_is_priority_then_deadline_then_arrival(calls: list[tuple[Priority, float]]) -> None:
    room: WaitingRoom[int] = WaitingRoom()
    for number, (priority, deadline) in enumerate(calls):
        room.add(Urgency(priority, deadline), number)
    assert emptied(room) == sorted(range(len(calls)), key=lambda n: (*calls[n], n))


@given(st.lists(st.tuples(PRIORITIES, DEADLINES, CALLERS), max_size=30), PRIORITIES, DEADLINES, CALLERS)
def test_what_is_ahead_of_a_call_is_taken_before_it(
    calls: list[tuple[Priority, float, str]], priority: Priority, deadline: float, caller: str
) -> None:
    room: WaitingRoom[int] = WaitingRoom()
    for number, (their_priority, their_deadline, their_caller) in enumerate(calls):
        room.add(Urgency(their_priority, their_deadline, their_caller), number)
    urgency = Urgency(priority, deadline, caller)
    ahead = room.ahead(urgency)
    room.add(urgency, -1)
    in_work: Counter[str] = Counter()
    taken: list[int] = []
    while -1 not in taken:
        waiter = room.take(in_work)
        assert waiter is not None
        if waiter.urgency.priority == priority:
            in_work[waiter.urgency.caller] += 1  # shared equally from now on
        taken.append(waiter.item)
    callers = {c for p, _, c in calls if p == priority} - {caller}
    assert 0 <= ahead - (len(taken) - 1) <= len(callers), "callers whose turn comes in the same round may be before or behind"


def test_a_caller_with_many_calls_leaves_every_other_turn_to_one_with_few() -> None:
    room: WaitingRoom[str] = WaitingRoom()
    for number in range(6):
        room.add(Urgency(caller="greedy", deadline=number), f"greedy {number}")
    for number in range(3):
        room.add(Urgency(caller="modest", deadline=100 + number), f"modest {number}")
    in_work: Counter[str] = Counter()
    order = []
    while (waiter := room.take(in_work)) is not None:
        in_work[waiter.urgency.caller] += 1
        order.append(waiter.item)
    assert [name for name in order[:6] if name.startswith("modest")] == ["modest 0", "modest 1", "modest 2"]


def test_a_caller_that_has_places_waits_for_one_that_has_none() -> None:
    room: WaitingRoom[str] = WaitingRoom()
    room.add(Urgency(caller="served", deadline=1), "served")
    room.add(Urgency(caller="new", deadline=2), "new")
    waiter = room.take({"served": 1})
    assert waiter is not None
    assert waiter.item == "new"
