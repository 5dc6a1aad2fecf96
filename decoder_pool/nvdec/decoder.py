"""The `nvdec` decoder: NVIDIA's hardware decoders through PyNvVideoCodec, reconfigured for every stream.

Each has one thread and one CUDA stream. A decoded picture is copied once, into a slot of the arena; what hardware cannot
decode as it should be, or decodes with damage, is decoded in software where the factory has that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena, Slot
from decoder_pool.nvdec.drive import HardwareDrive
from decoder_pool.nvdec.gpu import CODECS, Gpu, HardwareSession, bounds_of_key
from decoder_pool.nvdec.run import Found, HardwareRun, Leftovers, Room
from decoder_pool.nvdec.software import SoftwareDecoding
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.stream import Bounds, HardwareStream, StreamPlan
from decoder_pool.nvdec.surface import CHROMA_FORMATS, Surface
from decoder_pool.nvdec.thread import Step, StepThread
from decoder_pool.nvdec.upload import Uploader
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import KeyglanceError
from keyglance.video import StreamConfig

_DEPTHS = (8, 10, 12)
#: Codecs whose damaged pictures the hardware tells (measured: H.264 and HEVC; nothing is ever said of the others).
_DAMAGE_TOLD = frozenset(("h264", "hevc"))
#: Codecs that are decoded although it says nothing of them.
_DAMAGE_UNTOLD = ("av1", "vp8", "vp9")
_ASIDE = 4  # units of one drive that software may have in hand before hardware goes on with no further one
_REMEMBERED = 256  # refusals kept by configuration


@dataclass(frozen=True, slots=True)
class NvdecLimits:
    """Seconds that one step of a decoder (a picture, a reconfiguration) may take before it counts as broken; that it may
    take to start; and that a cancelled step may go on.
    """

    step_seconds: float = 5.0
    start_seconds: float = 30.0
    settle_seconds: float = 2.0


def capabilities(gpu: Gpu, damage_untold: Collection[str] = _DAMAGE_UNTOLD) -> dict[tuple[str, int, str], Bounds]:
    """What of the driver's capabilities `NvdecFactory` makes use of, by codec, bit depth and chroma format."""
    return {
        (codec, depth, chroma): bounds
        for codec in CODECS
        if codec in _DAMAGE_TOLD or codec in damage_untold
        for depth in _DEPTHS
        for chroma in CHROMA_FORMATS
        if (bounds := gpu.bounds(codec, depth, chroma)) is not None
    }


