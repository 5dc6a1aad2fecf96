"""Many units in one go on the fake GPU: the same outcomes as one after the other, each once, whatever happens on the way."""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit, Packet
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import NvdecDecoder, NvdecFactory, NvdecLimits
from decoder_pool.nvdec.software import SoftwareDecoding
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.picture import Picture
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.bitstream.config_records import avcc
from keyglance.errors import WorkerLost
from keyglance.video import StreamConfig
from tests.decoder_pool.encoded import Clip, encode
from tests.decoder_pool.fake_gpu import DAMAGE, FakeEvent, fake_gpu

CLASSES = (640,)
SLOT = 96 * 64 * 3 // 2
H264 = {"preset": "ultrafast", "tune": "zerolatency", "bf": "0", "x264-params": "scenecut=0:sliced-threads=0"}
GOP = 3

Outcome = tuple[bool, bool, bool, str, tuple[bytes, ...]]


@pytest.fixture(scope="module")
def watch() -> Iterator[StdoutWatch]:
    watch = StdoutWatch()
    watch.install()
    yield watch
    watch.close()


@pytest.fixture(scope="module")
def clip() -> Clip:
    return encode("libx264", size=(96, 64), count=4 * GOP, gop=GOP, options=H264, container="mp4")


class Software:
    """Gives the clip's own pictures for samples that `works` says; the unit fails from the first other one on."""

    def __init__(self, clip: Clip, works: Callable[[int], bool] = lambda _: True) -> None:
        self.clip = clip
        self.works = works
        self.most = self.now = 0

    async def decode(self, config: StreamConfig, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for sample in unit.wanted:
                await asyncio.sleep(0)
                if not self.works(sample):
                    raise WorkerLost("the worker is gone")
                planes = tuple(self.clip.pictures[sample % len(self.clip.payloads)])
                yield Decoded(sample, Picture(planes, *reversed(planes[0].shape)), detail="by hand")
        finally:
            self.now -= 1


@dataclass
class Bench:
    """One GPU with one arena; at its end every slot has to be back."""

    watch: StdoutWatch
    software: SoftwareDecoding | None = None
    slots: int = 3
    limits: NvdecLimits = field(default_factory=lambda: NvdecLimits(step_seconds=5.0))

    def __post_init__(self) -> None:
        self.gpu = fake_gpu()
        self.arena = FrameArena({SLOT: self.slots}, self.gpu.cupy.empty)
        self.factory = NvdecFactory(
            self.gpu, arena=self.arena, watch=self.watch, size_classes=CLASSES, software=self.software, limits=self.limits
        )

    @property
    def all_free(self) -> bool:
        return self.arena.snapshot().free == self.arena.snapshot().slots

    async def freed(self) -> bool:
        """Whether every slot comes back in a while: holders on other threads take their time."""
        for _ in range(400):
            if self.all_free:
                break
            await asyncio.sleep(0.005)
        return self.all_free

    @asynccontextmanager
    async def decoder(self, config: StreamConfig) -> AsyncIterator[NvdecDecoder]:
        decoder = self.factory.make(DecoderKey.of(config, CLASSES))
        await decoder.start()
        try:
            await decoder.configure(config)
            yield decoder
        finally:
            await decoder.close()

    @asynccontextmanager
    async def pool(self, config: StreamConfig, decoders: int) -> AsyncIterator[DecoderPool]:
        key = DecoderKey.of(config, CLASSES)
        pool = DecoderPool(factory=self.factory, limit=decoders, size_classes=CLASSES, warm={key: decoders})
        await pool.start()
        try:
            yield pool
        finally:
            await pool.close()


class Receiver:
    """Takes what is delivered, from whatever thread, and gives pictures back at once, or when `hold` is over."""

    def __init__(self, hold: float = 0.0) -> None:
        self.hold = hold
        self.outcomes: dict[int, Outcome] = {}
        self.times: Counter[int] = Counter()
        self.threads: dict[int, str] = {}
        self.ended = False

    def __call__(self, decoded: Decoded) -> None:
        assert not self.ended, "something was delivered after the end"
        self.times[decoded.sample] += 1
        self.threads[decoded.sample] = threading.current_thread().name
        self.outcomes[decoded.sample] = outcome(decoded)
        if decoded.picture is not None:
            assert decoded.picture.lease is not None
            if self.hold:
                threading.Timer(self.hold, decoded.picture.lease.release).start()
            else:
                decoded.picture.lease.release("an event")

    def good(self, clip: Clip) -> bool:
        """Whether every delivered picture is the right one."""
        return all(
            bytes(clip.pictures[sample % len(clip.payloads)][0]) == planes[0]
            for sample, (*_, planes) in self.outcomes.items()
            if planes
        )


def outcome(decoded: Decoded) -> Outcome:
    planes = tuple(np.array(plane).tobytes() for plane in decoded.picture.planes) if decoded.picture is not None else ()
    return decoded.damaged, decoded.alone, decoded.in_software, decoded.detail, planes


@dataclass
class Work:
    """Units over one buffer; `take` gives them one after the other, to whichever thread asks."""

    data: SharedBytes
    units: list[DecodeUnit]

    def __post_init__(self) -> None:
        self.left = deque(self.units)
        self.taken: list[DecodeUnit] = []
        self.ended = False

    def take(self) -> DecodeUnit | None:
        assert not self.ended, "a unit was taken after the end"
        try:
            self.taken.append(self.left.popleft())
        except IndexError:
            return None
        return self.taken[-1]

    @property
    def wanted(self) -> Counter[int]:
        return Counter(sample for unit in self.taken for sample in unit.wanted)


KINDS = (
    "keyframe",
    "group",
    "some of a group",
    "damaged keyframe",
    "damaged in the middle",
    "no keyframe",
    "garbage",
    "too small",
)


def damaged(payload: bytes) -> bytes:
    """With more at the end of its last NAL unit."""
    at = 0
    while at + 4 + (size := int.from_bytes(payload[at : at + 4], "big")) < len(payload):
        at += 4 + size
    return payload[:at] + (size + len(DAMAGE)).to_bytes(4, "big") + payload[at + 4 :] + DAMAGE


def work(clip: Clip, kinds: list[tuple[str, int]]) -> Work:
    """A unit of each kind, with packets of its own; sample numbers are those of the clip, and grow by its length."""
    small = encode("libx264", size=(32, 32), count=1, gop=1, options=H264, container="mp4")
    told = b"".join(len(unit).to_bytes(4, "big") + unit for unit in avcc(small.config.extradata).units)
    parts: list[bytes] = []
    units = []
    at = 0
    for number, (kind, chance) in enumerate(kinds):
        random_ = random.Random(chance)
        first = random_.randrange(len(clip.payloads) // GOP) * GOP
        samples = list(range(first, first + (1 if "keyframe" in kind and kind != "no keyframe" else GOP)))
        payloads = [clip.payloads[sample] for sample in samples]
        wanted = samples
        match kind:
            case "some of a group":
                wanted = sorted(random_.sample(samples, random_.randrange(1, GOP)))
            case "damaged keyframe":
                payloads = [damaged(payloads[0])]
            case "damaged in the middle":
                payloads[1] = damaged(payloads[1])
            case "no keyframe":
                samples, payloads, wanted = samples[1:], payloads[1:], samples[1:]
            case "garbage":
                samples, payloads, wanted = samples[:1], [random_.randbytes(300)], samples[:1]
            case "too small":
                samples, payloads, wanted = samples[:1], [told + small.payloads[0]], samples[:1]
        base = number * len(clip.payloads)
        packets = []
        for place, (sample, payload) in enumerate(zip(samples, payloads, strict=True)):
            packets.append(Packet(base + sample, at, len(payload), place == 0))
            parts.append(payload)
            at += len(payload)
        units.append(DecodeUnit(tuple(packets), tuple(base + sample for sample in wanted)))
    return Work(SharedBytes.of(parts), units)


mixtures = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 30)), max_size=7)


