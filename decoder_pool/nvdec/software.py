"""Software for what hardware cannot decode, or decodes with damage: the same unit again, through the pool of `cpu` decoders."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from decoder_pool.decoder import Decoded, DecodeUnit
from decoder_pool.pool import DecoderPool
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import StreamConfig


class SoftwareDecoding(Protocol):
    """Decodes one unit in software, as `Decoder.decode` does. What it raises fails the unit's samples, nothing else."""

    def decode(self, config: StreamConfig, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """Yields one `Decoded` for each wanted sample; planes are valid until the next is asked for."""
        ...


class PooledSoftware:
    """By a lease of `pool` for each unit; `patience` is how long, in seconds, a unit may wait for one."""

    def __init__(self, pool: DecoderPool, *, patience: float = 10.0) -> None:
        self._pool = pool
        self._patience = patience

    async def decode(self, config: StreamConfig, unit: DecodeUnit, packets: SharedBytes) -> AsyncGenerator[Decoded, None]:
        """As `SoftwareDecoding.decode`."""
        (lease,) = await self._pool.lease(config, deadline=time.monotonic() + self._patience)
        async with lease, aclosing(lease.decoder.decode(unit, packets)) as pictures:
            async for decoded in pictures:
                yield decoded
