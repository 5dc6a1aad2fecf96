"""Hardware decoding measured and proven on a GPU: `python -m loadtest.gpu_decode CLIPS OUT.json [PART …]`.

CLIPS is what `loadtest.gpu_clips` has written. Parts: parity, reuse, reconfigure, phone, damage, corpus, faults,
leaks; all where none is named. Every number is of this run; times are medians in milliseconds on this process' clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoder_pool.decoder import DecoderBroken, DecodeUnit, Packet
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.gpu import HardwareSession, bounds_of_key
from decoder_pool.nvdec.stream import HardwareStream
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import KeyglanceError
from keyglance.video import StreamConfig
from loadtest import report
from loadtest.gpu_bench import SIZE_CLASSES, Bench, decoded_by, difference, host, machine, timed
from loadtest.gpu_clips import PackedClip, read_packed
from loadtest.gpu_phone import fan_out, keyframes, phone

_REPEATS = 30
_DAMAGED = 260
_LEASES = 1000


async def parity(bench: Bench) -> dict[str, Any]:
    """Every picture of every clip, by hardware and by FFmpeg; what hardware does not take is told."""
    rows: dict[str, Any] = {}
    bench = replace(bench, every_codec=True)
    async with bench.pool(8) as pool:
        for clip in bench.clips.values():
            if reason := pool.factory.refuses(clip.config):
                rows[clip.name] = {"refused": reason}
                continue
            try:
                rows[clip.name] = await _compare(pool, bench.software, clip)
            except DecoderBroken as error:
                rows[clip.name] = {"raised": str(error)[:200]}
    return rows


async def _compare(pool: DecoderPool, software: DecoderPool, clip: PackedClip) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    largest, reasons = 0, Counter[str]()
    with clip.shared() as data:
        for unit in clip.units:
            mine, theirs = await asyncio.gather(
                decoded_by(pool, clip.config, unit, data), decoded_by(software, clip.config, unit, data)
            )
            expected = {decoded.sample: (decoded, planes) for decoded, planes in theirs}
            for decoded, planes in mine:
                reference, other = expected[decoded.sample]
                counts["wanted"] += 1
                clean = other is not None and reference.stand_in is None
                if planes is None:
                    kind = "damaged" if decoded.damaged else "missing"
                    counts[f"{kind} in hardware, {'good' if clean else 'not good'} in software"] += 1
                    reasons[decoded.detail[:120]] += 1
                elif not clean:
                    counts["good in hardware, not good in software"] += 1
                    reasons[f"software: {reference.detail[:100]}"] += 1
                else:
                    apart = difference(planes, other)
                    counts["equal" if apart == 0 else "unequal"] += 1
                    largest = max(largest, apart) if apart >= 0 else 999
    return {**counts, "largest difference": largest, "reasons": dict(reasons.most_common(4))}


async def reuse(bench: Bench) -> dict[str, Any]:
    """One decoder over changing sizes beside a new one for each, bit for bit; first up, then down, then mixed."""
    groups = {
        "h264": (
            "h264_640x530 h264_640x532 h264_720x1280 h264_1280x720 h264_b_frames_1280x720 h264_16_references_1280x720 "
            "h264_1280x720 h264_16_references_1280x720 h264_640x530 h264_3840x2160 h264_640x360 h264_1920x1080 h264_48x48 "
            "h264_640x532 h264_16_references_1280x720"
        ),
        "hevc": "hevc_640x360 hevc_640x362 hevc_640x360",
        "hevc, 10 bits": "hevc_10bit_640x360 hevc_10bit_1280x720 hevc_10bit_640x360",
        "mpeg4": "mpeg4_640x360 mpeg4_1280x720 mpeg4_640x360",
    }
    rows: dict[str, Any] = {}
    bench = replace(bench, every_codec=True)
    for name, members in groups.items():
        clips = [bench.clips[file] for stem in members.split() for file in bench.clips if file.startswith(stem + ".")]
        factory = bench.factory()
        one_class = DecoderKey.of(clips[0].config, SIZE_CLASSES)._replace(size_class=1440 if name == "mpeg4" else 4096)
        kept = factory.make(one_class)
        await kept.start()
        counts: Counter[str] = Counter()
        for clip in clips:
            fresh = factory.make(one_class)
            await fresh.start()
            with clip.shared() as data:
                for decoder in (kept, fresh):
                    await decoder.configure(clip.config)
                for unit in clip.units:
                    pairs = []
                    for decoder in (kept, fresh):
                        found = {}
                        async with aclosing(decoder.decode(unit, data)) as pictures:
                            async for decoded in pictures:
                                found[decoded.sample] = host(decoded.picture) if decoded.picture is not None else []
                        pairs.append(found)
                    for sample, planes in pairs[0].items():
                        counts["equal" if planes and difference(planes, pairs[1][sample]) == 0 else "unequal"] += 1
            await fresh.close()
        await kept.close()
        factory.close()
        rows[name] = {"clips": len(clips), **counts}
    return rows


def reconfigure(bench: Bench) -> dict[str, Any]:
    """A 720p keyframe on one decoder, from packet to arena: alone, behind a reconfiguration, and through a new decoder."""
    big, small = bench.clips["h264_1280x720.mp4"], bench.clips["h264_640x360.mp4"]
    key = DecoderKey.of(big.config, SIZE_CLASSES)
    factory = bench.factory()
    bounds = bounds_of_key(key, factory.capabilities["h264", 8, "420"])
    slot = asyncio.run(bench.arena.lease(1280 * 720 * 3 // 2))
    units = {}
    for clip in (big, small):
        stream = HardwareStream(clip.config, bounds)
        payloads = [clip.data[u.packets[0].offset : u.packets[0].offset + u.packets[0].size] for u in clip.units]
        units[clip.name] = [feed for p in payloads if (feed := stream.feed(p, key=True)) is not None]

    def decode(session: HardwareSession, name: str, number: int) -> None:
        feed = units[name][number % len(units[name])]
        session.follow(feed.surface, feed.sequence)
        (frame,) = session.feed(feed.data).frames
        session.copy(frame, feed.surface, slot)

    session = HardwareSession(bench.gpu, key, bounds, bench.watch)
    session.open()
    session.warm_up()
    for name in (big.name, small.name) * 2:
        decode(session, name, 0)
    alone, again, announced, new = [], [], [], []
    for number in range(_REPEATS):
        decode(session, big.name, 0)
        begin = time.perf_counter()
        decode(session, big.name, 1)  # the same keyframe in every measurement
        alone.append(time.perf_counter() - begin)
        decode(session, small.name, number)
        begin = time.perf_counter()
        session.follow(units[big.name][1].surface, units[big.name][1].sequence)
        announced.append(time.perf_counter() - begin)
        decode(session, big.name, 1)
        again.append(time.perf_counter() - begin)
    session.close()
    for _ in range(5):
        begin = time.perf_counter()
        session = HardwareSession(bench.gpu, key, bounds, bench.watch)
        session.open()
        decode(session, big.name, 1)
        new.append(time.perf_counter() - begin)
        session.close()
    slot.release()
    factory.close()
    medians = [statistics.median(times) for times in (alone, again, new)]
    return {
        "keyframe alone": timed(alone),
        "reconfigured, then the keyframe": timed(again),
        "of that, the call that reconfigures": timed(announced),
        "new decoder, then the keyframe": timed(new),
        "reconfigured / alone": round(medians[1] / medians[0], 3),
        "new / reconfigured": round(medians[2] / medians[1], 1),
    }


def _broken(payload: bytes, number: int) -> tuple[str, bytes]:
    """One way to damage a keyframe, by its number; headers in its first bytes stay whole."""
    chance = random.Random(number)
    data = bytearray(payload)
    at = chance.randrange(min(200, len(data) // 2), len(data))
    match number % 4:
        case 0:
            return "cut", bytes(data[:at])
        case 1:
            size = min(64, len(data) - at)
            data[at : at + size] = chance.randbytes(size)
            return "64 bytes overwritten", bytes(data)
        case 2:
            size = min(8, len(data) - at)
            data[at : at + size] = chance.randbytes(size)
            return "8 bytes overwritten", bytes(data)
        case _:
            size = min(2000, len(data) - at)
            del data[at : at + size]
            return "2000 bytes left out", bytes(data)


async def damage(bench: Bench) -> dict[str, Any]:
    """Keyframes cut, overwritten and shortened: of those that FFmpeg flags, how many the hardware's words tell."""
    names = ("h264_1280x720.mp4", "h264_640x360.mp4", "h264_720x1280.mp4", "h264_1920x1080.mp4", "hevc_640x360.mp4",
             "hevc_10bit_1280x720.mp4", "vp9_640x360.webm", "vp8_640x360.webm", "mpeg4_640x360.mp4")  # fmt: skip
    rows: dict[str, Any] = {}
    bench = replace(bench, every_codec=True)
    async with bench.pool(8) as pool:
        for codec in ("h264", "hevc", "vp9", "vp8", "mpeg4"):
            clips = [bench.clips[name] for name in names if bench.clips[name].config.codec == codec]
            counts: dict[str, Counter[str]] = {}
            amount = _DAMAGED if codec == "h264" else _DAMAGED // 3

            async def one(number: int, clips: list[PackedClip] = clips, counts: dict[str, Counter[str]] = counts) -> None:
                clip = clips[number % len(clips)]
                packet = clip.units[number // len(clips) % len(clip.units)].packets[0]
                kind, payload = _broken(clip.data[packet.offset : packet.offset + packet.size], number // len(clips))
                unit = DecodeUnit((Packet(0, 0, len(payload), True),), (0,))
                with SharedBytes.of([payload]) as data:
                    ((_, reference),) = await decoded_by(bench.software, clip.config, unit, data)
                    ((_, planes),) = await decoded_by(pool, clip.config, unit, data)
                count = counts.setdefault(kind, Counter())
                flagged, found = reference is None, planes is None
                count["flagged by FFmpeg"] += flagged
                count["of these found"] += flagged and found
                count["found by hardware only"] += found and not flagged
                count["by neither"] += not found and not flagged
                if not found and not flagged:
                    count["by neither, and the pictures are equal"] += difference(planes, reference) == 0

            for first in range(0, amount, 8):
                await asyncio.gather(*(one(number) for number in range(first, first + 8)))
            total: Counter[str] = sum(counts.values(), Counter())
            share = total["of these found"] / max(1, total["flagged by FFmpeg"])
            rows[codec] = {"share found": round(share, 4), **total, "by kind": {k: dict(v) for k, v in sorted(counts.items())}}
    return rows


async def corpus(bench: Bench) -> dict[str, Any]:
    """Real files: parity, false alarms, and what goes to software for which reason."""
    rows: dict[str, Any] = {}
    totals: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    async with bench.pool(8) as pool:
        for clip in read_packed(bench.directory / "corpus.json"):
            if reason := pool.factory.refuses(clip.config):
                refused[reason[:100]] += 1
                continue
            try:
                row = await _compare(pool, bench.software, clip)
            except (DecoderBroken, KeyglanceError) as error:
                row = {"raised": f"{type(error).__name__}: {error}"[:200]}
                totals["raised"] += 1
            totals.update({name: value for name, value in row.items() if isinstance(value, int) and name != "largest difference"})
            if set(row) - {"wanted", "equal", "largest difference", "reasons"}:
                rows[f"{clip.name} ({clip.config.codec})"] = row
        counters = pool.snapshot().counters
    return {"totals": dict(totals), "refused": dict(refused), "not all equal": rows, "decoders broken": counters.broken}


async def faults(bench: Bench) -> dict[str, Any]:
    """Bytes that are no video, sizes out of bounds, lying containers: a good clip behind each decodes as ever."""
    good, rows = bench.clips["h264_1280x720.mp4"], {}
    first = good.units[0].packets[0]
    payload = good.data[first.offset : first.offset + first.size]
    small, wide = bench.clips["h264_32x32.mp4"], bench.clips["h264_4128x128.mp4"]
    chance = random.Random(1)
    cases: dict[str, tuple[StreamConfig, bytes]] = {
        "random bytes": (good.config, chance.randbytes(20_000)),
        "zeros": (good.config, bytes(20_000)),
        "one byte": (good.config, b"\1"),
        "cut in its header": (good.config, payload[:40]),
        "length prefixes with random bytes": (good.config, b"".join(b"\0\0\x10\0" + chance.randbytes(4096) for _ in range(5))),
        "below the smallest size, told": (small.config, _payload(small)),
        "below the smallest size, container lies": (replace(small.config, width=1280, height=720), _payload(small)),
        "above the largest size, container lies": (replace(wide.config, width=1280, height=720), _payload(wide)),
        "another size than the container says": (replace(good.config, width=640, height=360), payload),
        "10 bits, container says 8": (
            replace(bench.clips["hevc_10bit_640x360.mp4"].config, bit_depth=8), _payload(bench.clips["hevc_10bit_640x360.mp4"])
        ),
        "VP9 instead of H.264": (replace(good.config, extradata=b""), _payload(bench.clips["vp9_640x360.webm"])),
    }  # fmt: skip
    async with bench.pool(3, good.config, software=True) as pool:
        ((_, expected),) = await decoded_by(pool, good.config, DecodeUnit((first,), (first.sample,)), good.shared())
        for name, (config, data) in cases.items():
            told: dict[str, Any] = {}
            if reason := pool.factory.refuses(config):
                told["refused"] = reason
            else:
                try:
                    with SharedBytes.of([data]) as shared:
                        unit = DecodeUnit((Packet(0, 0, len(data), True),), (0,))
                        ((decoded, planes),) = await decoded_by(pool, config, unit, shared)
                    told |= {"picture": planes is not None, "in software": decoded.in_software, "detail": decoded.detail[:160]}
                    if planes is not None:
                        told["height x width"] = list(planes[0].shape)
                except (DecoderBroken, KeyglanceError) as error:
                    told["raised"] = str(error)[:160]
            with good.shared() as shared:
                ((_, planes),) = await decoded_by(pool, good.config, DecodeUnit((first,), (first.sample,)), shared)
            told["good clip afterwards"] = planes is not None and difference(planes, expected) == 0
            rows[name] = told
        broken = pool.snapshot().counters.broken
    return {**rows, "decoders broken": broken}


def _payload(clip: PackedClip) -> bytes:
    packet = clip.units[0].packets[0]
    return clip.data[packet.offset : packet.offset + packet.size]


async def leaks(bench: Bench) -> dict[str, Any]:
    """Many leases of changing sizes: GPU memory, threads, descriptors before and after, and what was created on the way."""
    names = ("h264_1280x720.mp4", "h264_640x360.mp4", "h264_720x1280.mp4", "h264_640x530.mp4")
    clips = [(bench.clips[name], bench.clips[name].shared()) for name in names]

    def held() -> dict[str, int]:
        free, total = bench.gpu.cupy.cuda.runtime.memGetInfo()
        files = len(os.listdir("/proc/self/fd"))
        return {"GPU memory in MiB": (total - free) >> 20, "threads": threading.active_count(), "descriptors": files}

    async with bench.pool(7, clips[0][0].config) as pool:

        async def some(amount: int) -> None:
            async def one(number: int) -> None:
                clip, data = clips[number % len(clips)]
                leases = await pool.lease(clip.config, deadline=time.monotonic() + 30)
                assert await fan_out(leases, keyframes(clip)[:1], data) == 1

            for start in range(0, amount, 14):
                await asyncio.gather(*(one(number) for number in range(start, min(amount, start + 14))))

        await some(100)
        before, begin = held(), time.perf_counter()
        await some(_LEASES)
        seconds = time.perf_counter() - begin
        counters = pool.snapshot().counters
        after = held()
    arena = bench.arena.snapshot()
    return {
        "leases": _LEASES,
        "before": before,
        "after": after,
        "leases a second": round(_LEASES / seconds),
        "created": counters.created,
        "broken": counters.broken,
        "arena": {"all slots back": arena.free == arena.slots, "waits": arena.waits, "leases": arena.leases},
    }


_PARTS: Mapping[str, Callable[[Bench], Awaitable[dict[str, Any]] | dict[str, Any]]] = {
    "parity": parity,
    "reuse": reuse,
    "reconfigure": reconfigure,
    "phone": phone,
    "damage": damage,
    "corpus": corpus,
    "faults": faults,
    "leaks": leaks,
}


async def _run(directory: Path, out: Path, names: Sequence[str]) -> None:
    async with Bench.opened(directory) as bench:
        results: dict[str, Any] = {"environment": report.environment(), "machine": machine(bench.gpu)}
        results["arena in MiB"] = bench.arena.size >> 20
        results["capabilities"] = {
            " ".join(map(str, key)): str(bounds) for key, bounds in sorted(bench.factory().capabilities.items())
        }
        for name in names or _PARTS:
            begin = time.perf_counter()
            try:
                part = _PARTS[name]
                results[name] = await part(bench) if asyncio.iscoroutinefunction(part) else await asyncio.to_thread(part, bench)
            except Exception as error:  # the other parts are worth their GPU time
                results[name] = {"failed": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
            await asyncio.to_thread(out.write_text, json.dumps(results, indent=1))


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
