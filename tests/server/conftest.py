"""A small server around a fake servicer, with everything that observes it in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keyglance.v1 import keyglance_pb2, keyglance_pb2_grpc
from server.admission import Admission
from server.exposition import CollectingReader
from server.interceptors import ENVELOPE, CallInterceptor
from server.receive_budget import ReceiveBudget
from server.telemetry import Telemetry

SERVICE = "keyglance.v1.ShortVideoLabeler"
Label = Callable[[keyglance_pb2.LabelRequest, grpc.aio.ServicerContext], Awaitable[keyglance_pb2.LabelResponse]]


@dataclass
class Observed:
    """Telemetry that keeps what it gets."""

    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: CollectingReader = field(default_factory=CollectingReader)

    def __post_init__(self) -> None:
        self.telemetry = Telemetry.create(
            version="0.0.test", span_processors=[SimpleSpanProcessor(self.spans)], metric_readers=[self.reader]
        )

    def span(self, name: str) -> ReadableSpan:
        """The one span of that name."""
        (span,) = [span for span in self.spans.get_finished_spans() if span.name == name]
        return span

    def points(self, metric: str) -> list:
        """The data points of a metric."""
        data = self.reader.collected()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@dataclass
class Rig:
    """A running server and a channel to it."""

    observed: Observed
    admission: Admission
    budget: ReceiveBudget
    channel: grpc.aio.Channel

    @property
    def stub(self) -> keyglance_pb2_grpc.ShortVideoLabelerStub:
        return keyglance_pb2_grpc.ShortVideoLabelerStub(self.channel)


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def serve(observed: Observed):
    """`async with serve(label, …) as rig`: a server whose Label method is `label`, or with `label` as its servicer."""

    @asynccontextmanager
    async def run(
        label: Label | keyglance_pb2_grpc.ShortVideoLabelerServicer,
        *,
        calls: int = 100,
        budget: int = 64 << 20,
        queue_limit: int = 100,
        default_deadline: float = 20.0,
        receive_timeout: float = 20.0,
        largest_message: int = 1 << 20,
        opened: bool = True,
    ) -> AsyncIterator[Rig]:
        class Servicer(keyglance_pb2_grpc.ShortVideoLabelerServicer):
            async def Label(self, request, context):
                return await label(request, context)

        admission = Admission(calls)
        if opened:
            admission.open()
        receive = ReceiveBudget(budget, queue_limit=queue_limit)
        interceptor = CallInterceptor(
            observed.telemetry,
            admission,
            receive,
            services=[SERVICE],
            default_deadline=default_deadline,
            receive_timeout=receive_timeout,
            largest_message=largest_message,
        )
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=[("grpc.max_receive_message_length", largest_message + ENVELOPE), ("grpc.http2.bdp_probe", 0)],
        )
        keyglance_pb2_grpc.add_ShortVideoLabelerServicer_to_server(Servicer() if callable(label) else label, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                yield Rig(observed, admission, receive, channel)
        finally:
            await server.stop(0)

    return run
