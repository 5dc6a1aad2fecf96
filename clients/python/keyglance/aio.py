"""The asynchronous client, for asyncio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import grpc
import grpc.aio
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
_Label: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[pb.LabelRequest, pb.LabelResponse]"
_HealthCheck: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]"


class AsyncClient:
    """`keyglance.Client` for asyncio: the same arguments, answers and errors, with `await`.

    It may be made anywhere; it belongs to the event loop of its first call. A cancelled call is cancelled on the server too.
    Sources are read in a thread, so a slow disk does not hold up the loop.
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

    @cached_property
    def _channels(self) -> list[grpc.aio.Channel]:
        # Made with the first call: gRPC binds a channel to the running loop.
        target, credentials, options = self._connection.target, self._connection.credentials, self._connection.options
        return [
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
            for _ in range(self._connection.connections)
        ]

    @cached_property
    def _labels(self) -> Iterator[_Label]:
        return itertools.cycle([label_method(channel) for channel in self._channels])

    @cached_property
    def _labeler(self) -> keyglance_pb2_grpc.ShortVideoLabelerAsyncStub:
        return keyglance_pb2_grpc.ShortVideoLabelerStub(self._channels[0])

    @cached_property
    def _health_check(self) -> _HealthCheck:
        check: _HealthCheck = health_pb2_grpc.HealthStub(self._channels[0]).Check  # type: ignore[attr-defined]
        return check

    async def label(
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
        """Labels of one video; see `keyglance.Client.label`."""
        attempts = self._connection.attempts(timeout)
        prepared = await asyncio.to_thread(
            label_request,
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
                return await self._call(self._next_label, prepared.message, attempts, prepared.metadata)
            except RangesNeeded as needed:
                await asyncio.to_thread(prepared.complete, needed)
            return await self._call(self._next_label, prepared.message, attempts, prepared.metadata)

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The server's version, models with their labels, limits and decoders."""
        attempts = self._connection.attempts(timeout)
        return await self._call(lambda: self._labeler.GetServerInfo, pb.GetServerInfoRequest(), attempts)

    async def health(self, *, timeout: float | None = None) -> Health:
        """Whether the server takes calls now. It is asked once; `ServerUnreachable` where none answers."""
        attempts = self._connection.attempts(timeout, retry=False)
        return answer.health(await self._call(lambda: self._health_check, health_pb2.HealthCheckRequest(), attempts))

    async def close(self) -> None:
        """Closes the connections and cancels the calls that run."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.target!r})"

    def _next_label(self) -> _Label:
        """`Label` of the connection whose turn it is."""
        return next(self._labels)

    async def _call(
        self,
        method: Callable[[], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        attempts: Attempts,
        metadata: Metadata = (),
    ) -> _Response:
        """`method` is asked for each attempt: another connection may reach another process."""
        while True:
            try:
                return await method()(request, timeout=attempts.remaining(), metadata=self._connection.metadata() + metadata)
            except grpc.RpcError as failure:
                delay = attempts.wait_after(self._connection.error(failure, attempts))
            await asyncio.sleep(delay)
