"""A scripted engine, jobs for it, and what a process has open: for the tests of engines in processes of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from opentelemetry import trace

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import Orientation, StreamConfig
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec, Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.engine_stats import EngineStats
from server.timing import StepTiming

MANIFESTS = (
    fake_manifest("many", [LabelSpec(f"label-{n}", parent="all", threshold=0.25, classes=(n, n + 1)) for n in range(100)]),
    fake_manifest("few", [LabelSpec("one"), LabelSpec("two")], required=True, options={"least": 0.3}),
)
CONFIG = StreamConfig("h264", 640, 360, profile="High", extradata=b"\x01\x64")


def job(pictures: int = 3, **fields: object) -> EngineJob:
    """One unit a picture, each of one packet of eight bytes that say its number."""
    units = tuple(DecodeUnit((Packet(n, 8 * n, 8, True),), (n,)) for n in range(pictures))
    values = {
        "config": CONFIG,
        "orientation": Orientation(),
        "units": units,
        "packets": fields.get("packets") or SharedBytes.of([n.to_bytes(8, "big") for n in range(pictures)]),
        "models": (),
        "deadline": time.monotonic() + 30,
    }
    return EngineJob(**(values | fields))  # type: ignore[arg-type]


def answer(job: EngineJob, manifests: tuple[Manifest, ...] = MANIFESTS) -> EngineResult:
    """What the engine makes of a job: scores that depend on the payload and the size of each packet, by every model."""
    names = {manifest.name: LabelNames.of(manifest) for manifest in manifests}
    frames = []
    for unit in job.units:
        for packet in unit.packets:
            payload = job.packets.read(packet.offset, packet.size)
            level = (int.from_bytes(payload, "big") % 97 + packet.size) / 200
            results = {
                name: FrameResult(
                    LabelScores(labels, np.linspace(0, level, len(labels), dtype=np.float32)),
                    (Region(labels.names[-1], level, 0.1, 0.2, 0.3, 0.4),) if packet.sample % 2 else (),
                )
                for name, labels in names.items()
            }
            frames.append(FrameOutcome(packet.sample, packet.key, results=results, thumbnail=payload * 2))
    now = time.monotonic()
    return EngineResult(tuple(frames), (StepTiming("decode", now, now + 0.25, 0.125, 1),), config=job.config)


@dataclass
class ScriptedEngine:
    """`Engine` whose every job runs `work`; remembers what it was given and how it ended."""

    work: Callable[[EngineJob], object] = lambda job: None
    manifests: tuple[Manifest, ...] = MANIFESTS
    healthy: bool = True
    decoders: int = 1
    jobs: list[EngineJob] = field(default_factory=list, repr=False)
    contexts: list[trace.SpanContext] = field(default_factory=list, repr=False)
    running: int = 0
    cancelled: int = 0
    closed: bool = False

    async def start(self) -> None:
        pass

    def info(self) -> EngineInfo:
        return EngineInfo("scripted", self.manifests, (DecoderState("fake", self.decoders, 8, ("h264", "vp9")),))

    def stats(self) -> EngineStats:
        return EngineStats(healthy=self.healthy)

    async def run(self, job: EngineJob) -> EngineResult:
        self.jobs.append(job)
        self.contexts.append(trace.get_current_span().get_span_context())
        self.running += 1
        try:
            work = self.work(job)
            if asyncio.iscoroutine(work):
                await work
            return answer(job, self.manifests)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed = True


def descriptors(pid: int | str = "self") -> Mapping[str, int]:
    """How many descriptors a process has open, by what they lead to: `memfd`, `socket`, …

    Memory that all fronts have for as long as they live is a kind of its own.
    """
    kinds: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        kind = "memfd" if target.startswith("/memfd:") else target.partition(":")[0]
        if target.startswith("/memfd:keyglance-fronts"):
            kind = "fronts"
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
