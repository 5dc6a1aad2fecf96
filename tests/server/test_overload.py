"""Lanes and steps as a whole, with simulated callers and a simulated engine in virtual time: the real code, minutes of load."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.errors import DeadlineExceeded, Overloaded
from server.config import LoadStep, OverloadSection
from server.engine import Priority
from server.lane_name import LaneName
from server.overload import Overload
from server.quality import FULL, Quality
from server.urgency import Urgency
from tests.server.simulated_service import Outcome, Service, quantile
from tests.server.virtual_time import now, run_virtually

STEPS = (LoadStep(load=0.5, frames=8), LoadStep(load=0.8, frames=4, leave_out=("extra",)))
REFUSED = {"calls", "room", "evicted", "deadline", "too_short"}


def run(service: Service, work: Callable[[Service], Coroutine[Any, Any, None]]) -> Service:
    """Does `work`, waits for every call, and sees to it that none has left anything."""

    async def whole() -> None:
        await work(service)
        await service.ended()
        service.assert_quiet()

    run_virtually(whole())
    return service


def offered(rate: float, seconds: float, **settings: Any) -> Service:
    """`rate` times what the engine can do in full quality."""
    service = Service(**settings)
    return run(service, lambda it: it.offer(rate * it.rate, seconds))


def goodput(service: Service, begin: float, end: float) -> float:
    return sum(each.answered and begin <= each.ended < end for each in service.outcomes) / (end - begin)


def p99(outcomes: list[Outcome]) -> float:
    return quantile([each.latency for each in outcomes if each.answered], 0.99)


FAST: dict[str, Any] = {"workers": 4, "work": 0.05}  # 80 calls a second
SLOW: dict[str, Any] = {"workers": 2, "work": 0.5}  # 4 calls a second
ENGINES = [FAST, SLOW]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("load", [1.5, 3.0, 8.0])
def test_overload_costs_no_goodput_and_little_latency(engine: dict[str, Any], load: float) -> None:
    seconds = 60 if engine is FAST else 400
    usual = offered(0.8, seconds, **engine)
    assert all(each.answered for each in usual.outcomes)
    service = offered(load, seconds, **engine)
    begin, end = seconds / 3, seconds - 10
    assert goodput(service, begin, end) >= 0.95 * service.rate
    accepted = [each for each in service.between(begin, end) if each.begun]
    assert len(accepted) > 500
    assert p99(accepted) <= 2 * p99(usual.between(begin, end))
    assert sum(each.begun and not each.answered for each in service.outcomes) <= 0.01 * len(accepted), "no work for nothing"


def test_the_first_moments_of_overload_are_over_soon() -> None:
    """Whoever waited far back when the room became short does not wait any longer."""
    usual = offered(0.8, 60, **SLOW)
    service = offered(3, 60, **SLOW)
    assert p99([each for each in service.between(10, 60) if each.begun]) <= 2 * p99(usual.outcomes)
    assert goodput(service, 5, 60) >= 0.9 * service.rate


def test_every_refusal_says_when_to_come_back() -> None:
    service = offered(3, 30, **FAST)
    refused = [each for each in service.outcomes if each.what in REFUSED]
    assert len(refused) > 1000
    assert all(each.retry_after is not None and 0.25 <= each.retry_after <= 30 for each in refused)
    assert sum(service.refused.values()) == len(refused)


@pytest.mark.parametrize("callers", [1, 8, 32, 200])
def test_callers_that_wait_for_their_answers_are_not_refused(callers: int) -> None:
    service = Service(**FAST)
    run(service, lambda it: it.close_loop(callers, 20))
    assert all(each.answered for each in service.outcomes)
    assert service.overload.steps.step == 0
    assert goodput(service, 5, 20) >= min(callers, 4) * 0.9 * 20
    assert service.most_in_engine <= 16, "what waits does not wait in the engine"


def test_a_burst_is_answered_to_the_last_call() -> None:
    async def burst(service: Service) -> None:
        for _ in range(200):
            service.call(timeout=60)

    service = run(Service(workers=2, work=0.2), burst)
    assert [each.what for each in service.outcomes] == ["answered"] * 200


def test_more_urgent_calls_suffer_last() -> None:
    async def mixed(service: Service) -> None:
        shares = {Priority.INTERACTIVE: 0.5, Priority.NORMAL: 1.0, Priority.BULK: 1.5}
        await asyncio.gather(*(service.offer(share * service.rate, 60, priority=p) for p, share in shares.items()))

    service = run(Service(**FAST), mixed)
    shares = {}
    for priority in Priority:
        mine = [each for each in service.between(10, 60) if each.priority is priority]
        shares[priority] = sum(each.answered for each in mine) / len(mine)
    assert shares[Priority.INTERACTIVE] == 1
    assert 0.4 < shares[Priority.NORMAL] < 0.6
    assert shares[Priority.BULK] < 0.02
    latencies = {p: p99([o for o in service.between(10, 60) if o.priority is p]) for p in (Priority.INTERACTIVE, Priority.NORMAL)}
    assert latencies[Priority.INTERACTIVE] < latencies[Priority.NORMAL]


def test_a_fuller_room_gives_bulk_up_for_interactive() -> None:
    async def fill(service: Service) -> None:
        for _ in range(20):
            service.call(priority=Priority.BULK)
        await asyncio.sleep(0)
        for _ in range(4):
            service.call(priority=Priority.INTERACTIVE)

    service = run(Service(OverloadSection(waiting=4), workers=1, work=0.1), fill)
    what = {p: Counter(o.what for o in service.outcomes if o.priority is p) for p in Priority}
    assert what[Priority.INTERACTIVE] == {"answered": 4}
    assert what[Priority.BULK]["evicted"] == 4
    assert service.refused["main", "evicted", Priority.BULK] == 4


@pytest.mark.parametrize("greedy", [2.0, 8.0])
def test_no_caller_takes_more_than_its_share_while_others_wait(greedy: float) -> None:
    async def mixed(service: Service) -> None:
        rates = {"greedy": greedy, "other": greedy, "modest": 0.1}
        await asyncio.gather(*(service.offer(rate * service.rate, 60, caller=name) for name, rate in rates.items()))

    service = run(Service(workers=8, work=0.1), mixed)
    done = Counter(each.caller for each in service.between(20, 60) if each.answered)
    modest = [each for each in service.between(20, 60) if each.caller == "modest"]
    assert done["modest"] / len(modest) > 0.95, "what is less than an equal share is answered whole"
    assert done["greedy"] / done["other"] == pytest.approx(1, rel=0.1)


def test_a_call_that_cannot_be_in_time_is_refused_at_once_and_does_no_work() -> None:
    async def mixed(service: Service) -> None:
        await asyncio.gather(
            service.offer(2 * service.rate, 40), service.offer(0.5 * service.rate, 40, timeout=0.03, caller="hasty")
        )

    service = run(Service(**FAST), mixed)
    hasty = [each for each in service.between(5, 40) if each.caller == "hasty"]
    assert not any(each.begun for each in hasty)
    assert all(each.latency < 0.03 for each in hasty if each.what != "late")
    assert sum(each.what in REFUSED for each in hasty) > 0.99 * len(hasty)


def test_with_free_places_a_deadline_that_is_too_short_is_told_as_that() -> None:
    async def short(service: Service) -> None:
        await service.offer(0.5 * service.rate, 5)
        for _ in range(3):
            service.call(timeout=5)
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded, match=r"0\.005 s are left, such calls take 0\.") as caught:
            service.overload.come(Urgency(deadline=now() + 0.005))
        assert caught.value.retry_after is None, "coming back does not help"

    run(Service(**FAST), short)


def test_those_that_wait_to_be_read_count_as_waiting() -> None:
    """For memory, that is: they are in nobody's room yet, but will be."""

    async def full(service: Service) -> None:
        await service.offer(0.5 * service.rate, 5)  # what a call takes is known: a tenth of a second at most
        main = service.overload.lanes[LaneName.MAIN]
        for _ in range(main.places + 2 - main.serving):
            service.call()
        await asyncio.sleep(0)
        assert main.waiting() == 2
        room = main.longest_room - main.waiting()
        come = service.overload.come
        come(Urgency(deadline=now() + 60), unread=room - 1)
        assert main.load < 0.5, "one call says little"
        with pytest.raises(Overloaded, match=f"{main.longest_room} calls wait already") as caught:
            come(Urgency(deadline=now() + 60), unread=room)
        assert caught.value.facts["refused"] == "room"
        come(Urgency(deadline=now() + 0.3), unread=10)
        with pytest.raises(Overloaded, match="to wait and") as caught:
            come(Urgency(deadline=now() + 0.3), unread=100)
        assert caught.value.facts["refused"] == "deadline"

    run(Service(**FAST), full)


