from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keyglance.errors import DeadlineExceeded, GpuLost, ModelFailed, WorkerLost
from models.backends.fake import FakeBackend, fake_manifest
from models.batcher import Batcher, ExpectedFrames
from models.run_slots import RunSlots

NEVER = 3600.0


def frame(red: float = 255.0, size: int = 8) -> np.ndarray:
    tensor = np.zeros((3, size, size), np.float32)
    tensor[0] = red / 255
    return tensor


class Bench:
    """A batcher over a fake backend, and a gate that holds its runs until it is opened."""

    def __init__(self, *, threads: int = 1, gate: bool = False, name: str = "colours", slots: RunSlots | None = None, **settings):
        self.gate = threading.Event() if gate else None
        fakes = {key: settings.pop(key) for key in ("fail_every", "nan_every", "delay") if key in settings}
        manifest = fake_manifest(name, largest_batch=settings.pop("largest_batch", 4))
        self.backend = FakeBackend(manifest, gate=self.gate, **fakes)
        self.slots = slots or RunSlots(threads)
        self.batcher = Batcher(manifest, self.backend, self.slots, **{"largest_wait": 0.0, **settings})

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.gate:
            self.gate.set()
        await self.batcher.close()
        await self.slots.close()

    def submit(self, red: float = 255.0, *, size: int = 8, **options) -> asyncio.Task:
        return asyncio.create_task(self.batcher.submit(frame(red, size), **options))

    async def until(self, **state: int) -> None:
        for _ in range(2000):
            snapshot = self.batcher.snapshot()
            if all(getattr(snapshot, key) == value for key, value in state.items()):
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{self.batcher!r} never had {state}")

    @property
    def sizes(self) -> list[int]:
        return [shape[0] for shape in self.backend.batches]


def red_of(inferred) -> float:
    return float(inferred.outputs["scores"][0])


async def test_one_frame_gets_its_own_outputs_without_a_batch_axis():
    async with Bench() as bench:
        inferred = await bench.batcher.submit(frame(51))
        assert inferred.outputs["scores"].shape == (3,)
        assert red_of(inferred) == pytest.approx(0.2)
        assert inferred.waited >= 0


