"""The engine's part of the GPU proof: one call through gRPC, many in flight, one model alone, memory and allocations."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

import psutil

from loadtest.gpu_load import latencies, load, some, steps
from loadtest.gpu_setup import FRAMES, Service, Setup, close_all, free_mib, job_of, jobs_of
from loadtest.utilisation import Utilisation
from server.engine import Engine
from server.gpu_engine import GpuEngine

IN_FLIGHT = (1, 4, 8, 16, 32)
GOAL_IN_FLIGHT = 16
SMALL_MODELS = ("efficientnet-lite0", "open-nsfw")
#: Sizes that a service sees every day; all of them H.264, of one size class or two.
USUAL = ("h264_1280x720.mp4", "h264_640x360.mp4", "h264_720x1280.mp4", "h264_640x530.mp4", "h264_1920x1080.mp4")
_CLIENT_PATIENCE = 120.0  # seconds


async def engine(setup: Setup) -> dict[str, Any]:
    """The clip through gRPC by a client in another process, nothing else running; in process beside it, step by step."""
    service = await setup.served()
    figures: dict[str, Any] = {"device": service.engine.info().device, "start_s": service.starting}
    told = await called(service, setup, calls=setup.times(100))
    ms = told.pop("ms")
    figures["through gRPC"] = latencies([each / 1e3 for each in ms]) | told | {"all_ms": ms}
    (job,) = jobs = await jobs_of(setup.phone.read_bytes(), 1)
    try:
        await some(service.engine, [job], setup.times(10))
        done = await some(service.engine, [job], setup.times(60))
    finally:
        close_all(jobs)
    figures["engine in process"] = latencies([each.seconds for each in done]) | {
        "steps": steps([each.timings for each in done], [each.ended - each.seconds for each in done])
    }
    crowd = await called(service, setup, calls=setup.times(20), at_once=GOAL_IN_FLIGHT)
    figures[f"{GOAL_IN_FLIGHT} callers in one client process"] = latencies([each / 1e3 for each in crowd.pop("ms")]) | {
        "calls/s": crowd["calls/s"],
        "pictures/s": round(crowd["calls/s"] * crowd["pictures"], 1),
        "steps": crowd["steps"],
    }
    return figures


async def called(service: Service, setup: Setup, *, calls: int, at_once: int = 1) -> dict[str, Any]:
    """What `loadtest.gpu_client` tells, run beside this process."""
    command = [sys.executable, "-m", "loadtest.gpu_client", service.server.address, str(setup.phone)]
    command += ["--frames", str(FRAMES), "--warm", str(setup.times(20)), "--calls", str(calls), "--at-once", str(at_once)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _CLIENT_PATIENCE)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"the client ended with exit code {process.returncode}, what it said is above")
    told: dict[str, Any] = json.loads(output)
    return told


async def throughput(setup: Setup) -> dict[str, Any]:
    """Clips always in flight, in process, all default models: pictures a second, latencies, batch fill."""
    service = await setup.served()
    figures: dict[str, Any] = {"device": service.engine.info().device}
    content = setup.phone.read_bytes()
    for count in IN_FLIGHT:
        main = count == GOAL_IN_FLIGHT
        figures[f"{count} in flight"] = await _loaded(service.engine, content, count, setup.seconds(10 if main else 3), setup)
    return figures


async def one_model(setup: Setup) -> dict[str, Any]:
    """The same with one small model alone, each in an engine of its own."""
    figures: dict[str, Any] = {}
    content = setup.phone.read_bytes()
    for name in SMALL_MODELS:
        service = await Service.start(setup.config([name]))
        try:
            figures[name] = {
                f"{count} in flight": await _loaded(service.engine, content, count, setup.seconds(seconds), setup)
                for count, seconds in ((8, 2.0), (GOAL_IN_FLIGHT, 5.0), (32, 2.0))
            }
        finally:
            await service.close()
    return figures


async def _loaded(engine: Engine, content: bytes, count: int, seconds: float, setup: Setup) -> dict[str, Any]:
    jobs = await jobs_of(content, count)
    try:
        with Utilisation() as utilisation:
            loaded = await load(engine, jobs, seconds, warm=setup.seconds(1.0))
    finally:
        close_all(jobs)
    return loaded.figures() | {"utilisation": utilisation.figures()[0]}


async def memory(setup: Setup) -> dict[str, Any]:
    """Memory planned and used, and what a thousand usual calls of changing sizes leave behind: nothing."""
    service = await setup.served()
    planned = budget(service)
    packed = setup.packed()
    jobs = [job_of(packed[name]) for name in USUAL if name in packed] + await jobs_of(setup.phone.read_bytes(), 1)
    try:
        await some(service.engine, jobs, setup.times(200), at_once=GOAL_IN_FLIGHT)
        # One of each behind the others: sizes and batches that many at once may have left out.
        await some(service.engine, jobs, 2 * len(jobs))
        with Allocations() as allocations:
            before, begin = held(), time.perf_counter()
            done = await some(service.engine, jobs, setup.times(1000), at_once=GOAL_IN_FLIGHT)
            seconds = time.perf_counter() - begin
            after = held()
    finally:
        close_all(jobs)
    return {
        "device": service.engine.info().device,
        "taken by the server at start in MiB": service.taken,
        "budget": planned,
        "calls": len(done),
        "calls/s": round(len(done) / seconds, 1),
        "created on the way": sum(each.created for each in done),
        "allocations on the way": allocations.figures(),
        "before": before,
        "after": after,
        "grown": {name: round(after[name] - value, 2) for name, value in before.items() if name in after},
    }


def budget(service: Service) -> dict[str, Any] | None:
    """The plan of the GPU's memory beside what is taken now; None for an engine on a CPU."""
    plan = service.engine.budget if isinstance(service.engine, GpuEngine) else None
    if plan is None:
        return None
    return {
        "planned in MiB": round(plan.planned / 2**20, 1),
        "used in MiB": round(plan.used() / 2**20, 1),
        "lines in MiB": {line.name: round(line.size / 2**20, 1) for line in plan.lines},
    }


