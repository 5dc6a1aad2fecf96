"""What the end of a server under load is judged by: its own log, and what callers got."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest import drain
from loadtest.drain import Served
from loadtest.generator import NOT_SENT, Record

NO_NEW = "the server is shutting down and takes no new calls"


def access(
    status: str, message: str = "answered", process: str = "", method: str = "keyglance.v1.ShortVideoLabeler/Label"
) -> str:
    told = {"logger": "keyglance.access", "message": message, "method": method, "status": status}
    return json.dumps({**told, **({"process": process} if process else {})})


def draining(count: int, process: str = "") -> str:
    told = {"logger": "server.lifecycle", "message": f"draining, {count} calls in flight"}
    return json.dumps({**told, **({"process": process} if process else {})})


def test_the_log_of_one_process() -> None:
    lines = [
        "I0000 a library's line",
        "3",
        access("OK"),
        access("RESOURCE_EXHAUSTED", "too many"),
        draining(3),
        access("OK"),
        access("UNAVAILABLE", NO_NEW),
        access("OK", method="keyglance.v1.ShortVideoLabeler/GetServerInfo"),
        access("UNAVAILABLE", "the server shuts down and could not wait for this call any longer"),
        access("DEADLINE_EXCEEDED", "late"),
    ]
    ends = {"OK": 1, "UNAVAILABLE": 1, "DEADLINE_EXCEEDED": 1}
    assert Served.read(lines) == Served(in_flight=3, ends=ends, cut=1, later=1, answered=2)


def test_each_front_drains_for_itself() -> None:
    lines = [
        draining(1, "front-0"),
        access("OK", process="front-1"),  # before its own signal
        access("OK", process="front-0"),
        draining(2, "front-1"),
        access("OK", process="front-1"),
        access("UNAVAILABLE", NO_NEW, process="front-0"),
        access("RESOURCE_EXHAUSTED", "no room", process="front-1"),
    ]
    assert Served.read(lines) == Served(in_flight=3, ends={"OK": 2, "RESOURCE_EXHAUSTED": 1}, cut=0, later=1, answered=3)


def test_a_log_without_the_end_is_none() -> None:
    with pytest.raises(ValueError, match="does not say that it drains"):
        Served.read([access("OK")])


def test_what_callers_got() -> None:
    records = [
        Record(0, 1.0, 1.0, 2.0, "OK"),
        Record(0, 1.0, 1.0, 4.0, "OK"),
        Record(0, 1.0, 1.0, 1.1, "CANCELLED", to_be_cancelled=True),
        Record(0, 3.5, 3.5, 3.6, "UNAVAILABLE", "DRAINING"),
        Record(0, 3.5, 3.5, 3.6, "CANCELLED", "SERVER_UNREACHABLE"),
        Record(0, 3.5, 3.5, 3.6, "INTERNAL", "MODEL_FAILED"),
    ]
    assert drain.callers(records, 3.0) == {
        "sent_before": {"OK": 2, "cancelled": 1},
        "sent_later": {"UNAVAILABLE DRAINING": 1, "CANCELLED SERVER_UNREACHABLE": 1, "INTERNAL": 1},
        "given_up": 1,
        "answered_to_callers": 2,
        "answered_after_sigterm": 1,
    }


GOOD: dict[str, Any] = {
    "at_sigterm": {"in_flight": 5},
    "in_flight_ended": {"OK": 4, "RESOURCE_EXHAUSTED": 1},
    "answered_by_server": 9,
    "answered_to_callers": 9,
    "given_up": 0,
    "sent_before": {"OK": 8, "RESOURCE_EXHAUSTED": 3},
    "sent_later": {"OK": 1, "UNAVAILABLE DRAINING": 7, "UNAVAILABLE SERVER_UNREACHABLE": 7, "CANCELLED SERVER_UNREACHABLE": 1},
    "exit_code": 0,
    "left_behind": "",
}


def test_a_good_end_has_no_faults() -> None:
    assert drain.faults(GOOD) == []
    assert drain.faults({**GOOD, "answered_by_server": 10, "given_up": 1}) == []


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ({"in_flight_ended": {"OK": 4}}, "5 calls were in flight at SIGTERM, the end of 4 is known"),
        ({"in_flight_ended": {"OK": 4, "UNAVAILABLE": 1}}, "1 calls in flight at SIGTERM ended with UNAVAILABLE"),
        ({"in_flight_ended": {"OK": 4, "INTERNAL": 1}}, "1 calls in flight at SIGTERM ended with INTERNAL"),
        ({"answered_by_server": 11, "given_up": 1}, "2 answers were given and did not arrive"),
        ({"sent_later": {"CANCELLED": 2}}, "2 calls sent later got CANCELLED"),
        ({"sent_before": {"INVALID_ARGUMENT": 2}}, "2 calls sent before got INVALID_ARGUMENT"),
        ({"sent_later": {NOT_SENT: 2}}, "2 calls were not sent: the generator held too many"),
        ({"exit_code": 1}, "the server ended with exit code 1"),
        ({"left_behind": "3 leased"}, "3 leased"),
    ],
)
def test_each_fault_is_told(bad: dict[str, Any], fault: str) -> None:
    assert drain.faults({**GOOD, **bad}) == [fault]


def test_what_a_class_expects_is_no_fault() -> None:
    figures = {**GOOD, "sent_before": {"INVALID_ARGUMENT": 2}}
    assert drain.faults(figures, {"OK", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}) == []
