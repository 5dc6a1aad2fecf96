from collections.abc import Iterator

import pytest

from keyglance import Client
from loadtest import clips
from loadtest.server_process import ServerProcess


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[Client]:
    """A client of the running server that repeats nothing."""
    with Client(server.address, retries=0, timeout=60) as connected:
        yield connected


@pytest.fixture(scope="session")
def coffee() -> clips.Picture:
    """A cup of espresso, 640x432."""
    return clips.fit(clips.photograph("coffee"), 640, 432)


@pytest.fixture(scope="session")
def coffee_clip(coffee: clips.Picture) -> bytes:
    """Four seconds of it with a keyframe each second."""
    return clips.encode(clips.hold(coffee, 100), keyframe_interval=25)
