"""The benchmark of fronts: both servers as they are, and what is made of their figures."""

from __future__ import annotations

from pathlib import Path

from keyglance.v1.keyglance_pb2 import LabelResponse, StepTiming
from loadtest.front_cost import AT_ONCE, BARE, FRONT, Server, measure, serving, steps_ms
from loadtest.index import clip
from loadtest.request_bytes import request_message


def test_a_front_and_the_least_beside_it() -> None:
    message = request_message(clip(4, rate=100_000)).SerializeToString()
    told = measure(message, turns=2, seconds=0.3)
    assert (told["message_bytes"], list(told["at_once"])) == (len(message), [str(count) for count in AT_ONCE])
    assert told["pictures"] >= 1
    for load in told["at_once"].values():
        assert load[BARE]["calls"] >= 2
        assert load[FRONT]["calls"] >= 2
        assert load["front_of_bare"] > 0
        assert set(load["steps_ms"]) == {"receive", "index", "sample", "fuse"}
        assert all(one["cpu_ms"] >= one["of_it_in_the_kernel_ms"] >= 0 for one in (load[BARE], load[FRONT]))
        assert load[FRONT]["thread_switches"] > 0


def test_answers_are_those_of_a_server_with_models(tmp_path: Path) -> None:
    message = request_message(clip(4, rate=100_000)).SerializeToString()
    with serving(FRONT, tmp_path) as front:
        (answer,) = Server(*front).turn(message, 1, 0.1)
    response = LabelResponse.FromString(answer)
    assert len(response.models) == 4
    passed = [label for label in response.labels if label.score > 0.5]
    assert passed, "one label of each model is likely"
    assert len(response.labels) < 40, "and most are not"


def test_steps_are_told_without_their_waiting() -> None:
    answers = [
        LabelResponse(timings=[StepTiming(step="index", wall_ms=wall, wait_ms=1.0), StepTiming(step="infer", wall_ms=9.0)])
        for wall in (2.0, 3.0, 5.0)
    ]
    assert steps_ms([answer.SerializeToString() for answer in answers]) == {"index": 2.0}
