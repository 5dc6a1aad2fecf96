"""What others notice of calls that software decodes: the comparison, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest import poisson, software_lane
from loadtest.mix import CallClass, Mix, MixError

MIX = Mix((CallClass("h264", b"1", weight=5), CallClass("hevc", b"2", weight=2), CallClass("av1", b"3", weight=3)))


def test_the_others_come_as_often_without_it() -> None:
    others, share = software_lane.without(MIX, "av1")
    assert [one.name for one in others.classes] == ["h264", "hevc"]
    assert share == pytest.approx(0.7)


@pytest.mark.parametrize(("mix", "name"), [(MIX, "vp9"), (Mix((CallClass("av1", b"3"),)), "av1")])
def test_a_class_that_is_missing_or_the_only_one_is_refused(mix: Mix, name: str) -> None:
    with pytest.raises(MixError, match=r"vp9|one class or more"):
        software_lane.without(mix, name)


class FakeServer:
    def watch(self) -> None: ...


def compared(monkeypatch: pytest.MonkeyPatch, p99: dict[int, float | None]) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """`p99` of the class hevc by the number of classes in the load; h264 has less."""
    asked: list[tuple[int, float]] = []

    def run(generator: Any, mix: Mix, watch: Any, *, rate: float, **_: Any) -> dict[str, Any]:
        asked.append((len(mix.classes), rate))
        slowest = p99[len(mix.classes)]
        slow: dict[str, float] = {} if slowest is None else {"p99": slowest + len(asked)}
        by_class = {one.name: {"answered_ms": slow if one.name == "hevc" else {"p99": 1.0}} for one in mix.classes}
        return {"by_class": by_class}

    monkeypatch.setattr(poisson, "run", run)
    monkeypatch.setattr(poisson, "table", lambda figures: "")
    settings: dict[str, Any] = {"rate": 10.0, "seconds": 1.0, "turns": 2, "seed": 1}
    return software_lane.compare(FakeServer(), None, MIX, "av1", **settings), asked  # type: ignore[arg-type]


def test_the_slowest_other_class_counts_and_turns_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, asked = compared(monkeypatch, {2: 100.0, 3: 150.0})
    assert asked == [(2, 7.0), (3, 10.0), (2, 7.0), (3, 10.0)]
    assert figures["p99_ms"] == {"without": 102.0, "with": 153.0}
    assert figures["ratio"] == 1.5
    assert figures["share"] == 0.3


def test_without_answers_there_is_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(monkeypatch, {2: 100.0, 3: None})[0]["ratio"] is None
