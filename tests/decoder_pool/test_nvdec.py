"""The nvdec decoder on a fake GPU (`fake_gpu`); tests/gpu has the real one."""

import asyncio
import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder_pool.assignment import Outcome
from decoder_pool.cpu import CpuFactory
from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit, Packet
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import NvdecDecoder, NvdecFactory, NvdecLimits, arena_slots
from decoder_pool.nvdec.intake import Intake, Ready
from decoder_pool.nvdec.software import PooledSoftware
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.stream import Bounds, Feed, HardwareStream, StreamPlan, Unfit
from decoder_pool.nvdec.surface import Layout, Surface
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig
from tests.decoder_pool.encoded import Clip, encode
from tests.decoder_pool.fake_gpu import FakeArray, fake_gpu

H264 = {"preset": "ultrafast", "tune": "zerolatency", "bf": "0", "x264-params": "scenecut=0:sliced-threads=0"}
CLASSES = (640, 1280)


@pytest.fixture(scope="module")
def watch() -> Iterator[StdoutWatch]:
    watch = StdoutWatch()
    watch.install()
    yield watch
    watch.close()


@pytest.fixture
def factory(watch: StdoutWatch) -> Iterator[NvdecFactory]:
    gpu = fake_gpu()
    arena = FrameArena(arena_slots(CLASSES, (3, 2)), gpu.cupy.empty)
    limits = NvdecLimits(step_seconds=2.0)
    factory = NvdecFactory(gpu, arena=arena, watch=watch, size_classes=CLASSES, limits=limits)
    yield factory
    factory.close()
    assert arena.snapshot().free == arena.snapshot().slots  # nothing is left leased


def h264(size: tuple[int, int], count: int = 4, gop: int = 1, **options: str) -> Clip:
    return encode("libx264", size=size, count=count, gop=gop, options=H264 | options, container="mp4")


async def started(factory: NvdecFactory, config: StreamConfig) -> NvdecDecoder:
    decoder = factory.make(DecoderKey.of(config, CLASSES))
    await decoder.start()
    return decoder


async def all_of(decoder: NvdecDecoder, unit: DecodeUnit, packets: object) -> dict[int, tuple[Decoded, list[np.ndarray]]]:
    found = {}
    async with aclosing(decoder.decode(unit, packets)) as pictures:  # type: ignore[arg-type]
        async for decoded in pictures:
            planes = [np.array(plane) for plane in decoded.picture.planes] if decoded.picture else []
            found[decoded.sample] = decoded, planes
    return found


def nv12(planes: list[np.ndarray], shift: int = 0) -> list[np.ndarray]:
    return [planes[0] << shift, np.stack(planes[1:], axis=-1) << shift]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return len(found) == len(expected) and all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


async def test_keyframes_of_changing_sizes_equal_plain_decoding(factory: NvdecFactory) -> None:
    clips = [h264((640, 530)), h264((640, 532)), h264((360, 640)), h264((640, 530))]
    decoder = await started(factory, clips[0].config)
    for clip in clips:
        await decoder.configure(clip.config)
        data, packets = clip.packed()
        with data:
            for sample in (2, 0, 3):
                (decoded, planes), *_ = (await all_of(decoder, clip.alone(packets, sample), data)).values()
                assert decoded.picture is not None
                assert decoded.alone
                assert (decoded.picture.width, decoded.picture.height) == (clip.config.width, clip.config.height)
                assert same(planes, nv12(clip.pictures[sample]))
    await decoder.close()


async def test_predicted_pictures_are_fed_in_decoding_order_and_no_further_than_needed(factory: NvdecFactory) -> None:
    clip = h264((320, 180), count=8, gop=8)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    with data:
        found = await all_of(decoder, DecodeUnit(tuple(packets), (2, 5), spare=1), data)
    assert {sample: same(planes, nv12(clip.pictures[sample])) for sample, (_, planes) in found.items()} == {2: True, 5: True}
    decodes = [call for call in factory._gpu.codec.calls if call[0] == "decode" and call[2] == 8]
    assert len(decodes) == 2 + 6  # two of the warm-up
    await decoder.close()


