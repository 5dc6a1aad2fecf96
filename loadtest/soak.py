"""Many calls, one in five cancelled or out of time at a random moment: what the server holds must be the same afterwards.

A first fifth warms the server up. Then processes, threads, descriptors and memory are taken, the calls run, and the same is
taken again once the server is idle. The exit code is 0 where every call that was left alone was answered, nothing grew, and
the server ended on SIGTERM by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from keyglance import AsyncClient
from keyglance.errors import KeyglanceError
from loadtest import clips, report
from loadtest.measure import Footprint, footprint
from loadtest.server_process import ServerFailed, ServerProcess

ROOT = Path(__file__).parent.parent
#: Memory of all processes may differ by so much between two idle moments: allocators keep what they once had.
MEMORY_TOLERANCE = 0.1
#: The same for threads and descriptors: gRPC and executors start theirs when first needed.
COUNT_TOLERANCE = 8


def make_clips() -> dict[str, bytes]:
    """Clips of different decoder keys, so that leases are reused, reconfigured and evicted."""
    coffee, cat = clips.photograph("coffee"), clips.photograph("chelsea")
    return {
        "h264 640x360": clips.encode(clips.pan(coffee, 60, 640, 360), keyframe_interval=15),
        "h264 1280x720": clips.encode(clips.pan(cat, 40, 1280, 720), keyframe_interval=10),
        "hevc 640x360": clips.encode(clips.pan(cat, 40, 640, 360), keyframe_interval=10, codec="libx265"),
        "vp9 480x270": clips.encode(clips.pan(coffee, 40, 480, 270), keyframe_interval=10, codec="libvpx-vp9", container="webm"),
        "mpeg4 352x288": clips.encode(clips.pan(cat, 40, 352, 288), keyframe_interval=10, codec="mpeg4", container="avi"),
        "h264 one keyframe": clips.encode(clips.pan(coffee, 250, 320, 240), fps=10),
    }


class Soak:
    """The calls against one server; `random` decides clip, fate and moment of each."""

    def __init__(self, client: AsyncClient, pid: int, *, frames: int, concurrency: int, seed: int) -> None:
        self._client = client
        self._pid = pid
        self._frames = frames
        self._concurrency = concurrency
        self._random = random.Random(seed)
        self._clips = list(make_clips().values())
        self.seconds: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.memory_mib: list[float] = []

    async def run(self, calls: int, progress: Progress) -> None:
        """Makes so many calls, `concurrency` at a time."""
        task = progress.add_task("calls", total=calls)
        numbers = iter(range(calls))

        async def caller() -> None:
            for number in numbers:
                if number % max(calls // 10, 1) == 0:
                    self.memory_mib.append((await asyncio.to_thread(footprint, self._pid)).memory_mib)
                await self._call()
                progress.advance(task)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(caller())

    async def _call(self) -> None:
        clip = self._random.choice(self._clips)
        fate = self._random.choices(("answered", "cancelled", "out of time"), (8, 1, 1))[0]
        moment = self._random.uniform(0.001, self._typical())
        begin = time.monotonic()
        call = asyncio.create_task(self._client.label(clip, frames=self._frames, timeout=moment if fate == "out of time" else 60))
        if fate == "cancelled":
            await asyncio.wait([call], timeout=moment)
            call.cancel()
        try:
            answer = await call
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
        except KeyglanceError as error:
            self.outcomes[error.reason] += 1
            if fate != "out of time" or error.reason != "DEADLINE_EXCEEDED":
                self.failures.append(f"{error.reason}: {error.message}")
        else:
            self.outcomes["answered"] += 1
            self.seconds.append(time.monotonic() - begin)
            if answer.degradations or not answer.labels:
                self.failures.append(f"a full answer was expected, got {answer.degradations or 'no labels'}")

    def _typical(self) -> float:
        recent = sorted(self.seconds[-50:])
        return recent[len(recent) // 2] if recent else 0.5


async def settled(pid: int) -> Footprint:
    """The footprint once abandoned work has been dropped and replaced workers are up: the same twice, a second apart."""
    last = None
    for _ in range(30):
        await asyncio.sleep(1)
        now = footprint(pid)
        if last is not None and (now.processes, now.descriptors) == (last.processes, last.descriptors):
            break
        last = now
    return now


def differences(before: Footprint, after: Footprint, decoders: tuple[int, int]) -> list[str]:
    """What grew, or was lost, between two idle moments; `decoders` is how many the server had then and has now."""
    found = []
    if after.processes - before.processes != decoders[1] - decoders[0]:
        found.append(f"processes: {before.processes} before, {after.processes} after, decoders {decoders[0]} and {decoders[1]}")
    for name in ("threads", "descriptors"):
        old, new = getattr(before, name), getattr(after, name)
        if new > old + COUNT_TOLERANCE:
            found.append(f"{name}: {old} before, {new} after")
    if after.memory_mib > before.memory_mib * (1 + MEMORY_TOLERANCE):
        found.append(f"memory: {before.memory_mib} MiB before, {after.memory_mib} MiB after")
    return found


async def _soak(options: argparse.Namespace, server: ServerProcess) -> tuple[dict[str, Any], list[str]]:
    async with AsyncClient(server.address, retries=0, timeout=60) as client:
        with Progress(console=Console(), transient=True) as progress:
            settings = {"frames": options.frames, "concurrency": options.concurrency}
            await Soak(client, server.pid, seed=options.seed + 1, **settings).run(max(options.calls // 5, 20), progress)
            before, decoders_before = await settled(server.pid), await _decoders(client)
            soak = Soak(client, server.pid, seed=options.seed, **settings)
            begin = time.monotonic()
            await soak.run(options.calls, progress)
            seconds = time.monotonic() - begin
            after, decoders_after = await settled(server.pid), await _decoders(client)
    faults = soak.failures[:20] + differences(before, after, (decoders_before, decoders_after))
    latencies = sorted(soak.seconds)
    figures = {
        "calls": options.calls,
        "concurrency": options.concurrency,
        "frames": options.frames,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "outcomes": dict(soak.outcomes),
        "answered_seconds": {f"p{p}": round(latencies[len(latencies) * p // 100], 3) for p in (50, 95, 99)} if latencies else {},
        "memory_mib_at_each_tenth": soak.memory_mib,
        "before": {**before.as_dict(), "decoders": decoders_before},
        "after": {**after.as_dict(), "decoders": decoders_after},
        "faults": faults,
    }
    return figures, faults


async def _decoders(client: AsyncClient) -> int:
    return sum(decoder.decoders for decoder in (await client.server_info()).decoders)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--frames", type=int, default=4, help="pictures wanted in each call (default 4)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-keep", action="store_true", help="do not write loadtest/results/soak.json")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="keyglance-soak-") as scratch, ServerProcess(Path(scratch)) as server:
            figures, faults = asyncio.run(_soak(options, server))
            server.terminate()
            if code := server.wait(60):
                faults.append(f"the server ended with exit code {code} after SIGTERM")
            if left := server.left_behind():
                faults.append(left)
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    outcomes = ", ".join(f"{count} {name}" for name, count in figures["outcomes"].items())
    print(f"{options.calls} calls in {figures['seconds']} s: {outcomes}\nbefore {figures['before']}\nafter  {figures['after']}")
    print(f"memory in MiB at each tenth: {figures['memory_mib_at_each_tenth']}")
    for fault in faults:
        print(f"fault: {fault}")
    if not options.no_keep:
        print(f"kept in {report.write('soak', figures).relative_to(ROOT)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
