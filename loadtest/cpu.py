"""One call beside the bare work in it and beside the usual ways to do that work, all in one run on one machine.

- call: `Client.label` to a server in its own process, the clip's bytes over loopback, the answer back.
- bare: PyAV decodes the same pictures alone and nothing else, ONNX Runtime infers them in batches. The scaling between the
  two, which a call does as well, is not counted; "bare with scaling" does it with swscale and numpy.
- seek: OpenCV or PyAV seeks to each picture, then the models look at it, one by one.
- everything: PyAV decodes the clip frame by frame, the models look at the same pictures, one by one.

Every round runs each way once, so that a machine that grows slower does so for all; medians and their ratios are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from keyglance import Answer, Client
from loadtest import bare, clips, report
from loadtest.server_process import ServerFailed, ServerProcess
from models.repository import RepositoryError

ROOT = Path(__file__).parent.parent
#: What the whole call may cost beside the bare work.
GOAL = 1.15
STEPS = ("receive", "index", "sample", "decode", "preprocess", "infer", "fuse", "total")


def make_clip(width: int = 1280, height: int = 720, *, shots: int = 16, seconds: float = 2.0, fps: int = 25) -> bytes:
    """H.264 with a keyframe at the begin of each shot: photographs, each seen by a camera that moves."""
    count = round(seconds * fps)
    photographs = [clips.photograph(name) for name in ("coffee", "astronaut", "chelsea", "rocket")]
    turned = [np.ascontiguousarray(photographs[n % 4][:, :: -1 if n % 8 > 3 else 1]) for n in range(shots)]
    moving = chain.from_iterable(clips.pan(picture, count, width, height) for picture in turned)
    return clips.encode(moving, fps=fps, keyframe_interval=count, b_frames=2, options={"crf": "23"})


class Ways:
    """The ways to label one clip. Each gives nothing but the time it takes."""

    def __init__(self, client: Client, data: bytes, path: Path, frames: int) -> None:
        self._client = client
        self._data = data
        self._path = path
        self._frames = frames
        self._models = bare.BareModels()
        answer = self.call()
        if not all(frame.keyframe and not frame.skipped for frame in answer.frames):
            raise ValueError(f"{path.name}: only clips in which every picture looked at is a keyframe can be compared")
        self.times = [frame.time for frame in answer.frames]
        self._numbers = frozenset(frame.index for frame in answer.frames)
        self._shots = bare.decode_keyframes(data, self._numbers)
        if len(self._shots) != len(self.times):
            raise ValueError(f"{path.name}: the call looked at {len(self.times)} pictures, the bare way at {len(self._shots)}")
        self._tensors = self._models.prepare(self._shots)

    def call(self) -> Answer:
        """The whole call, as a caller sees it."""
        return self._client.label(self._data, frames=self._frames)

    def decode(self) -> None:
        """Bare decoding on one thread."""
        bare.decode_keyframes(self._data, self._numbers)

    def decode_threaded(self) -> None:
        """Bare decoding with as many threads as FFmpeg likes."""
        bare.decode_keyframes(self._data, self._numbers, threads=0)

    def prepare(self) -> None:
        """Scaling and normalising with swscale and numpy on one thread, which bare decoding and inference leave out."""
        self._models.prepare(self._shots)

    def infer(self) -> None:
        """Bare batched inference."""
        self._models.infer(self._tensors, batched=True)

    def decode_and_infer(self) -> None:
        """The bare work in a row."""
        self.decode()
        self.infer()

    def decode_scale_and_infer(self) -> None:
        """The bare work with the scaling that it needs, in a row."""
        self._models.infer(self._models.prepare(bare.decode_keyframes(self._data, self._numbers)), batched=True)

    def seek_opencv(self) -> None:
        """Seek and infer, one by one."""
        self._one_by_one(bare.seek_with_opencv(self._path, self.times))

    def seek_pyav(self) -> None:
        """Seek and infer, one by one."""
        self._one_by_one(bare.seek_with_pyav(self._data, self.times))

    def everything(self) -> None:
        """Decode the whole clip, infer one by one."""
        self._one_by_one(bare.decode_everything(self._data, self.times))

    def _one_by_one(self, shots: Iterable[bare.Shot]) -> None:
        seen = 0
        for shot in shots:
            self._models.infer(self._models.prepare([shot]), batched=False)
            seen += 1
        if seen != len(self.times):
            raise ValueError(f"{seen} pictures of {len(self.times)} were seen")


def measure(ways: Mapping[str, Callable[[], object]], rounds: int, at_once: int = 1) -> dict[str, list[float]]:
    """Milliseconds of each way in each round; with `at_once` above 1, until the last of so many threads is done."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(at_once) as threads:
        for _ in range(rounds):
            for name, way in ways.items():
                begin = time.perf_counter()
                if at_once == 1:
                    way()
                else:
                    for future in [threads.submit(way) for _ in range(at_once)]:
                        future.result()
                times[name].append((time.perf_counter() - begin) * 1e3)
                time.sleep(0.1)  # threads that spin for more work fall asleep and do not slow the next way
    return times


