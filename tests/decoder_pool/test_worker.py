"""Workers as an attacker would have them: dead, hanging, greedy, lying; and what the parent keeps of it (nothing)."""

import asyncio
import json
import os
import signal
import struct
import time
from pathlib import Path

import psutil
import pytest

from decoder_pool.shared_bytes import SharedBytes
from decoder_pool.worker import Worker, WorkerDied, WorkerRefused, adopt

MEMORY = 512 << 20


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
async def worker():
    fds, children = len(os.listdir("/proc/self/fd")), len(psutil.Process().children())
    worker = Worker("scripted_worker", memory_limit=MEMORY, name="test")
    await worker.start()
    yield worker
    await worker.close()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert len(psutil.Process().children()) == children


def frame(value, fds=0):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (struct.pack(">II", len(body), fds) + body).hex()


async def test_values_and_descriptors_travel_both_ways(worker):
    with SharedBytes.of([b"one"]) as one, SharedBytes.of([b"two"]) as two:
        reply = await worker.call("echo", {"a": [1, "ü", None]}, fds=[one.fd, two.fd], timeout=10)
    assert reply.values == {"arguments": {"a": [1, "ü", None]}, "read": ["one", "two"]}
    reply = await worker.call("give", {"text": "payload"}, timeout=10)
    with adopt(reply.fds[0], reply.values["size"]) as shared:
        assert bytes(shared.view()) == b"payload"


async def test_a_large_frame_both_ways(worker):
    text = "x" * (3 << 20)
    assert (await worker.call("echo", {"t": text}, timeout=20)).values["arguments"]["t"] == text
    with pytest.raises(ValueError, match="at most"):
        await worker.call("echo", {"t": "x" * (5 << 20)}, timeout=10)
    assert (await worker.call("echo", {}, timeout=10)).values["arguments"] == {}


async def test_the_child_is_bounded_and_knows_little(worker):
    values = (await worker.call("environment", {}, timeout=10)).values
    limits = {line[:26].strip(): line[26:].split()[0] for line in values["limits"].splitlines()}
    assert limits["Max address space"] == str(MEMORY)
    assert limits["Max core file size"] == "0"
    assert "HOME" not in values["names"]
    assert len(values["fds"]) <= 5  # three standard ones, the socket, the listing's own


async def test_a_refusal_is_an_error_and_the_worker_goes_on(worker):
    with pytest.raises(WorkerRefused) as caught:
        await worker.call("refuse", {"kind": "NotAVideo", "message": "no\x1b[31m video" + "!" * 5000}, timeout=10)
    assert caught.value.kind == "NotAVideo"
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) <= 2000
    with pytest.raises(WorkerRefused, match="Internal: ZeroDivisionError"):
        await worker.call("fail", {}, timeout=10)
    assert worker.alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_death_in_the_middle(worker, number):
    with pytest.raises(WorkerDied, match=f"died of signal {int(number)}"):
        await worker.call("crash", {"signal": int(number)}, timeout=10)
    assert not worker.alive
    with pytest.raises(WorkerDied):
        await worker.call("echo", {}, timeout=10)


async def test_a_hanging_worker_is_killed(worker):
    start = time.monotonic()
    with pytest.raises(WorkerDied, match="over its time"):
        await worker.call("wait", {"seconds": 60}, timeout=0.2)
    assert time.monotonic() - start < 30
    assert not worker.alive


async def test_a_memory_bomb_ends_the_worker_alone(worker):
    with pytest.raises(WorkerDied, match="out of memory"):
        await worker.call("bomb", {}, timeout=30)


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (struct.pack(">II", 1 << 31, 0).hex(), "at most"),
        (struct.pack(">II", 10, 99).hex(), "at most"),
        (frame(b"{nonsense"), "no JSON"),
        (frame(b"[" * 100_000), "no JSON"),
        (frame([1, 2]), "not an object"),
        (frame({"id": 999, "values": {}}), "a reply"),
        (frame({"id": 1}), "a reply"),
        (frame({"id": 1, "values": 5}), "a reply"),
        (frame({"id": 1, "values": {}, "error": {}}), "a reply"),
        (frame({"id": 1, "values": {}}, fds=1), "announced"),
    ],
)
async def test_lies_on_the_wire_kill_the_liar(worker, lie, told):
    with pytest.raises(WorkerDied, match=told):
        await worker.call("raw", {"hex": lie}, timeout=10)
    assert not worker.alive


async def test_a_worker_that_hangs_up_but_lives_is_killed(worker):
    process = psutil.Process(worker.pid)
    with pytest.raises(WorkerDied, match="closed its socket"):
        await worker.call("hush", {}, timeout=10)
    await worker.close()
    assert not process.is_running()


async def test_a_cancelled_call_leaves_the_worker_in_sync(worker):
    pid = worker.pid
    for _ in range(3):
        call = asyncio.create_task(worker.call("wait", {"seconds": 0.2}, timeout=10))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not worker.settled
        assert (await worker.call("echo", {"n": 1}, timeout=10)).values["arguments"] == {"n": 1}
    assert (worker.settled, worker.pid, worker.alive) == (True, pid, True)


async def test_descriptors_of_an_abandoned_reply_are_closed(worker):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        call = asyncio.create_task(worker.call("give", {"text": "x"}, timeout=10))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await worker.settle(10)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_a_cancelled_call_left_may_not_last_for_ever(worker):
    call = asyncio.create_task(worker.call("wait", {"seconds": 60}, timeout=100))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    with pytest.raises(WorkerDied, match="over its time"):
        await worker.settle(0.1)


async def test_calls_are_served_one_by_one(worker):
    replies = await asyncio.gather(*(worker.call("echo", {"n": n}, timeout=10) for n in range(20)))
    assert [reply.values["arguments"]["n"] for reply in replies] == list(range(20))


async def test_killing_wakes_the_waiting_call(worker):
    call = asyncio.create_task(worker.call("wait", {"seconds": 60}, timeout=100))
    await asyncio.sleep(0.05)
    worker.kill("drained")
    with pytest.raises(WorkerDied, match="drained"):
        await call


async def test_a_module_that_cannot_start_says_so():
    worker = Worker("no_such_module_at_all", memory_limit=MEMORY, name="test")
    with pytest.raises(WorkerDied, match="ended with status 1"):
        await worker.start()
    await worker.close()


async def test_memory_that_cannot_be_trusted_is_refused(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="no shared memory"):
        adopt(os.open(tmp_path, os.O_RDONLY), 1)
    short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    os.ftruncate(short, 10)
    with pytest.raises(ValueError, match="10 bytes"):
        adopt(short, 11)
    assert len(os.listdir("/proc/self/fd")) == before
