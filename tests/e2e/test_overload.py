"""More calls than can be answered, on loopback: what callers see, and what is left afterwards."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from keyglance import Answer
from keyglance.answer import reason, verdict
from keyglance.errors import DeadlineExceeded, KeyglanceError, ModelFailed, Overloaded
from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerStub
from loadtest import clips
from server.engine import HardwareFormat, Priority
from tests.e2e.slow_service import SlowEngine, SlowService, slow_service

Serve = Callable[..., AbstractAsyncContextManager[SlowService]]


@pytest.fixture(scope="module")
def clip() -> bytes:
    """Eight keyframes, one a second."""
    return clips.encode(clips.hold(clips.grey(64, 48), 16), fps=2, keyframe_interval=2)


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return lambda engine, **sections: slow_service(tmp_path, engine, **sections)


async def outcomes(calls: Iterable[Any]) -> list[Answer | KeyglanceError]:
    return await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[return-value]


def reasons(answer: Answer) -> dict[str, int]:
    return {reason(item.reason): item.count for item in answer.degradations}


async def arrivals(rate: float, seconds: float) -> AsyncIterator[int]:
    """Numbers, so many a second, whether whoever takes them keeps up or not."""
    begin, count = time.monotonic(), int(rate * seconds)
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        yield number


async def test_three_times_the_load(serve: Serve, clip: bytes) -> None:
    engine = SlowEngine(workers=4, work=0.2)
    peak, seconds = 20, 6
    async with serve(engine, server={"listen": "127.0.0.1:0", "concurrent_calls": 64}, overload={"settle": 0.1}) as it:
        memory = []
        for _ in range(2):
            found: list[tuple[Priority, Answer | KeyglanceError]] = []

            async def call(priority: Priority, found: list[tuple[Priority, Answer | KeyglanceError]] = found) -> None:
                (outcome,) = await outcomes([it.client.label(clip, priority=priority.name.lower(), timeout=5)])
                found.append((priority, outcome))

            async with asyncio.TaskGroup() as group:
                async for number in arrivals(3 * peak, seconds):
                    group.create_task(call(Priority.INTERACTIVE if number % 6 == 0 else Priority.BULK))
            await it.until(lambda: it.server._admission.in_flight == 0)
            it.assert_quiet()
            gc.collect()
            memory.append(psutil.Process().memory_info().rss)

            answered = Counter(priority for priority, each in found if isinstance(each, Answer))
            refused = [each for _, each in found if isinstance(each, Overloaded)]
            others = [each for _, each in found if not isinstance(each, Answer | Overloaded)]
            assert answered.total() >= 0.7 * peak * seconds, "goodput"
            assert len(refused) >= peak * seconds
            assert all(each.retry_after is not None and each.retry_after >= 0.25 for each in refused)
            assert len(others) <= 0.02 * len(found), others
            shares = {p: answered[p] / sum(priority is p for priority, _ in found) for p in answered}
            assert shares[Priority.INTERACTIVE] > 0.9
            assert shares[Priority.BULK] < 0.4
        assert memory[1] - memory[0] < 32 << 20
        assert engine.most_running <= 16
        assert {job.priority for job in engine.jobs} == {Priority.INTERACTIVE, Priority.BULK}


async def test_a_full_server_refuses_before_it_reads(serve: Serve, clip: bytes, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"least_calls": 1, "most_calls": 1, "waiting": 1}
    async with serve(SlowEngine(), overload=settings) as it:
        it.engine.go.clear()
        first = asyncio.ensure_future(it.client.label(clip))
        await it.until(lambda: it.engine.running == 1)
        second = asyncio.ensure_future(it.client.label(clip))
        await it.until(lambda: it.lanes["main"].waiting() == 1)
        with caplog.at_level(logging.INFO, "keyglance.access"), pytest.raises(Overloaded) as caught:
            await it.client.label(clip + bytes(1 << 20), whole=True)
        (line,) = [record for record in caplog.records if record.name == "keyglance.access"]
        assert line.request_bytes == 0
        assert caught.value.facts["refused"] == "room"
        assert caught.value.retry_after == 1.0  # nothing is known yet
        it.engine.go.set()
        await asyncio.gather(first, second)
        await it.until(lambda: it.server._admission.in_flight == 0)
        it.assert_quiet()


async def test_bulk_makes_room_for_interactive_calls(serve: Serve, clip: bytes) -> None:
    settings = {"least_calls": 1, "most_calls": 1, "waiting": 1}
    async with serve(SlowEngine(), overload=settings) as it:
        it.engine.go.clear()
        first = asyncio.ensure_future(it.client.label(clip))
        await it.until(lambda: it.engine.running == 1)
        bulk = asyncio.ensure_future(it.client.label(clip, priority="bulk"))
        await it.until(lambda: it.lanes["main"].waiting() == 1)
        interactive = asyncio.ensure_future(it.client.label(clip, priority="interactive"))
        with pytest.raises(Overloaded) as caught:
            await bulk
        assert caught.value.facts["refused"] == "evicted"
        it.engine.go.set()
        await asyncio.gather(first, interactive)
        assert it.engine.jobs[-1].priority is Priority.INTERACTIVE


async def test_what_cannot_be_in_time_does_no_work(serve: Serve, clip: bytes) -> None:
    async with serve(SlowEngine(workers=2, work=0.2)) as it:
        for _ in range(4):
            await outcomes([it.client.label(clip) for _ in range(4)])
        others = [asyncio.ensure_future(it.client.label(clip)) for _ in range(2)]
        await it.until(lambda: it.engine.running == 2)
        jobs = len(it.engine.jobs)
        with pytest.raises(DeadlineExceeded, match="such calls take 0"):
            await it.client.label(clip, timeout=0.15)
        assert len(it.engine.jobs) == jobs
        await asyncio.gather(*others)


async def test_cancelled_calls_leave_the_room(serve: Serve, clip: bytes) -> None:
    async with serve(SlowEngine(), overload={"least_calls": 1, "most_calls": 1}) as it:
        it.engine.go.clear()
        calls = [asyncio.ensure_future(it.client.label(clip)) for _ in range(6)]
        await it.until(lambda: it.lanes["main"].waiting() == 5)
        for call in calls[:5]:
            call.cancel()
        await it.until(lambda: it.server._admission.in_flight == 1)
        it.engine.go.set()
        assert isinstance(await calls[5], Answer)
        await it.until(lambda: it.server._admission.in_flight == 0)
        it.assert_quiet()
        assert len(it.engine.jobs) <= 2


async def test_a_call_that_fails_gives_its_place_to_the_next(serve: Serve, clip: bytes) -> None:
    async with serve(SlowEngine(), overload={"least_calls": 1, "most_calls": 1}) as it:
        it.engine.failures = [ModelFailed("model 'required': broken"), ZeroDivisionError()]
        found = await outcomes([it.client.label(clip) for _ in range(6)])
        assert sorted(type(each).__name__ for each in found) == ["InternalError", *["LabelResponse"] * 4, "ModelFailed"]
        await it.until(lambda: it.server._admission.in_flight == 0)
        it.assert_quiet()


async def test_under_load_answers_are_less_thorough_and_say_so(serve: Serve, clip: bytes) -> None:
    steps = [{"load": 0.01, "frames": 4, "leave_out": ["optional"]}]
    settings = {"least_calls": 1, "most_calls": 1, "waiting": 20, "steps": steps, "settle": 0.01}
    async with serve(SlowEngine(work=0.0), overload=settings) as it:
        full = await it.client.label(clip)
        assert (verdict(full), full.coverage.frames, reasons(full)) == ("PASS", 8, {})
        it.engine.go.clear()
        first = asyncio.ensure_future(it.client.label(clip))
        await it.until(lambda: it.engine.running == 1)
        waiting = []
        for number in range(4):
            waiting.append(
                asyncio.ensure_future(it.client.label(clip, priority=("interactive", "normal", "normal", "bulk")[number]))
            )
            await it.until(lambda count=number + 1: it.lanes["main"].waiting() == count)
            await asyncio.sleep(0.05)
        named = asyncio.ensure_future(it.client.label(clip, models=["required", "optional"]))
        await it.until(lambda: it.lanes["main"].waiting() == 5)
        it.engine.go.set()
        answers = await asyncio.gather(*waiting)
        assert (verdict(await first), reasons(await first)) == ("PASS", {})
        assert reasons(answers[0]) == {}, "interactive calls keep their quality one step longer"
        for answer in answers[1:]:
            assert reasons(answer) == {"FEWER_FRAMES": 4, "MODEL_LEFT_OUT": 1}
            assert answer.coverage.frames == 4
            assert [model.name for model in answer.models] == ["required"]
            assert verdict(answer) == "REVIEW"
            assert any("FEWER_FRAMES" in why for why in answer.verdict_reasons)
        assert reasons(await named) == {"FEWER_FRAMES": 4}, "models that were asked for by name are not left out"
        digests = {answer.provenance.sampling_digest for answer in (full, await first, answers[0])}
        assert len(digests) == 1
        assert answers[1].provenance.sampling_digest not in digests


async def test_fewer_pictures_need_no_bytes_that_were_not_sent(serve: Serve) -> None:
    """Callers send what the full plan needs; a plan of its own for fewer pictures would want other ranges."""
    noise = np.random.default_rng(1)
    pictures = [noise.integers(0, 255, (96, 128, 3), np.uint8) for _ in range(120)]
    long = clips.encode(pictures, fps=2, keyframe_interval=4)
    settings = {"least_calls": 1, "most_calls": 1, "steps": [{"load": 0.001, "frames": 5}], "settle": 0.01}
    async with serve(SlowEngine(work=0.0), overload=settings) as it:
        it.engine.go.clear()
        calls = [asyncio.ensure_future(it.client.label(io.BytesIO(long), frames=16, largest_gap=30))]
        await it.until(lambda: it.engine.running == 1)
        for count in range(1, 4):
            calls.append(asyncio.ensure_future(it.client.label(io.BytesIO(long), frames=16, largest_gap=30)))
            await it.until(lambda count=count: it.lanes["main"].waiting() == count)
            await asyncio.sleep(0.05)
        it.engine.go.set()
        answers = await asyncio.gather(*calls)
        assert [answer.coverage.frames for answer in answers] == [16, 5, 5, 5]
        assert len(it.engine.jobs) == 4, "none was asked for ranges and came again"


async def test_what_software_decodes_has_a_lane_of_its_own(serve: Serve, clip: bytes) -> None:
    other = clips.encode(clips.hold(clips.grey(64, 48), 16), fps=2, keyframe_interval=2, codec="mpeg4")
    engine = SlowEngine(workers=16, hardware=(HardwareFormat("h264", 8, "420", 4096, 4096),), work=0.0)
    settings = {"least_calls": 2, "most_calls": 2, "software_waiting": 1}
    async with serve(engine, overload=settings) as it:
        engine.go.clear()
        software = [asyncio.ensure_future(it.client.label(other)) for _ in range(3)]
        await it.until(lambda: (it.lanes["software"].serving, it.lanes["software"].waiting()) == (2, 1))
        assert it.lanes["main"].serving == 0
        with pytest.raises(Overloaded) as caught:
            await it.client.label(other)
        assert caught.value.facts["refused"] == "room"
        assert caught.value.retry_after is not None
        hardware = [asyncio.ensure_future(it.client.label(clip)) for _ in range(2)]
        await it.until(lambda: it.lanes["main"].serving == 2)
        engine.go.set()
        for answer in await asyncio.gather(*software, *hardware):
            assert answer.coverage.frames == 8
        await it.until(lambda: it.server._admission.in_flight == 0)
        it.assert_quiet()


async def test_callers_with_many_calls_do_not_shut_others_out(serve: Serve, clip: bytes) -> None:
    settings = {"least_calls": 1, "most_calls": 1, "waiting": 8, "caller_key": "x-caller-id"}
    async with serve(SlowEngine(work=0.02), overload=settings) as it:
        it.engine.go.clear()
        first = asyncio.ensure_future(it.client.label(clip))
        await it.until(lambda: it.engine.running == 1)
        order: list[str] = []

        async def call(name: str) -> None:
            async with type(it.client)(it.server.address, retries=0, metadata=[("x-caller-id", name)]) as client:
                (outcome,) = await outcomes([client.label(clip)])
            order.append(name if isinstance(outcome, Answer) else f"{name} refused")

        calls = []
        for count, name in enumerate(["greedy"] * 8, 1):
            calls.append(asyncio.ensure_future(call(name)))
            await it.until(lambda count=count: it.lanes["main"].waiting() == count)
        calls.append(asyncio.ensure_future(call("modest")))
        await it.until(lambda: "greedy refused" in order)
        it.engine.go.set()
        await asyncio.gather(first, *calls)
        assert Counter(order) == {"greedy": 7, "greedy refused": 1, "modest": 1}
        assert "modest" in order[:4], "its turn comes after one or two of the others"


async def test_a_priority_that_there_is_not(serve: Serve, clip: bytes) -> None:
    async with serve(SlowEngine(work=0.0)) as it:
        stub = ShortVideoLabelerStub(it.client._channels[0])
        with pytest.raises(grpc.aio.AioRpcError, match="priority is 9, allowed are PRIORITY_UNSPECIFIED") as caught:
            await stub.Label(pb.LabelRequest(data=clip, priority=9))  # type: ignore[arg-type]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_field_wins_over_the_metadata(serve: Serve, clip: bytes) -> None:
    async with serve(SlowEngine(work=0.0)) as it:
        stub = ShortVideoLabelerStub(it.client._channels[0])
        metadata = [("keyglance-priority", "bulk")]
        await stub.Label(pb.LabelRequest(data=clip), metadata=metadata)
        await stub.Label(pb.LabelRequest(data=clip, priority=pb.PRIORITY_INTERACTIVE), metadata=metadata)
        assert [job.priority for job in it.engine.jobs] == [Priority.BULK, Priority.INTERACTIVE]