def arena_slots(size_classes: Sequence[int], counts: Sequence[int], *, bytes_per_pixel: float = 3.0) -> dict[int, int]:
    """Slots for a `FrameArena`: for each size class as many as `counts` says, of pictures 16:9 with that longer side.

    3 bytes a pixel hold P010 and 4:4:4 of 8 bits; NV12 takes half of that. Squarer pictures take the next class.
    """
    sizes = [int(side * -(-side * 9 // 16) * bytes_per_pixel) for side in size_classes]
    return dict(zip(sizes, counts, strict=True))


class NvdecFactory:
    """Makes `nvdec` decoders of one GPU. `watch` is installed by whoever made it, before the first decoder starts.

    `size_classes` are those of the pool, ascending: a decoder of a class takes pictures of both orientations up to it.
    `software` decodes what hardware cannot; without it such samples have no picture. `damage_untold` are the codecs that are
    decoded here although the hardware says nothing of damaged pictures. VP8, VP9 and AV1 have no redundancy by which
    software would find most of it either; of MPEG-1, MPEG-2 and MPEG-4 pictures software finds it, so they are left to it.
    """

    kind = "nvdec"
    #: A hardware decoder keeps its codec, bit depth, chroma format and largest size for ever.
    rekeyable = False

    def __init__(
        self,
        gpu: Gpu,
        *,
        arena: FrameArena,
        watch: StdoutWatch,
        size_classes: Sequence[int],
        software: SoftwareDecoding | None = None,
        damage_untold: Collection[str] = _DAMAGE_UNTOLD,
        limits: NvdecLimits | None = None,
        ranges: ProfilerRanges = no_ranges,
    ) -> None:
        self._gpu = gpu
        self._watch = watch
        self._size_classes = tuple(sorted(size_classes))
        self._software = software
        self._limits = limits or NvdecLimits()
        self._ranges = ranges
        self._numbers = itertools.count(1)
        #: Called on the event loop with the reason when a decoder breaks, also where software takes over and no call fails:
        #: the time to `check` whether it is the GPU that is lost.
        self.on_broken: Callable[[str], None] = lambda _: None
        self.arena = arena
        self.uploader = Uploader(gpu.cupy, gpu.device, arena)
        self.capabilities: Mapping[tuple[str, int, str], Bounds] = capabilities(gpu, damage_untold)
        self._plans = functools.lru_cache(_REMEMBERED)(StreamPlan.of)
        self._refusals = functools.lru_cache(_REMEMBERED)(self._refusal)

    def refuses(self, config: StreamConfig) -> str | None:
        """As `DecoderFactory.refuses`, by the driver's capabilities and the headers in the configuration record.

        What only samples tell (an in-band size, interlaced pictures) is found while decoding, and goes to software.
        """
        return self._refusals(config)

    def make(self, key: DecoderKey) -> NvdecDecoder:
        """As `DecoderFactory.make`."""
        bounds = bounds_of_key(key, self.capabilities[key.codec, key.bit_depth, key.chroma_format])
        session = HardwareSession(self._gpu, key, bounds, self._watch)
        return NvdecDecoder(
            key,
            session,
            bounds,
            arena=self.arena,
            uploader=self.uploader,
            software=self._software,
            plan=self._plans,
            limits=self._limits,
            ranges=self._ranges,
            name=f"nvdec-{next(self._numbers)}",
            on_broken=lambda why: self.on_broken(why),
        )

    def codecs(self) -> Sequence[str]:
        """As `DecoderFactory.codecs`."""
        return sorted({codec for codec, _, _ in self.capabilities})

    def check(self) -> str | None:
        """What is wrong with the GPU, None if nothing; may block for as long as the GPU does not answer."""
        return self._gpu.check()

    def close(self) -> None:
        """Ends what the decoders share; they are closed before."""
        self.uploader.close()

    def _refusal(self, config: StreamConfig) -> str | None:
        driver = self.capabilities.get((config.codec, config.bit_depth, config.chroma_format))
        if driver is None and self._gpu.bounds(config.codec, config.bit_depth, config.chroma_format) is not None:
            return f"this GPU decodes {config.codec}, but does not tell damaged pictures: software does"
        if driver is None:
            return f"{config.codec} with {config.bit_depth} bits of {config.chroma_format} is not decoded by this GPU"
        bounds = bounds_of_key(DecoderKey.of(config, self._size_classes), driver)
        plan = self._plans(config, bounds)
        if plan.unfit:
            return f"this GPU does not decode it: {plan.unfit}"
        told = plan.surface
        surface = told or Surface(config.width, config.height, config.bit_depth, config.chroma_format)
        size = f"{surface.width}x{surface.height}"
        if told is None and surface.size and (reason := bounds.refusal(surface.width, surface.height)):
            return f"this GPU does not decode it: {reason}"
        if surface.size > self.arena.largest:
            return f"a picture of {size} has {surface.size} bytes, the arena's largest slot {self.arena.largest}"
        return None


class NvdecDecoder:
    """As `Decoder`. Its planes are CuPy arrays of the arena, complete when they are yielded, for any CUDA stream.

    They are valid until the next picture is asked for, and longer for whoever retains `Picture.lease` before that.
    """

    def __init__(
        self,
        key: DecoderKey,
        session: HardwareSession,
        bounds: Bounds,
        *,
        arena: FrameArena,
        uploader: Uploader,
        software: SoftwareDecoding | None,
        plan: Callable[[StreamConfig, Bounds], StreamPlan],
        limits: NvdecLimits,
        ranges: ProfilerRanges,
        name: str,
        on_broken: Callable[[str], None],
    ) -> None:
        self._key = key
        self._session = session
        self._bounds = bounds
        self._arena = arena
        self._uploader = uploader
        self._software = software
        self._plan = plan
        self._limits = limits
        self._ranges = ranges
        self._name = name
        self._on_broken = on_broken
        self._thread = StepThread(name)
        self._configured: StreamConfig | None = None
        self._stream: HardwareStream | None = None
        self._found = StreamPlan(None)
        self._work: Step | None = None
        self._drive: HardwareDrive | None = None
        self._units = 0
        self._broken = ""
        self._started = self._closed = False

    @property
    def key(self) -> DecoderKey:
        """As `Decoder.key`."""
        return self._key

    @property
    def configured(self) -> StreamConfig | None:
        """As `Decoder.configured`."""
        return self._configured

    @property
    def settled(self) -> bool:
        """As `Decoder.settled`."""
        return self._started and not self._broken and (self._work is None or self._work.done)

    async def start(self) -> None:
        """As `Decoder.start`: decodes a tiny clip of its codec in two sizes, so that the hardware's session is there and has
        been reconfigured once. A format without such a clip (`decoder_pool.nvdec.warm`) gets its session with the first picture.
        """
        await self._call(self._warm_up, seconds=self._limits.start_seconds)
        self._started = True

    async def configure(self, config: StreamConfig) -> bool:
        """As `Decoder.configure`. The hardware is told with the first packet, in one step on the decoder's thread. A stream
        whose headers do not fit is not refused here: its samples go to software.
        """
        await self._idle()
        if config == self._configured:
            return False
        self._configured = self._stream = None
        self._found = self._plan(config, self._bounds)
        self._configured = config
        return self._found.surface is None or self._found.surface != self._session.announced

    async def decode(self, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """As `Decoder.decode`. Where there is software, it takes over from a decoder that breaks: that one is not settled
        any more and gets replaced once its lease has ended, and the call does not fail.
        """
        if (config := self._configured) is None:
            raise RuntimeError(f"{self!r} is not configured")
        self._units += 1
        mine = self._units
        left = Leftovers(unit, dict.fromkeys(unit.wanted, self._found.unfit))
        if not self._found.unfit:
            run, missing = self._run(config, packets, unit), set(unit.wanted)
            why = ""
            try:
                await self._idle()
                async with aclosing(self._pictures(run)) as pictures:
                    async for decoded in pictures:
                        missing.discard(decoded.sample)
                        yield decoded
                        if self._units != mine:
                            raise RuntimeError(f"{self!r} was asked for the next picture of a unit that is no longer its own")
            except DecoderBroken as broken:
                if self._software is None or self._closed:
                    raise
                why = str(broken)
            left = run.leftovers(missing, why)
        if not left.missing:
            return
        async with aclosing(self._leftovers(config, packets, left)) as others:
            async for decoded in others:
                yield decoded

    async def drive(
        self, take: Callable[[], DecodeUnit | None], packets: SharedBytes, deliver: Callable[[Decoded], None]
    ) -> None:
        """Decodes the units that `take` gives, until it gives None, and hands every wanted sample of each to `deliver`, once.

        The fast way for many pictures: both are called on the decoder's thread, for what comes from software on the event
        loop's; they may neither block nor raise. Whoever gets a picture holds `Picture.lease` and releases it; it is complete
        behind the event `Picture.lease.ready`. Where no slot of the arena is free, it waits for one. Leftovers of a unit go to
        software while hardware goes on with the next one.

        Where there is software, it takes over from a decoder that breaks, for the unit in hand and for all that `take` still
        gives; without it `DecoderBroken` is raised and the unit in hand stays incomplete. After this has ended, by
        cancellation or otherwise, neither `take` nor `deliver` is called any more.
        """
        if (config := self._configured) is None:
            raise RuntimeError(f"{self!r} is not configured")
        self._units += 1

        async def rest(left: Leftovers) -> None:
            async with aclosing(self._leftovers(config, packets, left)) as others:
                async for decoded in others:
                    _hand_over(decoded, deliver)

        why = self._found.unfit
        try:
            async with asyncio.TaskGroup() as aside:
                if not why:
                    drive = HardwareDrive(
                        take,
                        deliver,
                        run=functools.partial(self._run, config, packets, wait=False),
                        likely=self._likely,
                        arena=self._arena,
                        ranges=self._ranges,
                    )
                    try:
                        await self._driven(drive, lambda left: aside.create_task(rest(left)))
                        return
                    except DecoderBroken as broken:
                        if self._software is None or self._closed:
                            raise
                        why = str(broken)
                    if (left := drive.in_hand(why)) is not None:
                        await rest(left)
                while (unit := take()) is not None:
                    await rest(Leftovers(unit, dict.fromkeys(unit.wanted, why)))
        except BaseExceptionGroup as errors:
            first = next((error for error in errors.exceptions if isinstance(error, DecoderBroken)), errors.exceptions[0])
            raise first from first.__cause__

    async def settle(self) -> None:
        """As `Decoder.settle`."""
        self._units += 1  # a unit that was left in the middle may not go on
        if self._broken:
            raise DecoderBroken(self._broken)
        if self._work is not None:
            if not await self._work.wait(self._limits.settle_seconds):
                raise self._break(f"{self._name}: a cancelled step still goes on after {self._limits.settle_seconds} s")
            self._seen(self._work)

    async def close(self) -> None:
        """As `Decoder.close`."""
        self._units += 1
        self._closed = True
        if self._drive is not None:
            self._drive.stop()
        self._broken = self._broken or f"{self._name} is closed"
        with contextlib.suppress(RuntimeError):  # closed before
            closing = self._thread.submit(self._session.close)
            self._thread.close()
            await closing.wait(self._limits.step_seconds)

    def __repr__(self) -> str:
        config = self._configured
        shown = f"{config.width}x{config.height}" if config else "not configured"
        return f"NvdecDecoder({self._name}, {self._key.codec} up to {self._bounds.width}x{self._bounds.height}, {shown})"

    def _run(self, config: StreamConfig, packets: SharedBytes, unit: DecodeUnit, *, wait: bool = True) -> HardwareRun:
        opened = functools.partial(self._opened, config)
        return HardwareRun(self._session, opened, unit, packets, largest=self._arena.largest, wait=wait)

    def _opened(self, config: StreamConfig) -> HardwareStream:
        """The stream's headers, kept from unit to unit: parameter sets in samples hold for later ones."""
        if self._stream is None or self._stream.refused:
            self._stream = HardwareStream(config, self._bounds, self._found)
        return self._stream

    def _likely(self) -> Surface | None:
        """What the next picture will probably be."""
        return self._found.surface or self._session.announced

    def _warm_up(self) -> None:
        self._session.open()
        self._session.warm_up()

    async def _pictures(self, run: HardwareRun) -> AsyncGenerator[Decoded, None]:
        """What hardware finds of the unit, each picture in a slot that is held until the next one is asked for."""
        slot: Slot | None = None
        try:
            while not run.done:
                if slot is None and (likely := self._likely()) is not None and likely.size <= self._arena.largest:
                    slot = await self._arena.lease(likely.size)
                step = await self._call(functools.partial(run.advance, slot), stop=run.stop, hold=slot)
                if isinstance(step, Room):
                    if slot is not None:
                        slot.release()
                        slot = None
                    slot = await self._arena.lease(step.size)
                elif isinstance(step, Found):
                    held, slot = slot, None
                    assert held is not None
                    try:
                        yield step.decoded(held)
                    finally:
                        held.release()
                else:
                    return
        finally:
            if slot is not None:
                slot.release()

    async def _driven(self, drive: HardwareDrive, aside: Callable[[Leftovers], asyncio.Task[None]]) -> None:
        """Runs it to its end on the decoder's thread; `aside` starts what software has to do meanwhile."""
        pending: set[asyncio.Task[None]] = set()
        await self._idle()
        self._drive = drive
        try:
            while (step := await self._call(drive.advance, stop=drive.stop, alive=drive)) is not None:
                if isinstance(step, Room):
                    drive.give(await self._arena.lease(step.size))
                else:
                    if len(pending) >= _ASIDE:
                        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    pending.add(aside(step))
                    drive.let_go()
        finally:
            self._drive = None
            drive.stop()
            if self._work is not None:
                self._work.then(drive.give_back)
        if self._closed:
            raise DecoderBroken(self._broken)
        if drive.failure is not None:
            raise drive.failure

    async def _leftovers(self, config: StreamConfig, packets: SharedBytes, leftovers: Leftovers) -> AsyncGenerator[Decoded, None]:
        """What hardware did not give: by software, or told as it is."""
        left = dict(leftovers.missing)
        if self._software is not None:
            again = replace(leftovers.unit, wanted=tuple(sorted(left)))
            try:
                async with aclosing(self._software.decode(config, again, packets)) as pictures:
                    async for decoded in pictures:
                        why = left.pop(decoded.sample)
                        async with aclosing(self._uploaded(decoded, why)) as uploaded:
                            async for told in uploaded:
                                yield told
            except (KeyglanceError, DecoderBroken) as error:
                left = {sample: f"{why}; in software: {error}" for sample, why in left.items()}
        for sample, why in left.items():
            yield Decoded(
                sample,
                None,
                damaged=sample in leftovers.damaged,
                alone=False,
                detail=why or "no picture came out of its packets",
            )

    async def _uploaded(self, decoded: Decoded, why: str) -> AsyncGenerator[Decoded, None]:
        """A picture of software, in the arena for as long as it is looked at."""
        detail = "; in software: ".join(part for part in (why, decoded.detail) if part)
        told = replace(decoded, in_software=True, detail=detail)
        if decoded.picture is None:
            yield told
            return
        try:
            picture = await self._uploader.upload(decoded.picture)
        except ValueError as error:
            yield replace(told, picture=None, detail=str(error))
            return
        try:
            yield replace(told, picture=picture)
        finally:
            if picture.lease is not None:
                picture.lease.release()

    async def _call(
        self,
        step: Callable[[], Any],
        *,
        seconds: float | None = None,
        stop: Callable[[], None] | None = None,
        hold: Slot | None = None,
        alive: HardwareDrive | None = None,
    ) -> Any:
        """Runs a step on the decoder's thread. When cancelled, `stop` is called, the step goes on to its end (until then the
        decoder is not settled), and `hold` is not given back before. `alive` tells of progress, on which patience begins anew.
        """
        if self._broken:
            raise DecoderBroken(self._broken)
        work = self._work = self._thread.submit(step)
        patience = seconds or self._limits.step_seconds
        try:
            left = patience
            while not (done := await work.wait(left)) and alive is not None:
                if (left := alive.progress + patience - time.monotonic()) <= 0:
                    break
        except asyncio.CancelledError:
            if stop is not None:
                stop()
            if hold is not None:
                hold.retain()
                work.then(hold.release)
            raise
        if not done:
            raise self._break(f"{self._name}: the GPU did not answer within {patience} s")
        return self._seen(work)

    async def _idle(self) -> None:
        """Waits for what a cancelled call left running; raises where the decoder is broken."""
        if self._broken:
            raise DecoderBroken(self._broken)
        if self._work is not None and not self._work.done:
            await self.settle()

    def _seen(self, work: Step) -> Any:
        """The result of a step; whatever the library or CUDA raised in it breaks the decoder."""
        try:
            return work.result()
        except Exception as error:
            raise self._break(f"{self._name}: {type(error).__name__}: {error}") from error

    def _break(self, why: str) -> DecoderBroken:
        if not self._broken:
            self._broken = why
            self._on_broken(why)
        return DecoderBroken(self._broken)


def _hand_over(decoded: Decoded, deliver: Callable[[Decoded], None]) -> None:
    """Delivers it with a reference to its slot that is the receiver's."""
    lease = decoded.picture.lease if decoded.picture is not None else None
    if lease is not None:
        lease.retain()
    try:
        deliver(decoded)
    except BaseException:
        if lease is not None:
            lease.release()
        raise
