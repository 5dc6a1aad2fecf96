"""The benchmark of indexes: its clips are what they claim, and a short run keeps its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyglance.mp4 import BytesSource, read_index
from keyglance.video import SampleFlag
from loadtest import clips, index, report


def test_the_layouts_hold_the_same_video(tmp_path: Path) -> None:
    pictures, sound = index.clip(3), clips.tone(3.0)
    made = {name: index.remuxed(pictures, sound, options, tmp_path / "clip.mp4") for name, options in index.LAYOUTS.items()}
    first, last, fragmented = made["moov first"], made["moov last"], made["fragmented"]
    assert first.index(b"moov") < first.index(b"mdat")
    assert last.index(b"moov") > last.index(b"mdat")
    assert fragmented.count(b"moof") >= 2
    for data in made.values():
        found = read_index(BytesSource(data))
        assert len(found.samples) == 90 == index.ffmpeg_walk(data)
        assert found.samples.having(SampleFlag.KEY).nonzero()[0].tolist() == [0, 60]
        assert found.duration == pytest.approx(3, abs=0.05)


def test_a_short_run_keeps_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = report.write
    monkeypatch.setattr(report, "write", lambda name, figures: original(name, figures, directory=tmp_path))
    monkeypatch.setattr(index.timed, "__defaults__", (0.01,))
    assert index.main(["--seconds", "1", "--longest", "1", "--name", "short"]) == 0
    figures = json.loads((tmp_path / "short.json").read_text())
    assert set(figures["layouts"]) == set(index.LAYOUTS)
    for layout in figures["layouts"].values():
        assert layout["samples"] == 30
        assert layout["touched_bytes"] < 10_000 < layout["bytes"]
    assert [row["samples"] for row in figures["growth"]] == [30, 30]
