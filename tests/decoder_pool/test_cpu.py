from __future__ import annotations

import asyncio
import csv
import dataclasses
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from decoder_pool.cpu import CpuDecoder, CpuFactory, CpuLimits
from decoder_pool.cpu_formats import target_format
from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit, Packet
from decoder_pool.key import DecoderKey
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import Colour, ColourRange, StreamConfig

from .encoded import Clip, encode, read

KEY = DecoderKey("h264", 8, "420", 1088)
X265 = {"x265-params": "log-level=none"}
AV1 = {"preset": "12", "svtav1-params": "keyint=1:lp=1"}


@pytest.fixture(scope="module")
def factory() -> CpuFactory:
    return CpuFactory(limits=CpuLimits(unit_seconds=20))


@pytest.fixture
async def decoder(factory: CpuFactory) -> AsyncIterator[CpuDecoder]:
    made = factory.make(KEY)
    await made.start()
    yield made
    await made.close()


async def results(decoder: CpuDecoder, unit: DecodeUnit, packets: SharedBytes) -> list[Decoded]:
    """All of a unit, with copies of the pictures' planes, taken late: while the worker decodes the next."""
    found = []
    async for decoded in decoder.decode(unit, packets):
        await asyncio.sleep(0.002)
        picture = decoded.picture
        if picture is not None:
            picture = dataclasses.replace(picture, planes=tuple(plane.copy() for plane in picture.planes))
        found.append(dataclasses.replace(decoded, picture=picture))
    return found


