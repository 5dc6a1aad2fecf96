"""Two engines that have one GPU side by side: the daemon is there for them, outlives one that is killed, ends with the server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from keyglance import Client
from keyglance.errors import ServiceError
from loadtest.server_process import ServerProcess
from server.engine_process.mps import COMMAND
from tests.e2e.test_processes import comes_true, processes
from tests.gpu.engines import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


def of_mps() -> set[int]:
    """The processes of MPS on this machine: control daemons and servers."""
    return {
        process.pid for process in psutil.process_iter(["name"]) if (process.info["name"] or "").startswith("nvidia-cuda-mps")
    }


@pytest.fixture
def start(cupy: Any, models_folder: Path, tmp_path: Path) -> ServerProcess:
    """Two small engines on a GPU, not started."""
    if shutil.which(COMMAND) is None:
        pytest.skip(f"no {COMMAND} on the PATH")
    environment = {
        "KEYGLANCE_MODELS__FOLDER": str(models_folder),
        "KEYGLANCE_MODELS__ENABLED": json.dumps(["open-nsfw"]),
        "KEYGLANCE_ENGINE__DEVICE": "gpu",
        "KEYGLANCE_SERVER__FRONTS": "1",
        "KEYGLANCE_SERVER__ENGINES": "2",
        "KEYGLANCE_SERVER__ENGINES_PER_GPU": "2",
        "KEYGLANCE_SERVER__MPS": "true",
        "KEYGLANCE_TELEMETRY__LOG_FORMAT": "text",
        **{f"KEYGLANCE_GPU__{name.upper()}": json.dumps(value) for name, value in SMALL.items()},
    }
    return ServerProcess(tmp_path, environment=environment, start_timeout=240, stop_timeout=60)


@pytest.fixture
def server(start: ServerProcess) -> Iterator[ServerProcess]:
    before = of_mps()
    with start as process:
        yield process
        process.terminate()
        assert process.wait(60) == 0
    assert comes_true(lambda: of_mps() <= before, 10)


def test_nothing_is_left_of_a_server_that_is_killed(start: ServerProcess) -> None:
    before = of_mps()
    with start as process:
        everything = psutil.Process(process.pid).children(recursive=True)
        assert of_mps() - before
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert comes_true(lambda: of_mps() <= before and not any(each.is_running() for each in everything), 20)


def test_an_engine_killed_beside_another(server: ServerProcess, clips: dict[str, bytes]) -> None:
    assert of_mps()
    engines = {name: process for name, process in processes(server).items() if name.startswith("engine")}
    assert len(engines) == 2
    assert all("CUDA_MPS_PIPE_DIRECTORY" in process.environ() for process in engines.values())
    ends: Counter[str] = Counter()
    stop = threading.Event()

    def call() -> None:
        with Client(server.address, retries=0, timeout=20) as client:
            while not stop.is_set():
                try:
                    frames = client.label(clips["landscape"]).coverage.frames
                    ends[f"{frames} pictures"] += 1
                except ServiceError as error:
                    ends[error.reason] += 1
                    time.sleep(0.05)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    try:
        time.sleep(2)
        assert ends.keys() == {"3 pictures"}
        os.kill(engines["engine-0"].pid, signal.SIGKILL)
        assert comes_true(lambda: "engine-0 is there again" in server.log(), 180), server.log()
        time.sleep(1)
        before = ends["3 pictures"]
        assert comes_true(lambda: ends["3 pictures"] >= before + 50, 20), (ends, server.log())
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    print(dict(ends))
    print("\n".join(line for line in server.log().splitlines() if "engine" in line)[-3000:])
    assert ends.keys() <= {"3 pictures", "WORKER_LOST", "GPU_LOST", "MODEL_FAILED"}, ends
