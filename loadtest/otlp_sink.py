"""A collector of traces in this process: keeps or only counts what servers send to it by OTLP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, slots=True)
class Received:
    """One span, and the process that it is of (`keyglance.process`, else the service's name)."""

    process: str
    span: Span

    @property
    def name(self) -> str:
        """A method without its service."""
        return self.span.name.rpartition("/")[2]

    @property
    def attributes(self) -> dict[str, Any]:
        """Plain values by name."""
        return {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in self.span.attributes}

    @property
    def is_root(self) -> bool:
        """Whether it has no parent at all."""
        return not self.span.parent_span_id


class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):
    """`with OtlpSink() as sink`: takes traces at `sink.endpoint`; `count` counts, `spans` has them unless `keep` is False."""

    def __init__(self, *, keep: bool = True) -> None:
        self.count = 0
        self.spans: list[Received] = []
        self._keep = keep
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: Any) -> Any:
        """Takes a batch."""
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.count += len(scope.spans)
                if self._keep:
                    process = about.get("keyglance.process") or about.get("service.name", "")
                    self.spans += [Received(process, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def environment(self) -> dict[str, str]:
        """What has a process send its traces here, at once, and no metrics."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(None)
