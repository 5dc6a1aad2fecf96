"""What breaks a decoder, or the process' CUDA, costs the calls that it hits; then the engine is as before.

A module of its own: there can be one engine with hardware decoders in a process at a time.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from keyglance.errors import KeyglanceError
from loadtest.clips import encode, pan, photograph
from loadtest.gpu_setup import Service, far
from tests.gpu.engines import SMALL, answered, config, jobs, quiet, recovered

pytestmark = [pytest.mark.gpu, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(loop_scope="module")
async def expendable(cupy: Any, models_folder: Path) -> AsyncIterator[Service]:
    """A small engine of its own, for what may break it."""
    service = await Service.start(config(models_folder, "gpu", ["open-nsfw"], **SMALL))
    yield service
    await service.close()


async def test_a_poisoned_decoder_is_replaced(expendable: Service, clips: dict[str, bytes]) -> None:
    engine: Any = expendable.engine
    job = (await jobs(clips, ["landscape"]))["landscape"]
    expected = await answered(engine, job)
    poison = encode(pan(photograph("coffee"), 1, 32, 32), keyframe_interval=1, container="h264")
    leases = await engine._pool.lease(job.config, deadline=far(), most=3)
    assert len(leases) == 3
    for lease in leases:
        with pytest.raises(Exception, match=r".+"):
            lease.decoder._session._decode(poison, 8)  # error 1, once; from then on every valid picture raises too
        lease.release()  # the pool does not know
    poisoned = {decoder.number for decoder in engine._pool.snapshot().decoders}
    result = await answered(engine, job)
    assert [frame for frame in result.frames if frame.skipped is not None] == []  # software took over
    assert result.degradations
    await recovered(engine, job, expected)
    await quiet(engine)
    state = engine._pool.snapshot()
    assert state.counters.broken >= 1
    assert len(state.decoders) == 3
    assert {decoder.number for decoder in state.decoders} != poisoned


async def test_a_capture_that_fails_elsewhere_in_the_process(expendable: Service, cupy: Any, clips: dict[str, bytes]) -> None:
    engine: Any = expendable.engine
    by_name = await jobs(clips, ["landscape", "upright"])
    expected = await answered(engine, by_name["landscape"])
    begun, enough = threading.Event(), threading.Event()
    said: list[str] = []

    def capture() -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            begun.set()
            enough.wait(20)
            try:
                stream.end_capture()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    assert await asyncio.to_thread(begun.wait, 20)
    hit = await asyncio.gather(*(answered(engine, job, 15) for _ in range(8) for job in by_name.values()), return_exceptions=True)
    enough.set()
    await asyncio.to_thread(thread.join, 20)
    # A call that is hit may fail, with a sentence of ours; it may as well have been answered.
    assert [error for error in hit if isinstance(error, BaseException) and not isinstance(error, KeyglanceError)] == []
    print(json.dumps({"the capture said": said, "calls": sorted({type(each).__name__ for each in hit})}))
    await recovered(engine, by_name["landscape"], expected)
    await recovered(engine, by_name["upright"], await answered(engine, by_name["upright"]))
    await quiet(engine)