async def test_deep_pictures_lie_in_the_high_bits(factory: NvdecFactory) -> None:
    options = {"x265-params": "log-level=none:pools=1:bframes=0:keyint=1", "preset": "ultrafast", "tune": "zerolatency"}
    clip = encode("libx265", "yuv420p10le", (256, 160), count=2, options=options, container="mp4", bit_depth=10)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    with data:
        ((decoded, planes),) = (await all_of(decoder, clip.alone(packets, 1), data)).values()
    assert decoded.picture is not None
    assert decoded.picture.msb_aligned
    assert same(planes, nv12(clip.pictures[1], shift=6))
    await decoder.close()


async def test_a_picture_below_the_smallest_size_never_reaches_the_decoder(factory: NvdecFactory) -> None:
    small, good = h264((32, 32)), h264((320, 180))
    reason = factory.refuses(small.config)
    assert reason is not None
    assert "smaller than 48x16" in reason
    lying = replace(good.config, extradata=b"")  # and a container that says the size of another clip
    decoder = await started(factory, good.config)
    await decoder.configure(lying)
    assert StreamPlan.of(good.config, Bounds(48, 16, 640, 640, 65536)).surface is not None
    data, packets = small.packed()
    before = len(factory._gpu.codec.calls)
    with data:
        ((decoded, _),) = (await all_of(decoder, small.alone(packets, 0), data)).values()
    assert decoded.picture is None
    assert factory._gpu.codec.calls[before:] == []
    await decoder.configure(good.config)
    data, packets = good.packed()
    with data:
        ((decoded, planes),) = (await all_of(decoder, good.alone(packets, 0), data)).values()
    assert same(planes, nv12(good.pictures[0]))
    await decoder.close()


def annexb(clip: Clip, sample: int) -> bytes:
    bounds = Bounds(1, 1, 4096, 4096, 1 << 20)
    feed = HardwareStream(clip.config, bounds).feed(clip.payloads[sample], key=True)
    assert feed is not None
    return feed.data


def held(payload: bytes) -> Intake:
    intake = Intake()
    with SharedBytes.of([payload]) as data:
        assert intake.load(data, 0, len(payload)) == len(payload)
    return intake


def content(feed: Feed | None) -> tuple[bytes, object, object]:
    assert feed is not None
    data = ctypes.string_at(feed.data.address, feed.data.size) if isinstance(feed.data, Ready) else feed.data
    return data, feed.layout, feed.sequence


@pytest.mark.parametrize("where", ["in front", "behind", "inside a slice"])
def test_a_hidden_parameter_set_is_found_wherever_it_lies(where: str) -> None:
    good, small = h264((320, 180)), h264((32, 32))
    parameter_sets = annexb(small, 0).split(b"\0\0\0\1")[1]
    assert parameter_sets[0] & 31 == 7
    hidden = b"\0\0\0\1" + parameter_sets + b"\0\0\0\1"
    payload = good.payloads[0]
    size = int.from_bytes(payload[:4], "big")
    match where:
        case "in front":
            payload = len(parameter_sets).to_bytes(4, "big") + parameter_sets + payload
        case "behind":
            payload = payload + len(parameter_sets).to_bytes(4, "big") + parameter_sets
        case "inside a slice":
            last = len(payload) - 200
            payload = payload[:last] + hidden + payload[last + len(hidden) :]
    assert size
    bounds = Bounds(48, 16, 4096, 4096, 65536)
    unit = DecodeUnit((Packet(0, 0, len(payload), True),), (0,))
    for stream in (HardwareStream(good.config, bounds), HardwareStream(good.config, bounds, StreamPlan.of(good.config, bounds))):
        stream.begin(unit, intake := held(payload))
        with pytest.raises(Unfit, match="smaller than 48x16"):
            stream.feed(intake, key=True)


async def test_an_in_band_size_is_announced_whatever_the_container_says(factory: NvdecFactory) -> None:
    told, real = h264((320, 180)), h264((176, 144))
    config = replace(told.config, extradata=b"")
    decoder = await started(factory, config)
    await decoder.configure(config)
    payloads = [annexb(real, sample) for sample in range(2)]
    data, packets = real.packed(payloads)
    with data:
        ((decoded, planes),) = (await all_of(decoder, real.alone(packets, 1), data)).values()
    assert decoded.picture is not None
    assert same(planes, nv12(real.pictures[1]))
    await decoder.close()


