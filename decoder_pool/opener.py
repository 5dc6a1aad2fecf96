"""Opens a source with the reader that is right for it: ours for MP4, in this process; FFmpeg, in a worker, for the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from decoder_pool.containers import Indexer
from decoder_pool.decoder import Packet
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.turns import Turns
from keyglance.errors import RangesNeeded
from keyglance.mp4 import Declined, Mp4Limits, RandomAccess
from keyglance.mp4.planning import plan_samples, read_checkable
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy
from keyglance.video import SampleFlag, VideoIndex

#: Times the payloads of a call that a source may have and still be kept for them.
_LITTLE_MORE = 1.25


class PartialSource(RandomAccess, Protocol):
    """A file of which some bytes may be elsewhere; reading these raises `RangesNeeded`."""

    @property
    def held(self) -> int:
        """Bytes that are here."""
        ...

    def holds(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the ranges, each (position, size), are here."""
        ...

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
        self._turns = Turns()

    async def open(self, source: PartialSource, limits: SourceLimits, deadline: float) -> Opened:
        """Indexes a source; `deadline` is on `time.monotonic()`.

        Raises what `Indexer.open` and `keyglance.mp4.planning.read_checkable` raise, and `RangesNeeded`.
        """
        own = Mp4Limits(pixels=limits.pixels, side=limits.side, seconds=limits.seconds, samples=limits.samples)
        try:
            # In a thread: usually a millisecond, but a hostile file may take a good part of a second.
            return OpenedMp4(source, await self._turns.run(read_checkable, source, own), self._turns)
        except Declined:
            with await source.shared() as whole:
                return await self._indexer.open(whole, limits, deadline)


class OpenedMp4:
    """A source read by our own reader, as `Opened`; what takes a while is done in `turns`."""

    def __init__(self, source: PartialSource, index: VideoIndex, turns: Turns) -> None:
        self.index = index
        self._source = source
        self._turns = turns

    async def plan(self, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
        """As `Opened.plan`."""
        made, self.index = await self._turns.run(plan_samples, self._source, self.index, policy, limits)
        return made

    async def packets(self, samples: Sequence[int], spare: Collection[int] = ()) -> tuple[SharedBytes, tuple[Packet, ...]]:
        """As `Opened.packets`."""
        stored = self.index.samples
        wanted = np.asarray(samples, np.intp)
        positions, sizes = stored.position[wanted].astype(np.int64), stored.size[wanted].astype(np.int64)
        held = self._source.holds(positions, sizes)
        # What is little more than these payloads may stay as long as they do; of a whole file they are copied, and it goes.
        take = memoryview if self._source.held <= _LITTLE_MORE * int(sizes[held].sum()) else bytes
        keys = stored.having(SampleFlag.KEY)[wanted]
        lacking: list[tuple[int, int]] = []
        payloads: list[bytes | memoryview] = []
        packets: list[Packet] = []
        offset = 0
        rows = zip(samples, positions.tolist(), sizes.tolist(), held.tolist(), keys.tolist(), strict=True)
        for sample, position, size, here, key in rows:
            if here:
                payloads.append(take(self._source.read(position, size)))
                packets.append(Packet(sample, offset, size, key))
                offset += size
            elif sample not in spare:
                lacking.append((position, size))
        if lacking:
            raise self._source.needs(self._source.missing(lacking))
        return SharedBytes.held(payloads, "packets"), tuple(packets)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Holds nothing but the source, which is the caller's."""

    def __repr__(self) -> str:
        return f"<OpenedMp4 {len(self.index.samples)} samples of {self._source!r}>"
