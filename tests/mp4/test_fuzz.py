"""A short run of the fuzzer, and that it would notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keyglance.mp4 import BytesSource, Mp4Limits, read_index
from keyglance.video import VideoIndex
from loadtest import fuzz_mp4, report
from tests.mp4 import build


@pytest.fixture
def seeds() -> fuzz_mp4.Seeds:
    made = fuzz_mp4.Seeds()
    for data in fuzz_mp4.built():
        made.add(data)
    return made


def test_every_seed_is_read(seeds: fuzz_mp4.Seeds) -> None:
    for data, tree in zip(fuzz_mp4.built(), seeds.trees, strict=True):
        source = fuzz_mp4.Sparse(fuzz_mp4.write(tree))
        assert source.size == len(data)
        try:
            expected = repr(read_index(BytesSource(data)))
        except Exception as error:
            with pytest.raises(type(error)):
                read_index(source)
        else:
            assert repr(read_index(source)) == expected


def test_a_source_of_parts() -> None:
    source = fuzz_mp4.Sparse([b"ab", 3, b"", b"cd"])
    assert source.bytes() == b"ab\0\0\0cd"
    assert [source.read(at, size) for at, size in ((1, 2), (2, 2), (4, 9), (7, 1), (0, 0))] == [
        b"b\0",
        b"\0\0",
        b"\0cd",
        b"",
        b"",
    ]


def test_three_thousand_broken_files(seeds: fuzz_mp4.Seeds) -> None:
    figures = fuzz_mp4.Figures()
    fuzz_mp4.run(seeds, 3000, 7, figures)
    assert figures.failures == []
    assert sum(figures.outcomes.values()) == 3000
    # Most breaks leave something to look at, and every way to refuse is met.
    assert {"index", "Declined", "NotAVideo", "NoVideoStream", "CorruptVideo", "Encrypted"} <= set(figures.outcomes)
    assert 0.2 < figures.outcomes["index"] / 3000 < 0.95


def test_an_exception_is_noticed(seeds: fuzz_mp4.Seeds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(source: Any, limits: Any) -> VideoIndex:
        raise IndexError("out of range")

    monkeypatch.setattr(fuzz_mp4, "read_index", broken)
    figures = fuzz_mp4.Figures()
    fuzz_mp4.run(seeds, 3, 1, figures, kept=tmp_path)
    assert figures.outcomes == {"another exception": 3}
    assert "IndexError: out of range" in figures.failures[0]["what"]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [("position", -1), ("position", 1 << 40), ("size", 0), ("time", np.nan), ("duration", -1.0), ("flags", 16), ("flags", 2)],
)
def test_an_index_that_does_not_hold_together_is_noticed(field: str, value: Any) -> None:
    data = build.movie([build.Track([build.Sample()])])
    index = read_index(BytesSource(data))
    assert fuzz_mp4.complaint(index, len(data), Mp4Limits()) == ""
    getattr(index.samples, field)[0] = value
    assert fuzz_mp4.complaint(index, len(data), Mp4Limits()) != ""


def test_the_command_line_keeps_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = report.write
    monkeypatch.setattr(report, "write", lambda name, figures: original(name, figures, directory=tmp_path))
    assert fuzz_mp4.main(["--inputs", "100", "--corpus", str(tmp_path / "none"), "--name", "short"]) == 0
    figures = json.loads((tmp_path / "short.json").read_text())
    assert figures["inputs"] == 100
    assert sum(figures["outcomes"].values()) == 100
    assert figures["seeds"]["corpus"] == 0