def test_a_call_that_has_waited_to_be_read_is_judged_anew() -> None:
    async def late(service: Service) -> None:
        await service.offer(0.5 * service.rate, 5)
        urgency = Urgency(deadline=now() + 60)
        service.overload.come(urgency)
        service.overload.check(urgency)
        main = service.overload.lanes[LaneName.MAIN]
        for _ in range(main.longest_room + main.places - main.serving):
            service.call()
        await asyncio.sleep(0)
        assert main.waiting() == main.longest_room
        with pytest.raises(Overloaded, match="wait already"):
            service.overload.check(urgency)

    service = run(Service(**FAST), late)
    assert service.refused["main", "room", Priority.NORMAL] == 1


def test_an_idle_server_tries_whatever_comes() -> None:
    async def slow_then_fast(service: Service) -> None:
        for _ in range(40):
            await service.call()
        assert service.overload.lanes[LaneName.MAIN].times.median(0, now()) == pytest.approx(1.0, rel=0.5)
        service.work = 0.01
        for _ in range(60):
            await service.call(timeout=0.1)

    service = run(Service(workers=1, work=1.0), slow_then_fast)
    assert all(each.answered for each in service.outcomes)


def test_deadlines_that_pass_in_the_engine_are_learned_from() -> None:
    """Else a server whose calls all come too late would take the next ones just as eagerly."""

    async def hasty(service: Service) -> None:
        await service.offer(3 * service.rate, 60, timeout=1.5)

    service = run(Service(**SLOW), hasty)
    assert goodput(service, 20, 60) >= 0.8 * service.rate
    late = [each for each in service.between(20, 60) if each.what == "late" and each.begun]
    assert len(late) <= 0.25 * 40 * service.rate


