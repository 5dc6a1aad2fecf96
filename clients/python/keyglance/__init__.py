"""Client of Keyglance: labels for short videos in one gRPC call.

`Client` and `AsyncClient` ask a server; `keyglance.errors` is what they raise; `keyglance.answer` helps to read what they
return. The names below are loaded when first used, so that the server's workers, which import `keyglance.video` alone,
do not pay for gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyglance.aio import AsyncClient
    from keyglance.answer import Answer, Health, ServerInfo
    from keyglance.client import Client
    from keyglance.connection import Tls
    from keyglance.errors import KeyglanceError, RequestError, ServiceError
    from keyglance.retry import RetryPolicy

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Health",
    "KeyglanceError",
    "RequestError",
    "RetryPolicy",
    "ServerInfo",
    "ServiceError",
    "Tls",
]

_HOMES = {
    "Answer": "answer",
    "AsyncClient": "aio",
    "Client": "client",
    "Health": "answer",
    "KeyglanceError": "errors",
    "RequestError": "errors",
    "RetryPolicy": "retry",
    "ServerInfo": "answer",
    "ServiceError": "errors",
    "Tls": "connection",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
