"""SIGTERM at full load, calls of ranges and of whole files: every call that was accepted is answered, later ones go elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from loadtest import drain
from loadtest.mix import CallClass, Mix
from loadtest.mix_clips import clip
from loadtest.request_bytes import request_message
from loadtest.target import target

pytestmark = [pytest.mark.models, pytest.mark.slow]

#: Settings with which calls wait in the room for a place, and with which they wait for the memory to be received into.
ROOM = ["overload.waiting=6"]
RECEIVE = ["receive.budget=6MiB", "server.largest_message=1MiB", "receive.queue_limit=8"]
#: Calls that may end between the look at the server's own count of them and SIGTERM.
_ENDED_MEANWHILE = 3


@pytest.fixture(scope="module")
def mix() -> Mix:
    """Deadlines that no call reaches: all ends are the server's."""
    content = clip("h264-360p")
    requests = {"ranges": request_message(content, frames=12), "whole": request_message(content, whole=True, frames=12)}
    return Mix(tuple(CallClass(name, made.SerializeToString(), timeout=(90.0, 90.0)) for name, made in requests.items()))


@pytest.mark.parametrize("fronts", [0, 2], ids=["one process", "fronts and an engine"])
@pytest.mark.parametrize(("full", "queue"), [(ROOM, "turn main"), (RECEIVE, "receive ")], ids=["room full", "receiving"])
def test_every_accepted_call_is_answered(models_folder: Path, mix: Mix, fronts: int, full: list[str], queue: str) -> None:
    settings = [
        *full,
        f"server.fronts={fronts}",
        'models.enabled=["open-nsfw"]',
        "overload.least_calls=1",
        "overload.most_calls=2",
    ]
    options = argparse.Namespace(
        server=None, config=None, set=settings, metrics=None, processes=1, connections=8, most_in_flight=2000
    )
    with target(options) as server:
        figures = drain.run(server, server.generator(options), mix, rate=60.0, before=3.0, after=2.0, seed=1)
    assert figures["faults"] == []
    at_sigterm = figures["at_sigterm"]
    assert at_sigterm["serving"]["main"] >= 1
    assert at_sigterm["queues"][queue] >= 2, "it was full"
    assert figures["sent_before"]["RESOURCE_EXHAUSTED"] > 10, "and refused"
    ended = figures["in_flight_ended"]
    # Refused are calls that came in that very moment: counted, but not accepted.
    assert ended.keys() <= {"OK", "RESOURCE_EXHAUSTED"}
    assert at_sigterm["in_flight"] == sum(ended.values())
    waiting = sum(at_sigterm["queues"].get(where, 0) for where in ("turn main", "receive "))
    assert ended["OK"] >= max(3, at_sigterm["serving"]["main"] + waiting - _ENDED_MEANWHILE)
    assert figures["cut_short"] == 0
    assert figures["answered_to_callers"] == figures["answered_by_server"]
    assert figures["came_later"] + figures["sent_later"].get("UNAVAILABLE SERVER_UNREACHABLE", 0) > 10
