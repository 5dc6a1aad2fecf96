"""What the parts of `loadtest.gpu` share: where things lie, the clip of the goals, and a server of the default configuration."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from decoder_pool.containers import Indexer
from decoder_pool.decoder import DecodeUnit
from decoder_pool.limits import SourceLimits
from decoder_pool.opener import Opener
from decoder_pool.units import units
from keyglance.sampling import SamplingLimits, SamplingPolicy
from keyglance.video import Orientation
from loadtest.gpu_clips import PHONE, PackedClip, read_packed
from server.assembly import assemble
from server.config import Config
from server.engine import Engine, EngineJob
from server.lasting_objects import spare_the_collector
from server.lifecycle import Parts, Server, end_telemetry
from server.sources import WholeBytes, receive
from server.telemetry import Telemetry

#: Pictures that the goals look at: the clip has as many keyframes.
FRAMES = 12
_BIND = "127.0.0.1:0"
_FAR = 600.0  # seconds: no deadline of a benchmark's call


@dataclass
class Setup:
    """`models`: the folder of weights, `clips`: what `loadtest.gpu_clips` has written, `out`: where results go.

    `device` is the engine's, `effort` the share of the usual repetitions and seconds that is spent: less than 1
    to try it, more where the engine is a slow one.
    """

    models: Path
    clips: Path
    out: Path
    device: str = "gpu"
    effort: float = 1.0
    service: Service | None = field(default=None, repr=False)

    def times(self, usual: int) -> int:
        """So many repetitions, at least 2."""
        return max(2, round(usual * self.effort))

    def seconds(self, usual: float) -> float:
        """So long, at least a tenth of a second."""
        return max(0.1, usual * self.effort)

    @property
    def phone(self) -> Path:
        """The clip of the latency goals: 60 s of 720x1280, 12 keyframes."""
        return self.clips / PHONE

    def packed(self) -> dict[str, PackedClip]:
        """The other clips by name, cut into packets."""
        return {clip.name: clip for clip in read_packed(self.clips / "clips.json")}

    def config(self, models: Sequence[str] = ()) -> Config:
        """The default configuration with the device and, where `models` names some, those alone."""
        enabled = {"enabled": tuple(models)} if models else {}
        return Config.load(
            overrides={
                "engine": {"device": self.device},
                "models": {"folder": str(self.models), **enabled},
                "server": {"listen": _BIND},
            }
        )

    async def served(self) -> Service:
        """The server of the default configuration; started once, ended by `unserved`."""
        if self.service is None:
            self.service = await Service.start(self.config())
        return self.service

    async def unserved(self) -> None:
        """Ends the server, if there is one: nothing of it works or holds memory any more."""
        service, self.service = self.service, None
        if service is not None:
            await service.close()

    def figures(self, part: str) -> dict[str, Any] | None:
        """What a part has written to `out`, None where it has not or failed."""
        try:
            told = json.loads((self.out / f"gpu_{part}.json").read_text())
        except (OSError, ValueError):
            return None
        found = told.get(part)
        return found if isinstance(found, dict) and told.get("ended") == "complete" else None

    async def needed(self, part: str) -> dict[str, Any]:
        """As `figures`; RuntimeError where they are missing."""
        if (found := self.figures(part)) is None:
            raise RuntimeError(f"run the part {part!r} first: {self.out / f'gpu_{part}.json'} is not there, or it failed")
        return found


@dataclass
class Service:
    """A server on loopback in this process, and its parts. `starting`: seconds that it took; `taken`: MiB of the GPU."""

    config: Config
    telemetry: Telemetry
    parts: Parts
    server: Server
    starting: float
    taken: float | None

    @classmethod
    async def start(cls, config: Config) -> Self:
        """Serving when it returns."""
        telemetry = Telemetry.create(version=version("keyglance-server"))
        before = free_mib()
        begin = time.perf_counter()
        parts = assemble(config, telemetry)
        server = Server(config, telemetry, parts)
        try:
            await server.start()
        except BaseException:
            await server.close()
            await end_telemetry(telemetry)
            raise
        spare_the_collector()  # as a server does: a full collection in the middle of a benchmark stands still for 120 ms
        after = free_mib()
        taken = None if before is None or after is None else round(before - after, 1)
        return cls(config, telemetry, parts, server, round(time.perf_counter() - begin, 2), taken)

    @property
    def engine(self) -> Engine:
        """The engine, in process."""
        return self.parts.engine

    async def close(self) -> None:
        """Ends it."""
        await self.server.close()
        await end_telemetry(self.telemetry)


def free_mib() -> float | None:
    """Free memory of the GPU, None without one."""
    try:
        cupy = importlib.import_module("cupy")
        return float(cupy.cuda.runtime.memGetInfo()[0]) / 2**20
    except Exception:  # no CuPy, no driver, no device
        return None


async def jobs_of(
    content: bytes,
    count: int,
    *,
    frames: int = FRAMES,
    largest_gap: float = SamplingPolicy().largest_gap,
    models: Sequence[str] = (),
) -> list[EngineJob]:
    """A file's call as the engine gets it, `count` times with packets of its own, for whoever closes these."""
    opened = await Opener(Indexer()).open(receive(WholeBytes(content), most_bytes=len(content)), SourceLimits(), far())
    async with opened:
        chosen = await opened.plan(SamplingPolicy(frames=frames, largest_gap=largest_gap), SamplingLimits())
        wanted = [sample for run in chosen.runs for sample in run.samples]
        spare = {sample for run in chosen.runs for sample in run.samples[len(run.samples) - run.spare :]}
        jobs = []
        for _ in range(count):
            packets, listed = await opened.packets(wanted, spare)
            jobs.append(
                EngineJob(
                    config=opened.index.config,
                    orientation=opened.index.orientation,
                    units=units(chosen, listed),
                    packets=packets,
                    models=tuple(models),
                    deadline=far(),
                )
            )
    return jobs


def job_of(clip: PackedClip, *, models: Sequence[str] = ()) -> EngineJob:
    """The keyframes of a packed clip as a job."""
    keyframes = tuple(DecodeUnit(unit.packets[:1], (unit.packets[0].sample,)) for unit in clip.units)
    return EngineJob(clip.config, Orientation(), keyframes, clip.shared(), tuple(models), far())


def close_all(jobs: Sequence[EngineJob]) -> None:
    """Gives the packets' memory back."""
    for job in jobs:
        job.packets.close()


def far() -> float:
    """A deadline that does not matter."""
    return time.monotonic() + _FAR


def facts(commit: str | None) -> dict[str, Any]:
    """The commit measured, the GPU, and the versions of what drives it; what is not there is left out."""
    found: dict[str, Any] = {}
    for name in ("onnxruntime-gpu", "PyNvVideoCodec", "torch", "nvidia-cudnn-cu13", "nvidia-ml-py"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    try:
        cupy = importlib.import_module("cupy")
        told = cupy.cuda.runtime.getDeviceProperties(0)
        name = told["name"]
        found |= {
            "gpu": name.decode() if isinstance(name, bytes) else name,
            "memory_gib": round(told["totalGlobalMem"] / 2**30, 1),
            "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
            "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
            "cupy": cupy.__version__,
        }
    except Exception as error:
        found["gpu"] = f"none: {type(error).__name__}: {error}"
    return {"measured_commit": commit, "gpu": found}