async def one_by_one(decoder: NvdecDecoder, work: Work) -> dict[int, Outcome]:
    outcomes = {}
    for unit in work.units:
        async with aclosing(decoder.decode(unit, work.data)) as pictures:
            async for decoded in pictures:
                outcomes[decoded.sample] = outcome(decoded)
    return outcomes


async def test_pictures_in_one_go_are_complete_behind_an_event_which_the_next_user_of_the_slot_waits_for(
    watch: StdoutWatch, clip: Clip
) -> None:
    bench = Bench(watch, None)
    todo = work(clip, [("keyframe", number) for number in range(4)])
    events: list[object] = []

    def look(decoded: Decoded) -> None:
        assert decoded.picture is not None
        assert decoded.picture.lease is not None
        events.append(decoded.picture.lease.ready)
        assert isinstance(events[-1], FakeEvent)
        assert events[-1].recorded == len(events)  # one slot is enough, and keeps its event
        decoded.picture.lease.release()  # nobody has looked at it

    async with bench.decoder(clip.config) as decoder:
        waited = decoder._session._stream.waited
        del waited[:]
        await decoder.drive(todo.take, todo.data, look)
        first, *_ = todo.units
        async with aclosing(decoder.decode(first, todo.data)) as pictures:
            async for decoded in pictures:
                assert decoded.picture is not None
                assert decoded.picture.lease is not None
                assert decoded.picture.lease.ready is None  # complete
        assert waited == events
        assert len(events) == len(todo.units)
        assert bench.all_free