def same(picture: Any, planes: list[np.ndarray]) -> bool:
    """Whether the picture has these planes, but for alpha."""
    colour = planes[: len(picture.planes)]
    return len(planes) - len(colour) <= 1 and all(np.array_equal(a, b) for a, b in zip(picture.planes, colour, strict=True))


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options", "chroma", "depth"),
    [
        ("libx264", "yuv420p", {}, "420", 8),
        ("libx264", "yuv422p10le", {}, "422", 10),
        ("libx264rgb", "rgb24", {}, "rgb", 8),
        ("libx265", "yuv420p10le", X265, "420", 10),
        ("libx265", "yuv444p12le", X265, "444", 12),
        ("libvpx", "yuv420p", {}, "420", 8),
        ("libvpx-vp9", "yuv420p", {}, "420", 8),
        ("libsvtav1", "yuv420p", AV1, "420", 8),
        ("libsvtav1", "yuv420p10le", AV1, "420", 10),
        ("mpeg4", "yuv420p", {}, "420", 8),
        ("mpeg2video", "yuv420p", {}, "420", 8),
        ("mjpeg", "yuvj422p", {}, "422", 8),
        ("prores_ks", "yuv422p10le", {}, "422", 10),
        ("ffv1", "yuv444p16le", {"level": "3"}, "444", 16),
        ("ffv1", "gray", {"level": "3"}, "400", 8),
        ("ffv1", "yuv410p", {"level": "3"}, "410", 8),
        ("ffv1", "gbrp12le", {"level": "3"}, "rgb", 12),
        ("ffv1", "yuva420p", {"level": "3"}, "420", 8),
    ],
)
async def test_keyframes_are_those_of_plain_decoding(decoder, codec, pix_fmt, options, chroma, depth):
    size = (97, 65) if codec in ("libvpx", "libvpx-vp9", "ffv1", "mjpeg") and pix_fmt != "yuv410p" else (96, 64)
    clip = encode(codec, pix_fmt, size, 3, options=options, reference="gbrp" if codec == "libx264rgb" else None)
    assert await decoder.configure(clip.config)
    shared, packets = clip.packed()
    with shared:
        for sample in range(3):
            [decoded] = await results(decoder, clip.alone(packets, sample), shared)
            assert (decoded.sample, decoded.alone, decoded.stand_in, decoded.damaged) == (sample, True, None, False)
            picture = decoded.picture
            assert (picture.width, picture.height, picture.chroma_format, picture.bit_depth) == (*size, chroma, depth)
            assert same(picture, clip.pictures[sample])


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "reference", "depth"),
    [
        ("png", "rgb24", "gbrp", 8),
        ("png", "rgba", "gbrp", 8),
        ("png", "gray", "gray", 8),
        ("png", "rgb48be", "gbrp16le", 16),
        ("gif", "rgb8", "gbrp", 8),
        ("qtrle", "rgb24", "gbrp", 8),
        ("v210", "yuv422p10le", "yuv422p10le", 10),
        ("ffv1", "bgra", "gbrp", 8),
    ],
)
async def test_other_layouts_become_planar_without_loss(decoder, codec, pix_fmt, reference, depth):
    container = {"qtrle": "mov", "gif": "gif"}.get(codec, "nut")
    clip = encode(codec, pix_fmt, count=2, container=container, reference=reference)
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    with shared:
        [decoded] = await results(decoder, clip.alone(packets, 0), shared)
    assert same(decoded.picture, clip.pictures[0])
    assert decoded.picture.bit_depth == depth
    if reference.startswith("gbrp"):
        assert decoded.picture.colour.matrix == 0
        assert decoded.picture.colour.range is ColourRange.FULL


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("yuv420p", "yuv420p"),
        ("yuvj420p", "yuvj420p"),
        ("yuv420p9le", "yuv420p9le"),
        ("gbrp14le", "gbrp14le"),
        ("gray12le", "gray12le"),
        ("yuva444p12le", "yuva444p12le"),
        ("yuv420p10be", "yuv420p10le"),
        ("nv12", "yuv420p"),
        ("p010le", "yuv420p10le"),
        ("p016le", "yuv420p16le"),
        ("nv24", "yuv444p"),
        ("uyvy422", "yuv422p"),
        ("uyyvyy411", "yuv411p"),
        ("y210le", "yuv422p10le"),
        ("vuya", "yuv444p"),
        ("bgr0", "gbrp"),
        ("pal8", "gbrp"),
        ("rgb565le", "gbrp"),
        ("rgb48be", "gbrp16le"),
        ("x2rgb10le", "gbrp10le"),
        ("xyz12le", "gbrp12le"),
        ("bayer_rggb8", "gbrp"),
        ("bayer_rggb16le", "gbrp16le"),
        ("ya8", "gray"),
        ("ya16be", "gray16le"),
        ("monow", "gray"),
        ("grayf32le", "gray16le"),
        ("gbrpf32le", "gbrp16le"),
    ],
)
def test_target_formats(given, target):
    assert target_format(given) == target
    av.VideoFrame(16, 16, given).reformat(format=target)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "3", "b-pyramid": "normal", "refs": "4"}),
        ("libx265", {"x265-params": "log-level=none:bframes=4"}),
        ("mpeg4", {"bf": "2"}),
        ("mpeg2video", {"bf": "2"}),
        ("libvpx-vp9", {"lag-in-frames": "10", "auto-alt-ref": "1", "deadline": "good", "cpu-used": "5"}),
        ("libsvtav1", {"preset": "12", "svtav1-params": "lp=1"}),
    ],
)
async def test_predicted_pictures_are_those_of_plain_decoding(decoder, codec, options):
    clip = encode(codec, count=20, gop=20, options=options)
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    shown = sorted(clip.pictures)
    wanted = tuple(sorted({shown[n] for n in (0, 3, 4, 9, len(shown) - 1)}))
    with shared:
        for chosen, spare in ((wanted, 0), (wanted[1:3], len(packets) - 8)):
            found = await results(decoder, DecodeUnit(tuple(packets), chosen, spare), shared)
            assert sorted(decoded.sample for decoded in found) == list(chosen)
            for decoded in found:
                assert decoded.picture is not None, decoded
                assert same(decoded.picture, clip.pictures[decoded.sample])
                assert not decoded.damaged


