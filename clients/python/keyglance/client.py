"""The synchronous client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyglance import answer
from keyglance.answer import Answer, Health, ServerInfo
from keyglance.connection import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TARGET, DEFAULT_TIMEOUT, Connection, Metadata, Tls
from keyglance.errors import RangesNeeded
from keyglance.request import Priority, Source, label_request
from keyglance.retry import Attempts, RetryPolicy
from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1 import keyglance_pb2_grpc
from keyglance.wire import label_method

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Label: TypeAlias = "grpc.UnaryUnaryMultiCallable[pb.LabelRequest, pb.LabelResponse]"
_HealthCheck: TypeAlias = "grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]"


class Client:
    """Asks a Keyglance server. One client may be used by many threads at once; make it after a fork, not before.

    `target` is HOST:PORT, or any other name that gRPC resolves. `timeout` is in seconds for each whole call, from reading the
    source to the answer, retries included; the server is told and keeps it. None leaves the time to the server's default.
    `tls` is True for the public certificate authorities, a `Tls`, or gRPC's own credentials. `token` travels as
    `authorization: Bearer …`, and only over TLS or to this machine; `metadata` travels as it is. `retries` is how often a
    failed call is repeated where the error says that it makes sense, or a whole `RetryPolicy`. `max_message_bytes` holds in
    both directions; the server has a limit of its own (`server_info().limits.bytes`). `connections` is how many connections
    take turns in carrying calls: a server of several processes, or a balancer before several servers, spreads connections, not
    calls, so a busy client wants a few for each of them.

    The trace context of the calling code travels with each call, where OpenTelemetry has one.

    Errors are those of `keyglance.errors`; `OSError` where a file cannot be read.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        tls: bool | Tls | grpc.ChannelCredentials = False,
        token: str | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        retries: int | RetryPolicy = 3,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        connections: int = 1,
    ) -> None:
        self._connection = Connection(
            target,
            timeout=timeout,
            tls=tls,
            token=token,
            metadata=metadata,
            retries=retries,
            max_message_bytes=max_message_bytes,
            connections=connections,
        )
        credentials, options = self._connection.credentials, self._connection.options
        self._channels = [
            grpc.insecure_channel(target, options) if credentials is None else grpc.secure_channel(target, credentials, options)
            for _ in range(connections)
        ]
        self._labels = itertools.cycle([label_method(channel) for channel in self._channels])
        self._labeler = keyglance_pb2_grpc.ShortVideoLabelerStub(self._channels[0])
        self._health_check: _HealthCheck = health_pb2_grpc.HealthStub(self._channels[0]).Check  # type: ignore[attr-defined]

    def label(
        self,
        source: Source,
        *,
        frames: int | None = None,
        largest_gap: float | None = None,
        add_non_keyframes: bool | None = None,
        models: Sequence[str] = (),
        least_score: float | None = None,
        frame_scores: bool = False,
        thumbnails: bool = False,
        thumbnail_size: int | None = None,
        request_id: str = "",
        whole: bool = False,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Labels of one video: a path, its bytes, or a binary file object.

        `frames` pictures are wanted, and none further than `largest_gap` seconds from the next, for which pictures between
        keyframes are decoded unless `add_non_keyframes` is False. `models` are names as in `server_info()`. Labels below
        `least_score` (0 to 1) are left out unless they passed. `frame_scores` adds scores and regions of each picture,
        `thumbnails` a JPEG of each with a longer side of `thumbnail_size` pixels. `request_id` comes back in the answer.
        Of a file whose index can be read on this side only the bytes that matter are sent, unless `whole` is true.
        A busy server answers calls of `priority` interactive before normal ones (the default), and those before bulk ones.
        `timeout` is in seconds. None and empty mean the default everywhere.
        """
        attempts = self._connection.attempts(timeout)
        prepared = label_request(
            source,
            frames=frames,
            largest_gap=largest_gap,
            add_non_keyframes=add_non_keyframes,
            models=models,
            least_score=least_score,
            frame_scores=frame_scores,
            thumbnails=thumbnails,
            thumbnail_size=thumbnail_size,
            request_id=request_id,
            whole=whole,
            priority=priority,
            max_message_bytes=self._connection.max_message_bytes,
        )
        with prepared:
            try:
                return self._call(self._next_label, prepared.message, attempts, prepared.metadata)
            except RangesNeeded as needed:
                prepared.complete(needed)
            return self._call(self._next_label, prepared.message, attempts, prepared.metadata)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The server's version, models with their labels, limits and decoders."""
        attempts = self._connection.attempts(timeout)
        return self._call(lambda: self._labeler.GetServerInfo, pb.GetServerInfoRequest(), attempts)

    def health(self, *, timeout: float | None = None) -> Health:
        """Whether the server takes calls now. It is asked once; `ServerUnreachable` where none answers."""
        attempts = self._connection.attempts(timeout, retry=False)
        return answer.health(self._call(lambda: self._health_check, health_pb2.HealthCheckRequest(), attempts))

    def close(self) -> None:
        """Closes the connections and cancels the calls that run."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.target!r})"

    def _next_label(self) -> _Label:
        """`Label` of the connection whose turn it is; taking turns is one step of the interpreter, so threads need no lock."""
        return next(self._labels)

    def _call(
        self,
        method: Callable[[], grpc.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        attempts: Attempts,
        metadata: Metadata = (),
    ) -> _Response:
        """`method` is asked for each attempt: another connection may reach another process."""
        while True:
            try:
                return method()(request, timeout=attempts.remaining(), metadata=self._connection.metadata() + metadata)
            except grpc.RpcError as failure:
                delay = attempts.wait_after(self._connection.error(failure, attempts))
            time.sleep(delay)
