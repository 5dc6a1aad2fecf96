"""Steps as ranges of NVTX: each is left on the thread on which it was entered, nothing is imported unless asked for."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from decoder_pool.profiler_ranges import no_ranges
from server.config import Config
from server.nvtx import ranges_of
from server.start_error import StartError


class FakeNvtx:
    """What `cupy.cuda.nvtx` has, noting what is open on each thread."""

    def __init__(self) -> None:
        self.open: dict[int, list[str]] = {}
        self.seen: list[str] = []

    def RangePush(self, message: str, id_color: int = -1) -> None:
        stack = self.open.setdefault(threading.get_ident(), [])
        stack.append(message)
        self.seen.append("/".join(stack))

    def RangePop(self) -> None:
        self.open[threading.get_ident()].pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=fake))
    return fake


ON = {"telemetry": {"nvtx": True}}


def test_off_imports_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)  # an import would raise
    assert ranges_of(Config.load()) is no_ranges


def test_ranges_nest_and_end_with_an_exception(nvtx):
    ranges = ranges_of(Config.load(overrides=ON))

    def fail() -> None:
        with ranges("enqueue"):
            with ranges("render a"):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert nvtx.seen == ["enqueue", "enqueue/render a"]
    assert not any(nvtx.open.values())


@pytest.mark.parametrize("module", [None, SimpleNamespace()])
def test_without_cupy_the_server_says_so(monkeypatch: pytest.MonkeyPatch, module):
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)
    with pytest.raises(StartError, match=r"telemetry\.nvtx: CuPy"):
        ranges_of(Config.load(overrides=ON))