async def test_frames_of_several_calls_meet_in_one_batch_and_keep_their_own_outputs():
    async with Bench(gate=True) as bench:
        first = bench.submit(0)
        await bench.until(in_flight=1)
        tasks = [bench.submit(red) for red in (51, 102, 153, 204)]
        await bench.until(queued=4)
        bench.gate.set()
        assert [red_of(one) for one in await asyncio.gather(first, *tasks)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
        assert bench.sizes == [1, 4]
        assert bench.batcher.snapshot().fill == {1: 1, 4: 1}


async def test_calls_that_are_kept_apart_wait_for_all_their_frames_and_have_a_batch_each():
    async with Bench(largest_wait=0.0) as bench:
        bench.batcher.across_calls = False
        assert not bench.batcher.across_calls
        calls = [ExpectedFrames(3), ExpectedFrames(3)]
        tasks = [bench.submit(expected=call) for _ in range(2) for call in calls]
        await bench.until(queued=4)
        await asyncio.sleep(0.02)
        assert bench.sizes == []
        await asyncio.gather(*tasks, *(bench.submit(expected=call) for call in calls))
        assert bench.sizes == [3, 3]
        bench.batcher.across_calls = True
        await asyncio.gather(*(bench.submit(expected=ExpectedFrames(1)) for _ in range(3)))
        assert bench.sizes == [3, 3, 1, 2]


async def test_a_frame_of_no_known_call_does_not_wait():
    async with Bench(largest_wait=NEVER) as bench:
        await bench.batcher.submit(frame())
        assert bench.sizes == [1]


async def test_an_idle_engine_waits_for_all_frames_of_a_call():
    async with Bench(largest_wait=NEVER) as bench:
        expected = ExpectedFrames(3)
        tasks = [bench.submit(expected=expected), bench.submit(expected=expected)]
        await bench.until(queued=2)
        await asyncio.sleep(0.02)
        assert bench.sizes == []
        await asyncio.gather(*tasks, bench.submit(expected=expected))
        assert bench.sizes == [3]


async def test_a_full_batch_does_not_wait_for_the_rest_of_its_call():
    async with Bench(largest_wait=NEVER) as bench:
        expected = ExpectedFrames(100)
        await asyncio.gather(*(bench.submit(expected=expected) for _ in range(4)))
        assert bench.sizes == [4]


async def test_a_full_queue_is_reason_enough_to_run():
    async with Bench(largest_wait=NEVER, queue_limit=4) as bench:
        expected = ExpectedFrames(100)
        first, *others = [bench.submit(size=size, expected=expected) for size in (8, 16, 24, 32)]
        await first
        assert bench.backend.batches == [(1, 3, 8, 8)]
        expected.clear()
        await asyncio.gather(*others)


async def test_the_wait_ends_after_the_largest_wait():
    async with Bench(largest_wait=0.01) as bench:
        await bench.batcher.submit(frame(), expected=ExpectedFrames(2))
        assert bench.sizes == [1]


@pytest.mark.parametrize("end", ["less", "clear"])
async def test_frames_that_will_never_come_are_not_waited_for(end):
    async with Bench(largest_wait=NEVER) as bench:
        expected = ExpectedFrames(2)
        task = bench.submit(expected=expected)
        await bench.until(queued=1)
        getattr(expected, end)()
        await task
        assert bench.sizes == [1]


async def test_a_cancelled_head_no_longer_holds_up_what_stands_behind_it():
    async with Bench(largest_wait=NEVER) as bench:
        head = bench.submit(expected=ExpectedFrames(9))
        await bench.until(queued=1)
        behind = bench.submit()  # not waiting for anything, but the head's call is
        await bench.until(queued=2)
        head.cancel()
        await behind
        assert bench.sizes == [1]


async def test_only_equal_shapes_and_types_share_a_batch():
    async with Bench(gate=True) as bench:
        tasks = [bench.submit()]
        await bench.until(in_flight=1)
        tasks += [bench.submit(size=size) for size in (8, 16, 8, 16)]
        tasks.append(asyncio.create_task(bench.batcher.submit(frame().astype(np.float16))))
        await bench.until(queued=5)
        bench.gate.set()
        await asyncio.gather(*tasks)
        assert sorted(bench.backend.batches) == [(1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8), (2, 3, 16, 16)]


async def test_a_rare_shape_is_served_in_its_turn_although_another_always_has_full_batches():
    async with Bench(largest_batch=2, delay=0.001) as bench:
        stop = False

        async def flood() -> None:
            while not stop:
                await bench.batcher.submit(frame())

        floods = [asyncio.create_task(flood()) for _ in range(12)]
        await bench.until(queued=10)
        before = len(bench.sizes)
        await bench.batcher.submit(frame(size=16))
        assert len(bench.sizes) - before <= 9  # what was queued before it (10 in batches of 2), its own, and what was running
        stop = True
        await asyncio.gather(*floods)


async def test_submits_wait_for_a_place_in_a_full_queue():
    async with Bench(gate=True, queue_limit=4) as bench:
        tasks = [bench.submit()]
        await bench.until(in_flight=1)
        tasks += [bench.submit() for _ in range(7)]
        await bench.until(queued=4, waiting=3)
        bench.gate.set()
        await asyncio.gather(*tasks)
        assert sum(bench.sizes) == 8


async def test_cancelled_work_enters_no_batch_and_gives_its_place_back():
    async with Bench(gate=True, queue_limit=4) as bench:
        first = bench.submit(0)
        await bench.until(in_flight=1)
        queued = [bench.submit() for _ in range(4)]
        waiting = [bench.submit() for _ in range(2)]
        await bench.until(queued=4, waiting=2)
        for task in (*queued[:3], waiting[0]):
            task.cancel()
        await bench.until(queued=2, waiting=0)
        bench.gate.set()
        await asyncio.gather(first, queued[3], waiting[1])
        assert bench.sizes == [1, 2]
        assert all(task.cancelled() for task in (*queued[:3], waiting[0]))


async def test_work_cancelled_while_it_runs_does_not_disturb_its_batch():
    async with Bench(gate=True, largest_wait=NEVER) as bench:
        expected = ExpectedFrames(2)
        one, other = bench.submit(expected=expected), bench.submit(51, expected=expected)
        await bench.until(in_flight=2)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        bench.gate.set()
        assert red_of(await other) == pytest.approx(0.2)
        assert bench.sizes == [2]


async def test_late_work_fails_at_its_deadline_and_enters_no_batch():
    async with Bench(gate=True) as bench:
        hold = bench.submit()
        await bench.until(in_flight=1)
        late = bench.submit(deadline=time.monotonic() + 0.01)
        good = bench.submit(deadline=time.monotonic() + 60)
        with pytest.raises(DeadlineExceeded, match="'colours'"):
            await late  # although the run is still held
        bench.gate.set()
        await asyncio.gather(hold, good)
        assert bench.sizes == [1, 1]


async def test_work_past_its_deadline_is_refused_but_counts_as_come():
    async with Bench(largest_wait=NEVER) as bench:
        expected = ExpectedFrames(2)
        with pytest.raises(DeadlineExceeded):
            await bench.batcher.submit(frame(), deadline=time.monotonic() - 1, expected=expected)
        await bench.batcher.submit(frame(), expected=expected)
        assert bench.sizes == [1]


def test_a_deadline_that_passed_unnoticed_by_the_loop_is_seen_when_the_batch_is_made():
    async def run() -> None:
        async with Bench(largest_wait=NEVER) as bench:
            task = bench.submit(deadline=time.monotonic() + 0.01, expected=ExpectedFrames(2))
            await bench.until(queued=1)
            time.sleep(0.02)  # noqa: ASYNC251 - the loop is held up on purpose
            assert bench.batcher.take(time.monotonic()) is None
            with pytest.raises(DeadlineExceeded):
                await task
            assert bench.batcher.snapshot().queued == 0

    asyncio.run(run())


async def test_a_failing_batch_fails_its_own_frames_and_nothing_else():
    async with Bench(gate=True, largest_batch=2, fail_every=2) as bench:
        tasks = [bench.submit()]
        await bench.until(in_flight=1)
        tasks += [bench.submit() for _ in range(4)]
        await bench.until(queued=4)
        bench.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["Inferred", "ModelFailed", "ModelFailed", "Inferred", "Inferred"]
        assert results[1] is not results[2]
        assert results[1].facts == {"model": "colours"}
        assert "RuntimeError: batch 2 fails" in results[1].message
        assert isinstance(results[1].__cause__, RuntimeError)
        assert bench.batcher.snapshot().failed == 1


async def test_outputs_that_are_not_finite_are_an_error_that_names_model_and_output():
    async with Bench(nan_every=1) as bench:
        with pytest.raises(ModelFailed, match=r"'colours': output 'scores' has 1 of 3 values that are not finite"):
            await bench.batcher.submit(frame())


async def test_outputs_without_a_row_for_each_frame_are_an_error():
    async with Bench() as bench:
        bench.backend.run = lambda batch: {"scores": np.zeros((7, 3), np.float32)}
        with pytest.raises(ModelFailed, match=r"output 'scores' has shape \[7, 3\], 1 rows"):
            await bench.batcher.submit(frame())
        bench.backend.run = lambda batch: {"other": np.zeros((1, 3), np.float32)}
        with pytest.raises(ModelFailed, match=r"no output 'scores' among \['other'\]"):
            await bench.batcher.submit(frame())


async def test_an_error_of_the_tree_keeps_its_kind():
    async with Bench() as bench:

        def lost(batch: np.ndarray) -> None:
            raise GpuLost("the GPU is gone", facts={"device": "0"})

        bench.backend.run = lost
        with pytest.raises(GpuLost, match="the GPU is gone") as raised:
            await bench.batcher.submit(frame())
        assert raised.value.facts == {"device": "0"}


async def test_close_fails_what_is_queued_and_what_waits_and_lets_what_runs_end():
    async with Bench(gate=True, queue_limit=4) as bench:
        running = bench.submit()
        await bench.until(in_flight=1)
        others = [bench.submit() for _ in range(7)]
        await bench.until(queued=4, waiting=3)
        closing = asyncio.create_task(bench.batcher.close())
        results = await asyncio.gather(*others, return_exceptions=True)
        assert {type(result) for result in results} == {WorkerLost}
        assert not closing.done()
        bench.gate.set()
        await asyncio.gather(closing, running)
        with pytest.raises(WorkerLost, match="closed"):
            await bench.batcher.submit(frame())
        assert bench.sizes == [1]


async def test_the_model_whose_head_waits_longest_is_served_first():
    order: list[str] = []
    slots = RunSlots(1)
    async with Bench(gate=True, name="a", slots=slots, largest_batch=1) as a, Bench(name="b", slots=slots, largest_batch=1) as b:

        async def noted(bench: Bench) -> None:
            await bench.batcher.submit(frame())
            order.append(bench.batcher.manifest.name)

        hold = a.submit()
        await a.until(in_flight=1)
        tasks = []
        for bench in (b, a, a, b, a, b, b):
            tasks.append(asyncio.create_task(noted(bench)))
            await asyncio.sleep(0.001)
        a.gate.set()
        await asyncio.gather(hold, *tasks)
        assert "".join(order) == "baababb"


async def test_no_more_runs_at_a_time_than_slots_and_one_thread_for_everything_where_there_is_one_slot():
    async with Bench(gate=True, threads=2, largest_batch=1) as bench:
        tasks = [bench.submit() for _ in range(4)]
        await bench.until(in_flight=2, queued=2)
        assert bench.slots.busy == 2
        bench.gate.set()
        await asyncio.gather(*tasks)
    async with Bench(threads=1) as bench:
        await bench.slots.call(bench.backend.load)
        await bench.slots.call(bench.backend.warm, (1, 4))
        await asyncio.gather(*(bench.submit() for _ in range(9)))
        assert len({thread for _, thread in bench.backend.calls}) == 1


async def test_a_batch_has_one_root_span_linked_to_each_call_once():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    async with Bench(gate=True, fail_every=2, tracer=tracer) as bench:
        hold = bench.submit()
        await bench.until(in_flight=1)
        calls = [tracer.start_span(f"call {number}") for number in range(2)]
        tasks = []
        for call in (calls[0], calls[1], calls[0]):
            with trace.use_span(call):
                tasks.append(bench.submit())
        await bench.until(queued=3)
        bench.gate.set()
        await hold
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {ModelFailed}
    alone, failed = exporter.get_finished_spans()
    assert alone.name == failed.name == "infer_batch"
    assert failed.parent is None
    assert alone.links == ()
    assert [link.context.span_id for link in failed.links] == [call.get_span_context().span_id for call in calls]
    assert dict(failed.attributes) == {"keyglance.model": "colours", "keyglance.batch.size": 3}
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert alone.status.status_code is trace.StatusCode.UNSET


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"largest_batch": 0}, "at least 1"),
        ({"queue_limit": 3}, "a queue of 3 frames cannot fill a batch of 4"),
        ({"largest_wait": -1.0}, "must be 0 or more"),
        ({"largest_wait": math.inf}, "finite"),
    ],
)
async def test_settings_out_of_range_are_refused(settings, message):
    manifest = fake_manifest(largest_batch=settings.pop("largest_batch", 4))
    with pytest.raises(ValueError, match=message):
        Batcher(manifest, FakeBackend(manifest), RunSlots(), **settings)


