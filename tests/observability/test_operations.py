"""The operator's page: its settings, metrics and links exist. Its figures are compared in tests/test_readme_figures.py."""

from __future__ import annotations

import re
from pathlib import Path

from server.config import Config
from server.exposition import prometheus_name
from server.metrics import INSTRUMENTS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_settings_exist():
    sections = {name: set(info.annotation.model_fields) for name, info in Config.model_fields.items()}
    named = set(re.findall(rf"`({'|'.join(sections)})\.([a-z_]+)", PAGE))
    assert len(named) > 20
    assert {(section, key) for section, key in named if key not in sections[section]} == set()


def test_metrics_exist():
    families = {prometheus_name(each.name, each.unit, gauge=False) for each in INSTRUMENTS}
    named = {name.removesuffix("_total") for name in re.findall(r"\bkeyglance_[a-z_]+", PAGE)}
    assert named <= families
    assert set(re.findall(r"`(keyglance\.[a-z_.]+)`", PAGE)) <= {each.name for each in INSTRUMENTS}


def test_links_lead_somewhere():
    headings = {
        re.sub(r"[^a-z0-9 ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in PAGE.splitlines() if line[:1] == "#"
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        assert not file or (ROOT / "docs" / file).is_file()
        assert not anchor or anchor in headings
