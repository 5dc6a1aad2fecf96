"""How many of the frames that wait go into the next batch, where only a few batch sizes exist and each has its price."""

from __future__ import annotations

from collections.abc import Mapping


class BatchPlan:
    """For a device whose networks are prepared for some batch sizes (buckets); a batch costs what its bucket costs.

    `costs`: seconds (or any unit) a bucket, by its size. Of all ways to cut the waiting frames into batches the cheapest
    counts; of equally cheap ones that with the largest first batch. Where more frames are about to come, what is left over
    will share its batch with them, and the first batch is the one that costs least for each of its frames.
    """

    def __init__(self, costs: Mapping[int, float]) -> None:
        if not costs or any(size < 1 or cost <= 0 for size, cost in costs.items()):
            raise ValueError(f"costs {dict(costs)}: at least one batch size of 1 or more, each of more than 0, is needed")
        self.costs = dict(sorted(costs.items()))
        self.largest = max(costs)
        self._first = [0] * (self.largest + 1)
        self._leanest = [0] * (self.largest + 1)
        self._cheapest = [0.0] * (self.largest + 1)
        for waiting in range(1, self.largest + 1):
            ways = [(cost + self._cheapest[max(0, waiting - size)], -min(size, waiting)) for size, cost in self.costs.items()]
            self._cheapest[waiting], first = min(ways)
            self._first[waiting] = -first
            _, lean = min((cost / min(size, waiting), -min(size, waiting)) for size, cost in self.costs.items())
            self._leanest[waiting] = -lean

    def first(self, waiting: int, *, more: bool = False) -> int:
        """How many of `waiting` frames the next batch takes, where `more` are to come or not; all of none."""
        return (self._leanest if more else self._first)[min(waiting, self.largest)]

    def cost(self, frames: int) -> float:
        """What `frames` cost in all their batches."""
        whole, rest = divmod(frames, self.largest)
        return whole * self._cheapest[self.largest] + self._cheapest[rest]

    def __repr__(self) -> str:
        return f"BatchPlan({', '.join(f'{size}: {cost:.4g}' for size, cost in self.costs.items())})"