async def test_repr_shows_the_state():
    async with Bench() as bench:
        await bench.batcher.submit(frame())
        await asyncio.sleep(0)  # the slot is given back in the next turn of the loop
        assert repr(bench.batcher) == "<Batcher colours queued=0/64 waiting=0 in_flight=0 batches=1 failed=0>"
        assert repr(bench.slots) == "<RunSlots infer busy=0/1 queues=1>"
        assert repr(ExpectedFrames(2)) == "<ExpectedFrames 2 arrived={}>"


@settings(max_examples=40, deadline=None)
@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(["run", "cancel", "late"]), st.sampled_from([8, 16]), st.integers(0, 3), st.floats(0, 255, width=32)
        ),
        max_size=40,
    ),
    threads=st.integers(1, 3),
    largest_batch=st.integers(1, 5),
    fail_every=st.sampled_from([0, 3]),
)
def test_whatever_happens_every_frame_ends_once_and_nothing_is_left(plan, threads, largest_batch, fail_every):
    async def run() -> None:
        async with Bench(threads=threads, largest_batch=largest_batch, queue_limit=6, fail_every=fail_every) as bench:
            tasks = []
            for action, size, pause, red in plan:
                deadline = time.monotonic() + (0.0005 if action == "late" else 60)
                tasks.append(bench.submit(red, size=size, deadline=deadline))
                for _ in range(pause):
                    await asyncio.sleep(0)
                if action == "cancel":
                    tasks[-1].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            kinds = Counter(type(result).__name__ for result in results)
            assert set(kinds) <= {"Inferred", "CancelledError", "DeadlineExceeded", *(["ModelFailed"] if fail_every else [])}
            for (action, _, _, red), result in zip(plan, results, strict=True):
                if action == "run" and not fail_every:
                    assert red_of(result) == pytest.approx(red / 255, abs=1e-5)
            await bench.until(queued=0, waiting=0, in_flight=0)
            assert max(bench.sizes, default=0) <= largest_batch
            assert bench.batcher._places._value == 6

    asyncio.run(run())
