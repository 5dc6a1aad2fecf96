"""Which part of the places each of several fronts has."""

from __future__ import annotations

import struct

from decoder_pool.shared_bytes import SharedBytes

_SIZE = struct.calcsize("d")


class FrontShare:
    """One front's part of what all fronts share: as large as its part of their demand.

    `demands` has a float64 for each front, in memory that all of them see, `number` is this one's. Each writes its own and reads
    all, so nothing is locked: what is read may be a call old, and for a moment all parts together may be more than the whole.
    """

    def __init__(self, demands: memoryview[float] | None = None, number: int = 0) -> None:
        self._demands = memoryview(bytearray(_SIZE)).cast("d") if demands is None else demands
        if not 0 <= number < len(self._demands):
            raise ValueError(f"front {number} of {len(self._demands)}; 0 to {len(self._demands) - 1} is allowed")
        self._number = number

    def tell(self, demand: float) -> None:
        """What this front could use now, 0 or more."""
        self._demands[self._number] = demand

    def of(self, demand: float) -> float:
        """The part, 0 to 1, of a front that could use so much; 1 where no other front needs anything."""
        others = sum(self._demands) - self._demands[self._number]
        return 1.0 if others <= 0 else demand / (demand + others)

    def __repr__(self) -> str:
        return f"<FrontShare of front {self._number}: {', '.join(f'{demand:.3g}' for demand in self._demands)}>"


class FrontDemands:
    """The demands of `fronts` fronts in each of `lanes` lanes, in shared memory that is owned; `close` gives it back."""

    def __init__(self, memory: SharedBytes, *, lanes: int, fronts: int) -> None:
        if memory.size != (wanted := lanes * fronts * _SIZE):
            raise ValueError(f"{lanes} lanes of {fronts} fronts take {wanted} bytes, not {memory.size}")
        self._memory = memory
        self._lanes, self._fronts = lanes, fronts
        self._demands: memoryview[float] = memory.view().cast("d")

    @classmethod
    def allocate(cls, *, lanes: int, fronts: int) -> FrontDemands:
        """New ones, all 0."""
        return cls(SharedBytes.allocate(lanes * fronts * _SIZE, "keyglance-fronts"), lanes=lanes, fronts=fronts)

    @classmethod
    def adopt(cls, fd: int, *, lanes: int, fronts: int) -> FrontDemands:
        """Those behind a descriptor that another process has given, which is taken over."""
        return cls(SharedBytes(fd, lanes * fronts * _SIZE), lanes=lanes, fronts=fronts)

    @property
    def fd(self) -> int:
        """The descriptor that a front needs."""
        return self._memory.fd

    def shares(self, front: int) -> tuple[FrontShare, ...]:
        """A front's, by lane."""
        return tuple(
            FrontShare(self._demands[lane * self._fronts : (lane + 1) * self._fronts], front) for lane in range(self._lanes)
        )

    def forget(self, front: int) -> None:
        """The front is gone, and with it what it needed."""
        for share in self.shares(front):
            share.tell(0.0)

    def close(self) -> None:
        """Gives the memory back; it goes with the last share."""
        self._demands.release()
        self._memory.close()