@given(kinds=mixtures, software=st.sampled_from(["none", "all", "some"]))
@settings(max_examples=40)
def test_units_in_one_go_come_to_the_same_as_one_by_one(
    watch: StdoutWatch, clip: Clip, kinds: list[tuple[str, int]], software: str
) -> None:
    async def run() -> None:
        works = {"all": lambda _: True, "some": lambda sample: sample % 4 != 1}.get(software)
        bench = Bench(watch, Software(clip, works) if works else None)
        todo, receiver = work(clip, kinds), Receiver()
        async with bench.decoder(clip.config) as decoder:
            expected = await one_by_one(decoder, todo)
            await decoder.drive(todo.take, todo.data, receiver)
            assert decoder.settled
        assert receiver.outcomes == expected
        assert receiver.times == todo.wanted == Counter(sample for unit in todo.units for sample in unit.wanted)
        assert {receiver.threads[sample] for sample, (_, _, soft, *_) in expected.items() if soft} <= {"MainThread"}
        assert bench.all_free

    asyncio.run(run())


@given(kinds=mixtures, after=st.floats(0, 0.03), software=st.booleans(), hold=st.sampled_from([0.0, 0.004]))
@settings(max_examples=40)
def test_a_cancelled_drive_leaves_nothing_behind(
    watch: StdoutWatch, clip: Clip, kinds: list[tuple[str, int]], after: float, software: bool, hold: float
) -> None:
    async def run() -> None:
        bench = Bench(watch, Software(clip) if software else None, slots=2)
        todo, receiver = work(clip, kinds), Receiver(hold)
        async with bench.decoder(clip.config) as decoder:
            bench.gpu.codec.decode_seconds = 0.003
            task = asyncio.get_running_loop().create_task(decoder.drive(todo.take, todo.data, receiver))
            await asyncio.sleep(after)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            receiver.ended = todo.ended = True
            assert receiver.times <= todo.wanted
            await decoder.settle()
            assert decoder.settled
            assert await bench.freed()
            bench.gpu.codec.decode_seconds = 0.0
            again, receiver = work(clip, [("group", 1), ("keyframe", 2)]), Receiver()
            await decoder.drive(again.take, again.data, receiver)
            assert receiver.times == again.wanted
            assert all(planes for *_, planes in receiver.outcomes.values())
            assert receiver.good(clip)
        assert bench.all_free

    asyncio.run(run())


@given(kinds=mixtures, left=st.integers(1, 12), software=st.booleans())
@settings(max_examples=40)
def test_a_decoder_that_breaks_in_the_middle(
    watch: StdoutWatch, clip: Clip, kinds: list[tuple[str, int]], left: int, software: bool
) -> None:
    async def run() -> None:
        bench = Bench(watch, Software(clip) if software else None)
        todo, receiver = work(clip, kinds), Receiver()
        async with bench.decoder(clip.config) as decoder:
            bench.gpu.codec.decoders[-1].left = left
            broken = await asyncio.gather(decoder.drive(todo.take, todo.data, receiver), return_exceptions=True)
            if isinstance(broken[0], DecoderBroken):
                assert not software
                assert "returned error 1" in str(broken[0])
                assert not decoder.settled
                in_hand = Counter(todo.taken.pop().wanted)
                assert todo.wanted <= receiver.times <= todo.wanted + in_hand
            else:
                assert broken == [None]
                assert receiver.times == todo.wanted == Counter(sample for unit in todo.units for sample in unit.wanted)
                if not decoder.settled:
                    assert software
                    last = receiver.outcomes[todo.units[-1].wanted[-1]]
                    assert last[2]
            assert receiver.good(clip)
        assert bench.all_free

    asyncio.run(run())


