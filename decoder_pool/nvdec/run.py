"""One decode unit on a hardware decoder: step by step on the decoder's thread, a wanted picture at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from decoder_pool.decoder import Decoded, DecodeUnit, Packet
from decoder_pool.nvdec.arena import Slot
from decoder_pool.nvdec.gpu import HardwareSession
from decoder_pool.nvdec.intake import Intake
from decoder_pool.nvdec.stream import Feed, HardwareStream, Unfit
from decoder_pool.nvdec.surface import Layout
from decoder_pool.shared_bytes import SharedBytes
from keyglance.bitstream import SampleKind

#: Codecs whose packets may hold pictures that are not shown, in front of the one that is.
_SUPERFRAMES = ("vp9", "av1")


class Room(NamedTuple):
    """A slot of `size` bytes is needed to go on."""

    size: int


class Found(NamedTuple):
    """A wanted sample's picture is in the slot."""

    sample: int
    layout: Layout
    alone: bool

    def decoded(self, slot: Slot) -> Decoded:
        """The picture, whose lease is `slot`."""
        return Decoded(self.sample, self.layout.picture(slot), alone=self.alone)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What hardware did not give of a unit's wanted samples, with a sentence why ("" where nothing is known), and which of
    these showed damage.
    """

    unit: DecodeUnit
    missing: Mapping[int, str]
    damaged: Set[int] = frozenset()


class HardwareRun:
    """`stream` opens the stream's headers, on the decoder's thread; `largest` is the most bytes that a picture may have;
    with `wait` pictures are complete when they are found, else behind the event `Slot.ready`.

    `advance` until it says None; then `reasons` has a sentence for each wanted sample without a picture, as far as there
    is one, and `damaged` those whose picture showed damage, its own or that of a picture which it may be predicted from.
    """

    def __init__(
        self,
        session: HardwareSession,
        stream: Callable[[], HardwareStream],
        unit: DecodeUnit,
        packets: SharedBytes,
        *,
        largest: int,
        wait: bool = True,
    ) -> None:
        self._session = session
        self._wait = wait
        self._largest = largest
        self._open = stream
        self._stream: HardwareStream | None = None
        self._unit = unit
        self._source = packets
        self._left = set(unit.wanted)
        self._packets = iter(unit.packets[: len(unit.packets) - unit.spare])
        self._waiting: tuple[Packet, Feed] | None = None
        self._payload: bytes | Intake | None = None  # of the first packet, once it is read
        self._fed = 0
        self._tainted = self._stopped = False
        self.reasons: dict[int, str] = {}
        self.damaged: set[int] = set()

    @property
    def done(self) -> bool:
        """Whether `advance` has nothing more to do."""
        return not self._left

    def stop(self) -> None:
        """Ends `advance` before its next packet; called from another thread."""
        self._stopped = True

    def leftovers(self, missing: Iterable[int], why: str = "") -> Leftovers:
        """Of the wanted samples `missing`, that nobody got; `why` for those that the run has no reason for."""
        told = {sample: self.reasons.get(sample, why) for sample in missing}
        return Leftovers(self._unit, told, self.damaged & told.keys())

    def advance(self, slot: Slot | None) -> Room | Found | None:
        """Feeds packets until a wanted picture is in `slot`, a (larger) slot is needed, or there is nothing more to do.

        Whatever the library raises comes through.
        """
        try:
            return self._advance(slot)
        except Unfit as unfit:
            if self._stream is not None:
                self._stream.refused = True
            self._end(str(unfit))
            return None

    def _advance(self, slot: Slot | None) -> Room | Found | None:
        if not self._fed and self._waiting is None:
            self._begin()
        while self._left and not self._stopped:
            if self._waiting is None and (packet := next(self._packets, None)) is not None:
                self._prepare(packet)
            elif self._waiting is None:
                return None
            if self._waiting is None:
                continue
            packet, feed = self._waiting
            if packet.sample in self._left and (slot is None or slot.size < feed.surface.size):
                return Room(feed.surface.size)
            self._waiting = None
            if self._feed(packet, feed, slot):
                return Found(packet.sample, feed.layout, self._fed == 1)
        return None

    def _begin(self) -> None:
        stream = self._stream = self._open()
        self._payload = self._read(self._unit.packets[0])
        if stream.begin(self._unit, self._payload) is not SampleKind.IDR:
            self._session.reset()

    def _prepare(self, packet: Packet) -> None:
        payload, self._payload = self._payload or self._read(packet), None
        assert self._stream is not None
        feed = self._stream.feed(payload, key=packet.key)
        if feed is not None and feed.surface.size > self._largest:
            raise Unfit(f"a picture of {feed.surface.size} bytes, the largest slot has {self._largest}")
        if feed is not None:
            self._waiting = packet, feed
        elif packet.sample in self._left:
            self._left.discard(packet.sample)
            self.reasons[packet.sample] = "a leading picture, whose references come before the unit"

    def _feed(self, packet: Packet, feed: Feed, slot: Slot | None) -> bool:
        """Feeds one packet; whether its picture was wanted, is good, and is now in the slot."""
        self._session.follow(feed.surface, feed.sequence)
        answer = self._session.feed(feed.data)
        self._fed += 1
        pictures = answer.frames
        if feed.facts.kind.random_access:
            self._tainted = False
        self._tainted = self._tainted or answer.damaged
        if packet.sample not in self._left or slot is None:
            return False
        self._left.discard(packet.sample)
        if self._tainted:
            self.damaged.add(packet.sample)
            self.reasons[packet.sample] = (
                "the decoder reports an error in the picture" if answer.damaged else "predicted from a damaged picture"
            )
        elif not pictures or not feed.facts.shown:
            self.reasons[packet.sample] = "no picture came out of its packet"
        elif len(pictures) > 1 and self._session.codec not in _SUPERFRAMES:
            self.reasons[packet.sample] = f"{len(pictures)} pictures came out of its packet"
        else:
            self._session.copy(pictures[-1], feed.surface, slot, wait=self._wait)
            return True
        return False

    def _read(self, packet: Packet) -> bytes | Intake:
        intake = self._session.intake
        payload: bytes | Intake
        try:
            if packet.size <= intake.capacity:
                payload, got = intake, intake.load(self._source, packet.offset, packet.size)
            else:
                payload = self._source.read(packet.offset, packet.size)
                got = len(payload)
        except OSError as error:  # a cancelled call closes its packets while the decoder still reads: no fault of the decoder's
            raise Unfit(f"packet of sample {packet.sample} cannot be read: {error.strerror}") from None
        if got != packet.size:
            raise Unfit(f"packet of sample {packet.sample}: {got} of {packet.size} bytes are there")
        return payload

    def _end(self, why: str) -> None:
        for sample in self._left:
            self.reasons.setdefault(sample, why)
        self._left.clear()