def test_parameter_sets_in_samples_hold_for_their_own_sample_only() -> None:
    one, other = h264((320, 180), count=3, gop=3), h264((320, 180), refs="16", preset="slow")
    bounds = Bounds(48, 16, 4096, 4096, 65536)
    stream = HardwareStream(one.config, bounds, StreamPlan.of(one.config, bounds))
    parameter_sets = annexb(other, 0).split(b"\0\0\0\1")[1:3]
    inside = b"".join(len(unit).to_bytes(4, "big") + unit for unit in parameter_sets)
    unit = DecodeUnit((Packet(0, 0, 1, True), Packet(1, 1, 1, False)), (0, 1))
    assert stream.begin(unit, inside + other.payloads[0]).name == "IDR"
    feed = stream.feed(inside + other.payloads[0], key=True)
    assert feed is not None
    assert len(feed.sequence.parameter_sets) == 2
    with pytest.raises(Unfit, match="came with a sample before"):
        stream.feed(one.payloads[0], key=True)
    stream = HardwareStream(one.config, bounds, StreamPlan.of(one.config, bounds))
    stream.begin(unit, intake := held(one.payloads[0]))
    assert stream.feed(intake, key=True) is not None
    with pytest.raises(Unfit, match="headers change at a predicted picture"):
        stream.feed(inside + one.payloads[1], key=False)


@pytest.fixture(scope="module")
def small_clip() -> Clip:
    return h264((320, 180), count=3, gop=2)


@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40), st.binary(max_size=24)), max_size=4),
    record=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_headers_are_unfit_and_nothing_else(
    small_clip: Clip, edits: list[tuple[int, int, bytes]], record: list[tuple[int, int]]
) -> None:
    extradata = bytearray(small_clip.config.extradata)
    for at, value in record:
        extradata[at % len(extradata)] = value
    config = replace(small_clip.config, extradata=bytes(extradata))
    bounds = Bounds(48, 16, 640, 640, 1600)
    unit = DecodeUnit((Packet(0, 0, 1, True),), (0,))
    plan = StreamPlan.of(config, bounds)
    try:
        stream = HardwareStream(config, bounds, None if plan.unfit else plan)
        slow = HardwareStream(config, bounds)
        for number, payload in enumerate(small_clip.payloads):
            data = bytearray(payload)
            for at, size, new in edits:
                data[at : at + size] = new
            if number == 0:
                stream.begin(unit, intake := held(bytes(data)))
            feed = stream.feed(bytes(data) if number else intake, key=small_clip.keys[number])
            assert feed is None or bounds.refusal(*feed.sequence.coded) is None
            if feed is not None and isinstance(feed.data, Ready):  # seen at a glance: no other than what reading finds
                slow.begin(unit, bytes(data))
                assert content(slow.feed(bytes(data), key=True)) == content(feed)
    except Unfit:
        return


