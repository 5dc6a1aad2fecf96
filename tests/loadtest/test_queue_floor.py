"""The latency that no server can beat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import queue_floor
from loadtest.queue_floor import floor
from models.batch_plan import BatchPlan

PLAN = BatchPlan({4: 0.004, 12: 0.008, 48: 0.028})


def test_calls_that_meet_nobody_take_what_their_batch_costs() -> None:
    found = floor(PLAN, frames=12, rate=0.1, seconds=2000, seed=1)
    assert found["n"] > 100
    assert found["p50"] == found["p99"] == 8.0


def test_a_call_larger_than_a_batch_takes_several() -> None:
    assert floor(PLAN, frames=60, rate=0.01, seconds=2000, seed=1)["p50"] == 36.0


@given(st.floats(1, 130), st.integers(0, 99))
def test_no_call_is_lost_and_none_is_quicker_than_its_batch(rate: float, seed: int) -> None:
    found = floor(PLAN, frames=12, rate=rate, seconds=3, seed=seed)
    if found:
        assert found["p50"] >= 8.0
        # All of one burst in full batches, one after the other, would not take longer than that.
        assert found["max"] <= (found["n"] * 12 / 48 + 2) * 28.0


def test_more_load_takes_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = tmp_path / "gpu_alone.json"
    batch_ms = {"4": 4.0, "12": 8.0, "48": 28.0}
    batches.write_text(json.dumps({"alone": {"models": {"pictures to results": {"batch_ms": batch_ms}}}}))
    assert queue_floor.main(["--batches", str(batches), "--seconds", "60", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "queue_floor.json").read_text())["floor"]["shares"]
    assert [row["share"] for row in rows] == list(queue_floor.SHARES)
    p99 = [row["latency_ms"]["p99"] for row in rows]
    assert p99 == sorted(p99)
    assert "80% of 142.86 calls/s" in capsys.readouterr().out


def test_a_file_without_batches_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    assert queue_floor.main(["--batches", str(empty)]) == 1
    assert "empty.json does not say what batches cost" in capsys.readouterr().err
