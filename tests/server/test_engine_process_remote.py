"""An engine over a connection is the engine itself: answers, errors, cancellation, deadlines; and a lost end leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import (
    CorruptVideo,
    DeadlineExceeded,
    InternalError,
    KeyglanceError,
    ModelFailed,
    Overloaded,
    UnsupportedCodec,
    WorkerLost,
)
from keyglance.video import Orientation
from server.engine import EngineInfo, EngineJob, EngineResult, Priority
from server.engine_process import codec
from server.engine_process.engine_group import EngineGroup
from server.engine_process.engine_host import EngineHost
from server.engine_process.kinds import EngineKind
from server.engine_process.remote_engine import RemoteEngine
from server.engine_process.wire import MAX_BODY, Connection, Frame, pair
from server.front_share import EngineLoads, FrontBoard
from tests.server.engine_fakes import MANIFESTS, ScriptedEngine, answer, descriptors, job


@dataclass
class Rig:
    """An engine, its host, and fronts' views of it, in one process."""

    engine: ScriptedEngine
    host: EngineHost
    remotes: list[RemoteEngine]

    @property
    def remote(self) -> RemoteEngine:
        return self.remotes[0]

    def connect(self, remote: RemoteEngine) -> socket.socket:
        """Connects a front; gives a duplicate of the front's end, for what a test may want to do with it."""
        ours, theirs = pair()
        self.host.attach(theirs, f"front-{len(self.remotes)}")
        copy = ours.dup()
        remote.attach(ours)
        return copy

    async def quiet(self) -> None:
        await eventually(lambda: self.engine.running == self.host.in_flight == 0 and not any(r.in_flight for r in self.remotes))
        assert not any(remote.pictures for remote in self.remotes)


async def eventually(check: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not become true"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def rig(
    work: Callable[[EngineJob], object] = lambda job: None, *, fronts: int = 1, most_jobs: int = 200
) -> AsyncIterator[Rig]:
    gc.collect()
    before = descriptors()
    engine = ScriptedEngine(work)
    made = Rig(engine, EngineHost(engine, most_jobs=most_jobs), [RemoteEngine(f"engine-0 by {n}") for n in range(fronts)])
    made.host.open()
    for remote in made.remotes:
        made.connect(remote).close()
        await asyncio.wait_for(remote.start(), 10)
    try:
        yield made
        await made.quiet()
    finally:
        for remote in made.remotes:
            await remote.close()
        await made.host.close()
    await asyncio.sleep(0)
    assert descriptors() == before


async def run(engine: RemoteEngine | EngineGroup, work: EngineJob) -> EngineResult:
    """As the pipeline does it: the packets are closed as soon as nobody waits for the job any more."""
    with work.packets:
        return await engine.run(work)


def scored(result: EngineResult) -> list[object]:
    return [(frame.sample, frame.keyframe, dict(frame.results), frame.thumbnail) for frame in result.frames]


async def test_answers_are_those_of_the_engine_itself():
    async with rig() as it:
        for pictures in (0, 1, 12):
            asked = job(pictures, orientation=Orientation(90, True), models=("few",), thumbnail_size=64, priority=Priority.BULK)
            expected = scored(answer(asked))
            result = await run(it.remote, asked)
            assert scored(result) == expected
            assert result.config == asked.config
            assert [timing.step for timing in result.timings] == ["decode"]
            given = replace(it.engine.jobs[-1], packets=asked.packets)
            assert given == asked
        assert it.remote.info() == it.engine.info()


async def test_many_jobs_at_once_get_their_own_answers():
    async def dawdle() -> None:
        await asyncio.sleep(random.random() / 50)

    async with rig(lambda job: dawdle(), fronts=3) as it:
        jobs = [job(1 + n % 7, packets=SharedBytes.of([os.urandom(64)])) for n in range(150)]
        expected = [scored(answer(asked)) for asked in jobs]
        results = await asyncio.gather(*(run(random.choice(it.remotes), asked) for asked in jobs))
        assert [scored(result) for result in results] == expected


