"""The GPU server beside what a team would build on the same GPU: `python -m loadtest.baselines_gpu --models FOLDER CLIP`.

- a: PyNvVideoCodec's `SimpleDecoder` made anew for each call, keyframes one after the other, one inference for each picture.
- b: a `SimpleDecoder` for each caller, reconfigured for each call, all keyframes at once, one inference for each call.
- keyglance: the server in its own process, over gRPC, what the client sends.

All of them in one run, with the same models, the same precision, the same preprocessing on the GPU and CUDA graphs for one and
for a whole call's pictures; all inference is on the one thread that captured these. a and b have no service around them, are
told which pictures to look at, and read files on a RAM disk, where there is one, because `SimpleDecoder` is reconfigured only
with a path. CLIP is one file of one size without B-frames, such as that of `loadtest.mix_clips phone`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from decoder_pool.nvdec.gpu import Gpu, GpuUnusable
from decoder_pool.picture import Picture
from keyglance.mp4 import BytesSource, read_index
from keyglance.sampling import SamplingLimits, SamplingPolicy, plan
from loadtest import report
from loadtest.generator import Generator
from loadtest.gpu_alone import runners_for
from loadtest.gpu_setup import FRAMES, Setup, facts
from loadtest.load_summary import latencies
from loadtest.mix import CallClass, Mix
from loadtest.request_bytes import request_message
from loadtest.saturation import closed_step
from loadtest.server_process import ServerProcess
from loadtest.target import FAILURES, describe, environment
from models.fusion import FrameScores, Fusion
from models.model_runner import ModelRunner
from models.preprocess_cuda import locate
from models.result import FrameResult
from models.spec import Placement

_RAM_DISK = Path("/dev/shm")
#: A caller's way: labels one clip and gives their names.
Way = Callable[[], list[str]]


class Inference:
    """The models on a thread of their own: a batch of one call's pictures at a time, never of two calls.

    `runners`: makes and ends the models on that thread.
    """

    def __init__(self, runners: AbstractContextManager[list[ModelRunner]]) -> None:
        self._context = runners
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="infer")
        self._runners: list[ModelRunner] = []
        self._fusion: Fusion | None = None

    def __enter__(self) -> Self:
        self._runners = self._thread.submit(self._context.__enter__).result()
        self._fusion = Fusion([runner.manifest for runner in self._runners])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.submit(self._context.__exit__, kind, error, trace).result()
        self._thread.shutdown()

    def results(self, pictures: Sequence[Picture]) -> list[dict[str, FrameResult]]:
        """What each model says of each picture, from one batch; the pictures' memory may be used again afterwards."""
        read = self._thread.submit(self._run, pictures).result()
        seen: list[dict[str, FrameResult]] = [{} for _ in pictures]
        for runner, (outputs, placements) in zip(self._runners, read, strict=True):
            for row, result in enumerate(runner.head.read_batch(outputs, placements)):
                if isinstance(result, ValueError):
                    raise result
                seen[row][runner.manifest.name] = result
        return seen

    def labels(self, times: Sequence[float], results: Sequence[Mapping[str, FrameResult]]) -> list[str]:
        """Names of the labels that passed."""
        assert self._fusion is not None
        frames = [FrameScores(time, False, seen) for time, seen in zip(times, results, strict=True)]
        return sorted(label.name for label in self._fusion.fuse(frames, least_score=1.0).shown if label.passed)

    def _run(self, pictures: Sequence[Picture]) -> list[tuple[dict[str, Any], list[Placement]]]:
        located = [locate(picture) for picture in pictures]
        on_the_way = [runner.enqueue(located) for runner in self._runners]
        read = []
        for enqueued in on_the_way:
            outputs = {name: np.array(values) for name, values in enqueued.results.outputs().items()}
            enqueued.results.release()
            read.append((outputs, [prepared.placement for prepared in enqueued.prepared]))
        return read


class _View:
    """A plane as CuPy takes it: the library says its shape and strides as lists."""

    def __init__(self, view: Any) -> None:
        self._view = view  # the memory lives as long
        facts: Mapping[str, Any] = view.__cuda_array_interface__
        self.__cuda_array_interface__ = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}


