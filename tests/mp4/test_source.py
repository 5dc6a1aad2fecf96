from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyglance.mp4 import BytesSource, CountingSource, FileSource


def test_bytes_end_where_they_end() -> None:
    source = BytesSource(b"0123456789")
    assert source.size == 10
    assert bytes(source.read(3, 4)) == b"3456"
    assert bytes(source.read(8, 100)) == b"89"
    assert bytes(source.read(10, 1)) == b""
    assert bytes(source.read(1 << 62, 1 << 62)) == b""


@pytest.mark.parametrize("positioned", [True, False])
def test_a_file_gives_the_same_as_its_bytes(positioned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not positioned:
        monkeypatch.delattr(os, "pread", raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with FileSource(path) as source:
        assert source.size == 10
        for offset, size in ((0, 10), (3, 4), (8, 100), (10, 1), (1 << 62, 5), (2, 0), (0, 1 << 62)):
            assert source.read(offset, size) == bytes(BytesSource(b"0123456789").read(offset, size))
    source.close()


def test_reads_are_counted_and_joined() -> None:
    source = CountingSource(BytesSource(bytes(100)))
    for offset, size in ((50, 10), (0, 8), (8, 4), (95, 20), (200, 5), (52, 2)):
        source.read(offset, size)
    assert source.size == 100
    assert source.reads == [(50, 10), (0, 8), (8, 4), (95, 5), (52, 2)]
    assert source.touched() == [(0, 12), (50, 60), (95, 100)]
    assert source.touched(gap=38) == [(0, 100)]
