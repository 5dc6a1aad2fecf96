"""The address that several fronts share: chosen and kept by the supervisor, while fronts come and go."""

from __future__ import annotations

import errno
import socket
from types import TracebackType
from typing import Self

from server.start_error import StartError


class ReservedAddress:
    """`listen` (HOST:PORT or unix:PATH) with a port of its own, kept as long as this object is open.

    The socket behind it is bound with SO_REUSEPORT and never listens, so no connection comes to it. `shared`: other servers may
    have the port too. Raises `StartError` for an address that cannot be used.
    """

    def __init__(self, listen: str, *, shared: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        self.address = listen
        if listen.startswith("unix:"):
            return
        host, _, port = listen.rpartition(":")
        try:
            self.address = f"{host}:{self._bind(host.strip('[]'), int(port), shared)}"
        except OSError as error:
            self.close()
            raise StartError(f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}") from None

    def close(self) -> None:
        """Lets the port go."""
        for sock in self._sockets:
            sock.close()

    def _bind(self, host: str, port: int, shared: bool) -> int:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        unusable: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            name, _, *rest = address
            try:
                if port and not shared:
                    self._probe(socket.socket(family, kind, protocol), (name, port, *rest))
                sock = socket.socket(family, kind, protocol)
                self._sockets.append(sock)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sock.bind((name, port, *rest))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                unusable = error  # a name may have addresses of a family that this machine does not speak
                continue
            port = port or sock.getsockname()[1]  # names of two families share the first one's
        if unusable is not None and not any(sock.getsockname()[1] for sock in self._sockets):
            raise unusable
        return port

    @staticmethod
    def _probe(sock: socket.socket, address: tuple[object, ...]) -> None:
        """Raises `OSError` where another socket listens there, which one with SO_REUSEPORT would not be told."""
        with sock:
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReservedAddress {self.address}>"
