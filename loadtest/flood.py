"""Many callers with the largest message at once: `python -m loadtest.flood`.

Each has a connection of its own and sends a clip, padded to nearly `server.largest_message`, to one server on loopback. The
server may hold so many bytes of requests at once as `receive.budget` says; what its memory grows to beside that is the
figure. Every call must be answered. Bounded: one message a caller, and a deadline for all.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil

from keyglance.v1 import keyglance_pb2 as pb
from loadtest import clips, report
from loadtest.request_bytes import LABEL_METHOD
from loadtest.server_process import ServerProcess
from server.config import Config

_MIB = 1 << 20


def message(size: int) -> bytes:
    """A request of about `size` bytes: a clip whose container ends long before its file does."""
    clip = clips.encode(clips.pan(clips.photograph("coffee"), 50, 320, 240), keyframe_interval=25)
    return pb.LabelRequest(data=clip + bytes(size - len(clip))).SerializeToString()


@contextmanager
def peak_memory(pid: int, peak: list[int]) -> Iterator[None]:
    """Puts the largest resident set of a process, in bytes, into `peak[0]` while the block runs."""
    process, ended = psutil.Process(pid), threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


async def call(target: str, request: bytes, timeout: float) -> str:
    """One call over its own connection: the status code's name."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        method = channel.unary_unary(LABEL_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return grpc.StatusCode.OK.name


async def flood(target: str, request: bytes, callers: int, timeout: float) -> Counter[str]:
    """All at once; how often each status came."""
    return Counter(await asyncio.gather(*(call(target, request, timeout) for _ in range(callers))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.flood", description=__doc__.splitlines()[0])
    parser.add_argument("--callers", type=int, default=200, help="at once; this process needs a message's memory for each")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for all of them")
    options = parser.parse_args(arguments)
    config = Config()
    request = message(config.server.largest_message - 4096)
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        process = psutil.Process(server.pid)
        before, peak, begin = process.memory_info().rss, [0], time.monotonic()
        with peak_memory(server.pid, peak):
            statuses = asyncio.run(flood(server.address, request, options.callers, options.timeout))
        seconds = time.monotonic() - begin
    figures = {
        "callers": options.callers,
        "message_mib": round(len(request) / _MIB, 1),
        "budget_mib": config.receive.budget // _MIB,
        "statuses": dict(statuses),
        "seconds": round(seconds, 1),
        "memory_before_mib": before // _MIB,
        "memory_peak_mib": peak[0] // _MIB,
    }
    print(figures)
    print(report.write("flood", figures))
    return 0 if statuses == {"OK": options.callers} else 1


if __name__ == "__main__":
    sys.exit(main())
