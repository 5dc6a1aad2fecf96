from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from decoder_pool.assignment import Assignment, Creation, DecoderState, Grant, Outcome, Waiting, assign
from decoder_pool.key import DecoderKey
from keyglance.video import StreamConfig

KEYS = [DecoderKey("h264", 8, "420", 1088), DecoderKey("h264", 8, "420", 2048), DecoderKey("vp9", 8, "420", 1088)]
A, B, C = KEYS


@dataclass(frozen=True)
class Decoder:
    """A `DecoderView`."""

    number: int
    key: DecoderKey
    state: DecoderState
    configured: StreamConfig | None = None
    used: float = 0.0


def config(key: DecoderKey, width: int = 640) -> StreamConfig:
    return StreamConfig(key.codec, width, 360)


def idle(number: int, key: DecoderKey, width: int | None = None, used: float = 0.0) -> Decoder:
    return Decoder(number, key, DecoderState.IDLE, config(key, width) if width else None, used)


def leased(number: int, key: DecoderKey) -> Decoder:
    return Decoder(number, key, DecoderState.LEASED)


def caller(number: int, key: DecoderKey, width: int = 640, most: int = 1) -> Waiting:
    return Waiting(number, key, config(key, width), deadline=100.0, most=most)


def test_the_same_geometry_comes_before_the_same_key():
    assert assign([caller(1, A)], [idle(7, A, 320), idle(8, A, 640), idle(9, B, 640)], limit=3) == Assignment(
        (Grant(1, 8, Outcome.REUSED),)
    )


def test_of_the_same_key_the_least_recently_used_is_reconfigured():
    assert assign([caller(1, A)], [idle(7, A, 320, used=5), idle(8, A, 480, used=3)], limit=2) == Assignment(
        (Grant(1, 8, Outcome.RECONFIGURED),)
    )


def test_another_key_is_rekeyed_only_where_decoders_can():
    assert assign([caller(1, A)], [idle(7, B)], limit=2, rekeyable=True) == Assignment((Grant(1, 7, Outcome.REKEYED),))
    assert assign([caller(1, A)], [idle(7, B)], limit=2) == Assignment((), (Creation(A, None, on_the_way=True),))


def test_what_one_caller_has_rekeyed_is_no_surplus_for_the_next():
    decoders = [idle(7, B, used=1), idle(8, B, used=2), idle(9, C, used=9)]
    plan = assign([caller(1, A), caller(2, A)], decoders, limit=3, warm={B: 1}, rekeyable=True)
    assert plan.grants == (Grant(1, 7, Outcome.REKEYED), Grant(2, 9, Outcome.REKEYED))


def test_at_the_limit_an_idle_one_of_another_key_makes_room():
    assert assign([caller(1, A)], [leased(6, B), idle(7, B)], limit=2) == Assignment((), (Creation(A, 7, on_the_way=True),))


def test_what_is_above_the_warm_minimum_is_evicted_first():
    decoders = [idle(7, B, used=1), idle(8, C, used=9)]
    assert assign([caller(1, A)], decoders, limit=2, warm={B: 1}).creations == (Creation(A, 8, on_the_way=True),)


def test_with_everything_lent_the_caller_waits():
    assert assign([caller(1, A)], [leased(7, A), leased(8, B)], limit=2) == Assignment()


def test_one_that_is_coming_is_counted_on_by_one_caller_only():
    starting = Decoder(7, A, DecoderState.STARTING)
    assert assign([caller(1, A)], [starting], limit=9) == Assignment()
    assert len(assign([caller(1, A), caller(2, A)], [starting], limit=9).creations) == 1


def test_idle_ones_are_spread_over_a_lone_call():
    plan = assign([caller(1, A, most=3)], [idle(n, A) for n in range(5)], limit=5)
    assert [grant.waiting for grant in plan.grants] == [1, 1, 1]


def test_a_busy_pool_gives_each_call_one():
    plan = assign([caller(1, A, most=4), caller(2, A, most=4)], [idle(1, A), idle(2, A), leased(3, A)], limit=3)
    assert Counter(grant.waiting for grant in plan.grants) == {1: 1, 2: 1}


def test_growth_for_calls_that_could_use_more_is_not_on_their_way():
    plan = assign([caller(1, A, most=4)], [idle(1, A)], limit=3)
    assert plan == Assignment((Grant(1, 1, Outcome.RECONFIGURED),), (Creation(A), Creation(A)))


def test_the_warm_minimum_is_restored_in_place_of_what_is_above_it():
    assert assign([], [idle(1, C), idle(2, B)], limit=2, warm={A: 1, B: 1}) == Assignment((), (Creation(A, evict=1),))
    assert assign([], [idle(1, B)], limit=2, warm={A: 1, B: 1}, restore=False) == Assignment()
    assert assign([], [idle(1, B), idle(2, C)], limit=3, warm={A: 1, B: 1}, rekeyable=True) == Assignment()


def test_a_closing_one_still_counts_against_the_limit():
    assert assign([caller(1, A)], [Decoder(1, A, DecoderState.CLOSING)], limit=1) == Assignment()


views = st.builds(
    Decoder,
    number=st.just(0),
    key=st.sampled_from(KEYS),
    state=st.sampled_from(DecoderState),
    configured=st.one_of(st.none(), st.sampled_from([config(key, width) for key in KEYS for width in (320, 640)])),
    used=st.floats(0, 100),
)


