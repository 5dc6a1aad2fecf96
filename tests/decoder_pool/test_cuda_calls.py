"""Calls that only enqueue: by the driver's library where there is one, else by CuPy."""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from decoder_pool import cuda_calls as calls
from decoder_pool.cuda_calls import CudaError, CupyCalls, DriverCalls, cuda_calls


class Function:
    """A function of a C library: remembers what it was called with, as C would see it."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.argtypes: tuple[Any, ...] = ()
        self.called: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(self.argtypes)
        self.called.append(tuple(kind(value).value for kind, value in zip(self.argtypes, arguments, strict=True)))
        return self.status


class Event:
    """CuPy's, as far as it is used."""

    ptr = 2**40 + 8

    def __init__(self) -> None:
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1


@pytest.fixture
def library() -> SimpleNamespace:
    names = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery")
    return SimpleNamespace(**{name: Function() for name in names})


STREAM = SimpleNamespace(ptr=2**41)


def test_addresses_and_handles_are_passed_whole(library: SimpleNamespace) -> None:
    driver, event = DriverCalls(library), Event()
    driver.copy(2**47 + 1, 2**46, 2**33, STREAM)
    driver.record(event, STREAM)
    driver.wait(STREAM, event)
    assert library.cuMemcpyAsync.called == [(2**47 + 1, 2**46, 2**33, STREAM.ptr)]
    assert library.cuEventRecord.called == [(event.ptr, STREAM.ptr)]
    assert library.cuStreamWaitEvent.called == [(STREAM.ptr, event.ptr, 0)]


@pytest.mark.parametrize(("status", "waited"), [(0, 0), (600, 1), (700, 1)])
def test_only_an_event_that_has_not_happened_is_waited_for(library: SimpleNamespace, status: int, waited: int) -> None:
    library.cuEventQuery.status = status
    event = Event()
    DriverCalls(library).finish(event)
    assert event.waited == waited


@pytest.mark.parametrize("name", ["cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent"])
def test_errors_say_which_call_and_which_error(library: SimpleNamespace, name: str) -> None:
    driver, event = DriverCalls(library), Event()
    getattr(library, name).status = 700
    made = {
        "cuMemcpyAsync": lambda: driver.copy(1, 2, 3, STREAM),
        "cuEventRecord": lambda: driver.record(event, STREAM),
        "cuStreamWaitEvent": lambda: driver.wait(STREAM, event),
    }
    with pytest.raises(CudaError, match=f"{name} returned error 700"):
        made[name]()


def test_the_library_is_opened_so_that_the_lock_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    names = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery")

    def py_dll(name: str) -> SimpleNamespace:
        opened.append(name)
        return SimpleNamespace(**{each: Function() for each in names})

    monkeypatch.setattr(ctypes, "PyDLL", py_dll)
    calls._driver.cache_clear()
    try:
        cupy = ModuleType("cupy")
        assert isinstance(cuda_calls(cupy), DriverCalls)
        assert isinstance(cuda_calls(cupy), DriverCalls)
    finally:
        calls._driver.cache_clear()
    assert opened == ["libcuda.so.1"]


def test_without_the_driver_or_with_a_stand_in_it_is_cupy_that_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "PyDLL", none)
    calls._driver.cache_clear()
    copied: list[tuple[int, ...]] = []
    cuda = SimpleNamespace(runtime=SimpleNamespace(memcpyAsync=lambda *arguments: copied.append(arguments)))
    module = ModuleType("cupy")
    module.cuda = cuda  # type: ignore[attr-defined]
    try:
        for cupy in (module, SimpleNamespace(cuda=cuda)):
            made = cuda_calls(cupy)
            assert isinstance(made, CupyCalls)
            made.copy(1, 2, 3, STREAM)
    finally:
        calls._driver.cache_clear()
    assert copied == [(1, 2, 3, 4, STREAM.ptr)] * 2