async def test_a_job_and_an_answer_far_larger_than_the_sockets_buffers():
    units = tuple(
        DecodeUnit(tuple(Packet(n, n % 4096, 16, n % 30 == 0) for n in range(begin, begin + 500)), (begin,))
        for begin in range(0, 20_000, 500)
    )
    async with rig() as it:
        asked = job(units=units, packets=SharedBytes.of([os.urandom(8192)]))
        expected = scored(answer(asked))
        first, second = await asyncio.gather(run(it.remote, asked), run(it.remote, job(2)))
        assert scored(first) == expected
        assert len(first.frames) == 20_000
        assert len(second.frames) == 2


@pytest.mark.parametrize(
    "error",
    [
        CorruptVideo("nothing can be decoded", facts={"frames": "3"}),
        ModelFailed("model 'few' failed", facts={"model": "few"}),
        Overloaded("full", retry_after=2.5),
        UnsupportedCodec("no decoder"),
    ],
    ids=repr,
)
async def test_errors_are_raised_again_as_what_they_are(error: KeyglanceError):
    async def fail() -> None:
        raise error

    async with rig(lambda job: fail()) as it:
        with pytest.raises(type(error)) as caught:
            await run(it.remote, job())
        assert (caught.value.message, caught.value.facts, caught.value.retry_after) == (
            error.message,
            error.facts,
            error.retry_after,
        )


async def test_a_fault_of_the_engine_is_told_and_logged(caplog: pytest.LogCaptureFixture):
    async def fail() -> None:
        raise ZeroDivisionError("by nothing")

    async def give_up() -> None:
        raise asyncio.CancelledError

    works = iter((fail, give_up))
    async with rig(lambda job: next(works)()) as it:
        with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="ZeroDivisionError: by nothing"):
            await run(it.remote, job())
        assert "unexpected error in the engine" in caplog.text
        with pytest.raises(InternalError, match="gave up"):
            await run(it.remote, job())


async def test_a_cancelled_job_is_cancelled_in_the_engine():
    async with rig(lambda job: asyncio.sleep(60), fronts=2) as it:
        calls = [asyncio.create_task(run(it.remotes[n % 2], job(4))) for n in range(6)]
        await eventually(lambda: it.engine.running == 6)
        for call in calls[:5]:
            call.cancel()
        await eventually(lambda: it.engine.running == 1)
        assert it.engine.cancelled == 5
        assert (it.remotes[0].pictures, it.remotes[1].pictures) == (0, 4)
        calls[5].cancel()
        assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True))


async def test_jobs_cancelled_at_any_moment_leave_nothing():
    async with rig(lambda job: asyncio.sleep(random.random() / 100), fronts=2) as it:
        before = descriptors()
        for _ in range(20):
            calls = [asyncio.create_task(run(random.choice(it.remotes), job(2))) for _ in range(10)]
            for call in calls:
                await asyncio.sleep(random.random() / 500)
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await it.quiet()
        assert len((await run(it.remote, job(2))).frames) == 2
        await eventually(lambda: descriptors() == before)


async def test_deadlines_hold_on_both_sides():
    async with rig(lambda job: asyncio.sleep(60)) as it:
        with pytest.raises(DeadlineExceeded):
            await run(it.remote, job(deadline=time.monotonic() + 0.1))
        await eventually(lambda: it.engine.cancelled == 1)
        ours, theirs = pair()
        it.host.attach(theirs, "a front that keeps no deadline")
        frames: list[Frame] = []
        front = Connection(ours, on_frame=frames.append, on_lost=lambda _: None)
        late = job(deadline=time.monotonic() - 1)
        with late.packets:
            front.send(EngineKind.JOB, 1, codec.encode_job(late, {}), (late.packets.fd,))
        await eventually(lambda: any(frame.kind == EngineKind.FAILURE for frame in frames))
        assert isinstance(codec.decode_error(frames[-1].body), DeadlineExceeded)
        assert len(it.engine.jobs) == 1
        front.close()


