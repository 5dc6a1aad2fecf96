"""Many calls, one in five cancelled or out of time at a random moment: what the server holds must be the same afterwards.

`python -m loadtest.soak` makes 10,000 calls for two pictures each of small clips to one process with the quickest model: five
minutes on two cores. `--set server.fronts=2 --keep soak_fronts` does so with fronts and an engine process; any other server can
be had with further settings (`--set models.enabled=…`).

Some calls before warm the server up. Then processes, threads, descriptors and memory are taken, the calls run, and the same is
taken again once the server is idle. Then nothing may be held for any call: leases, places, queues, memory to receive into, as
the server's Prometheus port tells. The exit code is 0 where every call that was left alone was answered, nothing grew or is
held, and the server ended on SIGTERM by itself.
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
from keyglance.metrics_page import Between, Look, NoMetrics, look
from loadtest import clips, report
from loadtest.measure import Footprint, footprint
from loadtest.server_process import ServerFailed, ServerProcess
from loadtest.target import START_SECONDS, describe, environment, measured
from loadtest.watch import counted

ROOT = Path(__file__).parent.parent
#: Settings that others may follow; a name that comes again wins.
SETTINGS = ('models.enabled=["efficientnet-lite0"]', "telemetry.prometheus=127.0.0.1:0")
#: So many calls warm the server up at the most, else a fifth of all.
_WARM = 1000
_SETTLING = 30  # seconds in which a server must be idle after the last call
_MOST_FAILURES = 20  # are told one by one
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
        "h264 one keyframe": clips.encode(clips.pan(coffee, 120, 320, 240), fps=10),
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
            in_order = error.reason == "DEADLINE_EXCEEDED" or error.facts.get("refused") == "deadline"
            if fate != "out of time" or not in_order:
                self.failures.append(f"{fate}: {error.reason}: {error.message}")
        else:
            self.outcomes["answered"] += 1
            self.seconds.append(time.monotonic() - begin)
            if answer.degradations or not answer.labels:
                self.failures.append(f"a full answer was expected, got {answer.degradations or 'no labels'}")

    def _typical(self) -> float:
        recent = sorted(self.seconds[-50:])
        return recent[len(recent) // 2] if recent else 0.5


def held(page: Look) -> dict[str, float]:
    """What a server holds for calls; of an idle one everything is 0."""
    lent = sum(count for (state,), count in page.sums("keyglance_decoders", "state").items() if state in ("leased", "settling"))
    return {
        "calls": page.total("keyglance_calls_active"),
        "places": page.total("keyglance_calls_serving"),
        "queued": page.total("keyglance_queue_depth"),
        "received_bytes": page.total("keyglance_receive_reserved_bytes"),
        "leases": lent,
    }


def decoders(page: Look, kind: str = "") -> int:
    """How many there are, of one kind or of all; those of the kind `cpu` are processes."""
    return round(sum(count for (each,), count in page.sums("keyglance_decoders", "kind").items() if kind in ("", each)))


async def settled(server: ServerProcess) -> tuple[Footprint, Look]:
    """What an idle server has and holds: once it is the same twice, a second apart, and nothing is held any more, if ever."""
    last = None
    for _ in range(_SETTLING):
        await asyncio.sleep(1)
        now, page = await asyncio.to_thread(footprint, server.pid), await asyncio.to_thread(look, server.metrics)
        same = last is not None and (now.processes, now.descriptors) == (last.processes, last.descriptors)
        if same and not any(held(page).values()):
            break
        last = now
    return now, page


def differences(before: Footprint, after: Footprint, decoders: tuple[int, int]) -> list[str]:
    """What grew, or was lost, between two idle moments; `decoders` is how many processes decoded then and do now."""
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
    async with AsyncClient(server.address, retries=0, timeout=60, connections=options.connections) as client:
        with Progress(console=Console(), transient=True) as progress:
            settings = {"frames": options.frames, "concurrency": options.concurrency}
            warm = max(20, min(options.calls // 5, _WARM))
            await Soak(client, server.pid, seed=options.seed + 1, **settings).run(warm, progress)
            before, page_before = await settled(server)
            soak = Soak(client, server.pid, seed=options.seed, **settings)
            begin = time.monotonic()
            await soak.run(options.calls, progress)
            seconds = time.monotonic() - begin
            after, page_after = await settled(server)
    told = counted(Between(page_before, page_after))
    still = held(page_after)
    processes = (decoders(page_before, "cpu"), decoders(page_after, "cpu"))
    faults = soak.failures[:_MOST_FAILURES] + differences(before, after, processes)
    faults += [f"{count:g} {name} held for calls by an idle server" for name, count in still.items() if count]
    if more := len(soak.failures) - _MOST_FAILURES:
        faults += [f"{more} failures more"] if more > 0 else []
    latencies = sorted(soak.seconds)
    figures = {
        "calls": options.calls,
        "concurrency": options.concurrency,
        "connections": options.connections,
        "frames": options.frames,
        "seed": options.seed,
        "settings": options.set,
        "seconds": round(seconds, 1),
        "outcomes": dict(soak.outcomes),
        "answered_seconds": {f"p{p}": round(latencies[len(latencies) * p // 100], 3) for p in (50, 95, 99)} if latencies else {},
        "memory_mib_at_each_tenth": soak.memory_mib,
        "before": {**before.as_dict(), "decoders": decoders(page_before), "held": held(page_before)},
        "after": {**after.as_dict(), "decoders": decoders(page_after), "held": still},
        "meanwhile": {name: told[name] for name in ("leases", "decoders_evicted", "failed", "refused", "worker_restarts")},
        "faults": faults,
    }
    return figures, faults


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--connections", type=int, default=4, help="of the client, so that all fronts have some (default 4)")
    parser.add_argument("--frames", type=int, default=2, help="pictures wanted in each call (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="a further setting of the server; repeatable"
    )
    parser.add_argument("--commit", default=report.commit(), help="what is measured, where this is no Git checkout")
    parser.add_argument("--keep", default="soak", metavar="NAME", help="of the file in loadtest/results (default: soak)")
    parser.add_argument("--no-keep", action="store_true", help="write none")
    options = parser.parse_args(arguments)
    try:
        variables = environment([*SETTINGS, *options.set])
        with (
            tempfile.TemporaryDirectory(prefix="keyglance-soak-") as scratch,
            ServerProcess(Path(scratch), environment=variables, start_timeout=START_SECONDS) as server,
        ):
            about = describe(server.address)
            figures, faults = asyncio.run(_soak(options, server))
            server.terminate()
            if code := server.wait(60):
                faults.append(f"the server ended with exit code {code} after SIGTERM")
            if left := server.left_behind():
                faults.append(left)
    except (ServerFailed, KeyglanceError, NoMetrics, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    outcomes = ", ".join(f"{count} {name}" for name, count in figures["outcomes"].items())
    print(f"{options.calls} calls in {figures['seconds']} s: {outcomes}\nbefore {figures['before']}\nafter  {figures['after']}")
    print(f"memory in MiB at each tenth: {figures['memory_mib_at_each_tenth']}")
    for fault in faults:
        print(f"fault: {fault}")
    if not options.no_keep:
        kept = {**measured(options, about), "server": about, **figures}
        print(f"kept in {report.write(options.keep, kept).relative_to(ROOT)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
