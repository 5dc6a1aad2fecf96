"""Opens a source with the reader that is right for it: ours for MP4, in this process; FFmpeg, in a worker, for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Protocol, Self

from decoder_pool.containers import Indexer
from decoder_pool.decoder import Packet
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import RangesNeeded
from keyglance.mp4 import Declined, Mp4Limits, RandomAccess
from keyglance.mp4.planning import plan_samples, read_checkable
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy
from keyglance.video import SampleFlag, VideoIndex


class PartialSource(RandomAccess, Protocol):
    """A file of which some bytes may be elsewhere; reading these raises `RangesNeeded`."""

    def missing(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What is not here of the `wanted` ranges, each (offset, size)."""
        ...

    def needs(self, ranges: Sequence[tuple[int, int]]) -> RangesNeeded:
        """The error that asks for `ranges`."""
        ...

    async def shared(self) -> SharedBytes:
        """The whole file in shared memory, which the caller closes. Raises `RangesNeeded`."""
        ...


class Opened(Protocol):
    """A source with its index, until it is left."""

    @property
    def index(self) -> VideoIndex:
        """What the container says; after `plan` and `packets`, corrected by what the bitstream says."""
        ...

    async def plan(self, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
        """What to look at. Raises `RangesNeeded`."""
        ...

    async def packets(self, samples: Sequence[int], spare: Collection[int] = ()) -> tuple[SharedBytes, tuple[Packet, ...]]:
        """The samples' payloads in memory that the caller closes; those that are `spare` are left out where bytes are missing.

        Raises `RangesNeeded` for all others that are missing.
        """
        ...

    async def __aenter__(self) -> Self:
        """Itself."""
        ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Gives back what it holds."""
        ...


class Opener:
    """Opens sources; `indexer` reads what our own reader leaves to others."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer

    async def open(self, source: PartialSource, limits: SourceLimits, deadline: float) -> Opened:
        """Indexes a source; `deadline` is on `time.monotonic()`.

        Raises what `Indexer.open` and `keyglance.mp4.planning.read_checkable` raise, and `RangesNeeded`.
        """
        own = Mp4Limits(pixels=limits.pixels, side=limits.side, seconds=limits.seconds, samples=limits.samples)
        try:
            # In a thread: usually a millisecond, but a hostile file may take a good part of a second.
            return OpenedMp4(source, await asyncio.to_thread(read_checkable, source, own))
        except Declined:
            with await source.shared() as whole:
                return await self._indexer.open(whole, limits, deadline)


class OpenedMp4:
    """A source read by our own reader, as `Opened`."""

    def __init__(self, source: PartialSource, index: VideoIndex) -> None:
        self.index = index
        self._source = source

    async def plan(self, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
        """As `Opened.plan`."""
        made, self.index = await asyncio.to_thread(plan_samples, self._source, self.index, policy, limits)
        return made

    async def packets(self, samples: Sequence[int], spare: Collection[int] = ()) -> tuple[SharedBytes, tuple[Packet, ...]]:
        """As `Opened.packets`."""
        stored = self.index.samples
        places = {sample: (int(stored.position[sample]), int(stored.size[sample])) for sample in samples}
        if lacking := self._source.missing([place for sample, place in places.items() if sample not in spare]):
            raise self._source.needs(lacking)
        keys = stored.having(SampleFlag.KEY)
        payloads: list[bytes | memoryview] = []
        packets: list[Packet] = []
        offset = 0
        for sample in samples:
            position, size = places[sample]
            if sample in spare and self._source.missing([(position, size)]):
                continue
            payloads.append(self._source.read(position, size))
            packets.append(Packet(sample, offset, size, bool(keys[sample])))
            offset += size
        return SharedBytes.of(payloads, "packets"), tuple(packets)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Holds nothing but the source, which is the caller's."""

    def __repr__(self) -> str:
        return f"<OpenedMp4 {len(self.index.samples)} samples of {self._source!r}>"
