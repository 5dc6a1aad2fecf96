"""What several fronts of one server tell one another: how much each is asked for, whether it is too much, who works for it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from decoder_pool.shared_bytes import SharedBytes
from server.engine import Priority
from server.lane_name import LaneName

_SIZE = struct.calcsize("d")
#: By lane: the demands of all fronts, then for each priority until when there is strain on them.
_ROWS = 1 + len(Priority)


class FrontShare:
    """One front's part of a lane that all fronts share: as large as its part of their demand.

    `rows` are the lane's in memory that all of them see (`FrontBoard`), `number` is this front's. Each writes its own and reads
    all, so nothing is locked: what is read may be a call old, and for a moment all parts together may be more than the whole.
    Without rows the front is alone.
    """

    def __init__(self, rows: Sequence[memoryview[float]] | None = None, number: int = 0) -> None:
        self._demands, *strains = _own(_ROWS) if rows is None else rows
        self._strains = dict(zip(Priority, strains, strict=True))
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

    def strain(self, priority: Priority, until: float) -> None:
        """Calls of this priority have to be refused here, and it is known until then, on `time.monotonic()`'s clock."""
        self._strains[priority][self._number] = until

    def strained_until(self, priority: Priority) -> float:
        """Until when calls of this priority are known to be refused at any front; 0 where none were."""
        return max(self._strains[priority])

    def __repr__(self) -> str:
        return f"<FrontShare of front {self._number}: {', '.join(f'{demand:.3g}' for demand in self._demands)}>"


class EngineLoads:
    """Pictures in flight at each engine, those of all fronts together.

    `rows`: by engine, in memory that all fronts see (`FrontBoard`); `number` is this front's place in them.
    """

    def __init__(self, rows: Sequence[memoryview[float]], number: int = 0) -> None:
        self._rows = rows
        self._number = number

    @classmethod
    def alone(cls, engines: int) -> EngineLoads:
        """Those of a front that has the engines for itself."""
        return cls(_own(engines))

    def tell(self, engine: int, pictures: int) -> None:
        """This front has so many there now."""
        self._rows[engine][self._number] = pictures

    def of(self, engine: int) -> float:
        """How many all fronts have there."""
        return sum(self._rows[engine])

    def __repr__(self) -> str:
        return f"<EngineLoads {', '.join(f'{sum(row):g}' for row in self._rows)}>"


class FrontBoard:
    """Where `fronts` fronts write down for one another what each needs in every lane and has at each of `engines` engines: shared
    memory, which is owned; `close` gives it back.
    """

    def __init__(self, memory: SharedBytes, *, fronts: int, engines: int) -> None:
        if memory.size != (wanted := self._bytes(fronts, engines)):
            raise ValueError(f"what {fronts} fronts tell of {engines} engines takes {wanted} bytes, not {memory.size}")
        self._memory = memory
        self._fronts, self._engines = fronts, engines
        self._values: memoryview[float] = memory.view().cast("d")

    @staticmethod
    def _bytes(fronts: int, engines: int) -> int:
        return (len(LaneName) * _ROWS + engines) * fronts * _SIZE

    @classmethod
    def allocate(cls, *, fronts: int, engines: int) -> FrontBoard:
        """New ones, all 0."""
        memory = SharedBytes.allocate(cls._bytes(fronts, engines), "keyglance-fronts")
        return cls(memory, fronts=fronts, engines=engines)

    @classmethod
    def adopt(cls, fd: int, *, fronts: int, engines: int) -> FrontBoard:
        """Those behind a descriptor that another process has given, which is taken over."""
        return cls(SharedBytes(fd, cls._bytes(fronts, engines)), fronts=fronts, engines=engines)

    @property
    def fd(self) -> int:
        """The descriptor that a front needs."""
        return self._memory.fd

    def shares(self, front: int) -> tuple[FrontShare, ...]:
        """A front's, by lane."""
        rows = self._rows()
        return tuple(FrontShare(rows[lane * _ROWS : (lane + 1) * _ROWS], front) for lane in range(len(LaneName)))

    def loads(self, front: int) -> EngineLoads:
        """The engines', as this front sees and tells them."""
        return EngineLoads(self._rows()[len(LaneName) * _ROWS :], front)

    def forget(self, front: int) -> None:
        """The front is gone, and with it what it needed."""
        for share in self.shares(front):
            share.tell(0.0)
            for priority in Priority:
                share.strain(priority, 0.0)
        for engine in range(self._engines):
            self.loads(front).tell(engine, 0)

    def _rows(self) -> list[memoryview[float]]:
        return [self._values[begin : begin + self._fronts] for begin in range(0, len(self._values), self._fronts)]

    def close(self) -> None:
        """Gives the memory back; it goes with the last share."""
        self._values.release()
        self._memory.close()


def _own(rows: int) -> list[memoryview[float]]:
    """Memory that no other front sees."""
    return [memoryview(bytearray(_SIZE)).cast("d") for _ in range(rows)]