async def test_one_process_serves_one_stream_after_the_other(decoder):
    clips = [
        encode("libx264", size=(64, 48), count=2),
        encode("libvpx-vp9", size=(128, 96), count=2),
        encode("mjpeg", "yuvj420p", (48, 32), 2),
    ]
    pid = decoder._worker.pid
    for _ in range(3):
        for clip in clips:
            assert await decoder.configure(clip.config)
            assert decoder.configured == clip.config
            assert not await decoder.configure(clip.config)
            shared, packets = clip.packed()
            with shared:
                for sample in (1, 0):
                    [decoded] = await results(decoder, clip.alone(packets, sample), shared)
                    assert same(decoded.picture, clip.pictures[sample])
    assert decoder._worker.pid == pid


async def test_a_size_that_changes_in_the_stream_gives_pictures_of_their_own_size(decoder):
    small, large = encode("libvpx", size=(64, 48), count=1), encode("libvpx", size=(320, 240), count=1)
    joined = Clip(small.config, small.payloads + large.payloads, [True, True], {0: small.pictures[0], 1: large.pictures[0]})
    await decoder.configure(joined.config)
    shared, packets = joined.packed()
    with shared:
        for sample in (0, 1, 0):
            [decoded] = await results(decoder, joined.alone(packets, sample), shared)
            assert same(decoded.picture, joined.pictures[sample])
        both = await results(decoder, DecodeUnit(tuple(packets), (0, 1)), shared)
    assert [(d.sample, d.picture.width) for d in both] == [(0, 64), (1, 320)]
    assert all(same(d.picture, joined.pictures[d.sample]) for d in both)


async def test_a_stream_of_unknown_size_and_one_whose_container_lies(decoder):
    clip = encode("libx264", size=(128, 96), count=1)
    shared, packets = clip.packed()
    with shared:
        for width, height in ((0, 0), (16, 16), (4000, 2000)):
            await decoder.configure(dataclasses.replace(clip.config, width=width, height=height))
            [decoded] = await results(decoder, clip.alone(packets, 0), shared)
            assert same(decoded.picture, clip.pictures[0])


async def test_colour_and_aspect_come_from_the_picture_else_from_the_config(decoder):
    tagged = encode(
        "libx264", count=1, options={"x264-params": "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:sar=4/3"}
    )
    plain = encode("libx264", count=1)
    absurd = encode("libx264", count=1, options={"x264-params": "sar=1000/1"})
    known = Colour(primaries=5, transfer=6, matrix=6, range=ColourRange.LIMITED, chroma_location=1)
    for clip, colour, aspect in (
        (tagged, Colour(9, 16, 9, ColourRange.LIMITED, 1), Fraction(4, 3)),
        (plain, known, Fraction(1)),
        (absurd, known, Fraction(1)),
    ):
        await decoder.configure(dataclasses.replace(clip.config, colour=known))
        shared, packets = clip.packed()
        with shared:
            [decoded] = await results(decoder, clip.alone(packets, 0), shared)
        assert decoded.picture.colour == colour
        assert decoded.picture.sample_aspect == aspect


async def test_pictures_above_the_limit_are_refused_wherever_the_size_is_found(factory):
    small = CpuFactory(limits=CpuLimits(pixels=64 * 64))
    clip = encode("libx264", size=(128, 96), count=1)
    assert "at most 4,096 allowed" in (small.refuses(clip.config) or "")
    decoder = small.make(KEY)
    await decoder.start()
    await decoder.configure(dataclasses.replace(clip.config, width=0, height=0))
    shared, packets = clip.packed()
    with shared:
        [decoded] = await results(decoder, clip.alone(packets, 0), shared)
    assert decoded.picture is None
    assert decoded.detail
    assert decoder.settled
    await decoder.close()


