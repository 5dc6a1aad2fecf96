"""Breaks MP4 files in one place at a time and reads them: `python -m loadtest.fuzz_mp4 --inputs 1000000`.

Box trees come from a builder (every feature that the reader knows) and, where there is one, from the corpus; a mutation
changes, removes, doubles, moves, wraps, cuts or fills a box, or bytes in it. Whatever comes, `keyglance.mp4.read_index` may
give an index that holds together, `Declined`, or an error of `keyglance.errors`. Anything else is kept and fails the run.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil

from keyglance.errors import RequestError
from keyglance.mp4 import Declined, Mp4Limits, read_index
from keyglance.video import VideoIndex
from loadtest import report
from tests.mp4 import build

#: Boxes that hold boxes, and the bytes before these.
_BOXES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf", b"edts", b"dinf", b"tref", b"sinf", b"schi")
_ENTRIES = (b"avc1", b"avc3", b"hvc1", b"hev1", b"av01", b"vp09", b"mp4v", b"encv")
_INNER = dict.fromkeys(_BOXES, 0) | {b"stsd": 8, b"dref": 8} | dict.fromkeys(_ENTRIES, 78)
#: Longer payloads are holes: nothing may read them.
_HOLE = 1 << 12
_MOST_TOP = 60
_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 255, 256, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
#: Seconds of processor time.
_SLOW = 1.0

Part: TypeAlias = bytes | int  # an int is a hole of so many bytes


@dataclass(slots=True)
class Node:
    """A box: bytes, then boxes, or bytes alone, or a hole."""

    kind: bytes
    head: Part = b""
    inner: list[Node] | None = None
    size: int | None = None  # what it claims, where that is a lie
    wide: bool = False

    def copy(self) -> Node:
        """A copy of the whole tree."""
        inner = None if self.inner is None else [node.copy() for node in self.inner]
        return Node(self.kind, self.head, inner, self.size, self.wide)


class Sparse:
    """A source of parts; its holes are zeros."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts: list[Part] = []
        self._starts: list[int] = []
        self.size = 0
        for part in parts:
            length = part if isinstance(part, int) else len(part)
            if length:
                self._parts.append(part)
                self._starts.append(self.size)
                self.size += length

    def read(self, offset: int, size: int) -> bytes:
        """See `keyglance.mp4.RandomAccess`."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        found = []
        at = bisect.bisect_right(self._starts, offset) - 1
        while offset < end:
            part, start = self._parts[at], self._starts[at]
            length = part if isinstance(part, int) else len(part)
            stop = min(end, start + length)
            found.append(bytes(stop - offset) if isinstance(part, int) else part[offset - start : stop - start])
            offset, at = stop, at + 1
        return b"".join(found) if len(found) != 1 else found[0]

    def bytes(self) -> bytes:
        """All of it."""
        return self.read(0, self.size)


def parse(data: bytes, start: int = 0, end: int | None = None) -> list[Node]:
    """The box tree of a well-formed file."""
    end = len(data) if end is None else end
    nodes: list[Node] = []
    while end - start >= 8:
        size, kind = struct.unpack_from(">I4s", data, start)
        body, wide = start + 8, size == 1
        if wide:
            size, body = int.from_bytes(data[body : body + 8], "big"), body + 8
        stop = end if size == 0 else start + size
        if stop < body or stop > end:
            break
        if kind in _INNER and body + _INNER[kind] <= stop:
            first = body + _INNER[kind]
            nodes.append(Node(kind, data[body:first], parse(data, first, stop), wide=wide))
        elif stop - body > _HOLE and kind not in _TABLES:
            nodes.append(Node(kind, stop - body, wide=wide))
        else:
            nodes.append(Node(kind, data[body:stop], wide=wide))
        start = stop
    return nodes


_TABLES = (b"stts", b"ctts", b"stss", b"stsz", b"stz2", b"stsc", b"stco", b"co64", b"sbgp", b"sdtp", b"elst", b"trun", b"senc")


def write(nodes: Sequence[Node]) -> list[Part]:
    """The parts of a file."""
    parts: list[Part] = []
    for node in nodes:
        inner = write(node.inner) if node.inner is not None else []
        length = (node.head if isinstance(node.head, int) else len(node.head)) + sum(
            part if isinstance(part, int) else len(part) for part in inner
        )
        if node.wide:
            size = 16 + length if node.size is None else node.size
            parts.append(struct.pack(">I4sQ", 1, node.kind, size & (1 << 64) - 1))
        else:
            size = 8 + length if node.size is None else node.size
            parts.append(struct.pack(">I4s", size & 0xFFFFFFFF, node.kind))
        parts.append(node.head)
        parts += inner
    return parts


def _lists(nodes: list[Node]) -> Iterator[list[Node]]:
    yield nodes
    for node in nodes:
        if node.inner is not None:
            yield from _lists(node.inner)


Mutation: TypeAlias = Callable[[random.Random, list[Node], int, "Seeds"], None]


def _lie_about_size(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    node.wide = rnd.random() < 0.3
    node.size = rnd.choice((*_NUMBERS, rnd.randrange(1 << 16), 1 << 63, (1 << 64) - 1))


def _rename(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    nodes[at].kind = rnd.choice(seeds.kinds)


def _remove(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    del nodes[at]


def _double(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    nodes[at:at] = [nodes[at]] * rnd.choice((1, 1, 1, 2, 50, 300))


def _move(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    nodes.insert(rnd.randrange(len(nodes)), nodes.pop(at))


def _wrap(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    kind = rnd.choice((node.kind, *_INNER))
    for _ in range(rnd.choice((1, 2, 10, 100))):
        node = Node(kind, bytes(_INNER.get(kind, 0)), [node])
    nodes[at] = node


def _transplant(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    other = rnd.choice([each for each in _lists(rnd.choice(seeds.trees)) if each])
    nodes.insert(at, rnd.choice(other).copy())


def _cut(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    if isinstance(node.head, bytes) and node.head:
        node.head = node.head[: rnd.randrange(len(node.head))]


def _fill(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    if isinstance(node.head, bytes):
        node.head += rnd.choice((bytes(4), b"\xff" * 8, rnd.randbytes(rnd.randrange(40)), node.head * 3))[:100_000]


def _number(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    if isinstance(node.head, bytes) and len(node.head) >= 4:
        # Counts, versions and flags are in front: they matter most.
        place = 4 * rnd.randrange(min(len(node.head) // 4, rnd.choice((3, 6, 1 << 20))))
        value = rnd.choice(_NUMBERS) if rnd.random() < 0.7 else rnd.randrange(1 << 32)
        node.head = node.head[:place] + value.to_bytes(4, "big") + node.head[place + 4 :]


def _bytes(rnd: random.Random, nodes: list[Node], at: int, seeds: Seeds) -> None:
    node = nodes[at]
    if isinstance(node.head, bytes) and node.head:
        changed = bytearray(node.head)
        for _ in range(rnd.choice((1, 1, 2, 8))):
            changed[rnd.randrange(min(len(changed), rnd.choice((16, 1 << 20))))] ^= 1 << rnd.randrange(8)
        node.head = bytes(changed)


_MUTATIONS: tuple[Mutation, ...] = (
    _lie_about_size, _rename, _remove, _double, _move, _wrap, _transplant, _cut, _fill, _number, _number, _number, _bytes, _bytes,
)  # fmt: skip


@dataclass(slots=True)
class Seeds:
    """Files to break."""

    trees: list[list[Node]] = field(default_factory=list)
    kinds: list[bytes] = field(default_factory=list)

    def add(self, data: bytes) -> None:
        """One more file; of long ones the first boxes."""
        tree = parse(data)[:_MOST_TOP]
        if tree:
            self.trees.append(tree)
            self.kinds = sorted({*self.kinds, *(node.kind for nodes in _lists(tree) for node in nodes)})

    def broken(self, rnd: random.Random) -> Sparse:
        """One of the files, broken in one place, sometimes in a few."""
        tree = [node.copy() for node in rnd.choice(self.trees)]
        for _ in range(rnd.choice((1, 1, 1, 1, 1, 2, 4))):
            filled = [nodes for nodes in _lists(tree) if nodes]
            if not filled:
                break
            weights = [len(nodes) for nodes in filled]
            nodes = rnd.choices(filled, weights)[0]
            rnd.choice(_MUTATIONS)(rnd, nodes, rnd.randrange(len(nodes)), self)
        parts = write(tree)
        if rnd.random() < 0.05:
            whole = Sparse(parts)
            return Sparse([whole.read(0, rnd.randrange(min(whole.size, 1 << 20) + 1))])
        return Sparse(parts)


def built() -> Iterator[bytes]:
    """Files that use every feature that the reader knows."""
    clip = build.group_of_pictures(40, every=10, reorder=512)
    sound = build.Track([build.Sample(20, 1024) for _ in range(30)], 9, b"soun", 48000, [build.box(b"mp4a", bytes(28))])
    edits = build.edit_list([(500, -1, 1 << 16), (800, 512, 1 << 16), (400, 5120, 0)], 1)
    groups = build.full(b"sbgp", 0, 0, b"rap ", build.u32(1, 5, 1)) + build.full(b"sbgp", 1, 0, b"roll", build.u32(0, 1, 5, 1))
    groups += build.full(b"sgpd", 1, 0, b"roll", build.u32(2, 1), build.u16(3))
    more = groups + build.table(b"stps", [(3,)]) + build.full(b"sdtp", 0, 0, b"\x20" * 40)
    look = [
        build.box(b"pasp", build.u32(4, 3)),
        build.box(b"colr", b"nclx", build.u16(9, 16, 9), b"\x80"),
        build.box(b"clap", build.u32(300, 1, 200, 1, 0, 1, 0, 1)),
    ]
    esds = build.full(b"esds", 0, 0, bytes.fromhex("0315000100 040d2011000000000000000000000000 0503000001".replace(" ", "")))
    encrypted = build.visual_entry(b"encv", 320, 240, build.protection(b"avc1", build.tenc()))
    yield build.movie([build.Track(clip, edits=edits, more=more, entries=[build.visual_entry(b"avc1", 320, 240, *look)]), sound])
    yield build.movie([sound, build.Track(clip, wide=True, version=1), build.Track(clip, 3)], order="moov-last")
    yield build.movie([build.Track(clip, compact=16, entries=[build.visual_entry(b"mp4v", 64, 64, esds)])])
    yield build.movie([build.Track([build.Sample(7) for _ in range(9)], compact=4)])
    halves = [build.Sample(50, entry=1 + n // 20) for n in range(40)]
    yield build.movie([build.Track(halves, chunk=20, entries=[build.visual_entry(), encrypted])])
    pieces = [build.fragment(clip[at : at + 10], at * 512, flags=0xF00) for at in range(0, 40, 10)]
    yield build.fragmented(build.Track(), pieces)
    yield build.fragmented(build.Track(entries=[encrypted, build.visual_entry()]), pieces)
    bare = build.moof(
        build.box(b"traf", build.tfhd(2, 0x18, build.u32(1024, 20)), build.trun(clip[:5], offset=100, flags=0)),
        build.box(b"traf", build.tfhd(1, 0x1, build.u64(2000)), build.tfdt(0, 0), build.trun(clip[:9], offset=None, first=0)),
        build.box(
            b"traf",
            build.tfhd(1, 0x22, build.u32(1, 0)),
            build.trun(clip[:9], offset=None, flags=0x300),
            build.full(b"senc", 0, 0),
        ),
    )
    yield build.fragmented(
        build.Track(), [bare, build.box(b"mdat", bytes(4000))], defaults=build.mvex(build.trex(1), build.trex(2))
    )
    yield build.movie([build.Track(clip)], extra=build.mvex()) + pieces[0]


def complaint(index: VideoIndex, size: int, limits: Mp4Limits) -> str:
    """What is wrong with an index, empty if it holds together."""
    samples = index.samples
    count = len(samples)
    arrays = (samples.position, samples.size, samples.time, samples.duration, samples.flags)
    if not count or any(len(array) != count for array in arrays):
        return f"arrays of {[len(array) for array in arrays]}"
    if [str(array.dtype) for array in arrays] != ["int64", "int64", "float64", "float64", "uint8"]:
        return f"types {[str(array.dtype) for array in arrays]}"
    if count > limits.samples:
        return f"{count} samples"
    if samples.size.min() <= 0 or samples.position.min() < 0 or (samples.position + samples.size).max() > size:
        return "samples outside the file"
    if not (np.isfinite(samples.time).all() and np.isfinite(samples.duration).all()) or samples.duration.min() < 0:
        return "times that are none"
    if samples.flags.max() > 15 or (samples.flags & 2).all():
        return "flags"
    if not 0 <= index.duration <= limits.seconds or not np.isclose(samples.time[(samples.flags & 2) == 0].min(), 0):
        return f"duration {index.duration}"
    if len(index.notes) > 32 or any(len(note) > 300 or not note.isprintable() for note in index.notes):
        return "notes"
    if not 0 <= index.track < limits.tracks or len(index.config.extradata) > 1 << 20 or not index.config.codec:
        return "configuration"
    return ""


@dataclass(slots=True)
class Figures:
    """What came out of a run."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest_ms: float = 0.0
    slowest_input: int = -1
    over_a_second: int = 0
    reading_seconds: float = 0.0
    memory_mib: float = 0.0

    def add(self, more: Figures) -> None:
        """Takes in the figures of another part of the run."""
        self.outcomes += more.outcomes
        self.failures += more.failures
        if more.slowest_ms > self.slowest_ms:
            self.slowest_ms, self.slowest_input = more.slowest_ms, more.slowest_input
        self.over_a_second += more.over_a_second
        self.reading_seconds += more.reading_seconds
        self.memory_mib = max(self.memory_mib, more.memory_mib)