def steps(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Median wall and wait of each step, in milliseconds; steps overlap."""
    return {
        step: {
            "wall": median([timing.wall_ms for answer in answers for timing in answer.timings if timing.step == step]),
            "wait": median([timing.wait_ms for answer in answers for timing in answer.timings if timing.step == step]),
        }
        for step in STEPS
    }


def median(values: Sequence[float]) -> float:
    """The median, to 0.1; 0 of nothing."""
    return round(statistics.median(values), 1) if values else 0.0


def summary(times: Mapping[str, Sequence[float]], bare_ms: float) -> dict[str, dict[str, Any]]:
    """For each way its median, all its times, and how many times the bare work it costs."""
    return {
        name: {
            "median_ms": median(values),
            "of_bare": round(median(values) / bare_ms, 3),
            "all_ms": [round(v, 1) for v in values],
        }
        for name, values in times.items()
    }


def compare(ways: Ways, rounds: int, at_once: int) -> dict[str, Any]:
    """All figures for one clip."""
    answers: list[Answer] = []
    single = measure(
        {
            "call": lambda: answers.append(ways.call()),
            "bare decode": ways.decode,
            "bare decode, threaded": ways.decode_threaded,
            "bare infer": ways.infer,
            "scaling (not in bare)": ways.prepare,
            "bare with scaling": ways.decode_scale_and_infer,
            "seek, OpenCV": ways.seek_opencv,
            "seek, PyAV": ways.seek_pyav,
            "everything, PyAV": ways.everything,
        },
        rounds,
    )
    parts = [a + b for a, b in zip(single["bare decode"], single["bare infer"], strict=True)]
    several = measure(
        {
            "call": ways.call,
            "bare": ways.decode_and_infer,
            "bare with scaling": ways.decode_scale_and_infer,
            "seek, OpenCV": ways.seek_opencv,
            "seek, PyAV": ways.seek_pyav,
            "everything, PyAV": ways.everything,
        },
        max(3, rounds // 3),
        at_once,
    )
    return {
        "pictures": len(ways.times),
        "one": summary({"bare": parts, **single}, median(parts)),
        "at_once": {"calls": at_once, **summary(several, median(several["bare"]))},
        "steps_ms": steps(answers),
    }


def show(name: str, figures: Mapping[str, Any], console: Console) -> None:
    """The figures of one clip as tables."""
    at_once = figures["at_once"]
    table = Table(title=f"{name}, {figures['pictures']} pictures: medians", title_justify="left", box=None, pad_edge=False)
    for heading in ("way", "1 at a time", "of bare", f"{at_once['calls']} at once", "of bare"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way, row in figures["one"].items():
        other = at_once.get(way)
        more = (f"{other['median_ms']:.0f} ms", f"{other['of_bare']:.2f}") if other else ("", "")
        table.add_row(way, f"{row['median_ms']:.0f} ms", f"{row['of_bare']:.2f}", *more)
    console.print(table)
    walls = ", ".join(f"{step} {value['wall']:.1f}" for step, value in figures["steps_ms"].items())
    console.print(f"steps of a call, ms (they overlap): {walls}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.cpu", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "clips", type=Path, nargs="*", help="clips of your own; default: one of 1280x720 that is made, and bikes.mp4"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--no-keep", action="store_true", help="do not write loadtest/results/cpu.json")
    options = parser.parse_args(arguments)
    console = Console()
    results: dict[str, Any] = {}
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-cpu-")))
            server = stack.enter_context(ServerProcess(scratch))
            client = stack.enter_context(Client(server.address, retries=0, timeout=120))
            for path in options.clips or default_clips(scratch, console):
                ways = Ways(client, path.read_bytes(), path, options.frames)
                results[path.name] = compare(ways, options.rounds, options.at_once)
                show(path.name, results[path.name], console)
    except (OSError, ValueError, RepositoryError, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    ratios = {name: figures["one"]["call"]["of_bare"] for name, figures in results.items()}
    console.print(
        f"a whole call costs {', '.join(f'{ratio} ({name})' for name, ratio in ratios.items())} of the bare work; goal {GOAL}"
    )
    if not options.no_keep:
        kept = {"rounds": options.rounds, "goal_of_bare": GOAL, "clips": results}
        print(f"kept in {report.write('cpu', kept).relative_to(ROOT)}")
    return 0


def default_clips(scratch: Path, console: Console) -> list[Path]:
    """The clip that is made, and a real one where it was fetched."""
    made = scratch / "made-1280x720.mp4"
    with console.status("making a clip"):
        made.write_bytes(make_clip())
    real = ROOT / ".cache" / "clips" / "bikes.mp4"
    return [made, *([real] if real.exists() else [])]


if __name__ == "__main__":
    sys.exit(main())
