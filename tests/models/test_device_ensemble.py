"""The ensemble on a device, without one: batches, waits, answers, failures, and that every slot goes back once."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from decoder_pool.picture import Picture
from keyglance.errors import DeadlineExceeded, ModelFailed, UnknownModel, WorkerLost
from models.batch_plan import BatchPlan
from models.device_ensemble import DeviceEnsemble
from models.frame_group import FrameAnswer, FrameGroup
from tests.models.fake_runners import CountedLease, FakeFence, FakeRunner, grey, runner_manifest

NEVER = 60.0


@dataclass
class Bench:
    ensemble: DeviceEnsemble
    runners: dict[str, FakeRunner]
    leases: list[CountedLease] = field(default_factory=list)
    answers: list[FrameAnswer] = field(default_factory=list)

    def group(self, frames: int, **rest: Any) -> FrameGroup:
        models = rest.pop("models", ("first", "second"))
        return self.ensemble.group(frames, models, self.answers.append, **rest)

    def submit(self, group: FrameGroup, level: int, tag: object = None, **rest: int) -> None:
        picture = grey(level, **rest)
        assert isinstance(picture.lease, CountedLease)
        self.leases.append(picture.lease)
        self.ensemble.submit(group, level if tag is None else tag, picture)

    async def until(self, done: Callable[[], bool]) -> None:
        for _ in range(500):
            if done():
                return
            await asyncio.sleep(0.005)
        pytest.fail(f"{self.ensemble!r}, {len(self.answers)} answers")

    async def answered(self, count: int) -> list[FrameAnswer]:
        await self.until(lambda: len(self.answers) >= count)
        return self.answers

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.runners["first"].batches]


@asynccontextmanager
async def bench(*, start: bool = True, gate: bool = False, **rest: Any) -> AsyncIterator[Bench]:
    runners = {
        "first": FakeRunner(runner_manifest("first", required=True)),
        "second": FakeRunner(runner_manifest("second", canvases=((16, 32), (32, 16)))),
    }
    ensemble = DeviceEnsemble(
        [runner.manifest for runner in runners.values()],
        lambda: (list(runners.values()), FakeFence()),
        **{"largest_wait": NEVER, "queue_limit": 64, **rest},
    )
    if start:
        await ensemble.start()
        ensemble.plan = BatchPlan({2: 1.0, 4: 1.0, 8: 1.0})  # a batch is never better apart
    if gate:
        runners["first"].gate = threading.Event()
    b = Bench(ensemble, runners)
    try:
        yield b
    finally:
        if (opened := runners["first"].gate) is not None:
            opened.set()
        await ensemble.close()
        assert [lease.holders for lease in b.leases] == [0] * len(b.leases)
        assert all(runner.held == 0 for runner in runners.values())


async def test_every_frame_gets_its_own_scores_of_every_model_on_one_thread() -> None:
    async with bench() as b:
        group = b.group(7)
        for level in range(0, 70, 10):
            b.submit(group, level)
        for answer in await b.answered(7):
            assert isinstance(answer.tag, int)
            assert answer.error is None
            assert {name: dict(result.scores) for name, result in answer.results.items()} == {
                name: {f"{name}-level": pytest.approx(answer.tag / 255)} for name in ("first", "second")
            }
            assert 0 < answer.since <= answer.began <= answer.enqueued <= answer.ended
    assert len(b.runners["first"].threads | b.runners["second"].threads) == 1
    assert threading.get_ident() not in b.runners["first"].threads


async def test_batches_and_their_results_are_ranges_for_a_profiler() -> None:
    seen: list[tuple[str, int]] = []

    @contextmanager
    def ranges(name: str) -> Iterator[None]:
        seen.append((name, threading.get_ident()))
        yield
        seen.append((f"end {name}", threading.get_ident()))

    async with bench(ranges=ranges) as b:
        group = b.group(2)
        for level in (10, 20):
            b.submit(group, level)
        await b.answered(2)
    assert [name for name, _ in sorted(seen, key=lambda each: "results" in each[0])] == [
        "enqueue",
        "end enqueue",
        "results",
        "end results",
    ]
    assert {thread for name, thread in seen if "enqueue" in name} == b.runners["first"].threads


async def test_an_idle_ensemble_waits_for_all_frames_of_a_call_and_no_longer() -> None:
    async with bench() as b:
        group = b.group(5)
        for level in range(4):
            b.submit(group, level)
        await asyncio.sleep(0.05)
        assert not b.answers
        b.submit(group, 4)
        await b.answered(5)
        assert b.sizes == [5]


async def test_frames_of_a_call_run_apart_where_that_costs_less_than_the_wait() -> None:
    async with bench() as b:
        b.ensemble.plan = BatchPlan({2: 0.002, 4: 0.003, 8: 0.004})
        group = b.group(8)
        for level in (1, 2):
            b.submit(group, level)
            await asyncio.sleep(0.02)  # six more will take a tenth of a second
        await b.answered(2)
        assert b.sizes == [2]
        for level in range(6):
            b.submit(group, level)
        await b.answered(8)


async def test_frames_that_will_never_come_are_not_waited_for() -> None:
    async with bench() as b:
        group = b.group(3)
        b.submit(group, 1)
        b.ensemble.less(group, 2)
        await b.answered(1)


async def test_the_wait_ends_after_the_largest_wait() -> None:
    async with bench(largest_wait=0.01) as b:
        b.submit(b.group(9), 1)
        await b.answered(1)


async def test_a_busy_ensemble_gathers_and_enqueues_only_full_batches_behind_the_one_that_runs() -> None:
    async with bench(gate=True) as b:
        b.submit(b.group(1), 1)
        await b.until(lambda: b.sizes == [1])
        b.group(1)  # of which a frame is to come
        for level in range(7):
            b.submit(b.group(1), level)
        await asyncio.sleep(0.03)
        assert b.sizes == [1]
        b.submit(b.group(1), 8)  # now a batch is full
        await b.until(lambda: b.sizes == [1, 8])
        for level in range(20):
            b.submit(b.group(1), level)
        await asyncio.sleep(0.03)
        assert b.sizes == [1, 8]
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        await b.answered(29)
        assert sum(b.sizes) == 29


@pytest.mark.parametrize(("more", "sizes"), [(True, [1, 4, 1]), (False, [1, 5])])
async def test_what_is_left_of_full_buckets_runs_with_what_is_still_to_come(more: bool, sizes: list[int]) -> None:
    async with bench(gate=True) as b:
        b.ensemble.plan = BatchPlan({2: 1.0, 4: 1.1, 8: 1.6})
        b.submit(b.group(1), 1)
        await b.until(lambda: b.sizes == [1])
        to_come = b.group(1)
        for level in range(5):
            b.submit(b.group(1), level)
        opened = b.runners["first"].gate
        assert opened is not None
        if not more:
            b.ensemble.discard(to_come)
            await b.until(lambda: b.sizes == sizes)
        opened.set()
        await b.answered(6)
        assert b.sizes == sizes


async def test_frames_gather_behind_a_batch_until_it_is_about_to_end_also_where_nothing_more_is_announced() -> None:
    async with bench(gate=True) as b:
        b.ensemble.plan = BatchPlan({8: 0.2})
        b.submit(b.group(1), 1)
        await b.until(lambda: b.sizes == [1])
        for level in (2, 3):
            b.submit(b.group(1), level)
        await b.until(lambda: b.sizes == [1, 2])  # behind the first one, which still runs
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        first, *others = await b.answered(3)
        for other in others:
            assert other.began - first.began > 0.15


async def test_the_end_of_a_batch_is_expected_when_batches_have_ended_of_late() -> None:
    async with bench() as b:
        for name in b.runners:
            b.runners[name].seconds = 0.15  # another process has the GPU as well
        b.ensemble.plan = BatchPlan({8: 0.05})
        for count in range(1, 9):
            b.submit(b.group(1), count)
            await b.answered(count)
        b.submit(b.group(1), 9)
        await b.until(lambda: len(b.sizes) == 9)
        b.submit(b.group(1), 10)
        *_, before, last = await b.answered(10)
        assert last.began - before.began > 0.07, "it was enqueued when the plan says that the one before ends"


async def test_frames_of_several_calls_share_a_batch_and_those_of_other_canvases_or_models_do_not() -> None:
    async with bench(gate=True) as b:
        b.submit(b.group(1), 1)
        await b.until(lambda: b.sizes == [1])
        b.group(1)  # of which a frame is to come
        for level in (10, 20):
            b.submit(b.group(1), level)
            b.submit(b.group(1), level, width=48, height=64)
            b.submit(b.group(1, models=("first",)), level)
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        answers = await b.answered(7)
        assert b.sizes == [1, 2, 2, 2]
        assert sorted(len(answer.results) for answer in answers) == [1, 1, 2, 2, 2, 2, 2]


async def test_every_model_waits_for_all_pictures_that_are_on_their_way_into_their_slots() -> None:
    async with bench() as b:
        group = b.group(4)
        for level, ready in ((10, "copy 1"), (20, None), (30, "copy 3"), (40, None)):
            b.submit(group, level, lease=CountedLease(ready))
        await b.answered(4)
        alone = b.group(1)
        b.submit(alone, 50)
        await b.answered(5)
    for runner in b.runners.values():
        assert runner.ready == [("copy 1", "copy 3"), None]


async def test_a_wait_that_cannot_be_enqueued_fails_its_batch_and_the_next_one_runs() -> None:
    def lost(events: Sequence[Any]) -> Any:
        raise RuntimeError("cudaErrorIllegalAddress")

    async with bench() as b:
        assert b.ensemble._fence is not None
        before, b.ensemble._fence.before = b.ensemble._fence.before, lost  # type: ignore[method-assign]
        group = b.group(1)
        b.submit(group, 10, lease=CountedLease("copy"))
        (answer,) = await b.answered(1)
        assert isinstance(answer.error, ModelFailed)
        b.ensemble._fence.before = before  # type: ignore[method-assign]
        b.submit(b.group(1), 20)
        assert (await b.answered(2))[1].error is None


async def test_calls_that_are_kept_apart_wait_for_all_their_frames_and_have_a_batch_each() -> None:
    async with bench(gate=True, largest_wait=0.0) as b:
        b.ensemble.across_calls = False
        assert not b.ensemble.across_calls
        groups = [b.group(3), b.group(3)]
        for level in (10, 20):
            for group in groups:
                b.submit(group, level)
        await asyncio.sleep(0.05)
        assert b.sizes == []  # although nothing runs, and the wait of an ensemble that batches across calls is over
        for group in groups:
            b.submit(group, 30)
        await b.until(lambda: b.sizes == [3, 3])  # the second is enqueued behind the first, which still runs
        b.ensemble.across_calls = True
        for _ in range(3):
            b.submit(b.group(1), 40)
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        await b.answered(9)
        assert b.sizes == [3, 3, 3]


async def test_a_call_that_is_kept_apart_runs_in_as_few_batches_as_hold_it() -> None:
    async with bench() as b:
        b.ensemble.plan = BatchPlan({2: 1.0, 4: 5.0, 8: 50.0})
        b.ensemble.across_calls = False
        group = b.group(11)
        for level in range(11):
            b.submit(group, level)
        await b.answered(11)
        assert b.sizes == [8, 3]


async def test_slots_go_back_behind_the_preprocessing_not_behind_the_results() -> None:
    async with bench(gate=True) as b:
        b.submit(b.group(1), 1)
        await b.until(lambda: bool(b.leases[0].events))
        assert not b.answers
        ((events,),) = (b.leases[0].events,)
        assert set(events) == {"event of first", "event of second"}


async def test_discarded_frames_leave_the_queue_and_nobody_hears_of_them() -> None:
    async with bench(gate=True) as b:
        running, queued, _ = b.group(1), b.group(3), b.group(1)
        b.submit(running, 1)
        await b.until(lambda: b.sizes == [1])
        b.submit(queued, 2)
        b.ensemble.discard(queued)
        assert b.leases[1].holders == 0
        b.submit(queued, 3)  # a decoder that had not heard of it
        assert b.leases[2].holders == 0
        b.ensemble.discard(running)
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        await b.until(lambda: "0 batches" in repr(b.ensemble))
        await asyncio.sleep(0.02)
        assert not b.answers


async def test_late_frames_fail_and_enter_no_batch() -> None:
    async with bench(gate=True) as b:
        b.submit(b.group(1), 1)
        await b.until(lambda: b.sizes == [1])
        b.group(1)  # of which a frame is to come
        b.submit(b.group(1, deadline=time.monotonic() + 0.01), 2)
        b.submit(b.group(1), 3)
        await asyncio.sleep(0.02)
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        by_tag = {answer.tag: answer for answer in await b.answered(3)}
        assert isinstance(by_tag[2].error, DeadlineExceeded)
        assert by_tag[3].error is None
        assert b.sizes == [1, 1]


@pytest.mark.parametrize("fault", ["fails", "results_fail", "release_fails"])
@pytest.mark.parametrize("model", ["first", "second"])
async def test_a_model_that_fails_fails_its_batch_and_the_next_one_runs(fault: str, model: str) -> None:
    async with bench() as b:
        heard: list[int] = []
        b.ensemble.on_failure = lambda: heard.append(1)
        setattr(b.runners[model], fault, True)
        b.submit(b.group(1), 1)
        (answer,) = await b.answered(1)
        if model == "first":
            assert isinstance(answer.error, ModelFailed)
            assert "first" in answer.error.message
        else:
            assert answer.error is None
            assert set(answer.results) == {"first"}
            assert "cuda" in answer.failed["second"]
        assert heard
        setattr(b.runners[model], fault, False)
        b.submit(b.group(1), 2)
        assert set((await b.answered(2))[1].results) == {"first", "second"}


async def test_without_any_model_a_frame_has_no_results() -> None:
    async with bench() as b:
        b.submit(b.group(1, models=()), 1)
        (answer,) = await b.answered(1)
        assert (answer.error, answer.results, answer.failed) == (None, {}, {})
        b.submit(b.group(1), 2)
        await b.answered(2)


async def test_a_row_that_is_not_finite_fails_alone() -> None:
    async with bench() as b:
        b.runners["second"].nan = True
        group = b.group(3)
        for level in (0, 10, 20):
            b.submit(group, level)
        answers = {answer.tag: answer for answer in await b.answered(3)}
        assert set(answers[0].results) == {"first"}
        assert "not finite" in answers[0].failed["second"]
        assert set(answers[10].results) == set(answers[20].results) == {"first", "second"}


async def test_a_picture_in_host_memory_is_refused_and_its_slot_goes_back() -> None:
    async with bench() as b:
        lease = CountedLease()
        b.leases.append(lease)
        plane = np.zeros((4, 4), np.uint8)
        with pytest.raises(ValueError, match="host memory"):
            b.ensemble.submit(b.group(1), 0, Picture((plane, plane[:2, :2], plane[:2, :2]), 4, 4, lease=lease))


async def test_a_start_that_fails_closes_everything() -> None:
    async with bench(start=False) as b:
        b.runners["second"].open_fails = True
        with pytest.raises(RuntimeError, match="out of memory"):
            await b.ensemble.start()
        assert b.runners["first"].closed


async def test_close_fails_what_is_queued_and_what_comes_later() -> None:
    async with bench() as b:
        b.submit(b.group(2), 1)
        await b.ensemble.close()
        b.submit(b.group(1), 2)
        assert all(isinstance(answer.error, WorkerLost) for answer in await b.answered(2))


async def test_models_are_chosen_by_name() -> None:
    async with bench(start=False) as b:
        assert b.ensemble.select() == ("first", "second")
        assert b.ensemble.select(["second", "second"]) == ("second",)
        with pytest.raises(UnknownModel, match="third"):
            b.ensemble.select(["third"])


async def test_many_calls_from_many_threads_with_cancellations_leave_nothing_behind() -> None:
    rng = random.Random(5)
    async with bench(largest_wait=0.002) as b:
        for runner in b.runners.values():
            runner.seconds = 0.001
        heard: dict[int, list[object]] = {}

        async def call(number: int) -> None:
            frames = rng.randint(1, 9)
            told = heard.setdefault(number, [])
            group = b.ensemble.group(
                frames, ("first", "second"), lambda answer: told.append(answer.tag), deadline=math.inf, priority=rng.randint(0, 2)
            )

            def bring() -> None:
                for frame in range(frames):
                    if rng.random() < 0.1:
                        b.ensemble.less(group)
                        told.append(frame)
                    else:
                        shape = {"width": 48, "height": 64} if number % 2 else {}
                        b.submit(group, frame, **shape)

            bringing = asyncio.get_running_loop().run_in_executor(None, bring)
            if cancelled := rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.01)
                b.ensemble.discard(group)
            await bringing
            if not cancelled:
                await b.until(lambda: len(told) >= frames)
                assert sorted(map(str, told)) == sorted(map(str, range(frames)))
            b.ensemble.discard(group)

        await asyncio.gather(*(call(number) for number in range(60)))
        await b.until(lambda: "0 queued, 0 batches" in repr(b.ensemble))
        state = b.ensemble.snapshot()
        assert state.queued == 0
        for model in state.models:
            assert model.in_flight == 0
            assert sum(size * count for size, count in model.fill.items()) == sum(b.sizes)


async def test_the_queue_is_told_once_and_batches_by_the_models_in_them() -> None:
    async with bench(gate=True) as b:
        b.submit(b.group(1, models=("first",)), 1)
        await b.until(lambda: b.sizes == [1])
        b.group(1)  # of which a frame is to come
        for priority in (0, 2, 2):
            b.submit(b.group(1, priority=priority), 2)
        state = b.ensemble.snapshot()
        assert (state.queued, state.priorities[0], state.priorities[2], state.largest_batch) == (3, 1, 2, 8)
        assert {model.model: (model.in_flight, model.fill) for model in state.models} == {"first": (1, {1: 1}), "second": (0, {})}
        opened = b.runners["first"].gate
        assert opened is not None
        opened.set()
        await b.answered(4)
        first, second = b.ensemble.snapshot().models
        assert (first.fill, second.fill) == ({1: 1, 3: 1}, {3: 1})
