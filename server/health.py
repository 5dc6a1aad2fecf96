"""The health service (grpc.health.v1): whether the server, and its service, can be called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Status = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):
    """All names have one status: NOT_SERVING until `set` says otherwise, and for ever after `drain`.

    grpcio-health-checking has an implementation too; there a watcher that leaves silences all others of its service.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._serving = False
        self._draining = False
        self._changed = asyncio.Condition()

    @property
    def serving(self) -> bool:
        """Whether it says SERVING."""
        return self._serving and not self._draining

    async def set(self, serving: bool) -> None:
        """Says SERVING or NOT_SERVING."""
        self._serving = serving
        await self._tell()

    async def drain(self) -> None:
        """Says NOT_SERVING, whatever is set afterwards."""
        self._draining = True
        await self._tell()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for names that are not served here."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return _Status(status=self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and whenever it changes; SERVICE_UNKNOWN for names that are not served here."""
        said = None
        while True:
            async with self._changed:
                while (status := self._status(request.service)) == said:
                    await self._changed.wait()
                said = status
            yield _Status(status=said)

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self.serving else _Status.NOT_SERVING

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