def picture_of(frame: Any, width: int, height: int, asarray: Callable[[Any], Any]) -> Picture:
    """A frame of `SimpleDecoder` in its native NV12, 8 bits, where it lies; `asarray` is CuPy's."""
    luma, chroma = (asarray(_View(view)) for view in frame.cuda())
    luma = luma[..., 0] if luma.ndim == 3 else luma
    chroma = chroma if chroma.ndim == 3 and chroma.shape[2] == 2 else chroma.reshape(chroma.shape[0], -1, 2)
    return Picture((luma[:height, :width], chroma[: (height + 1) // 2, : (width + 1) // 2]), width, height)


class Clip:
    """A clip as two files of the same bytes, its pictures to be looked at by their place in the order of showing."""

    def __init__(self, content: bytes, folder: Path) -> None:
        self.content = content
        index = read_index(BytesSource(content))
        self.width, self.height = index.config.width, index.config.height
        frames = sorted(plan(index, SamplingPolicy(frames=FRAMES), SamplingLimits()).frames, key=lambda frame: frame.time)
        self.times = [frame.time for frame in frames]
        self.places = [frame.sample for frame in frames]
        if self.places != sorted(self.places) or not all(frame.keyframe for frame in frames):
            raise ValueError("a clip without B-frames is wanted, of which only keyframes are looked at")
        self.files = [folder / f"{number}.mp4" for number in range(2)]
        for file in self.files:
            file.write_bytes(content)


class Callers:
    """What each caller thread of a and b has: a CUDA stream, and for b its decoder."""

    def __init__(self, gpu: Gpu, clip: Clip, inference: Inference) -> None:
        self._gpu = gpu
        self._clip = clip
        self._inference = inference
        self._own = threading.local()

    def frame_by_frame(self) -> list[str]:
        """(a)"""
        decoder, stream = self._new_decoder(self._clip.files[0])
        results: list[dict[str, FrameResult]] = []
        for place in self._clip.places:
            (frame,) = decoder.get_batch_frames_by_index([place])
            stream.synchronize()
            results += self._inference.results([self._picture(frame)])
        return self._inference.labels(self._clip.times, results)

    def reconfigured(self) -> list[str]:
        """(b)"""
        if not hasattr(self._own, "decoder"):
            self._own.decoder, self._own.stream = self._new_decoder(self._clip.files[0])
            self._own.calls = 0
        self._own.calls += 1
        self._own.decoder.reconfigure_decoder(str(self._clip.files[self._own.calls % 2]))
        frames = self._own.decoder.get_batch_frames_by_index(self._clip.places)
        self._own.stream.synchronize()
        results = self._inference.results([self._picture(frame) for frame in frames])
        return self._inference.labels(self._clip.times, results)

    def _picture(self, frame: Any) -> Picture:
        return picture_of(frame, self._clip.width, self._clip.height, self._gpu.cupy.asarray)

    def _new_decoder(self, file: Path) -> tuple[Any, Any]:
        cupy = self._gpu.cupy
        cupy.cuda.Device(self._gpu.device).use()
        stream = cupy.cuda.Stream(non_blocking=True)
        decoder = self._gpu.codec.SimpleDecoder(
            str(file), gpu_id=self._gpu.device, cuda_context=self._gpu.context, cuda_stream=stream.ptr, use_device_memory=True
        )
        return decoder, stream


def closed_loop(way: Way, callers: int, seconds: float) -> dict[str, Any]:
    """Calls a second of so many callers, and their latency; the first call of each, which makes things, does not count."""
    taken: list[float] = []
    clock: list[float] = []
    ready = threading.Barrier(callers, action=lambda: clock.append(time.perf_counter()))

    def caller() -> list[str]:
        try:
            labels = way()
            ready.wait()
            while (sent := time.perf_counter()) < clock[0] + seconds:
                way()
                taken.append(time.perf_counter() - sent)
        except BaseException:
            ready.abort()  # else the others would wait for this one
            raise
        return labels

    with ThreadPoolExecutor(callers) as threads:
        futures = [threads.submit(caller) for _ in range(callers)]
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    rate = len(taken) / (time.perf_counter() - clock[0])
    return {"calls_per_s": round(rate, 2), "latency_ms": latencies(taken), "labels": futures[0].result()}


def rivals(gpu: Gpu, setup: Setup, clip: Clip, counts: Sequence[int], seconds: float) -> dict[str, dict[str, Any]]:
    """Figures of a and b by number of callers; one that failed says so, and the rest goes on."""
    rows: dict[str, dict[str, Any]] = {}
    runners = runners_for(setup, (1, len(clip.places)), (clip.width, clip.height), half=setup.config().gpu.half_precision)
    with Inference(runners) as inference:
        for name, made in (("a", Callers.frame_by_frame), ("b", Callers.reconfigured)):
            for count in counts:
                callers = Callers(gpu, clip, inference)
                try:
                    found = closed_loop(lambda made=made, callers=callers: made(callers), count, seconds)  # type: ignore[misc]
                except Exception as error:  # drivers and bindings raise whatever they like
                    traceback.print_exc()
                    found = {"failed": f"{type(error).__name__}: {error}"[:300]}
                rows.setdefault(name, {})[str(count)] = found
                print(f"{name}, {count} callers: {found.get('calls_per_s', found)}", flush=True)
    return rows


def ours(address: str, clip: Clip, counts: Sequence[int], seconds: float, processes: int) -> dict[str, Any]:
    """The same figures of the server."""
    request = request_message(clip.content, frames=len(clip.places)).SerializeToString()
    mix = Mix((CallClass("clip", request, timeout=(30.0, 30.0)),))
    rows = {}
    for count in counts:
        generator = Generator(address, processes=min(processes, count), connections=max(1, min(4, count // processes)))
        step = closed_step(generator, mix, count, seconds, seed=1)
        rows[str(count)] = {
            "calls_per_s": step["goodput_per_s"],
            "latency_ms": step["answered_ms"],
            "by_status": step["by_status"],
            "degradations": step["degradations"],
        }
        print(f"keyglance, {count} callers: {step['goodput_per_s']}", flush=True)
    return rows


def ratios(ways: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Our rate by each rival's, by number of callers, where both have one."""
    return {
        name: {
            count: round(ways["keyglance"][count]["calls_per_s"] / row["calls_per_s"], 3)
            for count, row in rows.items()
            if row.get("calls_per_s") and count in ways["keyglance"]
        }
        for name, rows in ways.items()
        if name != "keyglance"
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.baselines_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path)
    parser.add_argument("--models", type=Path, required=True, help="folder of weights")
    parser.add_argument("--callers", default="1,4,8,16", help="numbers of calls at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each way and number of callers")
    parser.add_argument("--processes", type=int, default=4, help="of our generator")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already; default: one is started")
    parser.add_argument("--config", type=Path, help="TOML file of the server to start")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="a setting of the server to start"
    )
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of baselines_gpu.json")
    parser.add_argument("--commit", default=report.commit(), help="what is measured, where this is no Git checkout")
    options = parser.parse_args(arguments)
    try:
        counts = [int(count) for count in options.callers.split(",")]
        gpu = Gpu.open(0)
        with ExitStack() as stack:
            ram = _RAM_DISK if _RAM_DISK.is_dir() else None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-", dir=ram)))
            clip = Clip(options.clip.read_bytes(), folder)
            setup = Setup(options.models, folder, options.out)
            ways = rivals(gpu, setup, clip, counts, options.seconds)
            variables = {"KEYGLANCE_MODELS__FOLDER": str(options.models.absolute()), **environment(options.set)}
            command = ["--config", str(options.config)] if options.config else []
            address = options.server
            if not address:
                server = ServerProcess(folder, arguments=command, environment=variables, start_timeout=300)
                address = stack.enter_context(server).address
            about = describe(address)
            ways["keyglance"] = ours(address, clip, counts, options.seconds, options.processes)
    except (GpuUnusable, *FAILURES) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    figures = {**facts(options.commit), "server": about, "pictures": len(clip.places), "seconds": options.seconds}
    figures |= {"ways": ways, "ours_to_theirs": ratios(ways)}
    print(figures["ours_to_theirs"])
    print(f"kept in {report.write('baselines_gpu', figures, directory=options.out)}")
    return 1 if any("failed" in row for rows in ways.values() for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
