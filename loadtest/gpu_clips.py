"""The clips of the GPU decoding measurements, made where encoders and processor time are, read where the GPU is.

`python -m loadtest.gpu_clips DIRECTORY [CORPUS]` writes them, cut into packets (a GPU host needs no demuxer then), and the
packets that a plan picks of every file of a corpus; `loadtest.gpu_decode` reads that directory.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import Colour, ColourRange, SampleFlag, StreamConfig
from loadtest.clips import Picture, encode, pan, photograph

#: The clip of the latency goals: 60 s of upright phone video, a keyframe every five seconds.
PHONE = "phone_720x1280_60s.mp4"


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """One clip: what `loadtest.clips.encode` needs to make it."""

    file: str
    codec: str
    width: int
    height: int
    pictures: int = 12
    keyframe_interval: int = 4
    container: str = "mp4"
    pixel_format: str = "yuv420p"
    b_frames: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


_CORPUS_BYTES = 250_000  # of each file
_MANY_REFERENCES = {"refs": "16", "preset": "slow"}
#: Every size and format of the parity runs. Sizes that share their coded size (530 and 532 rows), both orientations, the
#: smallest and the largest, odd ones where the codec has them.
PLANS = (
    ClipPlan("h264_640x530.mp4", "libx264", 640, 530),
    ClipPlan("h264_640x532.mp4", "libx264", 640, 532),
    ClipPlan("h264_720x1280.mp4", "libx264", 720, 1280),
    ClipPlan("h264_1280x720.mp4", "libx264", 1280, 720, pictures=24, keyframe_interval=8),
    ClipPlan("h264_1920x1080.mp4", "libx264", 1920, 1080),
    ClipPlan("h264_3840x2160.mp4", "libx264", 3840, 2160, pictures=4, keyframe_interval=2),
    ClipPlan("h264_640x360.mp4", "libx264", 640, 360),
    ClipPlan("h264_48x48.mp4", "libx264", 48, 48),
    ClipPlan("h264_32x32.mp4", "libx264", 32, 32),
    ClipPlan("h264_4128x128.mp4", "libx264", 4128, 128, pictures=2, keyframe_interval=1),
    ClipPlan("h264_b_frames_1280x720.mp4", "libx264", 1280, 720, pictures=30, keyframe_interval=30, b_frames=3),
    ClipPlan(
        "h264_16_references_1280x720.mp4", "libx264", 1280, 720, 40, 40, b_frames=3, options={"refs": "16", "preset": "slow"}
    ),
    ClipPlan("h264_10bit_640x360.mp4", "libx264", 640, 360, pixel_format="yuv420p10le"),
    ClipPlan("hevc_640x360.mp4", "libx265", 640, 360),
    ClipPlan("hevc_640x362.mp4", "libx265", 640, 362),
    ClipPlan("hevc_10bit_640x360.mp4", "libx265", 640, 360, pixel_format="yuv420p10le"),
    ClipPlan("hevc_10bit_1280x720.mp4", "libx265", 1280, 720, pixel_format="yuv420p10le", b_frames=2),
    ClipPlan("hevc_444_640x360.mp4", "libx265", 640, 360, pixel_format="yuv444p"),
    ClipPlan("vp8_640x360.webm", "libvpx", 640, 360, container="webm"),
    ClipPlan("vp8_175x143.webm", "libvpx", 175, 143, container="webm"),
    ClipPlan("vp9_640x360.webm", "libvpx-vp9", 640, 360, container="webm"),
    ClipPlan("vp9_175x143.webm", "libvpx-vp9", 175, 143, container="webm"),
    ClipPlan("mpeg4_640x360.mp4", "mpeg4", 640, 360),
    ClipPlan("mpeg4_1280x720.mp4", "mpeg4", 1280, 720),
    ClipPlan("mpeg2_640x360.ts", "mpeg2video", 640, 360, container="mpegts"),
)


def grainy(pictures: Iterator[Picture], seed: int, amount: int) -> Iterator[Picture]:
    """The pictures with noise as a phone's sensor has it, so that they cost what real ones cost."""
    noise = np.random.default_rng(seed)
    for picture in pictures:
        grain = noise.integers(-amount, amount + 1, picture.shape[:2], np.int16)[..., None]
        yield np.clip(picture.astype(np.int16) + grain, 0, 255).astype(np.uint8)


