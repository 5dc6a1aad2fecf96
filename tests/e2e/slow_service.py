"""A whole server in this process, on loopback, around an engine that does nothing but take its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyglance import AsyncClient
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from models.result import FrameResult
from server.assembly import assemble_front
from server.config import Config
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome, HardwareFormat
from server.engine_stats import EngineStats
from server.lifecycle import Server
from server.telemetry import Telemetry
from server.timing import StepTiming

REQUIRED = fake_manifest("required", [LabelSpec("calm")], required=True)
OPTIONAL = fake_manifest("optional", [LabelSpec("noise")])
CODECS = ("h264", "hevc", "mpeg4")


@dataclass
class SlowEngine:
    """`workers` jobs at once, each for `work` seconds; further ones wait here, as they would for decoders.

    `blocked` holds all of them up. `hardware` decodes H.264 only, where there is such.
    """

    workers: int = 4
    work: float = 0.1
    hardware: tuple[HardwareFormat, ...] = ()
    healthy: bool = True
    jobs: list[EngineJob] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    failures: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self._free = asyncio.Semaphore(self.workers)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats()

    def info(self) -> EngineInfo:
        return EngineInfo("slow", (REQUIRED, OPTIONAL), (DecoderState("cpu", 1, 8, CODECS),), self.hardware)

    async def run(self, job: EngineJob) -> EngineResult:
        self.jobs.append(job)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        asked = time.monotonic()
        try:
            async with self._free:
                begin = time.monotonic()
                await self.go.wait()
                if self.failures:
                    raise self.failures.pop()
                await asyncio.sleep(self.work)
        finally:
            self.running -= 1
        names = job.models or (REQUIRED.name, OPTIONAL.name)
        wanted = [sample for unit in job.units for sample in unit.wanted]
        results = {name: FrameResult({"calm" if name == REQUIRED.name else "noise": 0.0}) for name in names}
        frames = tuple(FrameOutcome(sample, True, results=results) for sample in wanted)
        return EngineResult(frames, (StepTiming("decode", asked, time.monotonic(), begin - asked),))


@dataclass
class SlowService:
    """The running server with its engine and a client that repeats nothing."""

    server: Server
    engine: SlowEngine
    telemetry: Telemetry
    client: AsyncClient

    @property
    def lanes(self) -> dict[str, Any]:
        return {str(name): lane for name, lane in self.server._admission.overload.lanes.items()}

    async def until(self, check: Any, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, f"did not become true: {self.server!r}"
            await asyncio.sleep(0.01)

    def assert_quiet(self) -> None:
        assert self.server._admission.in_flight == 0
        assert self.server._budget.reserved == 0
        assert self.server._budget.waiting == 0
        assert self.engine.running == 0
        for lane in self.lanes.values():
            assert (lane.serving, lane.waiting()) == (0, 0), lane


@asynccontextmanager
async def slow_service(
    folder: Path, engine: SlowEngine, telemetry: Telemetry | None = None, /, **sections: dict[str, Any]
) -> AsyncIterator[SlowService]:
    """`sections` are settings. Its policy lets everything pass that is not degraded."""
    policy = folder / "policy.toml"
    policy.write_text("unseen = 100.0\n")
    settings = {
        "server": {"listen": "127.0.0.1:0"},
        "models": {"policy": str(policy)},
        "index": {"workers": 1},
        "decoders": {"warm": []},
        **sections,
    }
    config = Config.load(overrides=settings)
    telemetry = telemetry or Telemetry.create(version="0.0.test")
    server = Server(config, telemetry, assemble_front(config, telemetry, engine))
    await server.start()
    try:
        async with AsyncClient(server.address, retries=0, timeout=20) as client:
            yield SlowService(server, engine, telemetry, client)
    finally:
        await server.close()
