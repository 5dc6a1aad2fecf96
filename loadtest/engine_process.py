"""What it costs to have the engine in another process: jobs a second and milliseconds, with an engine that does no work.

`python -m loadtest.engine_process` runs the same jobs against that engine in the same process and through a connection to a
process of its own, from one and from two fronts, at several numbers of jobs at once. A job has the packets of `pictures`
keyframes; the answer has the scores of four models, as many labels in all as the installed ones have and more, and a few regions.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import Orientation, StreamConfig
from loadtest import report
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec, Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
from server.engine import Engine, EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.engine_process import codec
from server.engine_process.engine_host import EngineHost
from server.engine_process.remote_engine import RemoteEngine
from server.engine_process.wire import pair
from server.engine_stats import EngineStats
from server.timing import StepTiming

#: Labels of the four models: an ImageNet classifier and three small ones.
LABELS = (1000, 8, 20, 1)
PACKET = 60_000  # bytes of a keyframe of 720p
AT_ONCE = (1, 8, 32)


class IdleEngine:
    """`Engine` whose every job has the same scores at once."""

    healthy = True

    def __init__(self, pictures: int) -> None:
        self.jobs = 0
        self._manifests = tuple(_manifest(f"model-{n}", count) for n, count in enumerate(LABELS))
        generator = np.random.default_rng(1)
        names = {manifest.name: LabelNames.of(manifest) for manifest in self._manifests}
        rows = {name: generator.random((pictures, len(labels)), np.float32) for name, labels in names.items()}
        now = time.monotonic()
        self._result = EngineResult(
            tuple(
                FrameOutcome(
                    number, True, results={name: _found(name, labels, rows[name][number]) for name, labels in names.items()}
                )
                for number in range(pictures)
            ),
            tuple(StepTiming(step, now, now + 0.01, 0.001) for step in ("decode", "preprocess", "infer")),
            config=_CONFIG,
        )

    async def start(self) -> None:
        """Nothing."""

    def info(self) -> EngineInfo:
        """Four models."""
        return EngineInfo("idle", self._manifests, ())

    def stats(self) -> EngineStats:
        """None."""
        return EngineStats()

    async def run(self, job: EngineJob) -> EngineResult:
        """The same for each."""
        self.jobs += 1
        return self._result

    async def close(self) -> None:
        """Nothing."""


_CONFIG = StreamConfig("h264", 1280, 720, profile="High", extradata=bytes(40))


def _manifest(name: str, labels: int) -> Manifest:
    return fake_manifest(name, [LabelSpec(f"{name}-{n}") for n in range(labels)])


def _found(model: str, labels: LabelNames, row: np.ndarray[Any, Any]) -> FrameResult:
    """The last model finds two places on each picture."""
    regions = (Region(labels.names[0], 0.9, 0.1, 0.2, 0.3, 0.4), Region(labels.names[0], 0.8, 0.5, 0.2, 0.3, 0.4))
    return FrameResult(LabelScores(labels, row), regions if model == f"model-{len(LABELS) - 1}" else ())


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement: `at_once` jobs all the time for `seconds`."""

    at_once: int
    seconds: float
    pictures: int


async def drive(engine: Engine, load: Load) -> dict[str, Any]:
    """Latencies of jobs in milliseconds, and how many a second; packets are copied into shared memory for each, as by a call."""
    latencies: list[float] = []
    payload = os.urandom(PACKET)
    units = tuple(DecodeUnit((Packet(n, n * PACKET, PACKET, True),), (n,)) for n in range(load.pictures))
    end = time.monotonic() + load.seconds

    async def caller() -> None:
        while time.monotonic() < end:
            with SharedBytes.held([payload] * load.pictures, "packets") as packets:
                job = EngineJob(_CONFIG, Orientation(), units, packets, (), time.monotonic() + 60)
                begin = time.perf_counter()
                result = await engine.run(job)
                latencies.append(time.perf_counter() - begin)
                assert len(result.frames) == load.pictures
            await asyncio.sleep(0)

    begin, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(load.at_once)))
    took, cpu = time.perf_counter() - begin, time.process_time() - used
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3
    return {
        "jobs_per_second": round(len(latencies) / took, 1),
        "ms_p50": round(float(p50), 3),
        "ms_p99": round(float(p99), 3),
        "front_cpu_ms_per_job": round(cpu / len(latencies) * 1e3, 3),
    }