async def test_an_in_band_size_above_the_largest_slot_is_told(watch: StdoutWatch) -> None:
    gpu = fake_gpu()
    arena = FrameArena({320 * 180 * 3 // 2: 1}, gpu.cupy.empty)
    factory = NvdecFactory(gpu, arena=arena, watch=watch, size_classes=CLASSES)
    told, real = h264((320, 180)), h264((640, 360))
    decoder = await started(factory, told.config)
    await decoder.configure(replace(told.config, extradata=b""))
    data, packets = real.packed([annexb(real, 0)])
    with data:
        ((decoded, _),) = (await all_of(decoder, real.alone(packets, 0), data)).values()
    assert decoded.picture is None
    assert "the largest slot has 86528" in decoded.detail
    assert arena.snapshot().free == arena.snapshot().slots
    await decoder.close()
    factory.close()


async def test_a_unit_that_starts_with_a_predicted_picture_is_not_decoded_from_what_is_left(factory: NvdecFactory) -> None:
    clip = h264((320, 180), count=6, gop=6)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    with data:
        await all_of(decoder, clip.alone(packets, 0), data)
        ((decoded, _),) = (await all_of(decoder, DecodeUnit((replace(packets[3], key=True),), (3,)), data)).values()
    assert decoded.picture is None
    assert "decode alone" in decoded.detail
    await decoder.close()


async def test_damage_is_heard_of_and_taints_what_is_predicted_from_it(factory: NvdecFactory) -> None:
    clip = h264((320, 180), count=8, gop=4)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    payloads = list(clip.payloads)
    payloads[1] = payloads[1][: len(payloads[1]) // 2]
    data, packets = clip.packed(payloads)
    with data:
        found = await all_of(decoder, DecodeUnit(tuple(packets), (0, 1, 2, 5)), data)
    assert {sample: decoded.damaged for sample, (decoded, _) in found.items()} == {0: False, 1: True, 2: True, 5: False}
    assert same(found[5][1], nv12(clip.pictures[5]))
    await decoder.close()


async def test_software_takes_what_hardware_does_not_give(watch: StdoutWatch) -> None:
    gpu = fake_gpu()
    arena = FrameArena(arena_slots(CLASSES, (2, 2)), gpu.cupy.empty)
    pool = DecoderPool(factory=CpuFactory(), limit=1, size_classes=CLASSES)
    factory = NvdecFactory(gpu, arena=arena, watch=watch, size_classes=CLASSES, software=PooledSoftware(pool))
    clip = h264((320, 180), count=4, gop=1)
    real = h264((32, 32))
    decoder = await started(factory, clip.config)
    try:
        await decoder.configure(replace(real.config, width=320, height=180))
        data, packets = real.packed()
        with data:
            ((decoded, planes),) = (await all_of(decoder, real.alone(packets, 2), data)).values()
        assert decoded.in_software
        assert decoded.picture is not None
        assert isinstance(decoded.picture.planes[0], FakeArray)
        assert same(planes, nv12(real.pictures[2]))
        assert "smaller than 48x16" in decoded.detail
        assert arena.snapshot().free == arena.snapshot().slots
    finally:
        await decoder.close()
        await pool.close()
        factory.close()


async def test_what_the_library_raises_breaks_the_decoder_and_the_pool_replaces_it(factory: NvdecFactory) -> None:
    clip = h264((320, 180))
    key = DecoderKey.of(clip.config, CLASSES)
    pool = DecoderPool(factory=factory, limit=2, size_classes=CLASSES, warm={key: 1})
    await pool.start()
    data, packets = clip.packed()
    told: list[str] = []
    factory.on_broken = told.append
    with data:
        (lease,) = await pool.lease(clip.config, deadline=time.monotonic() + 5)
        assert lease.outcome is Outcome.RECONFIGURED
        factory._gpu.codec.decoders[-1].broken = True
        with pytest.raises(DecoderBroken, match="returned error 1"):
            await all_of(lease.decoder, clip.alone(packets, 0), data)  # type: ignore[arg-type]
        with pytest.raises(DecoderBroken):
            await lease.decoder.configure(replace(clip.config, width=1))
        assert len(told) == 1
        assert "returned error 1" in told[0]
        assert factory.check() is None  # the decoder is broken, not the GPU
        lease.release(broken=True)
        (lease,) = await pool.lease(clip.config, deadline=time.monotonic() + 5)
        ((_, planes),) = (await all_of(lease.decoder, clip.alone(packets, 0), data)).values()  # type: ignore[arg-type]
        assert same(planes, nv12(clip.pictures[0]))
        lease.release()
    assert pool.snapshot().counters.broken == 1
    await pool.close()


async def test_software_takes_over_from_a_decoder_that_breaks(watch: StdoutWatch) -> None:
    gpu = fake_gpu()
    arena = FrameArena(arena_slots(CLASSES, (2, 2)), gpu.cupy.empty)
    software = DecoderPool(factory=CpuFactory(), limit=1, size_classes=CLASSES)
    factory = NvdecFactory(gpu, arena=arena, watch=watch, size_classes=CLASSES, software=PooledSoftware(software))
    clip = h264((320, 180))
    key = DecoderKey.of(clip.config, CLASSES)
    pool = DecoderPool(factory=factory, limit=1, size_classes=CLASSES, warm={key: 1})
    await pool.start()
    data, packets = clip.packed()
    with data:
        for in_software in (True, False):
            (lease,) = await pool.lease(clip.config, deadline=time.monotonic() + 5)
            gpu.codec.decoders[-1].broken = in_software
            async with lease:
                for sample in (0, 1):
                    ((one, planes),) = (await all_of(lease.decoder, clip.alone(packets, sample), data)).values()  # type: ignore[arg-type]
                    assert one.in_software is in_software
                    assert ("returned error 1" in one.detail) is in_software
                    assert same(planes, nv12(clip.pictures[sample]))
    assert pool.snapshot().counters.broken == 1
    await pool.close()
    await software.close()
    factory.close()
    assert arena.snapshot().free == arena.snapshot().slots


@pytest.mark.parametrize("slice_bytes", [bytes(range(200)), b"\xff" * 200, bytes(200)])
def test_a_slice_that_starts_no_picture_is_kept_from_the_hardware(slice_bytes: bytes) -> None:
    clip = h264((320, 180))
    bounds = Bounds(48, 16, 4096, 4096, 65536)
    stream = HardwareStream(clip.config, bounds, StreamPlan.of(clip.config, bounds))
    payload = (1 + len(slice_bytes)).to_bytes(4, "big") + b"\x65" + slice_bytes
    unit = DecodeUnit((Packet(0, 0, len(payload), True),), (0,))
    with pytest.raises(Unfit):
        stream.begin(unit, held(payload))
    intake = held(clip.payloads[0])
    assert stream.begin(unit, intake).name == "IDR"
    feed = stream.feed(intake, key=True)
    assert feed is not None
    assert isinstance(feed.data, Ready)
    slow = HardwareStream(clip.config, bounds)
    assert slow.begin(unit, clip.payloads[0]).name == "IDR"
    assert content(slow.feed(clip.payloads[0], key=True)) == content(feed)  # what is seen at a glance is what reading finds


async def test_streams_that_differ_in_references_only_visit_another_size(factory: NvdecFactory) -> None:
    few, many = h264((320, 180)), h264((320, 180), refs="16", preset="slow")
    decoder = await started(factory, few.config)
    for clip, visits in ((few, 0), (many, 1), (many, 0), (few, 1)):
        await decoder.configure(clip.config)
        data, packets = clip.packed()
        before = len(factory._gpu.codec.calls)
        with data:
            ((_, planes),) = (await all_of(decoder, clip.alone(packets, 1), data)).values()
        assert same(planes, nv12(clip.pictures[1]))
        calls = [call[0] for call in factory._gpu.codec.calls[before:]]
        assert calls.count("decode") == 1 + visits
    await decoder.close()


async def test_what_is_cropped_at_the_left_or_the_top_goes_to_software(factory: NvdecFactory) -> None:
    """On a GPU such a picture came out uncropped there, and cut at the right instead."""
    cropped = h264((448, 192), **{"x264-params": "scenecut=0:sliced-threads=0:crop-rect=64,8,64,4"})
    refused = factory.refuses(cropped.config)
    assert refused is not None
    assert "cropped at the left or the top" in refused


async def test_a_cancelled_picture_leaves_the_decoder_in_sync(factory: NvdecFactory) -> None:
    clip = h264((320, 180), count=6, gop=6)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    unit = DecodeUnit(tuple(packets), (5,))
    with data:
        factory._gpu.codec.decode_seconds = 0.1
        task = asyncio.get_running_loop().create_task(all_of(decoder, unit, data))
        await asyncio.sleep(0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not decoder.settled
        await decoder.settle()
        assert decoder.settled
        factory._gpu.codec.decode_seconds = 0.0
        ((_, planes),) = (await all_of(decoder, unit, data)).values()
        assert same(planes, nv12(clip.pictures[5]))
    await decoder.close()


async def test_a_gpu_that_does_not_answer_breaks_the_decoder_in_time(factory: NvdecFactory) -> None:
    clip = h264((320, 180))
    decoder = await started(factory, clip.config)
    decoder._limits = NvdecLimits(step_seconds=0.1)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    with data:
        factory._gpu.codec.decode_seconds = 0.5
        with pytest.raises(DecoderBroken, match="did not answer within"):
            await all_of(decoder, clip.alone(packets, 0), data)
    await decoder.close()
    await asyncio.sleep(0.6)


async def test_planes_live_as_long_as_their_lease_is_retained(factory: NvdecFactory) -> None:
    clip = h264((640, 360), count=3)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    data, packets = clip.packed()
    kept = []
    with data:
        for sample in range(3):
            async with aclosing(decoder.decode(clip.alone(packets, sample), data)) as pictures:
                async for decoded in pictures:
                    assert decoded.picture is not None
                    assert decoded.picture.lease is not None
                    decoded.picture.lease.retain()
                    kept.append(decoded.picture)
        waiting = asyncio.get_running_loop().create_task(all_of(decoder, clip.alone(packets, 1), data))
        await asyncio.sleep(0.1)
        assert not waiting.done()  # every slot of its class is held
        for sample, picture in enumerate(kept):
            assert same([np.array(plane) for plane in picture.planes], nv12(clip.pictures[sample]))
        kept[0].lease.release("an event")
        ((_, planes),) = (await waiting).values()
        assert same(planes, nv12(clip.pictures[1]))
    for picture in kept[1:]:
        picture.lease.release()
    with pytest.raises(RuntimeError, match="given back"):
        kept[0].lease.retain()
    await decoder.close()


async def test_an_event_of_the_last_holder_is_waited_for_on_the_stream(factory: NvdecFactory) -> None:
    clip = h264((320, 180), count=3)
    decoder = await started(factory, clip.config)
    await decoder.configure(clip.config)
    slots = [await factory.arena.lease(1) for _ in range(3)]
    for number, slot in enumerate(slots):
        slot.release(f"event {number}")
    data, packets = clip.packed()
    with data:
        await all_of(decoder, clip.alone(packets, 0), data)
    assert len(decoder._session._stream.waited) == 1
    for slot in slots:
        slot.take_events()
    await decoder.close()


def test_a_slot_gives_the_same_views_again_and_keeps_a_few() -> None:
    arena = FrameArena({320 * 180 * 3: 1}, fake_gpu().cupy.empty)
    slot = arena.try_lease(1)
    assert slot is not None
    config = StreamConfig("h264", 320, 180)
    surface = Surface(320, 180, 8, "420")
    first = Layout(surface, (318, 180), config.colour, config.sample_aspect).picture(slot)
    assert Layout(surface, (318, 180), config.colour, config.sample_aspect).picture(slot) is first
    assert first.planes[0].shape == (180, 318)
    others = [Layout(surface, (width, 180), config.colour, config.sample_aspect).picture(slot) for width in range(2, 62, 2)]
    assert [picture.width for picture in others] == list(range(2, 62, 2))
    assert len(slot.pictures) <= 8
    wide = Layout(surface, (318, 180), replace(config.colour, matrix=9), config.sample_aspect).picture(slot)
    assert wide.colour.matrix == 9
    assert wide.lease is slot


def test_a_packet_is_found_in_the_intake_as_it_was() -> None:
    intake = Intake(capacity=5000)
    content = bytes(range(1, 256)) * 18
    with SharedBytes.of([b"before", content]) as data:
        assert intake.load(data, 6, len(content)) == len(content)
        assert intake.payload() == content
        assert intake.load(data, 6, 5000) == len(content)  # there are no more
        assert intake.end - intake.begin == len(content)
    ready = intake.ready(b"head")
    assert ctypes.string_at(ready.address, ready.size) == b"head" + content
    last = content[-3:]
    for begin in (intake.begin, intake.end - 300):  # a long way and a short one
        assert intake.has(last, begin, intake.end)
        assert not intake.has(last, intake.end - 200, intake.end - 1)
        assert not intake.has(b"\0", begin, intake.end)


def test_refusals_name_what_is_wrong(factory: NvdecFactory) -> None:
    fine = StreamConfig("h264", 1280, 720)
    assert factory.refuses(fine) is None
    assert "not decoded by this GPU" in (factory.refuses(replace(fine, codec="av1")) or "")
    assert "10 bits" in (factory.refuses(replace(fine, bit_depth=10)) or "")
    assert "larger than 4096x4096" in (factory.refuses(replace(fine, width=4112, height=4000)) or "")
    assert "largest slot" in (factory.refuses(replace(fine, width=4000, height=4000)) or "")
    assert "does not tell damaged pictures" in (factory.refuses(replace(fine, codec="mpeg4")) or "")
    told = NvdecFactory(factory._gpu, arena=factory.arena, watch=factory._watch, size_classes=CLASSES, damage_untold=("mpeg4",))
    assert told.refuses(replace(fine, codec="mpeg4")) is None
    assert "larger than 1440x1440" in (told.refuses(replace(fine, codec="mpeg4", width=1920, height=1088)) or "")
    assert "av1" not in told.codecs()
    told.close()
    assert "odd sizes" in (factory.refuses(encode("libvpx-vp9", size=(175, 143), container="webm").config) or "odd sizes")
    interlaced = encode("libx264", size=(320, 192), options=H264 | {"x264-params": "interlaced=1"}, container="mp4")
    assert "interlaced" in (factory.refuses(interlaced.config) or "")


class TestStdout:
    def test_every_thread_hears_its_own(self, watch: StdoutWatch) -> None:
        printf = ctypes.CDLL(None).printf
        heard: dict[int, list[str]] = {}

        def work(number: int) -> None:
            heard[number] = watch.listen()
            for _ in range(50):
                printf(b"Decode Error occurred for picture %d\n", number)
            watch.ignore()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert heard == {n: [f"Decode Error occurred for picture {n}\n"] * 50 for n in range(6)}

    def test_a_printing_thread_with_the_interpreters_lock_does_not_wait_for_one_without(self, watch: StdoutWatch) -> None:
        free, locked = ctypes.CDLL(None).printf, ctypes.PyDLL(None).printf
        ends = threading.Event()

        def work(printf: object) -> None:
            watch.listen()
            while not ends.is_set():
                printf(b"words\n")  # type: ignore[operator]

        threads = [threading.Thread(target=work, args=(p,), daemon=True) for p in (free, locked, free, locked)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        ends.set()
        for thread in threads:
            thread.join(5)
        assert not any(thread.is_alive() for thread in threads)

    def test_what_nobody_listens_to_is_printed(self, watch: StdoutWatch, capfd: pytest.CaptureFixture[str]) -> None:
        ctypes.CDLL(None).puts(b"for everybody")
        assert capfd.readouterr().out == "for everybody\n"

    def test_there_is_one_at_a_time(self, watch: StdoutWatch) -> None:
        with pytest.raises(RuntimeError, match="one StdoutWatch"):
            StdoutWatch().install()


class TestArena:
    async def test_a_waiting_lease_that_is_cancelled_takes_nothing(self) -> None:
        arena = FrameArena({1000: 1}, fake_gpu().cupy.empty)
        held = await arena.lease(1000)
        first, second = (asyncio.get_running_loop().create_task(arena.lease(10)) for _ in range(2))
        await asyncio.sleep(0)
        threading.Thread(target=held.release).start()
        first.cancel()
        slot = await asyncio.wait_for(second, 2)
        slot.release()
        await asyncio.sleep(0)
        assert arena.snapshot().free == {1024: 1}
        assert arena.snapshot().waits == 2

    async def test_too_large_is_told(self) -> None:
        arena = FrameArena({1000: 1}, fake_gpu().cupy.empty)
        with pytest.raises(ValueError, match="largest slot has 1024"):
            await arena.lease(2000)


@pytest.mark.parametrize(("status", "lost"), [(900, False), (906, False), (908, False), (2, True), (700, True), (None, True)])
def test_a_capture_elsewhere_in_the_process_is_no_lost_gpu(status: int | None, lost: bool) -> None:
    class Failed(Exception):
        pass

    gpu = fake_gpu()
    assert gpu.check() is None

    def ask() -> None:
        error = Failed("no")
        error.status = status  # type: ignore[attr-defined]
        raise error

    gpu.cupy.cuda.runtime.memGetInfo = ask
    assert (gpu.check() == "Failed: no") is lost
