"""The 12 keyframes of a minute of phone video, from the file's bytes in memory to frames on the GPU, by every road.

Ours reads the container, plans, copies the packets and has pooled decoders driven; beside it PyNvVideoCodec's `SimpleDecoder`,
made anew or reconfigured, with the keyframes asked for by index, and the whole clip decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from decoder_pool.decoder import Decoded, DecodeUnit, DrivenDecoder, Packet
from decoder_pool.pool import Lease
from decoder_pool.shared_bytes import SharedBytes
from keyglance import sampling
from keyglance.mp4 import BytesSource, read_index
from loadtest.gpu_bench import Bench, timed
from loadtest.gpu_clips import PHONE, PackedClip

DECODERS = (1, 2, 4, 7, 12)
_REPEATS = 30
_WARM = 5
_FRAMES = 12
_BATCH = 64  # frames that `SimpleDecoder` gives at a time
_RAM_DISK = Path("/dev/shm")


async def phone(
    bench: Bench,
    *,
    repeats: int = _REPEATS,
    counts: Sequence[int] = DECODERS,
    clip: str = PHONE,
    other: str = "h264_1280x720.mp4",
) -> dict[str, Any]:
    """By number of decoders the milliseconds of each step: `all` where every decoder was set to another size before, `same`
    where it had the clip's. Both from bytes to frames, until the whole device is idle.
    """
    content = (bench.directory / clip).read_bytes()
    between = bench.clips[other]
    rows: dict[str, Any] = {}
    units: list[DecodeUnit] = []
    with between.shared() as between_data:
        for count in counts:
            steps: dict[str, list[float]] = {}
            async with bench.pool(count, between.config) as pool:
                for number in range(_WARM + repeats):
                    leases = await pool.lease(between.config, deadline=time.monotonic() + 10, most=count)
                    await asyncio.gather(*(fan_out([lease], keyframes(between)[:1], between_data) for lease in leases))
                    changed = await _road(bench, pool, content, count)
                    units = changed.pop("units")
                    same = await _road(bench, pool, content, count)
                    if number >= _WARM:
                        for name, seconds in changed.items():
                            steps.setdefault(name, []).append(seconds)
                        steps.setdefault("same", []).append(same["all"])
            rows[f"{count} decoders"] = {name: timed(times) for name, times in steps.items()}
    rows["bytes"] = {"file": len(content), "keyframes": sum(packet.size for unit in units for packet in unit.packets)}
    return rows


async def _road(bench: Bench, pool: Any, content: bytes, count: int) -> dict[str, Any]:
    """Seconds of each step of one call; `units` are what was decoded."""
    begin = time.perf_counter()
    index = read_index(BytesSource(content))
    marks = [time.perf_counter()]
    plan = sampling.plan(index, sampling.SamplingPolicy(frames=_FRAMES), sampling.SamplingLimits())
    marks.append(time.perf_counter())
    data, units = cut(content, index, plan.runs)
    marks.append(time.perf_counter())
    leases = await pool.lease(index.config, deadline=time.monotonic() + 10, most=count)
    marks.append(time.perf_counter())
    kept = await _driven(leases, units, data)
    bench.gpu.cupy.cuda.Device().synchronize()
    marks.append(time.perf_counter())
    data.close()
    if (found := _released(kept)) != len(units):
        raise RuntimeError(f"{found} pictures of {len(units)}: {next((d.detail for d in kept if d.picture is None), '')}")
    names = ("index", "plan", "packets", "lease", "decode")
    found_steps = {name: right - left for name, left, right in zip(names, (begin, *marks), marks, strict=False)}
    return {**found_steps, "all": marks[-1] - begin, "units": units}


def cut(content: bytes, index: Any, runs: Sequence[Any]) -> tuple[SharedBytes, list[DecodeUnit]]:
    """The packets of the wanted samples, without spare ones."""
    parts, units, at = [], [], 0
    for run in runs:
        packets = []
        for sample in run.samples[: len(run.samples) - run.spare]:
            position, size = int(index.samples.position[sample]), int(index.samples.size[sample])
            parts.append(memoryview(content)[position : position + size])
            packets.append(Packet(sample, at, size, True))
            at += size
        units.append(DecodeUnit(tuple(packets), run.wanted))
    return SharedBytes.of(parts), units


def keyframes(clip: PackedClip) -> list[DecodeUnit]:
    """The first packet of each of a clip's units."""
    return [DecodeUnit(unit.packets[:1], (unit.packets[0].sample,)) for unit in clip.units]