def run(seeds: Seeds, inputs: int, seed: int, figures: Figures, first: int = 0, kept: Path | None = None) -> None:
    """Reads `inputs` broken files; the n-th of a seed is always the same one."""
    limits = Mp4Limits()
    for number in range(first, first + inputs):
        source = seeds.broken(random.Random(f"{seed}:{number}"))
        failure = ""
        start = time.thread_time()  # the reader waits for nothing: its own work, whoever else is on the machine
        try:
            index = read_index(source, limits)
        except Declined:
            outcome = "Declined"
        except RequestError as error:
            outcome = type(error).__name__
            if "\n" in error.message or len(error.message) > 500:
                failure = f"message of {len(error.message)} characters"
        except Exception as error:  # what the run is for
            outcome, failure = "another exception", "".join(traceback.format_exception(error)[-2:])
        else:
            outcome, failure = "index", complaint(index, source.size, limits)
        took = time.thread_time() - start
        figures.reading_seconds += took
        figures.outcomes[outcome] += 1
        if took * 1000 > figures.slowest_ms:
            figures.slowest_ms, figures.slowest_input = took * 1000, number
        figures.over_a_second += took > _SLOW
        if failure:
            figures.failures.append({"input": number, "what": failure[-600:]})
            if kept is not None and len(figures.failures) <= 20 and source.size < 1 << 24:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{seed}-{number}.mp4").write_bytes(source.bytes())


