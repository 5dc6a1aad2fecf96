"""Bytes in shared memory, or held until another process asks for them: the same bytes either way."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_pool.shared_bytes import SharedBytes

parts_of = st.lists(st.binary(max_size=9), max_size=6)


@given(parts_of, st.integers(0, 60), st.integers(0, 60), st.booleans(), st.booleans())
def test_held_bytes_read_as_shared_ones_do(parts: list[bytes], offset: int, size: int, early: bool, views: bool) -> None:
    with SharedBytes.of(parts) as shared, SharedBytes.held([memoryview(part) for part in parts] if views else parts) as held:
        if early:
            assert os.pread(held.fd, 100, 0) == b"".join(parts)
        assert held.size == shared.size
        assert isinstance(held.read(offset, size), bytes)
        assert held.read(offset, size) == shared.read(offset, size) == b"".join(parts)[offset : offset + size]
        into = [bytearray(size), bytearray(size)]
        got = [each.read_into(memoryview(target), offset) for each, target in zip((held, shared), into, strict=True)]
        assert got == [len(held.read(offset, size))] * 2
        assert into[0] == into[1]
        assert bytes(held.view()) == bytes(shared.view())


def test_a_whole_part_is_not_copied_and_needs_no_descriptor() -> None:
    part = bytes(1000)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with SharedBytes.held([b"x", part]) as held:
        assert held.read(1, 1000) is part
        assert "held" in repr(held)
        if before:
            assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("make", [SharedBytes.of, SharedBytes.held])
def test_closed_bytes_are_not_read(make) -> None:
    shared = make([b"abc"])
    fd = shared.fd
    shared.close()
    shared.close()
    assert shared.fd == -1
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        shared.read(0, 1)
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        os.fstat(fd)
    assert "closed" in repr(shared)


def test_reading_and_closing_at_once_gives_the_bytes_or_an_error_and_never_anything_else() -> None:
    """A cancelled call closes its packets while decoders' threads read them."""
    content = bytes(range(256)) * 16
    for _ in range(200):
        shared = SharedBytes.of([content])
        found: list[object] = []

        def read(shared: SharedBytes = shared, found: list[object] = found) -> None:
            target = bytearray(len(content))
            try:
                for _ in range(50):
                    assert shared.read_into(memoryview(target), 0) == len(content)
                    assert target == content
            except OSError as error:
                found.append(error.errno)
            except BaseException as error:
                found.append(error)
                raise

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        shared.close()
        for thread in threads:
            thread.join()
        assert set(found) <= {errno.EBADF}
        assert shared.fd == -1