def make(directory: Path) -> None:
    """Writes every clip that is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, plan in enumerate(PLANS):
        if (path := directory / plan.file).exists():
            continue
        source = photograph(("coffee", "astronaut", "chelsea", "rocket")[number % 4])
        width, height = plan.width + plan.width % 2, plan.height + plan.height % 2
        frames = (picture[: plan.height, : plan.width] for picture in pan(source, plan.pictures, width, height))
        clip = encode(
            grainy(frames, number, 6),
            keyframe_interval=plan.keyframe_interval,
            codec=plan.codec,
            container=plan.container,
            pixel_format=plan.pixel_format,
            b_frames=plan.b_frames,
            options={"crf": "24", **plan.options} if plan.codec in ("libx264", "libx265") else plan.options,
        )
        path.write_bytes(clip)
    if not (path := directory / PHONE).exists():
        path.write_bytes(phone())


def phone() -> bytes:
    """The clip of the latency goals, about 12.5 MB."""
    pictures = grainy(pan(photograph("coffee"), 1800, 720, 1280), 1, 10)
    rate = {"crf": "-1", "b": "1650k", "maxrate": "3M", "bufsize": "6M", "preset": "ultrafast"}
    return encode(pictures, fps=30, keyframe_interval=150, options=rate)


@dataclass(frozen=True, slots=True)
class PackedClip:
    """A stream as packets: `units` are what a plan would decode of it, `data` holds the packets of all."""

    name: str
    config: StreamConfig
    data: bytes
    units: tuple[DecodeUnit, ...]

    def shared(self) -> SharedBytes:
        """The packets as decoders take them."""
        return SharedBytes.of([self.data])


def write_packed(path: Path, clips: Sequence[PackedClip]) -> None:
    """Writes `path` (JSON) and, beside it, the packets (.bin)."""
    rows: list[dict[str, Any]] = []
    with path.with_suffix(".bin").open("wb") as binary:
        for clip in clips:
            config = asdict(clip.config) | {
                "extradata": base64.b64encode(clip.config.extradata).decode(),
                "sample_aspect": str(clip.config.sample_aspect),
            }
            units = [asdict(unit) for unit in clip.units]
            rows.append({"name": clip.name, "config": config, "at": binary.tell(), "size": len(clip.data), "units": units})
            binary.write(clip.data)
    path.write_text(json.dumps(rows))


def read_packed(path: Path) -> list[PackedClip]:
    """What `write_packed` has written."""
    binary = path.with_suffix(".bin").read_bytes()
    clips = []
    for row in json.loads(path.read_text()):
        told = row["config"]
        colour = Colour(**(told["colour"] | {"range": ColourRange(told["colour"]["range"])}))
        aspect = Fraction(told["sample_aspect"])
        config = StreamConfig(
            **(told | {"extradata": base64.b64decode(told["extradata"]), "sample_aspect": aspect, "colour": colour})
        )
        units = tuple(
            DecodeUnit(tuple(Packet(**packet) for packet in unit["packets"]), tuple(unit["wanted"]), unit["spare"])
            for unit in row["units"]
        )
        clips.append(PackedClip(row["name"], config, binary[row["at"] : row["at"] + row["size"]], units))
    return clips


def _within(runs: Sequence[Any], sizes: Any, most: int) -> list[Any]:
    """The runs that fit into `most` bytes together, one after the other."""
    kept, left = [], most
    for run in runs:
        size = int(sizes[list(run.samples)].sum())
        if size <= left:
            kept.append(run)
            left -= size
    return kept


async def _packed(files: Sequence[Path], frames: int) -> list[PackedClip]:
    """The packets of `frames` pictures of each file that can be indexed; all pictures by one unit a keyframe where it is 0."""
    # Not at the top: reading packed clips needs none of this.
    from decoder_pool.containers import Indexer
    from decoder_pool.limits import SourceLimits
    from keyglance import sampling
    from keyglance.errors import KeyglanceError

    indexer = Indexer()
    await indexer.start()
    clips: list[PackedClip] = []
    async with aclosing(_Closing(indexer)):
        for file in files:
            with SharedBytes.of([file.read_bytes()]) as source:
                try:
                    async with await indexer.open(source, SourceLimits(), time.monotonic() + 30) as video:
                        index = video.index
                        if frames:
                            plan = sampling.plan(
                                index, sampling.SamplingPolicy(frames=frames), sampling.SamplingLimits(frames=16)
                            )
                            runs = _within(plan.runs, index.samples.size, _CORPUS_BYTES)
                        else:
                            keys = [int(k) for k in np.flatnonzero(index.samples.having(SampleFlag.KEY))]
                            ends = [*keys[1:], len(index.samples)]
                            spans = [tuple(range(first, last)) for first, last in zip(keys, ends, strict=True)]
                            runs = [sampling.Run(span, span, 0) for span in spans]
                        samples = sorted({sample for run in runs for sample in run.samples})
                        shared, packets = await video.packets(samples)
                except KeyglanceError:
                    continue
            by_sample = {packet.sample: packet for packet in packets}
            units = tuple(DecodeUnit(tuple(by_sample[s] for s in run.samples), run.wanted, run.spare) for run in runs)
            with shared:
                clips.append(PackedClip(file.name, index.config, bytes(shared.view()), units))
    return clips


class _Closing:
    """An indexer for `aclosing`."""

    def __init__(self, indexer: Any) -> None:
        self.aclose = indexer.close


def main(directory: Path, corpus: Path | None) -> None:
    """Makes the clips and packs them, then the corpus."""
    make(directory)
    clips = asyncio.run(_packed([directory / plan.file for plan in PLANS], 0))
    write_packed(directory / "clips.json", clips)
    if corpus is not None:
        files = sorted(path for path in corpus.iterdir() if path.suffix not in (".md", ".tsv"))
        known = {"h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg1video", "mpeg2video"}
        packed = [clip for clip in asyncio.run(_packed(files, 6)) if clip.config.codec in known and clip.units]
        write_packed(directory / "corpus.json", packed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