async def test_more_jobs_than_the_host_takes_are_refused():
    async with rig(lambda job: asyncio.sleep(60), most_jobs=3) as it:
        calls = [asyncio.create_task(run(it.remote, job())) for _ in range(5)]
        done, running = await asyncio.wait(calls, timeout=0.5)
        assert [type(call.exception()) for call in done] == [Overloaded] * 2
        assert len(running) == 3
        for call in running:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_front_that_goes_away_takes_its_own_jobs_with_it():
    async with rig(lambda job: asyncio.sleep(60 if len(job.units) == 3 else 0.3), fronts=2) as it:
        lost = asyncio.create_task(run(it.remotes[0], job(3)))
        kept = asyncio.create_task(run(it.remotes[1], job(1)))
        await eventually(lambda: it.engine.running == 2)
        await it.remotes[0].close()
        with pytest.raises(WorkerLost):
            await lost
        await eventually(lambda: it.engine.cancelled == 1)
        assert len((await kept).frames) == 1


async def test_an_engine_that_goes_away_and_comes_back():
    async with rig(lambda job: asyncio.sleep(60)) as it:
        call = asyncio.create_task(run(it.remote, job()))
        await eventually(lambda: it.engine.running == 1)
        await it.host.close()
        with pytest.raises(WorkerLost) as caught:
            await call
        assert caught.value.retry_after is None
        assert not it.remote.healthy
        with pytest.raises(WorkerLost, match="not there") as caught:
            await run(it.remote, job())
        assert caught.value.retry_after
        it.engine, models = ScriptedEngine(), it.remote.info().models
        it.host = EngineHost(it.engine)
        it.connect(it.remote).close()
        await asyncio.sleep(0.05)
        assert not it.remote.healthy, "it is not warm yet"
        it.host.open()
        await asyncio.wait_for(it.remote.start(), 5)
        assert len((await run(it.remote, job(2))).frames) == 2
        assert it.remote.info().models is models, "what others hold stays the same object"


async def test_jobs_for_an_engine_that_does_not_read_can_be_withdrawn():
    """A stopped process: what it has not taken yet is not kept for it once the callers are gone."""
    before = descriptors()
    ours, theirs = pair()
    remote = RemoteEngine("stopped")
    remote.attach(ours)
    theirs.setblocking(False)
    peer = Connection(theirs, on_frame=lambda frame: None, on_lost=lambda _: None)
    peer.send(EngineKind.INFO, body=codec.encode_info(ScriptedEngine().info()))
    peer.send(EngineKind.READY)
    await asyncio.wait_for(remote.start(), 5)
    asyncio.get_running_loop().remove_reader(theirs)
    units = tuple(DecodeUnit((Packet(n, 0, 1, True),), (n,)) for n in range(3000))
    calls = [asyncio.create_task(run(remote, job(units=units))) for _ in range(60)]
    await asyncio.sleep(0.2)
    held = descriptors()["memfd"]
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    already = before.get("memfd", 0)
    assert descriptors().get("memfd", 0) - already < (held - already) / 10
    peer.close()
    await eventually(lambda: not remote.healthy)
    await remote.close()
    assert descriptors() == before