async def test_a_full_arena_is_waited_for_and_nobody_is_overtaken(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch, slots=2)
    todo, receiver = work(clip, [("group", n) for n in range(4)]), Receiver(hold=0.01)
    async with bench.decoder(clip.config) as decoder:
        held = [await bench.arena.lease(SLOT) for _ in range(2)]
        assert bench.arena.try_lease(SLOT) is None
        task = asyncio.get_running_loop().create_task(decoder.drive(todo.take, todo.data, receiver))
        await asyncio.sleep(0.05)
        assert not task.done()
        assert decoder.settled  # it waits on the event loop, not on its thread
        waiting = asyncio.get_running_loop().create_task(bench.arena.lease(SLOT))
        await asyncio.sleep(0)
        held.pop().release()
        assert bench.arena.try_lease(SLOT) is None
        held.pop().release()
        (await waiting).release()
        await task
        assert receiver.times == todo.wanted
        assert receiver.good(clip)
    assert await bench.freed()
    assert bench.arena.snapshot().waits > 1


async def test_a_drive_that_waits_for_room_can_be_cancelled(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch, slots=1)
    todo, receiver = work(clip, [("keyframe", 1)]), Receiver()
    async with bench.decoder(clip.config) as decoder:
        slot = await bench.arena.lease(1)
        task = asyncio.get_running_loop().create_task(decoder.drive(todo.take, todo.data, receiver))
        await asyncio.sleep(0.03)
        slot.release()  # the slot is on its way to it in this moment
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert decoder.settled
        assert await bench.freed()
        assert not receiver.times


async def test_several_decoders_share_the_work_and_one_may_break(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch, Software(clip), slots=4)
    kinds = [(kind, n) for n, kind in enumerate(itertools.islice(itertools.cycle(KINDS), 40))]
    todo, receiver = work(clip, kinds), Receiver()
    async with bench.pool(clip.config, 3) as pool:
        leases = await pool.lease(clip.config, deadline=time.monotonic() + 5, most=3)
        assert len(leases) == 3
        bench.gpu.codec.decoders[1].left = 3
        bench.gpu.codec.decode_seconds = 0.001

        async def drive(lease: Any) -> None:
            async with lease:
                await lease.decoder.drive(todo.take, todo.data, receiver)

        await asyncio.gather(*map(drive, leases))
        assert receiver.times == todo.wanted == Counter(sample for unit in todo.units for sample in unit.wanted)
        assert receiver.good(clip)
        assert pool.snapshot().counters.broken == 1
        leases = [(await pool.lease(clip.config, deadline=time.monotonic() + 5))[0] for _ in range(3)]
        for lease in leases:
            lease.release()
    assert bench.all_free


async def test_a_broken_decoder_without_software_fails_the_lease_and_is_replaced(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch)
    async with bench.pool(clip.config, 1) as pool:

        async def drive(left: int | None) -> int:
            todo, receiver = work(clip, [("keyframe", n) for n in range(4)]), Receiver()
            (lease,) = await pool.lease(clip.config, deadline=time.monotonic() + 5)
            bench.gpu.codec.decoders[-1].left = left
            async with lease:
                await lease.decoder.drive(todo.take, todo.data, receiver)  # type: ignore[attr-defined]
            return len(receiver.times)

        with pytest.raises(DecoderBroken) as broken:
            await drive(left=3)
        assert isinstance(broken.value.__cause__, RuntimeError)  # what the library raised
        assert await drive(left=None) == 4
        assert pool.snapshot().counters.broken == 1


async def test_patience_is_for_a_picture_and_not_for_all(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch, limits=NvdecLimits(step_seconds=0.25))
    todo, receiver = work(clip, [("group", n) for n in range(4)]), Receiver()
    async with bench.decoder(clip.config) as decoder:
        bench.gpu.codec.decode_seconds = 0.05
        await decoder.drive(todo.take, todo.data, receiver)
        assert receiver.times == todo.wanted
    assert bench.all_free


@pytest.mark.parametrize("software", [False, True])
async def test_a_gpu_that_does_not_answer_is_found_and_what_it_gives_later_is_not_delivered(
    watch: StdoutWatch, clip: Clip, software: bool
) -> None:
    bench = Bench(watch, Software(clip) if software else None, limits=NvdecLimits(step_seconds=0.1))
    todo, receiver = work(clip, [("group", 1), ("keyframe", 2)]), Receiver()
    async with bench.decoder(clip.config) as decoder:
        bench.gpu.codec.decode_seconds = 0.5
        driving = decoder.drive(todo.take, todo.data, receiver)
        if software:
            await driving
            assert receiver.times == todo.wanted
            assert len(receiver.times) == 4
            assert all("did not answer within" in detail for _, _, _, detail, _ in receiver.outcomes.values())
        else:
            with pytest.raises(DecoderBroken, match="did not answer within"):
                await driving
            assert not receiver.times
        receiver.ended = todo.ended = True
        assert not decoder.settled
    assert await bench.freed()