async def fan_out(leases: Sequence[Lease], units: Sequence[DecodeUnit], data: SharedBytes) -> int:
    """Decodes all units over all leases, as the engine does, and gives all back: how many pictures there were."""
    return _released(await _driven(leases, units, data))


async def _driven(leases: Sequence[Lease], units: Sequence[DecodeUnit], data: SharedBytes) -> list[Decoded]:
    left, kept = deque(units), list[Decoded]()

    def take() -> DecodeUnit | None:
        with contextlib.suppress(IndexError):
            return left.popleft()
        return None

    async def work(lease: Lease) -> None:
        async with lease:
            await cast(DrivenDecoder, lease.decoder).drive(take, data, kept.append)

    await asyncio.gather(*(work(lease) for lease in leases))
    for decoded in kept:
        if decoded.picture is not None and decoded.picture.lease is not None and decoded.picture.lease.ready is not None:
            decoded.picture.lease.ready.synchronize()
    return kept


def _released(kept: Sequence[Decoded]) -> int:
    pictures = [decoded.picture for decoded in kept if decoded.picture is not None]
    for picture in pictures:
        if picture.lease is not None:
            picture.lease.release()
    return len(pictures)


def simple_decoder(bench: Bench, *, repeats: int = 5, clip: str = PHONE) -> dict[str, Any]:
    """PyNvVideoCodec's own decoder of files, which lie on a RAM disk: medians in ms until the device is idle."""
    codec, cupy = bench.gpu.codec, bench.gpu.cupy
    content = (bench.directory / clip).read_bytes()
    plan = sampling.plan(read_index(BytesSource(content)), sampling.SamplingPolicy(frames=_FRAMES), sampling.SamplingLimits())
    wanted = sorted(frame.sample for frame in plan.frames)  # decoding order is that of showing: the clip has no B-frames

    def timed_ms(work: Callable[[], int], times: int) -> dict[str, Any]:
        taken, pictures = [], 0
        for _ in range(times):
            begin = time.perf_counter()
            pictures = work()
            cupy.cuda.Device().synchronize()
            taken.append(time.perf_counter() - begin)
        return {"median": round(statistics.median(taken) * 1e3, 2), "n": len(taken), "pictures": pictures}

    with _copies(bench.directory / clip, 2) as (first, second):

        def keyframes_of(source: Any) -> Callable[[], int]:
            return lambda: len(codec.SimpleDecoder(source, gpu_id=bench.gpu.device).get_batch_frames_by_index(wanted))

        kept = codec.SimpleDecoder(str(first), gpu_id=bench.gpu.device)
        kept.get_batch_frames_by_index(wanted)
        files = itertools.cycle((second, first))

        def reconfigured() -> int:
            kept.reconfigure_decoder(str(next(files)))
            return len(kept.get_batch_frames_by_index(wanted))

        def everything() -> int:
            decoder, count = codec.SimpleDecoder(str(first), gpu_id=bench.gpu.device), 0
            while frames := decoder.get_batch_frames(_BATCH):
                count += len(frames)
            return count

        roads: dict[str, tuple[Callable[[], int], int]] = {
            "SimpleDecoder new, keyframes by index": (keyframes_of(str(first)), repeats),
            "SimpleDecoder new from bytes in memory, keyframes by index": (keyframes_of(content), repeats),
            "SimpleDecoder reconfigured, keyframes by index": (reconfigured, 4 * repeats),
            "SimpleDecoder new, every frame": (everything, min(3, repeats)),
        }
        rows: dict[str, Any] = {}
        for name, (work, times) in roads.items():
            try:
                rows[name] = timed_ms(work, times)
            except Exception as error:  # another road is worth its time all the same
                rows[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    return rows


@contextlib.contextmanager
def _copies(path: Path, count: int) -> Iterator[list[Path]]:
    """Copies of a file in memory, where this system has a file system for that."""
    with tempfile.TemporaryDirectory(dir=_RAM_DISK if _RAM_DISK.is_dir() else None) as folder:
        yield [Path(shutil.copy(path, Path(folder) / f"{number}{path.suffix}")) for number in range(count)]
