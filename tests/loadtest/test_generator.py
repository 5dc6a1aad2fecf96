"""The generator against a scripted server on loopback."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1 import keyglance_pb2_grpc
from loadtest.generator import NOT_SENT, Generator, GeneratorFailed, Record
from loadtest.mix import CallClass, Mix
from loadtest.schedule import Arrival

Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[pb.LabelRequest, Context], Coroutine[Any, Any, pb.LabelResponse]]


class Scripted(keyglance_pb2_grpc.ShortVideoLabelerServicer):
    """Answers as `answer` does; knows how many calls it has at once, and from where they come."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._now = 0
        self.most = 0
        self.peers: Counter[str] = Counter()

    async def Label(self, request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        self._now += 1
        self.most = max(self.most, self._now)
        self.peers[context.peer()] += 1
        try:
            return await self._answer(request, context)
        finally:
            self._now -= 1


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[tuple[Scripted, str]]:
    server = grpc.aio.server()
    servicer = Scripted(answer)
    keyglance_pb2_grpc.add_ShortVideoLabelerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def run(what: Callable[[], list[Record]]) -> list[Record]:
    return await asyncio.to_thread(what)


def mix(*names: str) -> Mix:
    return Mix(tuple(CallClass(name, pb.LabelRequest(request_id=name).SerializeToString()) for name in names))


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    come, all_there = 0, asyncio.Event()

    async def answer(request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        nonlocal come
        come += 1
        if come == 30:
            all_there.set()
        await all_there.wait()  # a loop that waited for answers would never get here with 30
        return pb.LabelResponse()

    async with served(answer) as (server, address):
        arrivals = [Arrival(number * 0.005, 0, 60.0) for number in range(30)]
        records = await run(lambda: Generator(address, connections=3).open_loop(mix("a"), arrivals))
    assert [record.status for record in records] == ["OK"] * 30
    assert [record.due for record in records] == [arrival.at for arrival in arrivals]
    assert all(record.due <= record.sent <= record.ended for record in records)
    assert server.most == 30
    assert sorted(server.peers.values()) == [10, 10, 10]


async def test_a_closed_loop_has_as_many_calls_at_once_as_callers_over_all_processes() -> None:
    async def answer(request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        await asyncio.sleep(0.05)
        return pb.LabelResponse()

    async with served(answer) as (server, address):
        records = await run(lambda: Generator(address, processes=2, connections=2).closed_loop(mix("a", "b"), 5, 1.0, 1))
    assert server.most == 5
    assert len(server.peers) == 4
    assert len(records) > 5
    assert {record.kind for record in records} == {0, 1}


async def test_the_end_of_each_call_is_told() -> None:
    async def answer(request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        if request.request_id == "refused":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")
        if request.request_id in ("slow", "cancelled"):
            await asyncio.sleep(30)
        degraded = pb.Degradation(reason=pb.DegradationReason.DEGRADATION_REASON_FEWER_FRAMES)
        return pb.LabelResponse(degradations=[degraded], coverage=pb.Coverage(frames=3))

    async with served(answer) as (_, address):
        arrivals = [Arrival(0.0, 0, 20.0), Arrival(0.0, 1, 0.2), Arrival(0.0, 2, 20.0), Arrival(0.0, 3, 20.0, 0.1)]
        names = mix("good", "slow", "refused", "cancelled")
        records = await run(lambda: Generator(address).open_loop(names, arrivals))
    by_kind = {record.kind: record for record in records}
    assert [by_kind[kind].status for kind in range(4)] == ["OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED"]
    assert (by_kind[0].degradations, by_kind[0].frames) == (("FEWER_FRAMES",), 3)
    assert [by_kind[kind].reason for kind in (1, 2)] == ["DEADLINE_EXCEEDED", "OVERLOADED"]
    assert not by_kind[2].retry_after
    assert [by_kind[kind].to_be_cancelled for kind in range(4)] == [False, False, False, True]


async def test_an_open_loop_that_would_hold_too_many_says_so() -> None:
    release = asyncio.Event()

    async def answer(request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        await release.wait()
        return pb.LabelResponse()

    async with served(answer) as (_, address):
        asyncio.get_running_loop().call_later(1.5, release.set)
        arrivals = [Arrival(0.0, 0, 20.0) for _ in range(5)]
        records = await run(lambda: Generator(address, most_in_flight=2).open_loop(mix("a"), arrivals))
    assert Counter(record.status for record in records) == {"OK": 2, NOT_SENT: 3}


async def test_metadata_travels() -> None:
    seen: list[str] = []

    async def answer(request: pb.LabelRequest, context: Context) -> pb.LabelResponse:
        seen.append(str(dict(context.invocation_metadata() or ())["x-caller"]))
        return pb.LabelResponse()

    one = CallClass("a", b"", metadata=(("x-caller", "me"),))
    async with served(answer) as (_, address):
        await run(lambda: Generator(address).open_loop(Mix((one,)), [Arrival(0.0, 0, 20.0)]))
    assert seen == ["me"]


def test_no_server_is_an_error_in_words() -> None:
    with pytest.raises(GeneratorFailed, match="no server answers at"):
        Generator("127.0.0.1:1", connect_seconds=0.5).open_loop(mix("a"), [Arrival(0.0, 0, 1.0)])