def test_who_waits_in_vain_is_told_before_the_deadline() -> None:
    async def starve(service: Service) -> None:
        await service.offer(0.5 * service.rate, 10)
        for _ in range(3):
            service.call(timeout=2, priority=Priority.BULK)
        await service.offer(1.2 * service.rate, 10, priority=Priority.INTERACTIVE)

    service = run(Service(**FAST), starve)
    bulk = [each for each in service.outcomes if each.priority is Priority.BULK]
    assert {each.what for each in bulk} <= {"answered", "deadline"}
    assert all(each.retry_after for each in bulk if each.what == "deadline")
    assert not any(each.what == "late" and not each.begun for each in service.outcomes)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.floats(0.3, 4), st.booleans())
def test_cancelled_and_late_calls_leave_nothing(seed: int, load: float, software: bool) -> None:
    async def messy(service: Service) -> None:
        choose = service.random
        for _ in range(400):
            await asyncio.sleep(choose.expovariate(load * service.rate))
            service.call(
                timeout=choose.choice([0.01, 0.1, 1.0, 10.0]),
                priority=choose.choice(list(Priority)),
                caller=choose.choice("abc"),
                lane=LaneName.SOFTWARE if software and choose.random() < 0.5 else LaneName.MAIN,
                cancel_after=choose.choice([None, None, 0.0, 0.05, 0.3]),
            )

    service = run(Service(OverloadSection(waiting=10), workers=4, work=0.05, seed=seed), messy)
    assert len(service.outcomes) == 400
    assert {each.what for each in service.outcomes} <= REFUSED | {"answered", "late", "cancelled"}


# Degradation


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_nothing_is_degraded_below_overload(load: float) -> None:
    service = offered(load, 120, **FAST, settings=OverloadSection(steps=STEPS))
    assert service.steps == [(0.0, 0)]
    assert all(each.answered and each.frames == 16 for each in service.outcomes)


@pytest.mark.parametrize("load", [1.2, 1.5, 2.5])
def test_degrading_comes_before_refusing_and_is_held(load: float) -> None:
    service = offered(load, 280, **FAST, settings=OverloadSection(steps=STEPS))
    levels = [step for _, step in service.steps]
    assert levels == sorted(levels), "up, and never down while as many calls come"
    assert 1 <= levels[-1] <= 2
    assert all(each.answered for each in service.between(30, 280)), "what fewer pictures can answer is not refused"


def test_full_quality_comes_back_soon_after_the_overload() -> None:
    async def wave(service: Service) -> None:
        await service.offer(3 * service.rate, 60)
        await service.offer(0.6 * service.rate, 120)

    service = run(Service(OverloadSection(steps=STEPS), **FAST), wave)
    assert max(step for _, step in service.steps) == 2
    assert all(each.frames == 16 for each in service.between(100, 180))
    levels = [step for _, step in service.steps]
    assert levels == [0, 1, 2, 1, 0]