def test_what_is_refused():
    factory = CpuFactory()
    assert {"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg", "prores", "theora", "gif"} <= set(
        factory.codecs()
    )
    for codec in ("bintext", "ansi", "bmp", "tiff", "aac", "wrapped_avframe", "h264_cuvid", "nonsense"):
        assert "cannot be decoded" in (factory.refuses(StreamConfig(codec, 64, 64)) or "")
    assert "at most 1,048,576" in (factory.refuses(StreamConfig("h264", 64, 64, extradata=bytes(2 << 20))) or "")


async def test_garbage_gives_no_picture_and_harms_nothing(decoder):
    clip = encode("libx264", count=2, gop=1)
    noise = random.Random(3).randbytes
    hostile = [b"", b"\x00", noise(5000), clip.payloads[0][:6], b"\xff" * 300]
    await decoder.configure(clip.config)
    with SharedBytes.of([*hostile, clip.payloads[1]]) as shared:
        offset = 0
        for number, data in enumerate(hostile):
            unit = DecodeUnit((Packet(number, offset, len(data), True),), (number,))
            [decoded] = await results(decoder, unit, shared)
            assert decoded.picture is None
            assert decoded.sample == number
            offset += len(data)
        beyond = DecodeUnit((Packet(8, shared.size - 4, 1 << 20, True),), (8,))
        [decoded] = await results(decoder, beyond, shared)
        assert "4 of 1048576 bytes are there" in decoded.detail
        unit = DecodeUnit((Packet(9, offset, len(clip.payloads[1]), True),), (9,))
        [decoded] = await results(decoder, unit, shared)
    assert same(decoded.picture, clip.pictures[1])


async def test_a_unit_without_packets_gives_no_picture(decoder):
    await decoder.configure(StreamConfig("mjpeg", 0, 0))
    with SharedBytes.of([]) as shared:
        [decoded] = await results(decoder, DecodeUnit((), (4,), spare=3), shared)
    assert decoded.picture is None


