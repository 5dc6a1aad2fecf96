"""The receive budget: as a value, and against a real server's memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import grpc
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyglance.errors import Overloaded
from keyglance.v1.keyglance_pb2 import LabelRequest
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerStub
from server.receive_budget import ReceiveBudget

MIB = 1 << 20


async def hold(budget: ReceiveBudget, size: int, until: asyncio.Event, order: list[int] | None = None) -> None:
    async with budget.reserve(size):
        if order is not None:
            order.append(size)
        await until.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waits_in_order_and_gives_back():
    budget, go, order = ReceiveBudget(10, queue_limit=10), asyncio.Event(), []
    first = asyncio.ensure_future(hold(budget, 8, go, order))
    await settle()
    others = [asyncio.ensure_future(hold(budget, size, go, order)) for size in (9, 1)]
    await settle()
    assert order == [8], "1 would fit, but 9 came before it"
    assert (budget.reserved, budget.waiting) == (8, 2)
    go.set()
    await asyncio.gather(first, *others)
    assert order == [8, 9, 1]
    assert (budget.reserved, budget.waiting) == (0, 0)


async def test_shrinking_lets_the_next_in():
    budget, go = ReceiveBudget(10, queue_limit=10), asyncio.Event()
    async with budget.reserve(10) as reservation:
        waiting = asyncio.ensure_future(hold(budget, 6, go))
        await settle()
        assert budget.waiting == 1
        reservation.shrink(4)
        reservation.shrink(9)
        await settle()
        assert (budget.reserved, budget.waiting) == (10, 0)
    assert budget.reserved == 6
    go.set()
    await waiting
    assert budget.reserved == 0


async def test_a_full_queue_is_an_error():
    budget, go = ReceiveBudget(10, queue_limit=1, retry_after=2.5), asyncio.Event()
    tasks = [asyncio.ensure_future(hold(budget, 10, go)) for _ in range(2)]
    await settle()
    with pytest.raises(Overloaded) as caught:
        await hold(budget, 1, go)
    assert caught.value.retry_after == 2.5
    go.set()
    await asyncio.gather(*tasks)


async def test_more_than_the_whole_budget_is_a_mistake():
    with pytest.raises(ValueError, match="11"):
        async with ReceiveBudget(10, queue_limit=1).reserve(11):
            pass


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 4), st.booleans()), max_size=25), st.randoms(use_true_random=False))
def test_nothing_is_lost_whatever_is_cancelled(calls, random):
    async def scenario() -> None:
        budget = ReceiveBudget(10, queue_limit=100)
        held = 0

        async def call(size: int, turns: int) -> None:
            nonlocal held
            async with budget.reserve(size) as reservation:
                held += size
                assert held <= budget.total
                try:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                finally:
                    held -= size
                reservation.shrink(size // 2)

        tasks = [asyncio.ensure_future(call(size, turns)) for size, turns, _ in calls]
        victims = [task for task, (_, _, cancel) in zip(tasks, calls, strict=True) if cancel]
        random.shuffle(victims)
        for victim in victims:
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            victim.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert (budget.reserved, budget.waiting) == (0, 0)

    asyncio.run(scenario())


SERVER = textwrap.dedent(
    """
    import asyncio, sys
    import grpc
    from keyglance.v1 import keyglance_pb2 as pb, keyglance_pb2_grpc
    from server.admission import Admission
    from server.interceptors import ENVELOPE, CallInterceptor
    from server.receive_budget import ReceiveBudget
    from server.lifecycle import channel_options
    from server.telemetry import Telemetry

    MIB = 1 << 20

    class Servicer(keyglance_pb2_grpc.ShortVideoLabelerServicer):
        async def Label(self, request, context):
            await asyncio.sleep(0.1)
            return pb.LabelResponse(request_id=str(len(request.data)))

    async def main():
        largest, total = int(sys.argv[1]), int(sys.argv[2])
        admission = Admission(1000)
        admission.open()
        interceptor = CallInterceptor(
            Telemetry.create(version="0"), admission, ReceiveBudget(total, queue_limit=1000),
            services=["keyglance.v1.ShortVideoLabeler"], default_deadline=100, receive_timeout=100, largest_message=largest,
        )
        server = grpc.aio.server(interceptors=[interceptor], options=channel_options(largest))
        keyglance_pb2_grpc.add_ShortVideoLabelerServicer_to_server(Servicer(), server)
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())
    """
)


@pytest.fixture
def small_server() -> Iterator[tuple[int, psutil.Process]]:
    """A server with room for `TOTAL` bytes, its port and its process."""
    command = [sys.executable, "-c", SERVER, str(SIZE + MIB), str(TOTAL)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


CALLERS, SIZE, TOTAL = 32, 24 * MIB, 96 * MIB


@pytest.mark.slow
async def test_many_large_requests_stay_within_the_budget(small_server):
    port, process = small_server
    data = bytes(SIZE)
    peak = before = process.memory_info().rss

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.01)

    async def caller() -> int:
        # A connection each: windows are per connection as well as per stream.
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            response = await ShortVideoLabelerStub(channel).Label(LabelRequest(data=data), timeout=100)
            return int(response.request_id)

    watching = asyncio.ensure_future(watch())
    answers = await asyncio.gather(*(caller() for _ in range(CALLERS)))
    watching.cancel()
    assert answers == [SIZE] * CALLERS
    grown = peak - before
    print(f"grown by {grown / MIB:.0f} MiB; budget {TOTAL / MIB:.0f} MiB, all at once {CALLERS * SIZE / MIB:.0f} MiB")
    # Beside the budget: the one message that is being parsed (gRPC's buffer, its bytes, the parsed copy), what handlers copy, and
    # the fragments that a freed buffer leaves behind. None of it grows with the number of callers.
    assert grown < TOTAL + 3 * SIZE + 128 * MIB