PATTERNS = st.one_of(
    st.floats(0.1, 6).map(lambda load: lambda t: load),
    st.tuples(st.floats(0.2, 2), st.floats(0, 2), st.floats(1, 200)).map(
        lambda p: lambda t: max(0.0, p[0] + p[1] * math.sin(2 * math.pi * t / p[2]))
    ),
    st.tuples(st.floats(0.1, 1), st.floats(1, 6), st.floats(0.5, 60), st.floats(0.05, 0.95)).map(
        lambda p: lambda t: p[1] if t % p[2] < p[3] * p[2] else p[0]
    ),
    st.lists(st.floats(0, 4), min_size=1, max_size=20).map(lambda levels: lambda t: levels[int(t / 15) % len(levels)]),
)


@settings(max_examples=20, deadline=None)
@given(PATTERNS, st.integers(0, 2**16))
def test_no_arrival_pattern_makes_the_steps_swing(pattern: Callable[[float], float], seed: int) -> None:
    service = Service(OverloadSection(steps=STEPS), workers=1, work=0.25, seed=seed)
    run(service, lambda it: it.offer(lambda t: pattern(t) * it.rate, 600))
    downs = [at for (_, before), (at, after) in itertools.pairwise(service.steps) if after < before]
    turns = _turns([step for _, step in service.steps])
    assert turns <= 20, service.steps  # of 60 holds
    for (at, before), (then, after) in itertools.pairwise(service.steps):
        assert abs(after - before) == 1 or then - at >= 10, service.steps
        if after < before:
            assert then - at >= 10 - 1e-6, "held"
    assert len(downs) <= 20


@pytest.mark.parametrize("load", [0.9, 1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0])
def test_a_steady_load_finds_its_step_and_stays_there(load: float) -> None:
    service = offered(load, 900, settings=OverloadSection(steps=STEPS), **SLOW)
    assert _turns([step for _, step in service.steps]) <= 6, service.steps


def _turns(levels: list[int]) -> int:
    """How often the direction changes."""
    directions = [after > before for before, after in itertools.pairwise(levels)]
    return sum(before != after for before, after in itertools.pairwise(directions))


def test_interactive_calls_keep_their_quality_one_step_longer() -> None:
    overload = Overload(OverloadSection(steps=STEPS))
    seen = []
    for step in range(3):
        overload.steps.step = step
        seen.append([overload.quality(priority) for priority in Priority])
    half, quarter = Quality(8), Quality(4, frozenset({"extra"}))
    assert seen == [[FULL, FULL, FULL], [FULL, half, half], [half, quarter, quarter]]


# Lanes


def test_what_software_decodes_takes_no_place_of_the_others() -> None:
    async def alone(service: Service) -> None:
        await service.offer(0.7 * service.rate, 60)

    async def with_software(service: Service) -> None:
        async def software() -> None:
            while now() < 60:
                await asyncio.sleep(0.01)
                service._tasks.add(task := asyncio.get_running_loop().create_task(in_software()))
                task.add_done_callback(service._tasks.discard)

        async def in_software() -> None:
            try:
                async with service.overload.place(Urgency(Priority.NORMAL, now() + 10)) as place:
                    await place.enter(LaneName.SOFTWARE)
                    await asyncio.sleep(2)  # not on the engine's workers
                    place.answered(0.0, 0.0)
            except Overloaded as refused:
                told[refused.facts["refused"]] += 1

        told: Counter[str] = Counter()
        await asyncio.gather(service.offer(0.7 * service.rate, 60), software())
        assert told["room"] > 1000, "its lane is full, and says so"

    usual = run(Service(**FAST), alone)
    mixed = run(Service(**FAST), with_software)
    assert all(each.answered for each in mixed.outcomes)
    assert p99(mixed.between(10, 60)) <= 1.1 * p99(usual.between(10, 60))


def test_a_place_is_given_back_when_the_next_lane_is_full() -> None:
    async def work(service: Service) -> None:
        overload = service.overload
        held = [asyncio.ensure_future(hold(overload)) for _ in range(4)]
        await asyncio.sleep(0.1)
        async with overload.place(Urgency(deadline=now() + 9)) as place:
            assert overload.lanes[LaneName.MAIN].serving == 1
            with pytest.raises(Overloaded) as caught:
                await place.enter(LaneName.SOFTWARE)
            assert overload.lanes[LaneName.MAIN].serving == 0
        assert caught.value.facts["refused"] == "room"
        assert overload.lanes[LaneName.MAIN].serving == 0
        await asyncio.gather(*held)

    async def hold(overload: Overload) -> None:
        async with overload.place(Urgency(deadline=now() + 9)) as place:
            await place.enter(LaneName.SOFTWARE)
            await asyncio.sleep(1)

    run(Service(OverloadSection(software_waiting=0)), work)
