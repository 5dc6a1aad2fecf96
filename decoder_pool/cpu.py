"""The `cpu` decoder: FFmpeg's software decoders, each in a worker process of its own.

The parent owns the memory: packets go in, and pictures come back, through shared memory that it made. Two slots for
pictures take turns, so the worker decodes the next picture while the consumer looks at this one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np

from decoder_pool.decoder import Decoded, DecoderBroken, DecodeUnit
from decoder_pool.key import DecoderKey
from decoder_pool.picture import Picture
from decoder_pool.planes import CHROMA_SHIFTS, PlaneLayout
from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.stream_facts import WIDEST_ASPECT
from decoder_pool.worker import Worker, WorkerDied, WorkerRefused
from keyglance.video import Colour, ColourRange, StreamConfig

_SLOTS = 2
_SLOT_WASTE = 4  # a slot this many times larger than a new stream needs is given back,
_SLOT_KEPT = 16 << 20  # unless it is only this many bytes
_EXTRADATA = 1 << 20  # bytes; real ones are some hundred
_CALL_SECONDS = 5.0  # for calls that decode nothing
_SETTLE_SECONDS = 2.0
_RANGES = {1: ColourRange.LIMITED, 2: ColourRange.FULL}

#: Codecs that FFmpeg lists as video and that are none here: text, single images, wrappers of frames in memory.
_DENIED = """
    alias_pix ansi bintext bitpacked bmp brender_pix cri dds dpx exr fits gem hdr idf ljpeg pam pbm pcx pfm pgm pgmyuv pgx phm
    photocd pictor ppm psd ptx qdraw qoi sgi sunrast targa tiff txd vbn vnull wbmp wrapped_avframe xbin xbm xface xpm xwd
