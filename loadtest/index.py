"""How long an index takes: `python -m loadtest.index`.

A clip of 60 s and about 12.5 MB with sound, its movie box first, last, and in fragments: our reader over bytes in memory and
over a file, beside FFmpeg's index entries and its walk over all packets, both through PyAV; the bytes that our reader touched.
Then growth: 1 s to 1 h of video (a built file without sound), time and memory.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from keyglance.mp4 import BytesSource, CountingSource, FileSource, read_index
from keyglance.video import SampleFlag
from loadtest import clips, report
from tests.mp4 import build

#: FFmpeg's flags of its muxer.
LAYOUTS = {
    "moov first": {"movflags": "+faststart"},
    "moov last": {},
    "fragmented": {"movflags": "+frag_keyframe+empty_moov+default_base_moof"},
}
#: Pictures a second, and seconds between keyframes.
_RATE, _INTERVAL = 30, 2


def noisy(seconds: int, width: int = 854, height: int = 480) -> Iterator[clips.Picture]:
    """A photograph that moves under noise, so that the pictures between keyframes need bits as those of a camera do."""
    random = np.random.default_rng(3)
    noise = random.integers(0, 24, (height, width + 512, 1), dtype=np.uint8)
    for number, picture in enumerate(clips.pan(clips.photograph("coffee"), seconds * _RATE, width, height)):
        at = number * 37 % 512
        yield np.minimum(picture, 231) + noise[:, at : at + width]


def clip(seconds: int = 60, rate: int = 1_500_000) -> bytes:
    """The pictures of the clip, encoded at `rate` bits a second."""
    # A rate factor of -1 leaves the choice to the bit rate.
    options = {"preset": "superfast", "crf": "-1", "b": str(rate), "maxrate": str(rate), "bufsize": str(2 * rate)}
    return clips.encode(noisy(seconds), fps=_RATE, keyframe_interval=_INTERVAL * _RATE, b_frames=2, options=options)


def remuxed(pictures: bytes, sound: bytes, options: Mapping[str, str], path: Path) -> bytes:
    """Pictures and sound in one file, written at a path (the muxer opens it twice to put the movie box in front)."""
    with (
        av.open(io.BytesIO(pictures), "r") as first,
        av.open(io.BytesIO(sound), "r") as second,
        av.open(str(path), "w", format="mp4", options=dict(options)) as output,
    ):
        packets = []
        for each in (first, second):
            stream = output.add_stream_from_template(each.streams[0])
            packets += [
                (packet.dts * packet.time_base, stream, packet)
                for packet in each.demux(each.streams[0])
                if packet.dts is not None and packet.time_base is not None
            ]
        for _, stream, packet in sorted(packets, key=lambda each: each[0]):
            packet.stream = stream
            output.mux(packet)
    return path.read_bytes()


def timed(work: Callable[[], Any], seconds: float = 1.5) -> dict[str, float]:
    """Median and least milliseconds of as many runs as fit in `seconds`, at least five."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - start))
    return {"median_ms": round(statistics.median(took), 3), "least_ms": round(min(took), 3), "runs": len(took)}


def ffmpeg_entries(data: bytes) -> int:
    """Opens the file and asks for the index entries: only what FFmpeg has read by then."""
    with av.open(io.BytesIO(data), "r") as container:
        return len(container.streams.video[0].index_entries)


def ffmpeg_walk(data: bytes) -> int:
    """Opens the file and takes every packet of the video."""
    with av.open(io.BytesIO(data), "r") as container:
        return sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))


def layout_figures(data: bytes, path: Path) -> dict[str, Any]:
    """Everything about one file, whose bytes lie at a path too."""
    counting = CountingSource(BytesSource(data))
    index = read_index(counting)
    ranges = counting.touched(gap=64)
    keys = index.samples.having(SampleFlag.KEY)
    source = BytesSource(data)
    with FileSource(path) as file:
        from_file = timed(lambda: read_index(file))
    return {
        "bytes": len(data),
        "samples": len(index.samples),
        "keyframe_bytes": int(index.samples.size[keys].sum()),
        "touched_bytes": sum(end - start for start, end in ranges),
        "touched_ranges": len(ranges),
        "reads": len(counting.reads),
        "reader": timed(lambda: read_index(source)),
        "reader_from_file": from_file,
        "ffmpeg_entries": {"entries": ffmpeg_entries(data), **timed(lambda: ffmpeg_entries(data))},
        "ffmpeg_walk": {"packets": ffmpeg_walk(data), **timed(lambda: ffmpeg_walk(data))},
    }


def growth_figures(seconds: int, fragmented: bool) -> dict[str, Any]:
    """Time and memory for so many seconds of built video."""
    samples = build.group_of_pictures(seconds * _RATE, every=_INTERVAL * _RATE, size=60, reorder=512)
    track = build.Track(samples, timescale=512 * _RATE, chunk=15)
    if fragmented:
        step = _INTERVAL * _RATE
        pieces = [build.fragment(samples[at : at + step], at * 512, flags=0xF00) for at in range(0, len(samples), step)]
        data = build.fragmented(track, pieces)
    else:
        data = build.movie([track])
    source = BytesSource(data)
    took = timed(lambda: read_index(source), 0.5)
    tracemalloc.start()
    read_index(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"seconds": seconds, "samples": len(samples), "fragmented": fragmented, "peak_mib": round(peak / 2**20, 3), **took}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.index", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="of the clip")
    parser.add_argument("--longest", type=int, default=3600, help="seconds of the longest built file")
    parser.add_argument("--name", default="index", help="of the JSON file in loadtest/results")
    options = parser.parse_args(arguments)

    pictures, sound = clip(options.seconds), clips.tone(float(options.seconds))
    layouts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, muxing in LAYOUTS.items():
            layouts[name] = found = layout_figures(
                remuxed(pictures, sound, muxing, Path(folder) / "clip.mp4"), Path(folder) / "clip.mp4"
            )
            print(
                f"{name}: {found['bytes'] / 1e6:.1f} MB, {found['samples']} samples, touched {found['touched_bytes']:,} bytes; "
                f"reader {found['reader']['median_ms']} ms, index entries {found['ffmpeg_entries']['median_ms']} ms, "
                f"walk {found['ffmpeg_walk']['median_ms']} ms"
            )
    lengths = [seconds for seconds in (1, 10, 60, 600, 3600) if seconds <= options.longest]
    growth = [growth_figures(seconds, fragmented) for fragmented in (False, True) for seconds in lengths]
    for row in growth:
        kind = "fragmented" if row["fragmented"] else "plain"
        print(f"{row['seconds']} s, {kind}: {row['median_ms']} ms, {row['peak_mib']} MiB")
    print(report.write(options.name, {"layouts": layouts, "growth": growth}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
