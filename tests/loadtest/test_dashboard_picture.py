"""The picture of the dashboard: legends, what is left out, and that it is the same for the same data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from loadtest.dashboard_picture import DASHBOARD, Line, draw, legend_of


@pytest.mark.parametrize(
    ("form", "labels", "legend"),
    [
        ("{{step}} {{priority}}", {"step": "infer", "priority": "bulk"}, "infer bulk"),
        ("{{instance}} {{process}}", {"instance": "127.0.0.1:1234", "process": "front-0"}, "front-0"),
        ("{{queue}} {{model}} {{priority}}", {"queue": "turn", "priority": "normal"}, "turn normal"),
        ("p99", {}, "p99"),
    ],
)
def test_legends(form, labels, legend):
    assert legend_of(form, labels) == legend


def test_panels_with_data_are_drawn_and_others_left_out(tmp_path: Path):
    dashboard = json.loads(DASHBOARD.read_text())
    by_title = {panel["title"]: panel["id"] for panel in dashboard["panels"] if "targets" in panel}
    found = {number: [] for number in by_title.values()}
    found[by_title["Verdicts"]] = [Line("pass", [0.0, 1.0, 2.0]), Line("block", [math.nan, 0.5, math.nan])]
    found[by_title["Batch fill by model"]] = [Line("open-nsfw", [0.5, 2.5, math.nan]), Line("nothing", [0.0, 0.0, 0.0])]
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        draw(dashboard, found, [0.0, 1.0, 2.0], path)
    first, second = (path.read_text() for path in paths)
    assert first == second
    for text in ("Verdicts, /s", "pass", "block", "Batch fill by model, %", "open-nsfw"):
        assert text in first
    assert "Memory" not in first
    assert "nothing" not in first
