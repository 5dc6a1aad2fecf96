"""The protocol that every decoder fulfils: `cpu`, `nvdec` and `fake` differ in nothing that the pool can see."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from decoder_pool.key import DecoderKey
from decoder_pool.picture import Picture
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig


@dataclass(frozen=True, slots=True)
class Packet:
    """One sample's payload: `size` bytes at `offset` of the job's packet buffer; `sample` is its number in the index."""

    sample: int
    offset: int
    size: int
    key: bool


@dataclass(frozen=True, slots=True)
class DecodeUnit:
    """A run of packets that can be decoded without any other, and the samples of it whose pictures are wanted.

    `packets` are in decoding order and begin where decoding can begin. `wanted` are sample numbers, ascending. A decoder
    feeds no packet past the one at which the last wanted picture has appeared. `spare` is how many packets at the end are
    there only in case the wanted pictures do not appear from the others (second fields, reordering, flags that lie).
    """

    packets: tuple[Packet, ...]
    wanted: tuple[int, ...]
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of one wanted sample: a picture, or the reason why there is none.

    `damaged` pictures exist but show damage (`picture` is None then: damaged pictures are never labelled). `alone` tells
    whether the picture came from its own packet only. `stand_in` is set where the wanted sample's own picture could not be
    had and the next good one of the unit takes its place: the number of the sample whose picture this is. `detail` says
    what the decoder said. `in_software` tells that a hardware decoder had the sample decoded in software.
    """

    sample: int
    picture: Picture | None
    damaged: bool = False
    alone: bool = True
    stand_in: int | None = None
    detail: str = ""
    in_software: bool = False


class Decoder(Protocol):
    """One decoder: used by one lease at a time; every method may raise `DecoderBroken`, after which it is only closed.

    Cancelling `configure` or `decode` leaves the decoder usable, or unsettled until `settle` has been awaited.
    """

    @property
    def key(self) -> DecoderKey:
        """What it was made for."""
        ...

    @property
    def configured(self) -> StreamConfig | None:
        """The stream that it is set to, None before the first `configure`."""
        ...

    @property
    def settled(self) -> bool:
        """False where a cancelled call's work is still under way inside it, or where it is broken: `settle` is due."""
        ...

    async def start(self) -> None:
        """Creates the process or the hardware session; slow, so never on the way of a usual call."""
        ...

    async def configure(self, config: StreamConfig) -> bool:
        """Sets it to another stream of its key (of any key, where its factory says `rekeyable`).

        Returns whether anything had to be reconfigured.
        """
        ...

    def decode(self, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """Decodes one unit and yields one `Decoded` for each wanted sample, in any order.

        The planes of a yielded picture stay valid until the consumer asks for the next one.
        """
        ...

    async def settle(self) -> None:
        """Brings it back in sync after a cancelled call; raises `DecoderBroken` where that cannot be had in short time."""
        ...

    async def close(self) -> None:
        """Ends it, also in the middle of work. Never raises, may be called twice."""
        ...


class DrivenDecoder(Decoder, Protocol):
    """A decoder with a lean way for many units."""

    async def drive(
        self, take: Callable[[], DecodeUnit | None], packets: SharedBytes, deliver: Callable[[Decoded], None]
    ) -> None:
        """Decodes the units that `take` gives, until it gives None, and hands every wanted sample of each to `deliver`, once.

        Both may be called on other threads than the event loop's, and may neither block nor raise. Whoever gets a picture holds
        `Picture.lease` and releases it. May raise `DecoderBroken`.
        """
        ...


class DecoderBroken(Exception):
    """The decoder cannot be used any more: its process died, or the hardware reported an error."""


class DecoderFactory(Protocol):
    """Makes decoders of one kind; knows what they can decode."""

    @property
    def kind(self) -> str:
        """The kind's name: cpu, nvdec or fake."""
        ...

    @property
    def rekeyable(self) -> bool:
        """Whether a live decoder can be configured for a stream of another key at little cost (hardware cannot)."""
        ...

    def refuses(self, config: StreamConfig) -> str | None:
        """Why this kind cannot decode the stream, in one sentence; None if it can."""
        ...

    def make(self, key: DecoderKey) -> Decoder:
        """A decoder for the key, not started."""
        ...

    def codecs(self) -> Sequence[str]:
        """FFmpeg's names of the codecs that it decodes, sorted."""
        ...
