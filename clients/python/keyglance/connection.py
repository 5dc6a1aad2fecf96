"""What the synchronous and the asynchronous client share: where the server is, how it is reached, what each call carries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata as packages
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from opentelemetry import propagate

from keyglance.errors import KeyglanceError
from keyglance.retry import Attempts, RetryPolicy
from keyglance.status import error_from

DEFAULT_TARGET = "127.0.0.1:50051"
#: Seconds for a whole call, retries included.
DEFAULT_TIMEOUT = 60.0
#: The largest message in either direction, in bytes; the server's own default is the same.
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024

Pem = bytes | str | os.PathLike[str]
Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How to trust the server and how to prove who calls; each PEM as its bytes or as the path of a file.

    `root_certificates` None means the public roots that gRPC brings. `certificate` (with its chain) and `key` are the
    caller's own, for servers that ask for one; both or neither. `server_name` is the name to expect in the server's
    certificate where it differs from the target's.
    """

    root_certificates: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate needs its key, and a key its certificate")

    def credentials(self) -> grpc.ChannelCredentials:
        """gRPC's form of it; reads the files, with `OSError` where one cannot be read, `ValueError` where it is no PEM."""
        return grpc.ssl_channel_credentials(_pem(self.root_certificates), _pem(self.key), _pem(self.certificate))


class Connection:
    """One target with all that is needed to open channels to it (`connections` of them) and to make calls over these."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float | None,
        tls: bool | Tls | grpc.ChannelCredentials,
        token: str | None,
        metadata: Sequence[tuple[str, str | bytes]],
        retries: int | RetryPolicy,
        max_message_bytes: int,
        connections: int,
    ) -> None:
        if target.startswith(("http://", "https://")):
            raise ValueError(f"target is {target!r}; HOST:PORT without a scheme is wanted (TLS is chosen by `tls`)")
        if max_message_bytes < 1:
            raise ValueError(f"max_message_bytes is {max_message_bytes}; 1 or more is allowed")
        if connections < 1:
            raise ValueError(f"connections is {connections}; 1 or more is allowed")
        self.target = target
        self.connections = connections
        self.max_message_bytes = max_message_bytes
        self.credentials = _credentials(tls)
        self.options = _options(target, tls, max_message_bytes)
        if connections > 1:  # else gRPC gives all channels of a process to one target one connection
            self.options.append(("grpc.use_local_subchannel_pool", 1))
        self._policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        self._timeout = timeout
        self._metadata: Metadata = tuple(metadata)
        if token is not None:
            if self.credentials is None and not _is_local(target):
                raise ValueError(
                    "a token is not sent unencrypted to another machine; use tls (or metadata, behind a proxy that encrypts)"
                )
            self._metadata += (("authorization", f"Bearer {token}"),)
        self._process = os.getpid()
        self.attempts(None)  # A timeout out of range is told here, not at the first call.

    def attempts(self, timeout: float | None, *, retry: bool = True) -> Attempts:
        """The attempts of a new call that may take `timeout` seconds, None for the client's own; just one without `retry`."""
        if os.getpid() != self._process:
            # gRPC's threads do not exist in a forked child: a call would hang for ever.
            raise RuntimeError("this client was made before a fork; make one in each process")
        return Attempts(self._policy if retry else RetryPolicy(0), self._timeout if timeout is None else timeout)

    def metadata(self) -> Metadata:
        """What a call carries: the client's metadata and the caller's trace context (W3C, by OpenTelemetry's propagators)."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return self._metadata + tuple((name.lower(), value) for name, value in carrier.items())

    def error(self, failure: grpc.RpcError, attempts: Attempts) -> KeyglanceError:
        """The error that `failure` stands for."""
        return error_from(failure, target=self.target, timeout=attempts.timeout)


def _pem(source: Pem | None) -> bytes | None:
    if source is None:
        return None
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if b"-----BEGIN " not in content:
        raise ValueError(f"no PEM in {'the bytes given' if isinstance(source, bytes) else source}")
    return content


def _credentials(tls: bool | Tls | grpc.ChannelCredentials) -> grpc.ChannelCredentials | None:
    if isinstance(tls, bool):
        return Tls().credentials() if tls else None
    return tls.credentials() if isinstance(tls, Tls) else tls


def _options(target: str, tls: object, max_message_bytes: int) -> list[tuple[str, str | int]]:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.primary_user_agent", f"keyglance-python/{packages.version('keyglance')}"),
        # gRPC's second between connection attempts would let our first retries meet the old failure again.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
        # How long an attempt may take, in spite of its name: TLS with a server far away, or with one that is busy, takes a while.
        ("grpc.min_reconnect_backoff_ms", 5000),
    ]
    if _is_local(target):
        options.append(("grpc.enable_http_proxy", 0))
    if isinstance(tls, Tls) and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _is_local(target: str) -> bool:
    """Whether the target is this machine: a loopback address or a Unix socket."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    address = target.rsplit("/", 1)[-1].removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:")
    host = urlsplit(f"//{address}").hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")
