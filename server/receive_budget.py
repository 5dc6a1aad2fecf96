"""A budget of bytes for requests in flight, taken before a request is read.

gRPC tells no message's size before it has read all of it, so a call first reserves the largest message that may come, then reads,
then gives back what it did not need. Until then HTTP/2's flow control keeps the bytes at the sender: an unread stream holds one
window (64 KiB), as long as the probing of the bandwidth-delay product, which makes windows grow, is off.

The budget counts messages, not memory: while a message is parsed it is there up to three times (gRPC's buffer, its bytes, the
parsed copy). Parsing happens on one thread, so that is the budget and about three of the largest messages, however many callers
there are; but gRPC's buffers are small pieces, which the allocator keeps for the next messages when they are free. Where many
large messages arrive at the same time, resident memory may come near twice the budget and stays there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from keyglance.errors import Overloaded


@dataclass(slots=True)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


class Reservation:
    """Bytes taken out of a budget; `shrink` gives some back early. `waited`: whether they were not there at once."""

    def __init__(self, budget: ReceiveBudget, size: int, *, waited: bool = False) -> None:
        self._budget = budget
        self.size = size
        self.waited = waited

    def shrink(self, size: int) -> None:
        """Keeps only `size` bytes; more than it holds changes nothing."""
        if size < self.size:
            freed, self.size = self.size - size, size
            self._budget._give_back(freed)

    def __repr__(self) -> str:
        return f"<Reservation {self.size:,} bytes>"


class ReceiveBudget:
    """At most `total` bytes reserved at once; whoever finds none waits in order of arrival, at most `queue_limit` of them."""

    def __init__(self, total: int, *, queue_limit: int, retry_after: float = 1.0) -> None:
        self.total = total
        self.queue_limit = queue_limit
        self._free = total
        self._retry_after = retry_after
        self._waiters: deque[_Waiter] = deque()

    @property
    def reserved(self) -> int:
        """Bytes that are taken now."""
        return self.total - self._free

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self._waiters)

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[Reservation]:
        """Holds `size` bytes, 0 to `total`, until the block ends. Raises `Overloaded` where the queue is full."""
        if not 0 <= size <= self.total:
            raise ValueError(f"cannot reserve {size:,} bytes of a budget of {self.total:,}")
        reservation = Reservation(self, size, waited=await self._take(size))
        try:
            yield reservation
        finally:
            reservation.shrink(0)

    async def _take(self, size: int) -> bool:
        """Whether it had to be waited for."""
        if not self._waiters and size <= self._free:
            self._free -= size
            return False
        if len(self._waiters) >= self.queue_limit:
            raise Overloaded(
                f"{len(self._waiters)} calls wait to be received already ({self.reserved:,} of {self.total:,} bytes in flight)",
                retry_after=self._retry_after,
            )
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._grant()  # a smaller one behind it may fit now
            else:
                self._give_back(size)  # it was granted in the same turn of the loop
            raise
        return True

    def _give_back(self, size: int) -> None:
        self._free += size
        self._grant()

    def _grant(self) -> None:
        self._waiters = deque(waiter for waiter in self._waiters if not waiter.granted.cancelled())
        while self._waiters and self._waiters[0].size <= self._free:
            waiter = self._waiters.popleft()
            self._free -= waiter.size
            waiter.granted.set_result(None)

    def __repr__(self) -> str:
        return f"<ReceiveBudget {self.reserved:,} of {self.total:,} bytes, {self.waiting} waiting>"
