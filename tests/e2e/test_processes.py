"""A real server of two fronts and an engine: the same answers as one process, and whole again after the worst."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from keyglance import Answer, Client, Health
from keyglance.errors import CorruptVideo, NotAVideo, ServiceError, UnknownModel
from loadtest import clips
from loadtest.server_process import ServerProcess

pytestmark = [pytest.mark.models, pytest.mark.slow]

ENABLED = ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"]  # those of the server of one process


def comes_true(what: Callable[[], object], within: float = 60) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.1)
    return False


def processes(server: ServerProcess) -> dict[str, psutil.Process]:
    """Fronts and engines by name."""
    found = {}
    for process in psutil.Process(server.pid).children():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if "--name" in command:
            found[command[command.index("--name") + 1]] = process
    return found


def is_replaced(server: ServerProcess, name: str, old: int) -> bool:
    process = processes(server).get(name)
    return process is not None and process.pid != old


def shared_memory(server: ServerProcess) -> int:
    """Descriptors of packets that fronts and engines have open."""
    count = 0
    for process in processes(server).values():
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                count += os.readlink(entry).startswith("/memfd:packets")
            except OSError:
                continue
    return count


@pytest.fixture(scope="module")
def server_of_processes(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environment = {
        "KEYGLANCE_MODELS__FOLDER": str(models_folder),
        "KEYGLANCE_MODELS__ENABLED": json.dumps(ENABLED),
        "KEYGLANCE_SERVER__FRONTS": "2",
        "KEYGLANCE_SERVER__HEARTBEAT": "2",
        "KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0",
        "KEYGLANCE_TELEMETRY__LOG_FORMAT": "text",
    }
    with ServerProcess(tmp_path_factory.mktemp("processes"), environment=environment) as process:
        yield process
        process.terminate()
        assert process.wait(60) == 0
        assert process.left_behind() == ""


@pytest.fixture(scope="module")
def many(server_of_processes: ServerProcess) -> Iterator[Client]:
    """A client of many connections, so that both fronts have some."""
    with Client(server_of_processes.address, retries=0, timeout=60, connections=8) as connected:
        yield connected


def told(answer: Answer) -> Answer:
    """The answer without what differs from call to call."""
    copy = type(answer)()
    copy.CopyFrom(answer)
    del copy.timings[:]
    copy.trace_id = ""
    return copy


def test_answers_are_those_of_one_process(client: Client, many: Client, coffee_clip: bytes) -> None:
    portrait = clips.encode(clips.hold(clips.fit(clips.photograph("astronaut"), 512, 512), 50), keyframe_interval=25)
    for clip in (coffee_clip, portrait):
        options = {"frame_scores": True, "thumbnails": True, "least_score": 0.0}
        expected, answer = client.label(clip, **options), many.label(clip, **options)
        assert expected.labels
        assert told(answer) == told(expected)
        assert [timing.step for timing in answer.timings] == [timing.step for timing in expected.timings]
    assert many.server_info().models == client.server_info().models
    assert many.server_info().device == client.server_info().device


def test_errors_are_those_of_one_process(client: Client, many: Client, coffee_clip: bytes) -> None:
    def damaged() -> bytes:
        begin = coffee_clip.index(b"mdat") + 4
        end = begin - 8 + int.from_bytes(coffee_clip[begin - 8 : begin - 4], "big")
        return coffee_clip[:begin] + bytes(end - begin) + coffee_clip[end:]

    for source, options, error in (
        (b"no video at all", {}, NotAVideo),
        (coffee_clip, {"models": ["nobody"]}, UnknownModel),
        (damaged(), {"whole": True}, CorruptVideo),
    ):
        said = []
        for each in (client, many):
            with pytest.raises(error) as caught:
                each.label(source, **options)
            said.append((caught.value.message, {k: v for k, v in caught.value.facts.items() if k != "trace_id"}))
        assert said[0] == said[1]


def test_one_page_has_the_metrics_of_all_processes(server_of_processes: ServerProcess, many: Client, coffee_clip: bytes) -> None:
    many.label(coffee_clip)
    log = server_of_processes.errors.read_text()
    address = next(line.rpartition(" ")[2] for line in log.splitlines() if "metrics of all processes on" in line)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
        text = page.read().decode()
    for process in ("supervisor", "front-0", "front-1", "engine-0"):
        assert f'process="{process}"' in text, process


def test_an_engine_killed_under_load_comes_back(server_of_processes: ServerProcess, many: Client, coffee_clip: bytes) -> None:
    many.label(coffee_clip)
    fronts = {name: process.pid for name, process in processes(server_of_processes).items() if name.startswith("front")}
    for number in (signal.SIGKILL, signal.SIGSTOP):
        engine = processes(server_of_processes)["engine-0"]
        decoders = engine.children()
        with ThreadPoolExecutor(8) as callers:
            calls = [callers.submit(many.label, coffee_clip) for _ in range(16)]
            time.sleep(0.3)
            os.kill(engine.pid, number)
            ends = [call.exception(timeout=90) or call.result() for call in calls]
        assert all(isinstance(end, Answer | ServiceError) for end in ends)
        assert {end.reason for end in ends if isinstance(end, ServiceError)} == {"WORKER_LOST"}
        assert comes_true(
            lambda pid=engine.pid: is_replaced(server_of_processes, "engine-0", pid) and many.health() is Health.SERVING
        )
        assert comes_true(lambda: answers(many, coffee_clip))
        assert not any(decoder.is_running() for decoder in decoders), "its decoders went with it"
        assert comes_true(lambda: shared_memory(server_of_processes) == 0)
    now = {name: process.pid for name, process in processes(server_of_processes).items() if name.startswith("front")}
    assert now == fronts


def test_a_front_killed_under_load_comes_back(server_of_processes: ServerProcess, many: Client, coffee_clip: bytes) -> None:
    many.label(coffee_clip)
    engine = processes(server_of_processes)["engine-0"]
    for number in (signal.SIGKILL, signal.SIGSTOP):
        front = processes(server_of_processes)["front-1"]
        with ThreadPoolExecutor(8) as callers:
            calls = [callers.submit(many.label, coffee_clip) for _ in range(16)]
            time.sleep(0.3)
            os.kill(front.pid, number)
            ends = [call.exception(timeout=90) or call.result() for call in calls]
        assert any(isinstance(end, Answer) for end in ends), "the other front's calls"
        assert all(isinstance(end, Answer | ServiceError) for end in ends)
        assert comes_true(lambda pid=front.pid: is_replaced(server_of_processes, "front-1", pid))
        assert comes_true(lambda: all(answers(many, coffee_clip) for _ in range(8)))
        assert comes_true(lambda: shared_memory(server_of_processes) == 0)
    assert processes(server_of_processes)["engine-0"] == engine


def answers(client: Client, clip: bytes) -> bool:
    try:
        return client.label(clip).coverage.frames == 4
    except ServiceError:
        return False
