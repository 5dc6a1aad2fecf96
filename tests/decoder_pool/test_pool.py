from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_pool.assignment import DecoderState, Outcome
from decoder_pool.decoder import DecoderBroken, DecodeUnit, Packet
from decoder_pool.fake import FakeFactory, FakeScript
from decoder_pool.key import DecoderKey
from decoder_pool.pool import DecoderPool, PoolCounters
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import DeadlineExceeded, Draining, KeyglanceError, UnsupportedCodec, WorkerLost
from keyglance.video import StreamConfig

SIZES = (1088, 2048)
H264 = StreamConfig("h264", 640, 360)
WIDE = StreamConfig("h264", 848, 480)
VP9 = StreamConfig("vp9", 640, 360)
KEY = DecoderKey.of(H264, SIZES)
UNIT = DecodeUnit((Packet(3, 0, 4, True),), (3,))


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def pool(factory: FakeFactory, limit: int = 2, warm: int = 1, **more: Any) -> DecoderPool:
    more = {"rest": 0.0} | more
    return DecoderPool(factory=factory, limit=limit, size_classes=SIZES, warm={KEY: warm} if warm else {}, **more)


async def pictures(lease: Any, unit: DecodeUnit = UNIT) -> list[Any]:
    with SharedBytes.of([b"data"]) as packets:
        return [decoded async for decoded in lease.decoder.decode(unit, packets)]


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def quiet(p: DecoderPool) -> None:
    """Waits until nothing goes on in the background."""
    for _ in range(1000):
        if not others():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"tasks left: {others()} in {p!r}")


async def test_a_warm_decoder_is_reconfigured_then_reused():
    factory = FakeFactory()
    p = pool(factory)
    await p.start()
    assert factory.counts.started == 1
    [lease] = await p.lease(H264, deadline=soon())
    assert (lease.outcome, lease.created) == (Outcome.RECONFIGURED, False)
    [decoded] = await pictures(lease)
    assert decoded.sample == 3
    assert decoded.picture.planes[0].shape == (360, 640)
    lease.release()
    for config, outcome in ((H264, Outcome.REUSED), (WIDE, Outcome.RECONFIGURED)):
        [lease] = await p.lease(config, deadline=soon())
        async with lease:
            assert lease.outcome is outcome
    assert p.snapshot().counters == PoolCounters(reused=1, reconfigured=2)
    assert factory.counts.started == 1
    assert repr(p) == "DecoderPool(fake, 1 of 2 decoders: 1 idle; 0 waiting)"
    await p.close()
    assert factory.counts.closed == 1


async def test_a_released_lease_gives_its_decoder_no_more():
    p = pool(FakeFactory())
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    lease.release()
    lease.release()
    with pytest.raises(RuntimeError, match="was released"):
        _ = lease.decoder
    await p.close()


async def test_another_key_is_created_and_at_the_limit_replaces_an_idle_one_and_the_warm_minimum_comes_back():
    factory = FakeFactory()
    p = pool(factory, limit=1)
    await p.start()
    [lease] = await p.lease(VP9, deadline=soon())
    assert lease.created
    assert lease.outcome is Outcome.CREATED
    assert p.snapshot().counters == PoolCounters(created=1, evicted=1)
    lease.release()
    await quiet(p)
    assert [d.key for d in p.snapshot().decoders] == [KEY]  # nobody waits: the usual key is warm again
    assert sum(d.alive for d in factory.decoders) == 1
    await p.close()


async def test_rekeyable_decoders_are_never_made_on_the_way_of_a_usual_call():
    factory = FakeFactory(rekeyable=True)
    p = pool(factory, limit=2, warm=2)
    await p.start()
    async with AsyncExitStack() as stack:
        for config in (VP9, StreamConfig("av1", 4000, 2000)):
            [lease] = await p.lease(config, deadline=soon())
            await stack.enter_async_context(lease)
            assert lease.outcome is Outcome.REKEYED
    assert p.snapshot().counters == PoolCounters(rekeyed=2)
    assert factory.counts.started == 2
    await p.close()


async def test_a_lone_call_gets_all_idle_decoders_and_the_pool_grows_for_the_next():
    factory = FakeFactory()
    p = pool(factory, limit=4, warm=2)
    await p.start()
    leases = await p.lease(H264, deadline=soon(), most=8)
    assert len(leases) == 2
    await quiet(p)
    assert p.snapshot().count(DecoderState.IDLE) == 2
    for lease in leases:
        lease.release()
    leases = await p.lease(H264, deadline=soon(), most=3)
    assert len(leases) == 3
    assert not any(lease.created for lease in leases)
    for lease in leases:
        lease.release()
    await p.close()


async def test_a_waiting_call_is_served_in_its_turn():
    p = pool(FakeFactory(), limit=1)
    await p.start()
    [first] = await p.lease(H264, deadline=soon())
    order: list[int] = []

    async def call(number: int) -> None:
        [lease] = await p.lease(H264, deadline=soon(), most=2)
        async with lease:
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(call(number))
        await asyncio.sleep(0)
        assert p.snapshot().waiting == 5
        first.release()
    assert order == list(range(5))
    await p.close()