def held() -> dict[str, float]:
    """What this process and the GPU hold now."""
    process = psutil.Process()
    found: dict[str, float] = {
        "threads": float(threading.active_count()),
        "threads of the system": float(process.num_threads()),
        "descriptors": float(len(os.listdir("/proc/self/fd"))),
        "children": float(len(process.children(recursive=True))),
        "memory in MiB": round(process.memory_info().rss / 2**20, 1),
    }
    if (free := free_mib()) is not None:
        cupy = importlib.import_module("cupy")
        pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
        found |= {
            "GPU memory free in MiB": round(free, 1),
            "CuPy pool in bytes": float(pool.total_bytes()),
            "CuPy pool used in bytes": float(pool.used_bytes()),
            "CuPy pinned blocks free": float(pinned.n_free_blocks()),
        }
    return found


class Allocations:
    """Counts what CuPy is asked to allocate, on the GPU and pinned, by any thread while it is entered."""

    def __init__(self) -> None:
        self._counts = {"device": 0, "pinned": 0}
        self._cupy: Any = None

    def __enter__(self) -> Allocations:
        if free_mib() is not None:
            self._cupy = cupy = importlib.import_module("cupy")
            device, pinned = cupy.get_default_memory_pool().malloc, cupy.get_default_pinned_memory_pool().malloc
            cupy.cuda.set_allocator(lambda size: self._counted("device", device, size))
            cupy.cuda.set_pinned_memory_allocator(lambda size: self._counted("pinned", pinned, size))
        return self

    def __exit__(self, *_: object) -> None:
        if self._cupy is not None:
            self._cupy.cuda.set_allocator(self._cupy.get_default_memory_pool().malloc)
            self._cupy.cuda.set_pinned_memory_allocator(self._cupy.get_default_pinned_memory_pool().malloc)

    def _counted(self, kind: str, allocate: Any, size: int) -> Any:
        self._counts[kind] += 1
        return allocate(size)

    def figures(self) -> dict[str, int] | None:
        """How often of each kind; None without CuPy."""
        return dict(self._counts) if self._cupy is not None else None