async def test_memory_follows_the_size_of_the_pictures(decoder):
    small, large = encode("mjpeg", "yuvj420p", (64, 48), 1), encode("mjpeg", "yuvj420p", (4096, 2160), 1)
    held = []
    for clip in (small, large, small):
        await decoder.configure(clip.config)
        shared, packets = clip.packed()
        with shared:
            [decoded] = await results(decoder, clip.alone(packets, 0), shared)
        assert same(decoded.picture, clip.pictures[0])
        held.append(sum(slot.size for slot in decoder._slots))
    assert held[0] < 16_000
    assert held[1] == 2 * (4096 * 2160 * 3 // 2)
    assert held[2] < 32 << 20


@pytest.mark.parametrize("spared", [10, 45])
async def test_a_picture_beyond_the_memory_limit_fails_alone(spared):
    """FFmpeg says that it has no memory, or the worker ends: nothing hangs, and nothing is shown."""
    decoder = CpuFactory(limits=CpuLimits(memory=(200 + spared) << 20)).make(KEY)
    await decoder.start()
    clip = encode("mjpeg", "yuvj444p", (3000, 3200), 1)
    shared, packets = clip.packed()
    try:
        await decoder.configure(dataclasses.replace(clip.config, width=0, height=0))
        [decoded] = await results(decoder, clip.alone(packets, 0), shared)
        shown, said = decoded.picture, decoded.detail
    except DecoderBroken as error:
        shown, said = None, str(error)
    assert shown is None
    assert "memory" in said or "get_buffer() failed" in said
    await decoder.close()
    shared.close()


async def test_a_codec_that_cannot_be_opened_says_so_of_every_picture(decoder):
    await decoder.configure(StreamConfig("svq3", 0, 0))
    with SharedBytes.of([b"data"]) as shared:
        [decoded] = await results(decoder, DecodeUnit((Packet(0, 0, 4, True),), (0,)), shared)
    assert decoded.picture is None
    assert decoded.detail


async def test_a_key_packet_without_a_picture_is_followed_by_the_next_until_one_appears(decoder):
    """A P picture flagged as key: the next intra picture within the spare packets stands in for it, never a broken one."""
    clip = encode("libx264", count=12, gop=4, options={"bf": "0", "x264-params": "scenecut=0"})
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    keys = [n for n, key in enumerate(clip.keys) if key]
    assert keys == [0, 4, 8]
    with shared:
        [decoded] = await results(decoder, clip.alone(packets, 2, spare=8), shared)
        assert (decoded.sample, decoded.stand_in, decoded.alone, decoded.damaged) == (2, 4, False, False)
        assert same(decoded.picture, clip.pictures[4])
        [decoded] = await results(decoder, clip.alone(packets, 2, spare=1), shared)
        assert decoded.picture is None
        [decoded] = await results(decoder, clip.alone(packets, 4, spare=7), shared)
        assert decoded.alone
        assert same(decoded.picture, clip.pictures[4])


async def test_pictures_after_a_damaged_one_are_damaged_too_until_the_next_intra_picture(decoder):
    clip = encode("libx264", size=(192, 128), count=12, gop=6, options={"bf": "0", "x264-params": "scenecut=0"})
    broken = list(clip.payloads)
    broken[2] = broken[2][: len(broken[2]) // 3]
    await decoder.configure(clip.config)
    shared, packets = clip.packed(broken)
    with shared:
        found = await results(decoder, DecodeUnit(tuple(packets), tuple(range(12))), shared)
    assert {d.sample for d in found if d.picture is not None} == {0, 1, *range(6, 12)}
    assert all(same(d.picture, clip.pictures[d.sample]) for d in found if d.picture is not None)
    assert all(d.detail for d in found if d.picture is None)
    assert {d.sample for d in found if d.damaged} >= {3, 4, 5}


def damages(payload: bytes, rng: random.Random, count: int) -> list[bytes]:
    """The payload cut short, overwritten, with a hole, with bits flipped: past its headers."""
    made = []
    for kind in ("cut", "overwritten", "dropped", "flipped") * count:
        data, first = bytearray(payload), len(payload) // 10 + 40
        at = rng.randrange(first, len(data) - 16)
        span = min(rng.choice([8, 64, 256]), len(data) - at)
        if kind == "cut":
            del data[at:]
        elif kind == "overwritten":
            data[at : at + span] = rng.randbytes(span)
        elif kind == "dropped":
            del data[at : at + span]
        else:
            for _ in range(4):
                data[rng.randrange(first, len(data))] ^= 1 << rng.randrange(8)
        made.append(bytes(data))
    return made


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options", "least"),
    [
        ("libx264", "yuv420p", {}, 0.95),
        ("libx264", "yuv420p", {"x264-params": "cabac=0"}, 0.95),
        ("libx265", "yuv420p", X265, 0.5),  # no check in the bitstream: a slice that ends late is as good as another
        ("libvpx-vp9", "yuv420p", {"deadline": "realtime"}, 0.7),  # nor here, but for the end of the data
        ("libsvtav1", "yuv420p", AV1, 0.95),
        ("mpeg4", "yuv420p", {}, 0.93),
        ("mpeg2video", "yuv420p", {}, 0.9),
        ("mjpeg", "yuvj420p", {}, 0.6),  # Huffman codes fall into step again
    ],
)
async def test_damage_is_noticed(decoder, codec, pix_fmt, options, least, record_property):
    clip = encode(codec, pix_fmt, (640, 368), 3, options=options)
    await decoder.configure(clip.config)
    rng, outcomes = random.Random(11), Counter[str]()
    for sample, payload in enumerate(clip.payloads):
        variants = [payload, *damages(payload, rng, 6)]
        offsets = np.cumsum([0, *map(len, variants)])
        with SharedBytes.of(variants) as shared:
            for number, data in enumerate(variants):
                unit = DecodeUnit((Packet(number, int(offsets[number]), len(data), True),), (number,))
                [decoded] = await results(decoder, unit, shared)
                if number == 0:
                    assert same(decoded.picture, clip.pictures[sample])
                elif decoded.picture is None:
                    outcomes["noticed"] += 1
                else:
                    outcomes["harmless" if same(decoded.picture, clip.pictures[sample]) else "missed"] += 1
    share = outcomes["noticed"] / (outcomes["noticed"] + outcomes["missed"])
    record_property("noticed", f"{share:.3f} of {outcomes}")
    print(f"{codec} {options}: {share:.3f} noticed, {dict(outcomes)}")
    assert share >= least


async def test_a_cancelled_unit_leaves_the_decoder_usable(decoder):
    clip = encode("libx264", size=(640, 368), count=24, gop=24)
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    with shared:
        for delay in (0.0, 0.001, 0.004, 0.01, 0.03):
            task = asyncio.create_task(results(decoder, DecodeUnit(tuple(packets), (0, 11, 23)), shared))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])
            if not decoder.settled:
                await decoder.settle()
            assert decoder.settled
            [decoded] = await results(decoder, clip.alone(packets, 0), shared)
            assert same(decoded.picture, clip.pictures[0])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