async def test_the_earliest_deadline_of_the_lowest_priority_goes_first():
    p = pool(FakeFactory(), limit=1)
    await p.start()
    [held] = await p.lease(H264, deadline=soon())
    served: list[str] = []

    async def call(name: str, deadline: float, priority: int) -> None:
        [lease] = await p.lease(H264, deadline=deadline, priority=priority)
        served.append(name)
        lease.release()

    async with asyncio.TaskGroup() as group:
        for name, seconds, priority in (("bulk", 5, 2), ("late", 9, 0), ("normal", 6, 1), ("early", 7, 0)):
            group.create_task(call(name, soon(seconds), priority))
        await asyncio.sleep(0)
        held.release()
    assert served == ["early", "late", "normal", "bulk"]
    await p.close()


async def test_a_call_out_of_time_leaves_nothing_behind():
    p = pool(FakeFactory(), limit=1)
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    with pytest.raises(DeadlineExceeded):
        await p.lease(H264, deadline=soon(0.02))
    with pytest.raises(DeadlineExceeded):
        await p.lease(H264, deadline=soon(-1))
    assert p.snapshot().waiting == 0
    lease.release()
    assert p.snapshot().count(DecoderState.IDLE) == 1
    await p.close()


async def test_a_decoder_granted_in_the_very_moment_of_cancellation_goes_back():
    p = pool(FakeFactory(), limit=1)
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    task = asyncio.create_task(p.lease(H264, deadline=soon()))
    await asyncio.sleep(0)
    lease.release()  # grants to the task
    assert p.snapshot().count(DecoderState.LEASED) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert p.snapshot().count(DecoderState.IDLE) == 1
    await p.close()


async def test_a_caller_gone_while_its_decoder_starts_leaves_the_decoder_for_others():
    factory = FakeFactory(FakeScript(start_delay=0.02))
    p = pool(factory, limit=1, warm=0)
    task = asyncio.create_task(p.lease(H264, deadline=soon()))
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    await quiet(p)
    assert p.snapshot().count(DecoderState.IDLE) == 1
    [lease] = await p.lease(H264, deadline=soon())
    lease.release()
    assert factory.counts.started == 1
    await p.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_caller_gone_while_its_decoder_is_configured_gives_it_back(late):
    p = pool(FakeFactory(FakeScript(configure_delay=0.05)))
    await p.start()
    task = asyncio.create_task(p.lease(H264, deadline=soon(0.01 if late else 5)))
    await asyncio.sleep(0.005)
    if not late:
        task.cancel()
    with pytest.raises(DeadlineExceeded if late else asyncio.CancelledError):
        await task
    assert p.snapshot().count(DecoderState.IDLE) == 1
    await p.close()


async def test_a_decoder_that_broke_is_closed_and_replaced():
    factory = FakeFactory(FakeScript(breaks_at_unit=1))
    p = pool(factory)
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    with pytest.raises(DecoderBroken):
        async with lease:
            await pictures(lease)
    await quiet(p)
    now = p.snapshot()
    assert (now.counters.broken, now.counters.created) == (1, 1)
    assert now.count(DecoderState.IDLE) == 1
    assert factory.counts.closed == 1
    assert not factory.decoders[0].alive
    await p.close()


async def test_a_decoder_that_breaks_when_configured_costs_the_call_nothing_but_time():
    factory = FakeFactory(FakeScript(breaks_at_configure=2))
    p = pool(factory)
    await p.start()
    for config in (H264, H264, replace(H264, height=H264.height + 16)):  # the second is there already
        [lease] = await p.lease(config, deadline=soon())
        lease.release()
    assert p.snapshot().counters.broken == 1
    await p.close()


async def test_a_host_on_which_every_decoder_breaks_fails_calls_at_once():
    factory = FakeFactory(FakeScript(breaks_at_configure=1))
    p = pool(factory)
    await p.start()
    with pytest.raises(WorkerLost, match="3 decoders broke"):
        await p.lease(H264, deadline=soon())
    factory.script = FakeScript(start_fails=True)
    await quiet(p)
    factory.script.breaks_at_configure = 1
    for _ in range(3):
        with pytest.raises(WorkerLost):
            await p.lease(H264, deadline=soon())
    await quiet(p)
    assert p.snapshot().waiting == 0
    factory.script = FakeScript()
    [lease] = await p.lease(H264, deadline=soon())
    lease.release()
    await p.close()


async def test_start_fails_when_a_decoder_cannot_start():
    factory = FakeFactory(FakeScript(start_fails=True))
    p = pool(factory, warm=2)
    with pytest.raises(DecoderBroken):
        await p.start()
    assert factory.counts.closed == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_unit_cancelled_in_the_middle_is_settled_or_its_decoder_replaced(fails):
    script = FakeScript(hangs_at_unit=1, unsettled_by_cancel=True, settle_delay=0.01, settle_fails=fails)
    factory = FakeFactory(script)
    p = pool(factory, limit=1)
    await p.start()

    async def call() -> None:
        [lease] = await p.lease(H264, deadline=soon())
        async with lease:
            await pictures(lease)

    task = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert p.snapshot().count(DecoderState.SETTLING) == 1
    script.hangs_at_unit = None
    await call()
    assert p.snapshot().counters.broken == fails
    assert factory.counts.started == 1 + fails
    await quiet(p)
    await p.close()


