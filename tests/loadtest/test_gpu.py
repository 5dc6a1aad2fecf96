import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from loadtest import gpu
from loadtest.gpu_setup import Setup


class Service:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, gpu.Part]:
    async def good(setup: Setup, in_thread: gpu.InThread) -> dict[str, Any]:
        return await in_thread(lambda: {"thread": threading.current_thread().name, "times": setup.times(100)})

    async def bad(setup: Setup, in_thread: gpu.InThread) -> dict[str, Any]:
        raise ValueError("no such clip")

    async def slow(setup: Setup, in_thread: gpu.InThread) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    async def hung(setup: Setup, in_thread: gpu.InThread) -> dict[str, Any]:
        return await in_thread(lambda: {"never": threading.Event().wait(30)})

    async def served(setup: Setup, in_thread: gpu.InThread) -> dict[str, Any]:
        setup.service = setup.service or Service()  # type: ignore[assignment]
        return {"service": id(setup.service)}

    made = {
        "good": gpu.Part(good, "good"),
        "bad": gpu.Part(bad, "bad"),
        "slow": gpu.Part(slow, "slow", limit=0.1),
        "hung": gpu.Part(hung, "hung", limit=0.1),
        "served": gpu.Part(served, "served", served=True),
        "again": gpu.Part(served, "served again", served=True),
    }
    monkeypatch.setattr(gpu, "PARTS", made)
    return made


def ran(folder: Path, *names: str) -> gpu.Run:
    return asyncio.run(gpu.run(Setup(folder, folder, folder, effort=0.1), names, "abc"))


def kept(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"gpu_{name}.json").read_text())


def test_each_part_writes_its_file_and_a_failing_one_keeps_none_from_running(parts: dict[str, gpu.Part], tmp_path: Path) -> None:
    done = ran(tmp_path, "bad", "slow", "good", "summary")
    assert done.failed == ["bad: ValueError: no such clip", "slow: TimeoutError: not done within 0.1 s"]
    assert not done.hung
    good = kept(tmp_path, "good")
    assert good["good"] == {"thread": "part", "times": 10}
    assert good["ended"] == "complete"
    assert good["measured_commit"] == "abc"
    assert {"environment", "gpu", "seconds"} <= good.keys()
    assert kept(tmp_path, "bad")["ended"] == "ValueError: no such clip"
    assert kept(tmp_path, "bad")["bad"] == {}
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert set(told["sources"]) == {"good", "bad", "slow"}
    assert told["measured_commit"] == "abc"


def test_a_thread_that_never_ends_is_left_behind(parts: dict[str, gpu.Part], tmp_path: Path) -> None:
    done = ran(tmp_path, "hung", "good")
    assert done.hung
    assert done.failed == ["hung: TimeoutError: not done within 0.1 s"]
    assert kept(tmp_path, "good")["ended"] == "complete"


def test_served_parts_share_a_server_and_the_others_have_none(parts: dict[str, gpu.Part], tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path, tmp_path)
    seen: list[Any] = []

    async def run() -> None:
        run = gpu.Run(setup, None)
        for name in ("served", "again"):
            await run.part(name, parts[name])
            seen.append(setup.service)
        await run.part("good", parts["good"])
        seen.append(setup.service)

    asyncio.run(run())
    first, second, third = seen
    assert first is second
    assert first.closed
    assert third is None


def test_a_part_that_fails_takes_the_server_with_it(parts: dict[str, gpu.Part], tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path, tmp_path)

    async def run() -> None:
        run = gpu.Run(setup, None)
        await run.part("served", parts["served"])
        service: Any = setup.service
        await run.part("bad", parts["bad"])
        assert service.closed
        assert setup.service is None

    asyncio.run(run())


def test_the_command_line(parts: dict[str, gpu.Part], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--models", str(tmp_path), "--clips", str(tmp_path), "--out", str(tmp_path / "out"), "--commit", "abc"]
    assert gpu.main([*given, "--effort", "0.1", "good"]) == 0
    assert kept(tmp_path / "out", "good")["good"]["times"] == 10
    assert gpu.main([*given, "good", "bad"]) == 1
    assert "failed: bad: ValueError: no such clip" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        gpu.main([*given, "good", "nice"])
    assert "no part nice; there are good, bad" in capsys.readouterr().err


def test_figures_of_a_part_that_failed_are_no_base(parts: dict[str, gpu.Part], tmp_path: Path) -> None:
    ran(tmp_path, "good", "bad")
    setup = Setup(tmp_path, tmp_path, tmp_path)
    assert setup.figures("good") is not None
    assert setup.figures("bad") is None
    assert setup.figures("never") is None


def test_the_parts_there_are_make_the_whole_table() -> None:
    assert list(gpu.PARTS) == [
        "alone", "beside", "reconfigure", "phone", "parity", "precision", "engine", "throughput", "batching", "memory",
        "one_model",
    ]  # fmt: skip
