from __future__ import annotations

import pytest

from keyglance.v1 import keyglance_pb2 as pb
from server.engine import Priority
from server.urgency import Urgency


@pytest.mark.parametrize(
    ("told", "priority"),
    [
        ("interactive", Priority.INTERACTIVE),
        (" Bulk ", Priority.BULK),
        ("normal", Priority.NORMAL),
        ("", Priority.NORMAL),
        ("urgent!", Priority.NORMAL),
    ],
)
def test_the_metadata_tells_the_priority(told: str, priority: Priority) -> None:
    assert Urgency.announced([("keyglance-priority", told)], 1.0, "").priority is priority


def test_without_metadata_it_is_normal() -> None:
    assert Urgency.announced([], 1.0, "") == Urgency(Priority.NORMAL, 1.0, "", 0)


def test_the_request_wins_where_it_says_something() -> None:
    announced = Urgency.announced([("keyglance-priority", "bulk")], 1.0, "")
    assert announced.of_request(pb.LabelRequest()).priority is Priority.BULK
    assert announced.of_request(pb.LabelRequest(priority=pb.PRIORITY_INTERACTIVE)).priority is Priority.INTERACTIVE
    assert announced.of_request(pb.LabelRequest(priority=7)).priority is Priority.BULK  # refused later, by name
    assert announced.of_request(pb.GetServerInfoRequest()) is announced


def test_callers_are_told_apart_by_the_configured_key_only() -> None:
    metadata = [("x-caller-id", "alice"), ("x-other", "bob")]
    assert Urgency.announced(metadata, 1.0, "x-caller-id").caller == "alice"
    assert Urgency.announced(metadata, 1.0, "").caller == ""
    assert Urgency.announced([("", "x")], 1.0, "").caller == ""
    assert Urgency.announced([("x-bin", b"\xff\x00")], 1.0, "x-bin").caller == "�\x00"
    assert len(Urgency.announced([("x-caller-id", "a" * 5000)], 1.0, "x-caller-id").caller) == 128


def test_calls_of_about_as_many_pictures_are_of_one_kind() -> None:
    kinds = {
        frames: Urgency().of_request(pb.LabelRequest(sampling=pb.SamplingPolicy(frames=frames))).kind for frames in range(70)
    }
    assert len(set(kinds.values())) == 8
    assert kinds[0] != kinds[1]
    assert kinds[8] == kinds[15] != kinds[16]
    huge = pb.LabelRequest(sampling=pb.SamplingPolicy(frames=2**32 - 1))
    assert Urgency().of_request(huge).kind == 11, "kinds are few, whatever a caller asks for"