async def test_what_the_factory_refuses():
    p = pool(FakeFactory(refused={"vp9": "no vp9 here"}))
    with pytest.raises(UnsupportedCodec, match="no vp9 here"):
        await p.lease(VP9, deadline=soon())


async def test_drain_waits_for_those_that_are_there_and_takes_no_others():
    p = pool(FakeFactory(), limit=1)
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    waiting = asyncio.create_task(p.lease(H264, deadline=soon()))
    await asyncio.sleep(0)
    drained = asyncio.create_task(p.drain())
    await asyncio.sleep(0.005)
    with pytest.raises(Draining):
        await p.lease(H264, deadline=soon())
    lease.release()
    [lease] = await waiting
    await asyncio.sleep(0.005)
    assert not drained.done()
    lease.release()
    await drained
    assert repr(p).endswith("draining)")
    await p.close()


async def test_close_ends_everything_in_the_middle():
    factory = FakeFactory(FakeScript(hangs_at_unit=1))
    p = pool(factory, limit=1)
    await p.start()
    [lease] = await p.lease(H264, deadline=soon())
    working = asyncio.create_task(pictures(lease))
    waiting = asyncio.create_task(p.lease(H264, deadline=soon()))
    await asyncio.sleep(0.005)
    await p.close()
    with pytest.raises(DecoderBroken):
        await working
    with pytest.raises(Draining):
        await waiting
    lease.release()
    assert p.snapshot().decoders == ()
    assert not others()


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="limit of decoders is 0"):
        pool(FakeFactory(), limit=0)
    with pytest.raises(ValueError, match="3 decoders are to be warm"):
        pool(FakeFactory(), limit=2, warm=3)


calls = st.tuples(
    st.sampled_from([H264, WIDE, VP9, StreamConfig("h264", 1920, 1080), StreamConfig("hevc", 640, 360, bit_depth=10)]),
    st.integers(1, 4),  # most
    st.sampled_from([0.0, 0.001, 0.003]),  # arrives after
    st.sampled_from([0.0005, 0.004, 5.0, 5.0, 5.0]),  # deadline after that
    st.sampled_from([None, None, None, 0.0, 0.001, 0.004]),  # cancelled after
)
scripts = st.builds(
    FakeScript,
    start_delay=st.sampled_from([0.0, 0.002]),
    configure_delay=st.sampled_from([0.0, 0.001]),
    picture_delay=st.sampled_from([0.0, 0.001]),
    settle_delay=st.sampled_from([0.0, 0.001]),
    breaks_at_unit=st.sampled_from([None, None, 2, 3]),
    breaks_at_configure=st.sampled_from([None, None, 2, 4]),
    hangs_at_unit=st.sampled_from([None, 3]),
    unsettled_by_cancel=st.booleans(),
    settle_fails=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(scripts, st.lists(calls, max_size=14), st.integers(1, 4), st.booleans())
def test_whatever_happens_everything_is_idle_or_closed_at_the_end(script, wanted, limit, rekeyable):
    async def scenario() -> None:
        factory = FakeFactory(script, rekeyable=rekeyable)
        p = DecoderPool(factory=factory, limit=limit, size_classes=SIZES, warm={KEY: 1}, rest=0.0)
        await p.start()

        async def call(config: StreamConfig, most: int, after: float, patience: float) -> None:
            await asyncio.sleep(after)
            try:
                async with AsyncExitStack() as stack:
                    leases = await p.lease(config, deadline=soon(patience), most=most)
                    for lease in leases:
                        await stack.enter_async_context(lease)
                    assert 1 <= len(leases) <= most
                    assert sum(d.alive for d in factory.decoders) <= limit
                    async with asyncio.timeout(0.05):
                        for lease in leases:
                            assert lease.decoder.configured == config
                            [decoded] = await pictures(lease)
                            assert decoded.picture.width == config.width
            except (KeyglanceError, DecoderBroken, TimeoutError):
                pass

        async def cancelled(task: asyncio.Task[None], after: float | None) -> None:
            if after is not None:
                await asyncio.sleep(after)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

        async with asyncio.TaskGroup() as group:
            for config, most, after, patience, cancel in wanted:
                task = asyncio.create_task(call(config, most, after, patience))
                group.create_task(cancelled(task, cancel))
        await asyncio.wait_for(p.drain(), 5)
        await quiet(p)
        now = p.snapshot()
        assert now.waiting == 0
        assert now.count(DecoderState.IDLE) == len(now.decoders) <= limit
        assert rekeyable or any(d.key == KEY for d in now.decoders) or now.counters.broken
        alive = [d for d in factory.decoders if d.alive]
        assert len(alive) == len(now.decoders)
        await p.close()
        assert not any(d.alive for d in factory.decoders)
        assert not others()

    asyncio.run(scenario())
