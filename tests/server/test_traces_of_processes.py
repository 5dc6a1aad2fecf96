"""Fronts and engines in processes of their own: a kept call's trace is whole, with links both ways, and no other's is sent."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from keyglance.v1.keyglance_pb2 import LabelRequest
from keyglance.v1.keyglance_pb2_grpc import ShortVideoLabelerStub
from loadtest.otlp_sink import OtlpSink
from tests.server.test_engine_process_supervisor import ROOT, eventually, world

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def label(channel: grpc.aio.Channel, milliseconds: int, *, flag: str, timeout: float = 20) -> None:
    parent = f"00-{TRACE if flag == '01' else TRACE[::-1]}-b7ad6b7169203331-{flag}"
    stub = ShortVideoLabelerStub(channel)
    await stub.Label(LabelRequest(request_id=str(milliseconds)), timeout=timeout, metadata=[("traceparent", parent)])


async def test_traces_of_two_fronts_and_an_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("KEYGLANCE_TELEMETRY__TRACE_RATIO", "0")
    with OtlpSink() as sink:
        for name, value in sink.environment().items():
            monkeypatch.setenv(name, value)
        async with world(engines=1, fronts=2) as running:
            channel = running.connect()
            for _ in range(5):
                await label(channel, 1, flag="00")
            await label(channel, 1, flag="01")
            with pytest.raises(grpc.aio.AioRpcError):
                await label(channel, 2000, flag="00", timeout=0.3)
            await eventually(lambda: sum(each.name == "infer_batch" for each in sink.spans) >= 2)
            await asyncio.sleep(0.3)  # for what should not come
    roots = {each.span.trace_id.hex(): each for each in sink.spans if each.name == "Label"}
    batches = [each for each in sink.spans if each.name == "infer_batch"]
    assert len(roots) == len(batches) == 2
    assert {each.process for each in batches} == {"engine-0"}
    good, late = roots[TRACE], roots[TRACE[::-1]]
    assert good.process.startswith("front-")
    assert late.attributes["keyglance.reason"] == "DEADLINE_EXCEEDED"
    # From a batch to its calls, and back.
    assert {link.span_id for batch in batches for link in batch.span.links} == {good.span.span_id, late.span.span_id}
    (step,) = [each for each in sink.spans if each.name == "decode" and each.span.parent_span_id == good.span.span_id]
    assert [link.span_id for link in step.span.links] == [
        batch.span.span_id for batch in batches if batch.span.links[0].span_id == good.span.span_id
    ]