def corpus_files(folder: Path) -> Iterator[bytes]:
    """The files of the family in a folder."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_size >= 8:
            data = path.read_bytes()
            if data[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"moof", b"styp"):
                yield data


def gathered(corpus: Path) -> Seeds:
    """The built files and those of the corpus, if it is there."""
    seeds = Seeds()
    for data in built():
        seeds.add(data)
    if corpus.is_dir():
        for data in corpus_files(corpus):
            seeds.add(data)
    return seeds


@functools.cache
def _gathered_once(corpus: Path) -> Seeds:
    return gathered(corpus)


def part(corpus: Path, inputs: int, seed: int, first: int, kept: Path | None) -> Figures:
    """A part of a run, in a process of its own or not; with the memory that the process has afterwards."""
    figures = Figures()
    run(_gathered_once(corpus), inputs, seed, figures, first, kept)
    figures.memory_mib = round(psutil.Process().memory_info().rss / 2**20, 1)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code is 1 if anything but an index or an error of ours came out."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fuzz_mp4", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=os.environ.get("KEYGLANCE_CORPUS") or "../shared/corpus")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    parser.add_argument("--name", default="fuzz_mp4", help="of the JSON file in loadtest/results")
    options = parser.parse_args(arguments)

    made, all_seeds = len(list(built())), len(gathered(options.corpus).trees)
    figures, memory, step = Figures(), [], max(1, -(-options.inputs // 100))
    begin = time.monotonic()
    starts = range(0, options.inputs, step)
    arguments_of_parts = [
        (options.corpus, min(step, options.inputs - first), options.seed, first, options.keep) for first in starts
    ]
    with contextlib.ExitStack() as stack:
        parts: Iterable[Figures]
        if options.jobs == 1:
            parts = itertools.starmap(part, arguments_of_parts)
        else:
            context = multiprocessing.get_context("spawn")
            processes = stack.enter_context(concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context))
            parts = processes.map(part, *zip(*arguments_of_parts, strict=True))
        for number, found in enumerate(parts, 1):
            figures.add(found)
            memory.append(found.memory_mib)
            done = f"{min(options.inputs, number * step):,} of {options.inputs:,}"
            print(f"\r{done}, {len(figures.failures)} failures", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    path = report.write(
        options.name,
        {
            "inputs": options.inputs,
            "seed": options.seed,
            "seeds": {"built": made, "corpus": all_seeds - made},
            "outcomes": dict(figures.outcomes.most_common()),
            "failures": len(figures.failures),
            "first_failures": figures.failures[:20],
            "slowest_ms": round(figures.slowest_ms, 2),
            "slowest_input": figures.slowest_input,
            "over_a_second": figures.over_a_second,
            "mean_reading_ms": round(1000 * figures.reading_seconds / max(1, options.inputs), 4),
            "seconds": round(time.monotonic() - begin, 1),
            "memory_mib": memory,
        },
    )
    print(f"{options.inputs:,} inputs, {len(figures.failures)} failures, slowest {figures.slowest_ms:.1f} ms: {path}")
    return 1 if figures.failures or figures.over_a_second else 0


if __name__ == "__main__":
    sys.exit(main())
