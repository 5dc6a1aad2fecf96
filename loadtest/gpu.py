"""The proof of the GPU path: `python -m loadtest.gpu --models FOLDER --clips FOLDER [--out FOLDER] [PART …]`.

Each part writes OUT/gpu_PART.json as soon as it is done: environment, versions, the commit given, every figure. A part that
fails, or takes too long, says so in its file, and the rest goes on. `summary` joins the parts that are there to OUT/gpu.json,
each goal with its value and whether it was met. CLIPS is what `loadtest.gpu_clips` has written. Parts by name:
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import functools
import importlib
import inspect
import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder_pool.nvdec.thread import StepThread
from loadtest import gpu_batching, gpu_service, report
from loadtest.gpu_setup import Setup, facts
from loadtest.gpu_summary import summary, table

Figures = dict[str, Any]
#: Runs something that blocks on a thread of the part's own.
InThread = Callable[[Callable[[], Figures]], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Part:
    """`work` gives the figures; `served` parts share one server, the others run where there is none. `limit` is in seconds."""

    work: Callable[[Setup, InThread], Awaitable[Figures]]
    says: str
    served: bool = False
    limit: float = 120.0


async def _alone(setup: Setup, in_thread: InThread) -> Figures:
    from loadtest import gpu_alone

    return await gpu_alone.alone(setup, in_thread)


async def _beside(setup: Setup, in_thread: InThread) -> Figures:
    from loadtest import gpu_beside

    return await gpu_beside.beside(setup, in_thread)


async def _reconfigure(setup: Setup, in_thread: InThread) -> Figures:
    from loadtest.gpu_bench import Bench
    from loadtest.gpu_decode import reconfigure

    async with Bench.opened(setup.clips) as bench:
        return await in_thread(functools.partial(reconfigure, bench))


async def _phone(setup: Setup, in_thread: InThread) -> Figures:
    from loadtest.gpu_bench import Bench
    from loadtest.gpu_phone import phone, simple_decoder

    async with Bench.opened(setup.clips) as bench:
        figures = await phone(bench, repeats=setup.times(30))
        return figures | await in_thread(functools.partial(simple_decoder, bench, repeats=setup.times(5)))


def _models(section: str) -> Callable[[Setup, InThread], Awaitable[Figures]]:
    async def work(setup: Setup, in_thread: InThread) -> Figures:
        from loadtest import gpu_models
        from models.repository import ModelRepository

        figures: Figures = {}
        bench = gpu_models.Bench(importlib.import_module("cupy"), ModelRepository(setup.models).load_all(gpu_models.NAMES))

        def run() -> Figures:
            gpu_models.SECTIONS[section](bench, figures)
            return figures

        return await in_thread(run)

    return work


def _served(work: Callable[[Setup], Awaitable[Figures]]) -> Callable[[Setup, InThread], Awaitable[Figures]]:
    return lambda setup, _: work(setup)


PARTS: Mapping[str, Part] = {
    "alone": Part(_alone, "the ceilings: models alone, decoders alone", limit=240),
    "beside": Part(_beside, "a picture's decoding beside models that keep the GPU busy, by the stream's priority"),
    "reconfigure": Part(_reconfigure, "one keyframe: alone, behind a reconfiguration, through a new decoder"),
    "phone": Part(_phone, "12 keyframes from bytes to frames by every road"),
    "parity": Part(_models("parity"), "pixels against the float64 reference"),
    "precision": Part(_models("precision"), "raw outputs against the CPU's, by precision"),
    "engine": Part(_served(gpu_service.engine), "one call through gRPC, step by step", served=True, limit=240),
    "throughput": Part(_served(gpu_service.throughput), "1 to 32 clips in flight, in process", served=True, limit=240),
    "batching": Part(
        _served(gpu_batching.batching), "batches across calls against one call a batch, 32 calls at once", served=True, limit=240
    ),
    "memory": Part(
        _served(gpu_service.memory), "memory planned and used, allocations in a thousand calls", served=True, limit=240
    ),
    "one_model": Part(_served(gpu_service.one_model), "16 clips in flight for one small model", limit=240),
}
SUMMARY = "summary"


class Run:
    """Parts one after the other. `hung` once a part's thread did not end in time: the process can then only be left."""

    def __init__(self, setup: Setup, commit: str | None) -> None:
        self._setup = setup
        self._commit = commit
        self.failed: list[str] = []
        self.hung = False

    async def part(self, name: str, part: Part) -> None:
        """Runs one and writes its file."""
        begin = time.perf_counter()
        figures: Figures = {}
        ended = "complete"
        try:
            if not part.served:
                await self._setup.unserved()
            async with asyncio.timeout(part.limit):
                figures = await part.work(self._setup, functools.partial(self._in_thread, part.limit))
        except (Exception, SystemExit) as error:
            ended = f"{type(error).__name__}: {str(error) or f'not done within {part.limit:g} s'}"
            self.failed.append(f"{name}: {ended}")
            traceback.print_exc()
            if isinstance(error, TimeoutError):
                faulthandler.dump_traceback()
            await self._give_up()
        seconds = round(time.perf_counter() - begin, 1)
        told = {**facts(self._commit), "ended": ended, "seconds": seconds, name: figures}
        path = report.write(f"gpu_{name}", told, directory=self._setup.out)
        print(f"{name}: {seconds} s, {path.name}: {ended}", flush=True)

    async def _give_up(self) -> None:
        """A server that a part failed on is no base for the next one."""
        try:
            async with asyncio.timeout(20):
                await self._setup.unserved()
        except Exception:
            traceback.print_exc()

    async def _in_thread(self, limit: float, work: Callable[[], Figures]) -> Figures:
        thread = StepThread("part")  # a daemon: a GPU that does not answer keeps nobody from ending
        step = thread.submit(work)
        thread.close()
        try:
            if not await step.wait(limit):
                raise TimeoutError
        finally:
            self.hung = self.hung or not step.done
        found: Figures = step.result()
        return found


