"""The operator's page: its figures are those of the results, its settings and metrics exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from server.config import Config
from server.exposition import prometheus_name
from server.metrics import INSTRUMENTS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()


def result(name: str) -> Any:
    return json.loads((ROOT / "loadtest" / "results" / f"{name}.json").read_text())


def cpu(clip: str) -> str:
    found = result("cpu")["clips"][clip]
    calls = found["at_once"]["calls"] / found["at_once"]["call"]["median_ms"] * 1e3
    pictures = calls * found["pictures"]
    return f"{calls:.2f} calls a second: {pictures:.0f} pictures a second, {pictures / 2:.0f} for each core"


def overlap() -> str:
    batch = result("gpu_overlap")["overlap"]["float32"]["three models (no text)"]["64"]["pictures to results, a stream each"]
    return f"{batch:.1f} ms a batch: {64e3 / batch:,.0f} pictures a second"


def networks() -> str:
    found = result("gpu_networks")["networks"]
    names = ("open-nsfw 224x224", "efficientnet-lite0 224x224", "centerface 320x576")
    batch = sum(found[f"{name}, float16 NHWC, graph"]["64"] for name in names)
    return f"{batch:.1f} ms a batch: {64e3 / batch:,.0f} pictures a second"


def decoder() -> str:
    found = result("gpu_decode")["reconfigure"]
    reconfigured, new = (found[of]["median"] for of in ("of that, the call that reconfigures", "new decoder, then the keyframe"))
    return f"{reconfigured:.2f} ms / {new:.0f} ms"


def transport() -> str:
    found = result("transport")["layouts"]["moov first"]
    share = found["ranges"]["message_bytes"] / found["whole"]["message_bytes"]
    return f"{found['ranges']['median_ms']:.1f} ms / {found['whole']['median_ms']:.0f} ms; {share:.0%}".replace("%", " %")


def soak() -> str:
    found = result("soak")
    return f"memory {found['before']['memory_mib']:.0f} MiB before, {found['after']['memory_mib']:.0f} MiB after"


def flood() -> str:
    found = result("flood")
    return f"memory {found['memory_before_mib']} MiB before, {found['memory_peak_mib']:,} MiB at most"


def one_call() -> str:
    return f"| {result('cpu')['clips']['made-1280x720.mp4']['one']['call']['median_ms']:.0f} ms |"


FIGURES = {
    "1280x720": lambda: cpu("made-1280x720.mp4"),
    "bikes": lambda: cpu("bikes.mp4"),
    "one call": one_call,
    "overlap": overlap,
    "networks": networks,
    "decoder": decoder,
    "transport": transport,
    "soak": soak,
    "flood": flood,
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_results(name):
    assert FIGURES[name]() in PAGE


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
