"""What goes on over a part of a load: processor time by role, and what a server's metrics say between two looks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from keyglance.metrics_page import Between, Look
from loadtest.target import Target, target
from loadtest.watch import Used, Watch, counted

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}, '--name', 'front-1'])".format(
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"
)


@pytest.fixture
def tree() -> Iterator[int]:
    """A process with a child of a name that has a child which works."""
    with subprocess.Popen([sys.executable, "-c", PARENT]) as process:
        try:
            yield process.pid
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()


def test_processor_time_is_told_by_role(tree: int) -> None:
    watch = Watch(tree, "")
    before = time.monotonic()
    while Used.now(tree).by_role.get("front-1: workers", 0.0) < 0.05:  # it works
        assert time.monotonic() < before + 60
        time.sleep(0.05)
    begin = time.monotonic() + 0.1
    watch.between(begin, begin + 0.5)
    told = watch.figures()
    assert told["seconds"] > 0
    assert set(told["cores"]) == {"server", "front-1", "front-1: workers", "load"}
    assert told["cores"]["front-1: workers"] > told["cores"]["front-1"]
    assert 0 < told["machine_cpu_percent"] <= 100
    assert "metrics" not in told


def test_a_process_that_is_gone_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    watch = Watch(process.pid, "127.0.0.1:1")
    watch.between(time.monotonic(), time.monotonic() + 0.05)
    told = watch.figures()
    assert set(told["cores"]) == {"load"}
    assert "127.0.0.1:1" in told["metrics"]["missing"]


def test_nobody_said_when() -> None:
    with pytest.raises(RuntimeError, match="when to look"):
        Watch(None, "").figures()


PAGE = """
keyglance_calls_active{{process="front-0"}} 3
keyglance_calls_active{{process="front-1"}} 4
keyglance_calls_places{{process="front-0",lane="main"}} 5
keyglance_calls_places{{process="front-1",lane="main"}} 6
keyglance_queue_depth{{queue="turn",model="main",priority="bulk"}} 2
keyglance_queue_depth{{queue="turn",model="main",priority="normal"}} 1
keyglance_queue_depth{{queue="receive",model="",priority="normal"}} 0
keyglance_batches_total{{model="m",size="8"}} {batches}
keyglance_batches_total{{model="m",size="16"}} 10
keyglance_batch_frames_total{{model="m"}} {frames}
keyglance_leases_total{{kind="cpu",outcome="reused"}} {leases}
keyglance_leases_total{{kind="cpu",outcome="created"}} 7
keyglance_calls_refused_total{{lane="main",refused="room",priority="bulk"}} {refused}
keyglance_step_duration_seconds_count{{step="infer"}} {batches}
keyglance_step_duration_seconds_sum{{step="infer"}} {leases}
"""


def test_metrics_are_levels_at_the_end_and_differences_over_the_part() -> None:
    before = Look.parsed(PAGE.format(batches=100, frames=1000, leases=50, refused=0), 10.0)
    after = Look.parsed(PAGE.format(batches=104, frames=1050, leases=52, refused=9), 13.0)
    told = counted(Between(before, after))
    assert told["at_end"]["calls"] == 7
    assert told["at_end"]["places"] == {"main": 11}
    assert told["at_end"]["queues"] == {"turn main": 3}
    assert told["batches"] == {"m": {"batches": 4, "mean_fill": 12.5}}
    assert told["leases"] == {"cpu reused": 2}
    assert told["refused"] == {"main room": 9}
    assert told["step_ms"] == {"infer": 500.0}
    assert told["degraded"] == {}


@pytest.mark.models
@pytest.mark.parametrize("asked", [None, "none"])
def test_a_server_that_is_started_tells_its_metrics_unless_asked_not_to(models_folder: Path, asked: str | None) -> None:
    models = 'models.enabled=["open-nsfw"]'
    options = argparse.Namespace(server=None, config=None, set=[models], metrics=asked)
    with target(options) as server:
        assert isinstance(server, Target)
        watch = server.watch()
        watch.between(time.monotonic(), time.monotonic() + 0.3)
        told = watch.figures()
        assert "server" in told["cores"]
        assert bool(server.metrics) is ("metrics" in told) is (asked is None)
        if asked is None:
            assert told["metrics"]["at_end"]["calls"] == 0
            assert told["metrics"]["at_end"]["places"]["main"] >= 1