async def run(setup: Setup, names: Sequence[str], commit: str | None) -> Run:
    """All parts named, in that order, then the server ends."""
    parts = Run(setup, commit)
    for name in names:
        if name != SUMMARY:
            await parts.part(name, PARTS[name])
    await parts._give_up()
    if SUMMARY in names:
        told = {"measured_commit": commit, **summary(setup.out)}
        report.write("gpu", told, directory=setup.out)
        print(table(told), flush=True)
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a part failed."""
    listed = "\n".join(f"  {name}: {part.says}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.gpu",
        description=f"{inspect.cleandoc(__doc__ or '')}\n{listed}\n  {SUMMARY}: all that is in OUT",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", type=Path, required=True, help="where the weights lie")
    parser.add_argument("--clips", type=Path, required=True, help="what loadtest.gpu_clips has written")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    parser.add_argument("--commit", default=report.commit(), help="what is measured, where this is no Git checkout")
    parser.add_argument("--device", choices=("gpu", "cpu", "auto"), default="gpu", help="the engine's; cpu to try the program")
    parser.add_argument("--effort", type=float, default=1.0, help="share of the usual repetitions and seconds")
    parser.add_argument("parts", nargs="*", metavar="PART", help="all, where none is named")
    options = parser.parse_args(arguments)
    names = options.parts or [*PARTS, SUMMARY]
    if unknown := [name for name in names if name not in (*PARTS, SUMMARY)]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join((*PARTS, SUMMARY))}")
    options.out.mkdir(parents=True, exist_ok=True)
    # A line a call, as a server in use writes them, but not where the figures are to be seen.
    logging.basicConfig(
        level=logging.INFO, filename=options.out / "gpu.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    setup = Setup(options.models, options.clips, options.out, options.device, options.effort)
    done = asyncio.run(run(setup, names, options.commit))
    for failed in done.failed:
        print(f"failed: {failed}", file=sys.stderr)
    if done.hung:
        sys.stdout.flush()
        os._exit(1)  # a thread still waits for the GPU
    return 1 if done.failed else 0


if __name__ == "__main__":
    sys.exit(main())
