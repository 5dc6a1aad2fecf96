"""The child side of a `Worker`: limits on itself, then one request after the other until the parent goes away.

A worker module ends with::

    if __name__ == "__main__":
        serve({"open": open_source, "packets": packets})
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decoder_pool import worker_frames
from decoder_pool.parent_end import die_with
from decoder_pool.worker_frames import ENV_MEMORY, ENV_PARENT, ENV_SOCKET, EXIT_MEMORY, FrameReader

#: Takes the arguments and the descriptors of a call; gives values that JSON can carry, and descriptors if any.
#: `serve` closes the received descriptors when the method returns: keep one with `os.dup`. Given ones stay the method's.
Method = Callable[[dict[str, Any], Sequence[int]], "dict[str, Any] | tuple[dict[str, Any], Sequence[int]]"]


class Refusal(Exception):
    """A controlled error: the parent's call raises `WorkerRefused(kind, message)`, the worker goes on."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def serve(methods: Mapping[str, Method]) -> None:
    """Serves `methods` until the parent closes its end. Running out of memory ends the process: its heap is not trusted."""
    sock = socket.socket(fileno=int(os.environ[ENV_SOCKET]))
    _limit(int(os.environ[ENV_MEMORY]), int(os.environ[ENV_PARENT]))
    reader = FrameReader()
    _send(sock, {"ready": True})
    while True:
        while (frame := reader.take()) is None:
            if not reader.receive(sock):
                return
        request, fds = frame
        given: Sequence[int] = ()
        try:
            answer = methods[request["method"]](request["arguments"], fds)
            values, given = answer if isinstance(answer, tuple) else (answer, ())
            reply: dict[str, Any] = {"id": request["id"], "values": values}
            worker_frames.encode(reply, given)  # too large a reply is this method's fault, not the end of the worker
        except MemoryError:
            os._exit(EXIT_MEMORY)
        except Refusal as refusal:
            reply, given = _error(request["id"], refusal.kind, refusal.message), ()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            reply, given = _error(request["id"], "Internal", f"{type(error).__name__}: {error}"), ()
        finally:
            worker_frames.close_all(fds)
        _send(sock, reply, given)


def _error(number: int, kind: str, message: str) -> dict[str, Any]:
    return {"id": number, "error": {"kind": kind, "message": message[:2000]}}


def _send(sock: socket.socket, value: dict[str, Any], fds: Sequence[int] = ()) -> None:
    data = memoryview(worker_frames.encode(value, fds))
    sent = worker_frames.send_some(sock, data, fds)
    sock.sendall(data[sent:])


def _limit(memory: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it drains, and needs its workers for that
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    die_with(parent)
