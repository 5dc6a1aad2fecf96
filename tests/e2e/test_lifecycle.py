"""Calls that are given up, and a server that is told to end: nothing is left behind, nothing in flight is lost."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from keyglance import AsyncClient, Client
from keyglance.errors import DeadlineExceeded, ServiceError
from loadtest import clips
from loadtest.server_process import ServerProcess

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def long_clip() -> bytes:
    """Two minutes with a keyframe every two seconds: 60 pictures take seconds."""
    picture = clips.fit(clips.photograph("rocket"), 640, 360)
    return clips.encode(clips.pan(picture, 600, 640, 360), fps=5, keyframe_interval=10)


def workers(server: ServerProcess) -> int:
    return len(psutil.Process(server.pid).children(recursive=True))


def decoders(client: Client) -> int:
    return sum(decoder.decoders for decoder in client.server_info().decoders)


def comes_true(what: object, within: float = 15) -> bool:
    """Waits for a callable to give a true value."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if what():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


def test_cancelled_calls_leave_nothing_behind(
    server: ServerProcess, client: Client, long_clip: bytes, coffee_clip: bytes
) -> None:
    client.label(coffee_clip)
    before, made = workers(server), decoders(client)

    async def cancel_some() -> None:
        async with AsyncClient(server.address, retries=0) as asynchronous:
            for wait in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
                calls = [asyncio.create_task(asynchronous.label(long_clip, frames=60, timeout=60)) for _ in range(2)]
                await asyncio.sleep(wait)
                for call in calls:
                    call.cancel()
                assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*calls, return_exceptions=True))

    asyncio.run(cancel_some())
    assert client.label(coffee_clip).coverage.frames == 4
    assert comes_true(lambda: workers(server) - before == decoders(client) - made)


def test_a_missed_deadline_is_told_in_time_and_leaves_nothing_behind(
    server: ServerProcess, client: Client, long_clip: bytes, coffee_clip: bytes
) -> None:
    client.label(coffee_clip)
    before, made = workers(server), decoders(client)
    for seconds in (0.01, 0.1, 0.3):
        with pytest.raises(DeadlineExceeded):
            client.label(long_clip, frames=60, timeout=seconds)
    assert client.label(coffee_clip).coverage.frames == 4
    assert comes_true(lambda: workers(server) - before == decoders(client) - made)


def test_a_server_that_is_told_to_end_answers_what_is_in_flight(
    models_folder: Path, tmp_path: Path, long_clip: bytes, coffee_clip: bytes
) -> None:
    environment = {"KEYGLANCE_MODELS__FOLDER": str(models_folder)}
    with ServerProcess(tmp_path, environment=environment) as server, Client(server.address, retries=0, timeout=60) as client:
        children = psutil.Process(server.pid).children(recursive=True)
        assert children
        with ThreadPoolExecutor(1) as caller:
            call = caller.submit(client.label, long_clip, frames=60)
            time.sleep(0.5)
            assert not call.done()
            server.terminate()
            time.sleep(0.3)
            with pytest.raises(ServiceError):
                client.label(coffee_clip, timeout=5)
            assert call.result(60).coverage.frames == 60
        assert server.wait(30) == 0
        assert comes_true(lambda: not any(child.is_running() for child in children))