async def host(sockets: Sequence[socket.socket], pictures: int) -> None:
    """Serves the idle engine until its fronts have gone; prints milliseconds of processor time for each job."""
    engine = IdleEngine(pictures)
    served = EngineHost(engine)
    for number, sock in enumerate(sockets):
        served.attach(sock, f"front-{number}")
    served.open()
    begin = time.process_time()
    while served.fronts:  # noqa: ASYNC110, nobody is told when they go
        await asyncio.sleep(0.05)
    used = time.process_time() - begin
    await served.close()
    print(used / engine.jobs * 1e3, flush=True)


async def front(fd: int, load: Load) -> dict[str, Any]:
    """Drives the engine at the other end of a socket."""
    engine = RemoteEngine("engine-0")
    engine.attach(socket.socket(fileno=fd))
    await engine.start()
    await drive(engine, Load(load.at_once, 0.5, load.pictures))
    figures = await drive(engine, load)
    await engine.close()
    return figures


def remote(fronts: int, load: Load) -> dict[str, Any]:
    """The idle engine in its own process, driven by so many front processes at once."""
    pairs = [pair() for _ in range(fronts)]
    theirs = [there.fileno() for _, there in pairs]
    command = [sys.executable, "-m", "loadtest.engine_process", "--pictures", str(load.pictures), "--host", *map(str, theirs)]
    engine = subprocess.Popen(command, pass_fds=theirs, stdout=subprocess.PIPE, text=True)
    for _, there in pairs:
        there.close()
    spawn = mp.get_context("spawn")
    share = Load(max(1, load.at_once // fronts), load.seconds, load.pictures)
    running = []
    for ours, _ in pairs:
        mine, pipe = spawn.Pipe()
        process = spawn.Process(target=_front_process, args=(reduction.DupFd(ours.fileno()), share, pipe))
        process.start()
        running.append((process, mine))
    results = [mine.recv() for _, mine in running]
    for process, _ in running:
        process.join()
    for ours, _ in pairs:
        ours.close()
    out, _ = engine.communicate(timeout=60)
    jobs = sum(result["jobs_per_second"] for result in results)
    return {
        "fronts": fronts,
        "jobs_per_second": round(jobs, 1),
        "ms_p50": max(result["ms_p50"] for result in results),
        "ms_p99": max(result["ms_p99"] for result in results),
        "front_cpu_ms_per_job": round(sum(result["front_cpu_ms_per_job"] for result in results) / fronts, 3),
        "engine_cpu_ms_per_job": round(float(out), 3),
    }


def _front_process(descriptor: Any, load: Load, pipe: Pipe) -> None:
    pipe.send(asyncio.run(front(descriptor.detach(), load)))


def encoding(pictures: int) -> dict[str, float]:
    """Milliseconds of each of the four translations, and the sizes in bytes."""
    engine = IdleEngine(pictures)
    names = codec.label_names(engine.info().models)
    units = tuple(DecodeUnit((Packet(n, n * PACKET, PACKET, True),), (n,)) for n in range(pictures))
    with SharedBytes.allocate(pictures * PACKET) as packets:
        job = EngineJob(_CONFIG, Orientation(), units, packets, (), 1.0)
        sent = codec.encode_job(job, {})
        result = asyncio.run(engine.run(job))
        answered = codec.encode_result(result, names)
        return {
            "job_bytes": len(sent),
            "answer_bytes": len(answered),
            "encode_job_ms": _each(lambda: codec.encode_job(job, {})),
            "decode_job_ms": _each(lambda: codec.job_of(codec.parse_job(sent), packets)),
            "encode_answer_ms": _each(lambda: codec.encode_result(result, names)),
            "decode_answer_ms": _each(lambda: codec.decode_result(answered, names)),
        }


def _each(call: Any, times: int = 300) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return round(float(np.median(taken)) * 1e3, 4)


def main() -> None:
    """Measures and writes loadtest/results/engine_process.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=12, help="pictures of a job (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement (default: %(default)s)")
    parser.add_argument("--host", type=int, nargs="+", metavar="FD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        asyncio.run(host([socket.socket(fileno=fd) for fd in arguments.host], arguments.pictures))
        return
    figures: dict[str, Any] = {
        "pictures": arguments.pictures,
        "labels_by_model": LABELS,
        "packet_bytes": PACKET,
        "encoding": encoding(arguments.pictures),
        "measured": [],
    }
    for at_once in AT_ONCE:
        load = Load(at_once, arguments.seconds, arguments.pictures)
        row: dict[str, Any] = {"at_once": at_once}
        row["in_process"] = asyncio.run(drive(IdleEngine(arguments.pictures), load))
        row["processes"] = [remote(fronts, load) for fronts in (1, 2) if fronts <= at_once]
        figures["measured"].append(row)
        print(row, flush=True)
    print(f"written to {report.write('engine_process', figures)}")


if __name__ == "__main__":
    main()
