"""Software decoders stand back where there is more to do than processors."""

from __future__ import annotations

import asyncio
import os

import pytest

from decoder_pool.cpu import CpuFactory
from decoder_pool.key import DecoderKey


@pytest.mark.parametrize("niceness", [0, 10])
def test_a_decoder_is_as_nice_as_its_factory_says(niceness: int) -> None:
    async def start() -> list[int]:
        decoder = CpuFactory(niceness=niceness).make(DecoderKey("h264", 8, "420", 1024))
        await decoder.start()
        try:
            pid = decoder._worker.pid
            assert pid is not None
            threads = [int(each) for each in os.listdir(f"/proc/{pid}/task")]
            return [os.getpriority(os.PRIO_PROCESS, each) for each in threads]
        finally:
            await decoder.close()

    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(asyncio.run(start())) == {min(own + niceness, 19)}