async def test_descriptors_and_memory_are_as_before_after_many_units(decoder):
    clips = [encode("libx264", size=(320, 240), count=4, gop=4), encode("libx265", size=(640, 368), count=2, options=X265)]

    async def round_trip() -> None:
        for clip in clips:
            await decoder.configure(clip.config)
            shared, packets = clip.packed()
            with shared:
                await results(decoder, DecodeUnit(tuple(packets), tuple(range(len(packets)))), shared)
                task = asyncio.create_task(results(decoder, DecodeUnit(tuple(packets), (0, 1)), shared))
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])
                await decoder.settle()

    def open_files() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), decoder._worker.pid)]

    def resident() -> int:
        with open(f"/proc/{decoder._worker.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    for _ in range(5):
        await round_trip()
    files, memory = open_files(), resident()
    for _ in range(40):
        await round_trip()
    assert open_files() == files
    assert resident() < memory + (16 << 20)


async def test_a_unit_left_in_the_middle_does_not_disturb_the_next(decoder):
    clip = encode("libx264", count=4)
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    with shared:
        left = decoder.decode(DecodeUnit(tuple(packets), (0, 1, 2, 3)), shared)
        await anext(left)
        found = await results(decoder, DecodeUnit(tuple(packets), (1, 2)), shared)
        assert all(same(d.picture, clip.pictures[d.sample]) for d in found)
        with pytest.raises(RuntimeError, match="no longer its own"):
            await anext(left)


async def test_a_dead_worker_is_a_broken_decoder(decoder):
    clip = encode("libx264", count=1)
    await decoder.configure(clip.config)
    os.kill(decoder._worker.pid, signal.SIGKILL)
    shared, packets = clip.packed()
    with shared, pytest.raises(DecoderBroken):
        await results(decoder, clip.alone(packets, 0), shared)
    assert not decoder.settled
    with pytest.raises(DecoderBroken):
        await decoder.settle()
    await decoder.close()
    await decoder.close()


async def test_a_worker_that_takes_too_long_is_killed():
    decoder = CpuFactory(limits=CpuLimits(unit_seconds=0.2)).make(KEY)
    await decoder.start()
    clip = encode("libx264", count=1)
    await decoder.configure(clip.config)
    os.kill(decoder._worker.pid, signal.SIGSTOP)
    shared, packets = clip.packed()
    with shared, pytest.raises(DecoderBroken, match="over its time"):
        await results(decoder, clip.alone(packets, 0), shared)
    await decoder.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"sample": 7},
        {"sample": "0"},
        {"sample": 0, "picture": []},
        {"sample": 0, "picture": {"width": 1 << 20, "height": 1 << 20}},
        {"sample": 0, "picture": {"width": -1, "height": 4, "depth": 8, "chroma": "420"}},
        {"sample": 0, "picture": {"width": 960, "height": 640, "depth": 8, "chroma": "420", "colour": [2] * 4, "aspect": [0, 1]}},
        {"sample": 0, "picture": {"width": 96, "height": 64, "depth": 8, "chroma": "999", "colour": [2] * 4, "aspect": [0, 1]}},
        {"sample": 0, "picture": {"width": 96, "height": 64, "depth": 8, "chroma": "420", "colour": ["x"] * 4, "aspect": [0, 1]}},
        {"sample": 0, "stand_in": -4},
        {"grow": 1 << 50},
        {"grow": "much"},
    ],
)
async def test_what_a_taken_over_worker_says_is_not_believed(decoder, lie, monkeypatch):
    clip = encode("libx264", count=1)
    await decoder.configure(clip.config)

    async def call(method, arguments, seconds, fds=()):
        return lie

    monkeypatch.setattr(decoder, "_call", call)
    shared, packets = clip.packed()
    with shared, pytest.raises(DecoderBroken):
        await results(decoder, clip.alone(packets, 0), shared)
    assert not decoder.settled


