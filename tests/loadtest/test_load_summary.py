import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.generator import NOT_SENT, Record
from loadtest.load_summary import latencies, percentile, summary, timeline
from loadtest.mix import CallClass, Mix

MIX = Mix((CallClass("clips", b""), CallClass("broken", b"", expect=frozenset({"INVALID_ARGUMENT"}))))


def ok(due: float, ended: float, kind: int = 0, **more: object) -> Record:
    return Record(kind, due, due, ended, "OK", **more)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.floats(0.1, 100))
def test_a_percentile_is_the_nearest_rank(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    at_most = sum(value <= found for value in ordered) / len(ordered)
    below = sum(value < found for value in ordered) / len(ordered)
    assert found in ordered
    assert at_most * 100 >= share - 1e-9
    assert below * 100 < share + 1e-9


def test_latency_counts_from_the_moment_that_was_due() -> None:
    late = Record(0, due=1.0, sent=3.0, ended=3.5, status="OK")
    figures = summary([late], MIX, begin=0, end=10)
    assert figures["answered_ms"]["max"] == 2500
    assert figures["generator_late_ms"]["max"] == 2000


def test_goodput_counts_answers_in_the_window_and_calls_by_their_moment() -> None:
    records = [ok(0.5, 1.5), ok(1.5, 1.8), ok(2.5, 9.0), ok(9.5, 12.0)]
    figures = summary(records, MIX, begin=1, end=11)
    assert figures["calls"] == 3
    assert figures["goodput_per_s"] == 0.3  # those that arrived at 1.5, 1.8 and 9
    assert figures["offered_per_s"] == 0.3
    assert figures["answered_ms"]["n"] == 3


def test_degraded_answers_are_told_apart() -> None:
    records = [ok(1, 2, degradations=("FEWER_FRAMES", "FEWER_FRAMES", "MODEL_LEFT_OUT"), frames=2), ok(1, 2, frames=4)]
    figures = summary(records, MIX, begin=0, end=2.5)
    assert figures["degraded"] == 1
    assert figures["degradations"] == {"FEWER_FRAMES": 1, "MODEL_LEFT_OUT": 1}
    assert (figures["goodput_per_s"], figures["full_answers_per_s"], figures["frames_per_s"]) == (0.8, 0.4, 2.4)


def test_only_ends_without_an_excuse_are_unexpected() -> None:
    records = [
        Record(0, 1, 1, 2, "RESOURCE_EXHAUSTED", "OVERLOADED", retry_after=True),
        Record(0, 1, 1, 2, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
        Record(0, 1, 1, 2, "CANCELLED", to_be_cancelled=True),
        Record(0, 1, 1, 2, "CANCELLED"),
        Record(0, 1, 1, 2, "UNAVAILABLE", "WORKER_LOST"),
        Record(1, 1, 1, 2, "INVALID_ARGUMENT", "NOT_A_VIDEO"),
        ok(1, 2, kind=1),
    ]
    figures = summary(records, MIX, begin=0, end=3)
    assert figures["unexpected"] == {"clips: CANCELLED": 1, "clips: UNAVAILABLE (WORKER_LOST)": 1, "broken: OK": 1}
    assert figures["by_class"]["broken"]["by_status"] == {"INVALID_ARGUMENT": 1, "OK": 1}
    assert figures["by_reason"]["NOT_A_VIDEO"] == 1
    assert figures["refused_without_retry_info"] == 0


def test_a_refusal_without_a_time_to_come_back_is_told() -> None:
    assert summary([Record(0, 1, 1, 2, "RESOURCE_EXHAUSTED")], MIX, begin=0, end=3)["refused_without_retry_info"] == 1


def test_what_was_not_sent_counts_as_offered_alone() -> None:
    figures = summary([Record(0, 1, 1, 1, NOT_SENT), ok(1, 2)], MIX, begin=0, end=2.5)
    assert (figures["offered_per_s"], figures["sent_per_s"]) == (0.8, 0.4)
    assert figures["generator_late_ms"]["n"] == 1


def test_the_timeline_has_each_second() -> None:
    records = [ok(0.1, 1.2), ok(0.2, 2.0), Record(0, 0.3, 0.3, 0.4, "RESOURCE_EXHAUSTED")]
    assert timeline(records) == [
        {"at": 0, "due": 3, "answered": 0, "refused": 1, "p99_ms": 0.0},
        {"at": 1, "due": 0, "answered": 1, "refused": 0, "p99_ms": 1100.0},
        {"at": 2, "due": 0, "answered": 1, "refused": 0, "p99_ms": 1800.0},
    ]
    assert timeline([]) == []


def test_nothing_has_no_latency() -> None:
    assert latencies([]) == {}
    assert summary([], MIX, begin=0, end=1)["answered_ms"] == {}


def test_percentiles_by_name() -> None:
    found = latencies(number / 1000 for number in range(1, 1001))
    assert (found["p50"], found["p99"], found["p99.9"], found["max"], found["n"]) == (500, 990, 999, 1000, 1000)
    assert found["mean"] == pytest.approx(500.5)
