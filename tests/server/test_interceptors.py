"""The call interceptor, through a real server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from random import Random

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from opentelemetry.trace import SpanKind, StatusCode

from keyglance.errors import Draining, NotAVideo, Overloaded
from keyglance.v1 import keyglance_pb2_grpc
from keyglance.v1.keyglance_pb2 import GetServerInfoRequest, LabelRequest, LabelResponse
from server.call import current_call
from server.interceptors import TRACE_ID_KEY

METHOD = "keyglance.v1.ShortVideoLabeler/Label"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def reason(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    status = rpc_status.from_call(error)
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    return info


async def eventually(check, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not become true"
        await asyncio.sleep(0.01)


async def answer(request, context):
    return LabelResponse(request_id=request.request_id)


async def test_a_call_that_succeeds(serve, observed, caplog):
    async def label(request, context):
        call = current_call()
        call.facts["request_id"] = request.request_id
        with call.steps.step("decode", frames=3):
            pass
        return LabelResponse(request_id=request.request_id, trace_id=call.trace_id)

    with caplog.at_level(logging.INFO):
        async with serve(label) as rig:
            call = rig.stub.Label(LabelRequest(request_id="r1", data=b"x"), metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")])
            response = await call
            trailing = await call.trailing_metadata()
    assert response.request_id == "r1"
    assert response.trace_id == TRACE
    assert trailing[TRACE_ID_KEY] == TRACE
    span = observed.span(METHOD)
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert span.parent.is_remote
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["rpc.system.name"] == "grpc"
    assert span.attributes["rpc.method"] == METHOD
    assert span.attributes["rpc.response.status_code"] == "OK"
    assert span.attributes["network.peer.address"] == "127.0.0.1"
    assert "error.type" not in span.attributes
    for name in ("receive", "decode"):
        assert observed.span(name).parent.span_id == span.context.span_id
    (point,) = observed.points("rpc.server.call.duration")
    assert dict(point.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
    }
    (line,) = [record for record in caplog.records if record.name == "keyglance.access"]
    assert (line.status, line.request_id, line.method) == ("OK", "r1", METHOD)
    assert line.request_bytes > 0
    assert line.response_bytes > 0


async def test_the_servicer_alone_holds_the_request(serve):
    class Servicer(keyglance_pb2_grpc.ShortVideoLabelerServicer):
        async def Label(self, request, context):
            await asyncio.sleep(0)
            return LabelResponse(request_id=str(sys.getrefcount(request)))  # one for its argument

    async with serve(Servicer()) as rig:
        assert int((await rig.stub.Label(LabelRequest(data=b"x"))).request_id) <= 2


async def test_known_errors_travel_whole(serve, observed):
    async def label(request, context):
        raise NotAVideo("the bytes are text", facts={"found": "text"})

    async with serve(label) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "the bytes are text"
    info = reason(caught.value)
    assert (info.domain, info.reason, dict(info.metadata)) == ("keyglance", "NOT_A_VIDEO", {"found": "text"})
    span = observed.span(METHOD)
    assert span.status.status_code is StatusCode.UNSET, "the caller's mistake is no fault of the server"
    assert span.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert caught.value.trailing_metadata()[TRACE_ID_KEY] == f"{span.context.trace_id:032x}"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_unknown_errors_tell_nothing_but_the_trace(serve, observed, caplog, cancelled):
    async def label(request, context):
        if cancelled:  # of something inside, which must not look like the call's own cancellation
            raise asyncio.CancelledError
        raise ZeroDivisionError("secret")

    async with serve(label) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest(), timeout=5)
    span = observed.span(METHOD)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert f"{span.context.trace_id:032x}" in caught.value.details()
    assert reason(caught.value).reason == "INTERNAL"
    assert span.status.status_code is StatusCode.ERROR
    assert any(record.exc_info for record in caplog.records)


async def test_the_default_deadline(serve, observed):
    ended = asyncio.Event()

    async def label(request, context):
        assert current_call().deadline.timeout == pytest.approx(0.2)
        try:
            with current_call().steps.step("infer"):
                await asyncio.sleep(20)
        finally:
            ended.set()

    async with serve(label, default_deadline=0.2) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest())
    assert ended.is_set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason(caught.value).reason == "DEADLINE_EXCEEDED"
    for name in (METHOD, "infer"):
        span = observed.span(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "DEADLINE_EXCEEDED"
    (point,) = observed.points("rpc.server.call.duration")
    assert point.attributes["error.type"] == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("timeout", [0.2, 1.04])
async def test_the_callers_deadline(serve, observed, timeout):
    async def label(request, context):
        await asyncio.sleep(20)

    async with serve(label) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest(), timeout=timeout)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: rig.admission.in_flight == 0)
    span = observed.span(METHOD)
    assert span.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED"
    assert span.status.status_code is StatusCode.ERROR


async def test_a_cancelled_call(serve, observed):
    running, ended = asyncio.Event(), asyncio.Event()

    async def label(request, context):
        running.set()
        try:
            with current_call().steps.step("infer"):
                await asyncio.sleep(20)
        except asyncio.CancelledError:
            ended.set()
            raise

    async with serve(label) as rig:
        call = rig.stub.Label(LabelRequest())
        task = asyncio.ensure_future(_wait(call))
        await asyncio.wait_for(running.wait(), 5)
        call.cancel()
        await asyncio.wait_for(ended.wait(), 5)
        await task
        await eventually(lambda: rig.admission.in_flight == 0 and rig.budget.reserved == 0)
    span = observed.span(METHOD)
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert span.status.status_code is StatusCode.UNSET
    step = observed.span("infer")
    assert step.status.status_code is StatusCode.UNSET
    assert step.attributes["keyglance.cancelled"] is True


async def _wait(call) -> None:
    with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await call


async def test_too_many_calls(serve):
    running, go = asyncio.Event(), asyncio.Event()

    async def label(request, context):
        running.set()
        await go.wait()
        return LabelResponse()

    async with serve(label, calls=1) as rig:
        first = asyncio.ensure_future(_result(rig.stub.Label(LabelRequest())))
        await asyncio.wait_for(running.wait(), 5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest())
        go.set()
        await first
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rpc_status.from_call(caught.value)
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.seconds == 1


async def _result(call):
    return await call


async def test_calls_wait_for_warm_up(serve):
    async with serve(answer, opened=False) as rig:
        first = asyncio.ensure_future(_result(rig.stub.Label(LabelRequest(request_id="early"))))
        await eventually(lambda: rig.admission.in_flight == 1)
        assert not first.done()
        rig.admission.open()
        assert (await first).request_id == "early"


async def test_draining(serve):
    running = asyncio.Event()

    async def label(request, context):
        running.set()
        await asyncio.sleep(20)

    async with serve(label) as rig:
        first = asyncio.ensure_future(_result(rig.stub.Label(LabelRequest())))
        await asyncio.wait_for(running.wait(), 5)
        rig.admission.drain()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.stub.Label(LabelRequest())
        assert rig.admission.cut_short(Draining("the server ends")) == 1
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await first
        await asyncio.wait_for(rig.admission.idle(), 5)
    for error in (refused.value, cut.value):
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert reason(error).reason == "DRAINING"


async def test_a_message_that_is_no_request(serve):
    async with serve(answer) as rig:
        call = rig.channel.unary_unary(f"/{METHOD}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason(caught.value).reason == "BAD_POLICY"


async def test_no_message_at_all(serve):
    async def nothing():
        return
        yield

    async with serve(answer) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.channel.stream_unary(f"/{METHOD}")(nothing())
    assert reason(caught.value).reason == "EMPTY_SOURCE"


async def test_a_message_beyond_the_limit(serve):
    async with serve(answer, largest_message=1 << 20) as rig:
        assert await rig.stub.Label(LabelRequest(data=bytes(1 << 20), request_id="r")) == LabelResponse(request_id="r")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest(data=bytes(2 << 20)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await eventually(lambda: rig.budget.reserved == 0)


async def test_the_servicers_own_abort_is_kept(serve, observed):
    async def label(request, context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "mine")

    async with serve(label) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "mine")
    assert observed.span(METHOD).attributes["rpc.response.status_code"] == "OUT_OF_RANGE"


async def test_methods_without_an_implementation(serve):
    async with serve(answer) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.GetServerInfo(GetServerInfoRequest())
    assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


async def test_the_receive_queue_is_bounded(serve):
    running, go = asyncio.Event(), asyncio.Event()

    async def label(request, context):
        running.set()
        await go.wait()
        return LabelResponse()

    size = 1 << 20
    async with serve(label, largest_message=size, budget=size + (64 << 10), queue_limit=1) as rig:
        first = asyncio.ensure_future(_result(rig.stub.Label(LabelRequest(data=bytes(size)))))
        await asyncio.wait_for(running.wait(), 5)
        second = asyncio.ensure_future(_result(rig.stub.Label(LabelRequest(data=bytes(size)))))
        await eventually(lambda: rig.budget.waiting == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Label(LabelRequest(data=bytes(size)))
        assert reason(caught.value).reason == Overloaded.reason
        go.set()
        await asyncio.gather(first, second)
        await eventually(lambda: rig.budget.reserved == 0)


async def test_a_slow_sender_holds_its_place_only_so_long(serve):
    gone = asyncio.Event()

    async def slow():
        await gone.wait()
        yield b""

    async with serve(answer, receive_timeout=0.2) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.channel.stream_unary(f"/{METHOD}")(slow())
        await eventually(lambda: rig.budget.reserved == 0)
        gone.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "did not arrive within 0.2 s" in caught.value.details()


async def test_calls_that_end_at_any_moment_leave_nothing(serve, observed):
    random = Random(7)

    async def label(request, context):
        with current_call().steps.step("infer"):
            await asyncio.sleep(random.random() * 0.02)
        return LabelResponse(request_id=request.request_id)

    async def one(rig, number: int) -> str:
        call = rig.stub.Label(
            LabelRequest(request_id=str(number), data=bytes(random.randrange(1 << 20))), timeout=random.choice([0.005, 0.05, 20])
        )
        if number % 5 == 0:
            await asyncio.sleep(random.random() * 0.05)
            call.cancel()
        try:
            assert (await call).request_id == str(number)
            return "OK"
        except grpc.aio.AioRpcError as error:
            return error.code().name
        except asyncio.CancelledError:
            return "CANCELLED"

    async with serve(label, budget=8 << 20, queue_limit=20) as rig:
        results: set[str] = set()
        for _ in range(5):
            results.update(await asyncio.gather(*(one(rig, number) for number in range(60))))
        await eventually(lambda: rig.admission.in_flight == rig.budget.reserved == rig.budget.waiting == 0)
        assert await one(rig, 1) in ("OK", "DEADLINE_EXCEEDED")
    assert results >= {"OK", "CANCELLED", "DEADLINE_EXCEEDED"}
    assert {
        span.attributes["rpc.response.status_code"] for span in observed.spans.get_finished_spans() if span.name == METHOD
    } <= {
        *results,
        "CANCELLED",
        "RESOURCE_EXHAUSTED",
    }