async def test_in_the_pool_nothing_is_started_on_the_way_of_a_call(factory):
    pool = DecoderPool(factory=factory, limit=2, size_classes=(1088, 2048), warm={KEY: 2})
    await pool.start()
    pids = {member.decoder._worker.pid for member in pool._members}
    clips = [encode("libx264", size=(64, 48), count=2), encode("libx264", size=(128, 96), count=2), encode("mpeg4", count=2)]
    deadline = asyncio.get_running_loop().time() + 60

    async def call(clip: Clip) -> None:
        shared, packets = clip.packed()
        with shared:
            leases = await pool.lease(clip.config, deadline=deadline, most=2)
            for lease in leases:
                async with lease:
                    [decoded] = await results(lease.decoder, clip.alone(packets, 1), shared)
                    assert same(decoded.picture, clip.pictures[1])

    await asyncio.gather(*(call(clips[n % 3]) for n in range(30)))
    now = pool.snapshot()
    assert {member.decoder._worker.pid for member in pool._members} == pids
    assert (now.counters.created, now.counters.broken, now.waiting) == (0, 0, 0)
    assert now.counters.rekeyed > 0
    await pool.close()


# Files of the corpus without one clean picture of a flagged keyframe and what follows it: really damaged, looked at.
DAMAGED = {
    "fate_h264_extradata_reload_multi_stsd.mov",  # a second sample description, whose parameters are not in the stream
    "fate_hevc_two_first_slice.mp4",
    "h263_3gp_stss_lies.3gp",  # P pictures flagged as key, no intra picture for 16 samples
    "h264_bad_decoding.264",
    "h264_foreman_damaged.h264",
    "h264_recovery_point_on_p.h264",  # a gradual refresh that takes longer than 16 samples
    "mp4_no_timescale_bad_matrix.mp4",
    "reschange_error_352_to_640.264",
    "theora_no_keyframes_48.ogg",  # every picture is predicted from one that is not there: green with shreds
}


@pytest.mark.corpus
@pytest.mark.slow
async def test_every_flagged_keyframe_of_the_corpus_gives_a_picture(corpus, decoder):
    """With 16 spare packets: a picture of each, none called damaged, but in the files that are."""
    table = (corpus / "manifest.tsv").read_text().splitlines()
    rows = [row for row in csv.DictReader(table, delimiter="\t") if row["expect"] == "ok"]
    failures, seen = [], 0
    for row in rows:
        try:
            clip = walk(corpus / row["file"])
        except (av.FFmpegError, UnicodeDecodeError) as error:
            failures.append(f"{row['file']}: {error}")
            continue
        await decoder.configure(clip.config)
        shared, packets = clip.packed()
        with shared:
            for sample in [n for n, key in enumerate(clip.keys) if key][:12] or [0]:
                [decoded] = await results(decoder, clip.alone(packets, sample, spare=16), shared)
                seen += 1
                if decoded.picture is None and row["file"] not in DAMAGED:
                    failures.append(f"{row['file']}: {decoded}")
    assert not failures
    assert seen > 500


