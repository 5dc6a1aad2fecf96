"""A decoder without a codec: scripted pictures, delays and failures, for the tests of everything above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit
from decoder_pool.key import DecoderKey
from decoder_pool.picture import Picture
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig

_SHIFTS = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "rgb": (0, 0), "410": (2, 2), "411": (2, 0), "440": (0, 1)}


def fake_picture(sample: int, config: StreamConfig) -> Picture:
    """The picture that a fake decoder gives for a sample: a diagonal ramp that the sample's number moves and tints."""
    width, height = max(1, config.width), max(1, config.height)
    shift = _SHIFTS[config.chroma_format]
    top = (1 << config.bit_depth) - 1
    kind = np.uint8 if config.bit_depth == 8 else np.uint16
    ramp = (np.arange(height)[:, None] + np.arange(width)[None, :] + 16 * sample) % (top + 1)
    planes = [ramp.astype(kind)]
    if config.chroma_format != "400":
        small = (-(-height // (1 << shift[1])), -(-width // (1 << shift[0])))
        planes += [np.full(small, (sample * step) % (top + 1), kind) for step in (37, 101)]
    return Picture(
        tuple(planes),
        width,
        height,
        bit_depth=config.bit_depth,
        chroma_format=config.chroma_format,
        chroma_shift=shift,
        colour=config.colour,
        sample_aspect=config.sample_aspect,
    )


@dataclass(slots=True)
class FakeScript:
    """What the decoders of a `FakeFactory` do; change it at any time. Delays are in seconds.

    Units and configurations are counted per decoder, from 1. A hang lasts until the call is cancelled or the decoder closed.
    """

    start_delay: float = 0.0
    configure_delay: float = 0.0
    picture_delay: float = 0.0
    settle_delay: float = 0.0
    start_fails: bool = False
    breaks_at_unit: int | None = None
    breaks_at_configure: int | None = None
    hangs_at_unit: int | None = None
    unsettled_by_cancel: bool = False  # a cancelled call leaves the decoder unsettled
    settle_fails: bool = False
    damaged: frozenset[int] = frozenset()  # samples whose picture shows damage
    missing: frozenset[int] = frozenset()  # samples that give no picture
    picture: Callable[[int, StreamConfig], Picture] = fake_picture


@dataclass(slots=True)
class FakeCounts:
    """What all decoders of a `FakeFactory` have done."""

    started: int = 0
    configured: int = 0
    reconfigured: int = 0
    closed: int = 0
    units: int = 0
    pictures: int = 0


@dataclass(slots=True)
class FakeFactory:
    """Makes fake decoders; `decoders` keeps them all, closed ones too. `refused` maps codecs to the reason they are refused."""

    script: FakeScript = field(default_factory=FakeScript)
    rekeyable: bool = False
    kind: str = "fake"
    refused: Mapping[str, str] = field(default_factory=dict)
    counts: FakeCounts = field(default_factory=FakeCounts)
    decoders: list[FakeDecoder] = field(default_factory=list)

    def refuses(self, config: StreamConfig) -> str | None:
        """As `DecoderFactory.refuses`."""
        return self.refused.get(config.codec)

    def make(self, key: DecoderKey) -> FakeDecoder:
        """As `DecoderFactory.make`."""
        decoder = FakeDecoder(key, self)
        self.decoders.append(decoder)
        return decoder

    def codecs(self) -> Sequence[str]:
        """As `DecoderFactory.codecs`."""
        return sorted({"av1", "h264", "hevc", "mjpeg", "mpeg2video", "mpeg4", "prores", "vp8", "vp9"} - self.refused.keys())


class FakeDecoder:
    """As `Decoder`. Use by two at once, or after `close`, raises RuntimeError: that is a fault of whoever lends it."""

    def __init__(self, key: DecoderKey, factory: FakeFactory) -> None:
        self._key = key
        self._factory = factory
        self._configured: StreamConfig | None = None
        self._closed = asyncio.Event()
        self._started = self._settled = False
        self._broken = False
        self._busy = False
        self._units = self._configurations = 0

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
        return self._settled and not self._broken

    @property
    def alive(self) -> bool:
        """Whether it was started and not closed."""
        return self._started and not self._closed.is_set()

    async def start(self) -> None:
        """As `Decoder.start`."""
        await self._pass_time(self._script.start_delay)
        if self._script.start_fails:
            raise self._break("start fails by its script")
        self._started = self._settled = True
        self._factory.counts.started += 1

    async def configure(self, config: StreamConfig) -> bool:
        """As `Decoder.configure`."""
        self._enter()
        try:
            self._configurations += 1
            self._factory.counts.configured += 1
            if self._configurations == self._script.breaks_at_configure:
                raise self._break(f"configuration {self._configurations} breaks by its script")
            changed = self._configured != config
            self._configured = None
            await self._pass_time(self._script.configure_delay)
            self._configured = config
            self._factory.counts.reconfigured += changed
            return changed
        finally:
            self._busy = False

    async def decode(self, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """As `Decoder.decode`."""
        self._enter()
        self._busy = False
        self._units += 1
        mine = self._units
        self._factory.counts.units += 1
        if (config := self._configured) is None:
            raise RuntimeError(f"{self!r} is not configured")
        if mine == self._script.breaks_at_unit:
            raise self._break(f"unit {mine} breaks by its script")
        for sample in unit.wanted:
            if self._units != mine:
                raise RuntimeError(f"{self!r} was asked for a picture of unit {mine} while it decodes unit {self._units}")
            self._enter()
            try:
                await self._pass_time(None if mine == self._script.hangs_at_unit else self._script.picture_delay)
            finally:
                self._busy = False
            self._factory.counts.pictures += 1
            if sample in self._script.missing:
                yield Decoded(sample, None, detail="missing by its script")
            elif sample in self._script.damaged:
                yield Decoded(sample, None, damaged=True, detail="damaged by its script")
            else:
                yield Decoded(sample, self._script.picture(sample, config), alone=len(unit.packets) == 1)

    async def settle(self) -> None:
        """As `Decoder.settle`."""
        if self._broken or self._closed.is_set():
            raise DecoderBroken(f"{self!r} is broken")
        await self._pass_time(self._script.settle_delay)
        if self._script.settle_fails:
            raise self._break("it cannot be settled, by its script")
        self._settled = True

    async def close(self) -> None:
        """As `Decoder.close`."""
        if not self._closed.is_set():
            self._closed.set()
            self._factory.counts.closed += 1

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "broken" if self._broken else "ready" if self._started else "new"
        return f"FakeDecoder({self._key.codec}, {state})"

    @property
    def _script(self) -> FakeScript:
        return self._factory.script

    def _enter(self) -> None:
        if self._broken or self._closed.is_set():
            raise DecoderBroken(f"{self!r} is used")
        if self._busy or not self._started or not self._settled:
            raise RuntimeError(f"{self!r} is used while it is {'busy' if self._busy else 'not ready'}")
        self._busy = True

    def _break(self, why: str) -> DecoderBroken:
        self._broken = True
        return DecoderBroken(why)

    async def _pass_time(self, seconds: float | None) -> None:
        """Waits, for ever with None, but no longer than until it is closed."""
        try:
            if seconds == 0:
                await asyncio.sleep(0)
            else:
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if self._started and self._script.unsettled_by_cancel:
                self._settled = False
            raise
        if self._closed.is_set():
            raise self._break("closed in the middle of its work")