async def test_the_caller_s_trace_reaches_the_engine():
    tracer = TracerProvider().get_tracer("test")
    async with rig() as it:
        with tracer.start_as_current_span("call") as span:
            await run(it.remote, job())
        await run(it.remote, job())
        inside, without = it.engine.contexts
        assert (inside.trace_id, inside.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
        assert inside.is_remote
        assert not without.is_valid
        assert not trace.get_current_span().get_span_context().is_valid


async def test_the_warm_decoders_are_known_as_soon_as_jobs_are_taken():
    engine = ScriptedEngine(decoders=0)
    it = Group(engine)
    it.connect(0)
    await asyncio.wait_for(it.group.known(), 5)
    engine.decoders = 16  # it has warmed up
    it.hosts[0].open()
    await asyncio.wait_for(it.group.start(), 5)
    assert it.group.info().decoders[0].decoders == 16
    await it.group.close()
    await it.hosts[0].close()


async def test_decoders_are_told_when_they_change():
    async with rig() as it:
        assert it.remote.info().decoders[0].decoders == 1
        it.engine.decoders = 5
        await eventually(lambda: it.remote.info().decoders[0].decoders == 5)


@pytest.mark.parametrize(
    ("kind", "number", "body", "fds"),
    [
        (EngineKind.JOB, 1, b"\xff\xff", 1),
        (EngineKind.JOB, 1, b"", 0),
        (EngineKind.JOB, 1, b"", 2),
        (EngineKind.ANSWER, 1, b"", 0),
        (99, 0, b"", 1),
    ],
)
async def test_a_front_that_breaks_the_protocol_loses_its_connection(kind, number, body, fds):
    async with rig(fronts=2) as it:
        ours, theirs = pair()
        it.host.attach(theirs, "odd")
        lost: list[str] = []
        odd = Connection(ours, on_frame=lambda frame: None, on_lost=lost.append)
        with SharedBytes.of([b"12345678"]) as shared:
            odd.send(kind, number, body, (shared.fd,) * fds)
            await eventually(lambda: lost)
        assert it.engine.jobs == []
        assert len((await run(it.remotes[1], job(2))).frames) == 2


async def test_a_job_whose_descriptor_is_no_memory_is_no_job():
    async with rig() as it:
        ours, theirs = pair()
        it.host.attach(theirs, "odd")
        lost: list[str] = []
        odd = Connection(ours, on_frame=lambda frame: None, on_lost=lost.append)
        asked = job()
        with asked.packets, open(os.devnull) as nothing:  # noqa: ASYNC230
            odd.send(EngineKind.JOB, 1, codec.encode_job(asked, {}), (nothing.fileno(),))
            await eventually(lambda: lost)
        assert it.engine.jobs == []


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0" * 15 + b"\1" * 50])
async def test_garbage_on_the_wire_ends_a_connection(garbage):
    ours, theirs = pair()
    lost: list[str] = []
    connection = Connection(ours, on_frame=lambda frame: None, on_lost=lost.append, name="victim")
    with theirs:
        theirs.sendall(garbage)
        await eventually(lambda: lost)
    assert not connection.open
    connection.send(1)
    connection.close()
    assert len(lost) == 1


async def test_a_frame_larger_than_allowed_is_not_sent():
    ours, theirs = pair()
    with theirs:
        connection = Connection(ours, on_frame=lambda frame: None, on_lost=lambda _: None)
        with pytest.raises(ValueError, match="at most"):
            connection.send(1, body=bytes(MAX_BODY + 1))
        connection.close()


class Group:
    """Several engines of one process and a group over them."""

    def __init__(self, *engines: ScriptedEngine, sharers: int = 1, loads: EngineLoads | None = None) -> None:
        self.engines = engines
        self.hosts = [EngineHost(engine) for engine in engines]
        self.group = EngineGroup(len(engines), sharers=sharers, loads=loads)

    def connect(self, number: int) -> None:
        ours, theirs = pair()
        self.hosts[number].attach(theirs, "front-0")
        self.group.attach(number, ours)

    async def __aenter__(self) -> Group:
        for number, host in enumerate(self.hosts):
            self.connect(number)
            host.open()
        await asyncio.wait_for(asyncio.gather(*(engine.start() for engine in self.group.engines)), 5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.group.close()
        for host in self.hosts:
            await host.close()


async def test_jobs_go_where_the_fewest_pictures_are():
    async with Group(*(ScriptedEngine(lambda job: asyncio.sleep(60)) for _ in range(3))) as it:
        calls = []
        for pictures in (10, 10, 10, 1, 2, 3, 4):
            calls.append(asyncio.create_task(run(it.group, job(pictures))))
            await asyncio.sleep(0.02)
        loads = sorted(sum(len(job.units) for job in engine.jobs) for engine in it.engines)
        assert loads == [12, 13, 15]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await eventually(lambda: not any(engine.running for engine in it.engines))


async def test_what_other_fronts_have_in_flight_counts():
    board = FrontBoard.allocate(fronts=2, engines=3)
    other = board.loads(1)
    async with Group(*(ScriptedEngine(lambda job: asyncio.sleep(60)) for _ in range(3)), loads=board.loads(0)) as it:
        other.tell(0, 20)
        other.tell(1, 4)
        calls = []
        for pictures in (3, 3, 3):
            calls.append(asyncio.create_task(run(it.group, job(pictures))))
            await asyncio.sleep(0.02)
        assert [sum(len(job.units) for job in engine.jobs) for engine in it.engines] == [0, 3, 6]
        assert [other.of(engine) for engine in range(3)] == [20, 7, 6]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert [other.of(engine) for engine in range(3)] == [20, 4, 0]
    board.close()


async def test_of_several_engines_on_a_device_the_device_with_the_fewest_pictures_comes_first():
    async with Group(*(ScriptedEngine(lambda job: asyncio.sleep(60)) for _ in range(4)), sharers=2) as it:
        calls = []
        for pictures in (10, 4, 4, 1, 1):  # the last ones go where the first is not, though an engine beside it is idle
            calls.append(asyncio.create_task(run(it.group, job(pictures))))
            await asyncio.sleep(0.02)
        loads = [sum(len(job.units) for job in engine.jobs) for engine in it.engines]
        assert sorted((sorted(loads[:2]), sorted(loads[2:]))) == [[0, 10], [5, 5]]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_idle_engines_take_turns():
    async with Group(ScriptedEngine(), ScriptedEngine()) as it:
        for _ in range(10):
            await run(it.group, job())
        assert [len(engine.jobs) for engine in it.engines] == [5, 5]


async def test_a_lost_engine_gets_no_jobs_and_the_group_is_healthy_as_long_as_one_is():
    async with Group(ScriptedEngine(), ScriptedEngine()) as it:
        assert it.group.healthy
        await it.hosts[0].close()
        await eventually(lambda: not it.group.engines[0].healthy)
        assert it.group.healthy
        for _ in range(4):
            await run(it.group, job())
        assert [len(engine.jobs) for engine in it.engines] == [0, 4]
        await it.hosts[1].close()
        await eventually(lambda: not it.group.healthy)
        with pytest.raises(WorkerLost, match="no engine"):
            await run(it.group, job())


async def test_all_engines_are_told():
    async with Group(ScriptedEngine(decoders=2), ScriptedEngine(decoders=3)) as it:
        info = it.group.info()
        assert info.device == "scripted, scripted"
        assert info.models == MANIFESTS
        assert info.devices == 2
        assert [state.decoders for state in info.decoders] == [2, 3]


async def test_a_device_with_several_engines_is_told_once():
    async with Group(*(ScriptedEngine(decoders=count) for count in (1, 2, 3)), sharers=2) as it:
        info = it.group.info()
        assert info.device == "scripted, scripted"
        assert info.devices == 2
        assert [state.decoders for state in info.decoders] == [1, 2, 3]


async def test_an_engine_with_other_models_is_not_used():
    other = ScriptedEngine(manifests=MANIFESTS[:1])
    it = Group(ScriptedEngine(), other)
    it.connect(0)
    await asyncio.wait_for(it.group.known(), 5)
    it.hosts[0].open()
    it.connect(1)
    it.hosts[1].open()
    await asyncio.wait_for(it.group.start(), 5)
    await eventually(lambda: it.group.engines[1].refused)
    assert "few" in it.group.engines[1].refused
    for _ in range(4):
        await run(it.group, job())
    assert other.jobs == []
    assert it.group.info() == replace(it.engines[0].info(), devices=2)
    assert it.group.outdated == "", "one engine can be used"
    await it.hosts[0].close()
    await eventually(lambda: it.group.outdated)
    await it.group.close()
    await it.hosts[1].close()


async def test_nothing_is_known_before_an_engine_has_spoken():
    group = EngineGroup(2)
    assert not group.healthy
    with pytest.raises(RuntimeError):
        group.info()
    with pytest.raises(WorkerLost):
        await run(group, job())
    await group.close()
    assert isinstance(ScriptedEngine().info(), EngineInfo)