@st.composite
def pools(draw: st.DrawFn) -> dict[str, object]:
    drawn = draw(st.lists(views, max_size=8))
    decoders = [Decoder(n, v.key, v.state, v.configured, v.used) for n, v in enumerate(drawn, 100)]
    limit = max(1, len(decoders) + draw(st.integers(0, 3)))
    warm: dict[DecoderKey, int] = {}
    for key, least in draw(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3))).items():
        warm[key] = min(least, limit - sum(warm.values()))
    callers = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([320, 640]), st.integers(1, 4)), max_size=8))
    waiting = [caller(n, key, width, most) for n, (key, width, most) in enumerate(callers)]
    return {"waiting": waiting, "decoders": decoders, "limit": limit, "warm": warm, "rekeyable": draw(st.booleans())}


@given(pools())
def test_nothing_is_lent_twice_evicted_while_in_use_or_made_over_the_limit(pool):
    plan = assign(**pool)
    state = {d.number: d.state for d in pool["decoders"]}
    taken = [grant.decoder for grant in plan.grants]
    evicted = [creation.evict for creation in plan.creations if creation.evict is not None]
    assert len(set(taken + evicted)) == len(taken + evicted)
    assert all(state[number] is DecoderState.IDLE for number in taken + evicted)
    assert len(pool["decoders"]) - len(evicted) + len(plan.creations) <= pool["limit"]
    given = Counter(grant.waiting for grant in plan.grants)
    assert all(given[w.number] <= w.most for w in pool["waiting"])


@given(pools())
def test_grants_fit_their_keys(pool):
    by_number = {d.number: d for d in pool["decoders"]}
    callers = {w.number: w for w in pool["waiting"]}
    for grant in assign(**pool).grants:
        decoder, waiting = by_number[grant.decoder], callers[grant.waiting]
        same = decoder.key == waiting.key
        assert same or (pool["rekeyable"] and grant.outcome is Outcome.REKEYED)
        assert (grant.outcome is Outcome.REUSED) == (same and decoder.configured == waiting.config)


@given(pools())
def test_nothing_is_created_for_a_caller_that_an_idle_one_could_serve(pool):
    plan = assign(**pool)
    taken = {grant.decoder for grant in plan.grants} | {creation.evict for creation in plan.creations}
    left = [d for d in pool["decoders"] if d.state is DecoderState.IDLE and d.number not in taken]
    for creation in plan.creations:
        if creation.on_the_way:
            assert not any(pool["rekeyable"] or d.key == creation.key for d in left)


@given(pools())
def test_the_first_in_line_is_served_first(pool):
    """Whoever gets nothing has nobody of its key served behind it, and nobody waits while an idle one is left."""
    plan = assign(**pool)
    given = {grant.waiting for grant in plan.grants}
    on_the_way = Counter(creation.key for creation in plan.creations if creation.on_the_way)
    for earlier, later in pairwise(pool["waiting"]):
        if earlier.key == later.key:
            assert earlier.number in given or later.number not in given
    taken = {grant.decoder for grant in plan.grants} | {creation.evict for creation in plan.creations}
    idle_left = [d for d in pool["decoders"] if d.state is DecoderState.IDLE and d.number not in taken]
    coming = sum(d.state in (DecoderState.STARTING, DecoderState.SETTLING) for d in pool["decoders"])
    unserved = [w for w in pool["waiting"] if w.number not in given]
    if idle_left or any(not creation.on_the_way for creation in plan.creations):
        assert len(unserved) <= coming + on_the_way.total()
    if pool["waiting"] and pool["waiting"][0].number not in given:
        head = pool["waiting"][0]
        busy = not any(d.state is DecoderState.IDLE for d in pool["decoders"]) and len(pool["decoders"]) == pool["limit"]
        assert busy or coming or on_the_way[head.key]


@given(pools())
def test_a_restored_pool_needs_no_restoring(pool):
    """Carrying a plan out, with nobody waiting, leads to a state in which nothing more is to be done."""
    decoders, plan = pool["decoders"], assign(**(pool | {"waiting": []}))
    gone = {creation.evict for creation in plan.creations}
    after = [d for d in decoders if d.number not in gone]
    after += [Decoder(900 + n, creation.key, DecoderState.IDLE) for n, creation in enumerate(plan.creations)]
    assert assign(**(pool | {"waiting": [], "decoders": after})) == Assignment()


def test_while_one_closes_no_other_that_can_be_rekeyed_is_evicted_for_the_warm_minimum():
    small, large = DecoderKey("h264", 8, "420", 1088), DecoderKey("h264", 8, "420", 2048)
    decoders = [Decoder(1, small, DecoderState.IDLE), Decoder(2, large, DecoderState.CLOSING)]
    assert assign([], decoders, limit=2, warm={large: 2}, rekeyable=True) == Assignment()


def test_two_keys_under_load_do_not_evict_each_others_decoders():
    """A caller whose key has a decoder waits for it rather than take the place of a warm one, or of one that just worked."""
    assert assign([caller(1, A)], [leased(1, A), idle(2, B)], limit=2, warm={A: 1, B: 1}) == Assignment()
    busy = [leased(1, A), idle(2, B, used=99.0)]
    assert assign([caller(1, A)], busy, limit=2, warm={A: 1}, now=100.0, rest=5.0) == Assignment()
    rested = assign([caller(1, A)], busy, limit=2, warm={A: 1}, now=105.0, rest=5.0)
    assert rested.creations == (Creation(A, evict=2, on_the_way=True),)


def test_a_key_without_any_decoder_takes_even_a_warm_ones_place():
    idlers = [idle(1, A, used=99.0), idle(2, B)]
    plan = assign([caller(1, C)], idlers, limit=2, warm={A: 1, B: 1}, now=100.0, rest=5.0)
    assert plan.creations == (Creation(C, evict=2, on_the_way=True),)