async def test_a_decoder_that_is_closed_stops_in_the_middle(watch: StdoutWatch, clip: Clip) -> None:
    bench = Bench(watch, Software(clip))
    todo, receiver = work(clip, [("group", n) for n in range(9)]), Receiver()
    async with bench.decoder(clip.config) as decoder:
        bench.gpu.codec.decode_seconds = 0.01
        task = asyncio.get_running_loop().create_task(decoder.drive(todo.take, todo.data, receiver))
        await asyncio.sleep(0.05)
        await decoder.close()
        with pytest.raises(DecoderBroken, match="is closed"):
            await task
        assert todo.left
    assert await bench.freed()


@pytest.mark.parametrize("culprit", ["take", "deliver", "deliver from software"])
async def test_what_the_caller_raises_comes_through_and_breaks_no_decoder(watch: StdoutWatch, clip: Clip, culprit: str) -> None:
    bench = Bench(watch, Software(clip))
    kind = "too small" if culprit == "deliver from software" else "keyframe"
    todo = work(clip, [(kind, n) for n in range(3)])

    def fails(*_: object) -> None:
        raise KeyError(culprit)

    async with bench.decoder(clip.config) as decoder:
        take = fails if culprit == "take" else todo.take
        with pytest.raises(KeyError, match=culprit):
            await decoder.drive(take, todo.data, fails)
        await decoder.settle()
        again, receiver = work(clip, [("group", 1)]), Receiver()
        await decoder.drive(again.take, again.data, receiver)
        assert receiver.times == again.wanted
        assert receiver.good(clip)
    assert bench.all_free


async def test_software_is_not_flooded_and_hardware_goes_on_meanwhile(watch: StdoutWatch, clip: Clip) -> None:
    software = Software(clip)
    bench = Bench(watch, software)
    todo, receiver = work(clip, [("too small", n) for n in range(30)]), Receiver()
    async with bench.decoder(clip.config) as decoder:
        await decoder.drive(todo.take, todo.data, receiver)
    assert receiver.times == todo.wanted
    assert 1 < software.most <= 4
    assert bench.all_free


async def test_a_stream_that_is_unfit_goes_to_software_as_a_whole(watch: StdoutWatch, clip: Clip) -> None:
    interlaced = encode("libx264", size=(96, 64), options=H264 | {"x264-params": "interlaced=1"}, container="mp4")
    bench = Bench(watch, Software(clip))
    todo, receiver = work(clip, [("group", n) for n in range(3)]), Receiver()
    async with bench.decoder(interlaced.config) as decoder:
        calls = len(bench.gpu.codec.calls)
        await decoder.drive(todo.take, todo.data, receiver)
        assert len(bench.gpu.codec.calls) == calls
    assert receiver.times == todo.wanted
    assert all(soft and "interlaced" in detail for _, _, soft, detail, _ in receiver.outcomes.values())
    assert bench.all_free


async def test_it_has_to_be_configured(watch: StdoutWatch, clip: Clip) -> None:
    decoder = Bench(watch).factory.make(DecoderKey.of(replace(clip.config), CLASSES))
    todo = work(clip, [])
    with pytest.raises(RuntimeError, match="not configured"):
        await decoder.drive(todo.take, todo.data, Receiver())
    await decoder.close()


@pytest.mark.parametrize("held", [False, True], ids=["shared", "held"])
async def test_packets_that_are_closed_meanwhile_break_no_decoder(watch: StdoutWatch, clip: Clip, held: bool) -> None:
    """A cancelled call gives its packets back while a decoder may still be about to read one."""
    bench = Bench(watch)
    data, packets = clip.packed()
    parts = [data.read(0, data.size)]
    gone = SharedBytes.held(parts) if held else SharedBytes.of(parts)
    units = deque(clip.alone(packets, sample) for sample in (0, GOP))
    receiver = Receiver()
    async with bench.decoder(clip.config) as decoder:
        gone.close()
        await decoder.drive(lambda: units.popleft() if units else None, gone, receiver)
        assert decoder.settled
        assert {sample: detail for sample, (*_, detail, _) in receiver.outcomes.items()} == {
            sample: f"packet of sample {sample} cannot be read: Bad file descriptor" for sample in (0, GOP)
        }
        again = work(clip, [("group", 1)])
        await decoder.drive(again.take, again.data, later := Receiver())
        assert later.times == again.wanted
        assert later.good(clip)
    data.close()
    assert bench.all_free