def walk(path: Any, most: int = 400) -> Clip:
    with av.open(str(path), metadata_errors="ignore") as source:
        cover = av.stream.Disposition.attached_pic
        stream = next(s for s in source.streams.video if not s.disposition & cover)
        context = stream.codec_context
        tag = context.codec_tag
        payloads, keys = [], []
        try:
            for packet in source.demux(stream):
                if packet.size:
                    payloads.append(bytes(packet))
                    keys.append(packet.is_keyframe)
                if len(payloads) >= most:
                    break
        except av.FFmpegError:
            pass
        config = StreamConfig(
            context.codec.canonical_name,
            context.width,
            context.height,
            extradata=context.extradata or b"",
            codec_tag=int.from_bytes(tag.encode("latin-1"), "little") if isinstance(tag, str) else tag,
            bits_per_coded_sample=context.bits_per_coded_sample,
        )
    return Clip(config, payloads, keys, {})


@pytest.mark.corpus
@pytest.mark.slow
async def test_no_whole_picture_of_the_corpus_is_called_damaged(corpus, decoder):
    """What FFmpeg shows without a complaint, over the first packets of each file that it decodes without an error."""
    damaged = DAMAGED | {"fate_mpeg2_field_encoding.ts", "theora_chained.ogv"}  # "ac-tex damaged", "Coefficient index overflow"
    table = (corpus / "manifest.tsv").read_text().splitlines()
    alarms, seen = [], 0
    for row in csv.DictReader(table, delimiter="\t"):
        if (
            row["expect"] != "ok"
            or row["corrupt_frames"] != "0"
            or row["first_error"]
            or row["file"] in damaged | {"uhd_8k_hevc_8_frames.mp4"}
        ):
            continue
        clip = walk(corpus / row["file"], most=60)
        shown = plainly_shown(clip)
        await decoder.configure(clip.config)
        shared, packets = clip.packed()
        with shared:
            async for decoded in decoder.decode(DecodeUnit(tuple(packets), tuple(range(len(packets)))), shared):
                seen += 1
                if decoded.damaged and decoded.sample in shown:
                    alarms.append(f"{row['file']}: {decoded}")
                assert (decoded.picture is not None) >= (decoded.sample in shown and not decoded.damaged)
    assert alarms == []
    assert seen > 5000


def plainly_shown(clip: Clip) -> set[int]:
    """The samples whose pictures FFmpeg gives by itself, uncorrupted."""
    context = av.CodecContext.create("libdav1d" if clip.config.codec == "av1" else clip.config.codec, "r")
    if clip.config.extradata:
        context.extradata = clip.config.extradata
    context.width, context.height = clip.config.width, clip.config.height
    context.codec_tag = clip.config.codec_tag.to_bytes(4, "little").decode("latin-1")
    context.bits_per_coded_sample = clip.config.bits_per_coded_sample
    context.thread_count = 1
    shown = set()
    for sample, payload in enumerate([*clip.payloads, None]):
        packet = None
        if payload is not None:
            packet = av.Packet(len(payload))
            packet.update(payload)
            packet.pts = sample
        try:
            shown |= {frame.pts for frame in context.decode(packet) if not frame.is_corrupt}
        except av.FFmpegError:
            continue
    return shown


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "count"), [("camera_sony_a7m3_paff_1080i.mts", 13), ("elst_iibbibb_444.mp4", 12), ("hevc_foreman_9_cra.mp4", 40)]
)
async def test_whole_streams_of_the_corpus_equal_plain_decoding(corpus, decoder, file, count):
    clip = read((corpus / file).read_bytes())
    shown = tuple(sorted(clip.pictures)[:count])
    await decoder.configure(clip.config)
    shared, packets = clip.packed()
    with shared:
        found = await results(decoder, DecodeUnit(tuple(packets), shown), shared)
    assert [d for d in found if d.picture is None] == []
    assert all(same(d.picture, clip.pictures[d.sample]) for d in found)
    assert len(found) == count