"""


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """Limits of one worker: pixels of a picture, seconds of decoding for a unit, bytes of address space."""

    pixels: int = 8192 * 4352
    unit_seconds: float = 20.0
    memory: int = 4 << 30


class CpuFactory:
    """Makes `cpu` decoders; `threads` is the number of slice threads of each (1 is best where several calls come at once),
    `niceness` (0 to 19) by how much they stand back behind other processes.
    """

    kind = "cpu"
    #: Another key is only another codec context in the same process.
    rekeyable = True

    def __init__(self, *, limits: CpuLimits | None = None, threads: int = 1, niceness: int = 0) -> None:
        self._limits = limits or CpuLimits()
        self._threads = threads
        self._niceness = niceness
        self._codecs = _decodable()
        self._numbers = itertools.count(1)

    def refuses(self, config: StreamConfig) -> str | None:
        """As `DecoderFactory.refuses`; what the headers in the bitstream say is checked again in the worker."""
        if config.codec not in self._codecs:
            return f"the codec {config.codec!r} cannot be decoded on the CPU"
        if (pixels := config.width * config.height) > self._limits.pixels:
            return f"pictures of {config.width}x{config.height} are {pixels:,} pixels, at most {self._limits.pixels:,} allowed"
        if (size := len(config.extradata)) > _EXTRADATA:
            return f"the codec configuration is {size:,} bytes, at most {_EXTRADATA:,} allowed"
        return None

    def make(self, key: DecoderKey) -> CpuDecoder:
        """As `DecoderFactory.make`."""
        name = f"cpu-{next(self._numbers)}"
        return CpuDecoder(key, limits=self._limits, threads=self._threads, name=name, niceness=self._niceness)

    def codecs(self) -> Sequence[str]:
        """As `DecoderFactory.codecs`."""
        return sorted(self._codecs)


class CpuDecoder:
    """As `Decoder`. Its planes are views of shared memory, so they keep their values only as long as the protocol says."""

    def __init__(self, key: DecoderKey, *, limits: CpuLimits, threads: int, name: str, niceness: int = 0) -> None:
        self._key = key
        self._limits = limits
        self._threads = threads
        self._worker = Worker("decoder_pool.cpu_worker", memory_limit=limits.memory, name=name, niceness=niceness)
        self._configured: StreamConfig | None = None
        self._slots: list[SharedBytes | None] = [None] * _SLOTS
        self._ahead: asyncio.Task[dict[str, Any]] | None = None
        self._units = 0

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
        return self._worker.alive and self._worker.settled and self._ahead is None

    async def start(self) -> None:
        """As `Decoder.start`."""
        try:
            await self._worker.start()
        except WorkerDied as error:
            raise DecoderBroken(str(error)) from None

    async def configure(self, config: StreamConfig) -> bool:
        """As `Decoder.configure`."""
        await self._drop_ahead()
        if config == self._configured:
            return False  # every unit begins with a flush
        self._configured = None
        unfit: dict[int, int] = {}
        if config.width and config.height and config.chroma_format in CHROMA_SHIFTS:
            size = PlaneLayout.of(config.width, config.height, config.bit_depth, config.chroma_format).size
            for number, held in enumerate(self._slots):
                if held is None or not size <= held.size <= max(_SLOT_WASTE * size, _SLOT_KEPT):
                    unfit[number] = size
        await self._call_with_slots("configure", self._arguments(config), unfit)
        self._configured = config
        return True

    async def decode(self, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """As `Decoder.decode`."""
        if (config := self._configured) is None:
            raise RuntimeError(f"{self!r} is not configured")
        await self._drop_ahead()
        self._units += 1
        mine = self._units
        due = set(unit.wanted)
        budget = _Budget(self._limits.unit_seconds)
        slot = 0
        arguments = {
            "packets": [(packet.sample, packet.offset, packet.size, int(packet.key)) for packet in unit.packets],
            "wanted": unit.wanted,
            "spare": unit.spare,
            "slot": slot,
            "held": [held.size if held is not None else 0 for held in self._slots],
        }
        try:
            told = await self._result("begin", arguments, budget, fds=(packets.fd,))
            while due:
                decoded = self._decoded(told, slot, config, due)
                due.discard(decoded.sample)
                if due:
                    slot = (slot + 1) % _SLOTS
                    self._ahead = asyncio.get_running_loop().create_task(self._result("next", {"slot": slot}, budget))
                yield decoded
                if due:
                    if self._units != mine or self._ahead is None:
                        raise RuntimeError(f"{self!r} was asked for the next picture of a unit that is no longer its own")
                    told = await self._ahead
                    self._ahead = None
        finally:
            if self._units == mine:
                await self._drop_ahead()

    async def settle(self) -> None:
        """As `Decoder.settle`."""
        self._units += 1  # a unit that was left in the middle may not go on
        await self._drop_ahead()
        try:
            await self._worker.settle(_SETTLE_SECONDS)
        except WorkerDied as error:
            raise DecoderBroken(str(error)) from None

    async def close(self) -> None:
        """As `Decoder.close`."""
        self._units += 1
        await self._worker.close()
        await self._drop_ahead()
        for number, slot in enumerate(self._slots):
            if slot is not None:
                slot.close()
                self._slots[number] = None

    def __repr__(self) -> str:
        config = self._configured
        shown = f"{config.codec} {config.width}x{config.height}" if config else "not configured"
        return f"CpuDecoder({shown}, {self._worker!r})"

    def _arguments(self, config: StreamConfig) -> dict[str, Any]:
        return {
            "codec": config.codec,
            "width": config.width,
            "height": config.height,
            "bit_depth": config.bit_depth,
            "extradata": base64.b64encode(config.extradata).decode(),
            "codec_tag": config.codec_tag,
            "bits_per_coded_sample": config.bits_per_coded_sample,
            "threads": self._threads,
            "max_pixels": self._limits.pixels,
        }

    async def _result(
        self, method: str, arguments: Mapping[str, Any], budget: _Budget, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Calls until there is a result: grows the slot when the picture needs it, goes on when a time slice was over."""
        while True:
            with budget:
                told = await self._call(method, arguments, budget.left, fds=fds)
            if "grow" in told:
                size = self._number(told["grow"], 6 * self._limits.pixels + 4096)
                await self._call_with_slots("grow", {}, {arguments["slot"]: size})
            elif "more" not in told:
                return told
            method, arguments, fds = "next", {"slot": arguments["slot"]}, ()

    async def _call_with_slots(self, method: str, arguments: Mapping[str, Any], sizes: Mapping[int, int]) -> None:
        """Calls with new memory for the slots in `sizes` (bytes by number), which takes the place of the old."""
        made = {number: SharedBytes.allocate(size, "keyglance-picture") for number, size in sizes.items()}
        arguments = {**arguments, "slots": [(number, slot.size) for number, slot in made.items()]}
        try:
            await self._call(method, arguments, _CALL_SECONDS, fds=[slot.fd for slot in made.values()])
        except BaseException:  # whether the worker took it is not known: `begin` tells it that there is none
            for number, slot in made.items():
                slot.close()
                self._slots[number] = None
            raise
        for number, slot in made.items():
            held, self._slots[number] = self._slots[number], slot
            if held is not None:
                held.close()

    async def _call(self, method: str, arguments: Mapping[str, Any], seconds: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        try:
            reply = await self._worker.call(method, arguments, fds=fds, timeout=seconds)
        except WorkerDied as error:
            raise DecoderBroken(str(error)) from None
        except WorkerRefused as error:
            raise self._distrust(str(error)) from None
        return reply.values

    async def _drop_ahead(self) -> None:
        """Ends a picture that is being decoded ahead and that nobody will ask for."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()  # seen, and of no interest any more

    def _decoded(self, told: Mapping[str, Any], slot: int, config: StreamConfig, due: set[int]) -> Decoded:
        sample = told.get("sample")
        if sample not in due or not isinstance(sample, int):
            raise self._distrust(f"a result for sample {str(sample)[:40]}, not one of those that are due")
        detail = "".join(c if c.isprintable() else " " for c in str(told.get("detail", ""))[:300])
        stand_in = told.get("stand_in")
        picture = told.get("picture")
        return Decoded(
            sample,
            None if picture is None else self._picture(picture, slot, config),
            damaged=told.get("damaged") is True,
            alone=told.get("alone") is True,
            stand_in=None if stand_in is None else self._number(stand_in, 1 << 40),
            detail=detail,
        )

    def _picture(self, told: Any, slot: int, config: StreamConfig) -> Picture:
        if not isinstance(told, dict):
            raise self._distrust(f"a picture {str(told)[:80]!r}")
        width, height = (self._number(told.get(side), self._limits.pixels, least=1) for side in ("width", "height"))
        depth, chroma = self._number(told.get("depth"), 16, least=8), told.get("chroma")
        numbers = [told.get("colour"), told.get("aspect")]
        memory = self._slots[slot]
        if chroma not in CHROMA_SHIFTS or memory is None or not all(isinstance(values, list) for values in numbers):
            raise self._distrust(f"a picture {str(told)[:200]!r}")
        layout = PlaneLayout.of(width, height, depth, chroma)
        if layout.size > memory.size:
            raise self._distrust(f"a picture of {layout.size} bytes in a slot of {memory.size}")
        kind = np.uint8 if layout.itemsize == 1 else np.uint16
        view = memory.view()
        planes = tuple(
            np.frombuffer(view, kind, rows * columns, offset).reshape(rows, columns)
            for (rows, columns), offset in zip(layout.shapes, layout.offsets, strict=True)
        )
        for plane in planes:
            plane.flags.writeable = False
        return Picture(
            planes,
            width,
            height,
            bit_depth=depth,
            chroma_format=chroma,
            chroma_shift=CHROMA_SHIFTS[chroma] or (0, 0),
            colour=self._colour(told["colour"], chroma, config.colour),
            sample_aspect=self._aspect(told["aspect"], config.sample_aspect),
        )

    def _colour(self, told: list[Any], chroma: str, known: Colour) -> Colour:
        primaries, transfer, matrix, extent = (self._number(value, 255) for value in told)
        return Colour(
            primaries=known.primaries if primaries == 2 else primaries,
            transfer=known.transfer if transfer == 2 else transfer,
            matrix=known.matrix if matrix == 2 and chroma != "rgb" else matrix,
            range=_RANGES.get(extent, known.range),
            chroma_location=known.chroma_location,
        )

    def _aspect(self, told: list[Any], known: Fraction) -> Fraction:
        """The container's sample aspect where it has one (as FFmpeg's players choose), else the bitstream's.

        An absurd one is taken for square: it would shrink the picture to a line that no model sees anything in.
        """
        numerator, denominator = (self._number(value, (1 << 31) - 1) for value in told)
        if known != 1 or numerator == 0 or denominator == 0:
            return known
        aspect = Fraction(numerator, denominator)
        return aspect if Fraction(1, WIDEST_ASPECT) <= aspect <= WIDEST_ASPECT else Fraction(1)

    def _number(self, value: Any, most: int, least: int = 0) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._distrust(f"the number {str(value)[:40]}, {least} to {most} allowed")
        return value

    def _distrust(self, what: str) -> DecoderBroken:
        self._worker.kill("it broke the protocol")
        return DecoderBroken(f"{self._worker.name}: {what}")


class _Budget:
    """Seconds that the worker may take for one unit; the consumer's own time is not counted."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.left -= time.monotonic() - self._since


def _decodable() -> frozenset[str]:
    """Names of the codecs (not of decoders) that this FFmpeg decodes in software and that are video here."""
    names = set()
    for name in av.codecs_available:
        with contextlib.suppress(ValueError):  # an encoder's name
            codec = av.Codec(name, "r")
            if codec.type == "video" and not name.endswith(("_cuvid", "_qsv", "_v4l2m2m", "_amf", "_nvdec", "_mediacodec")):
                names.add(codec.canonical_name)
    return frozenset(names) - frozenset(_DENIED.split())
