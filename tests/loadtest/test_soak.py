import json
from dataclasses import replace
from pathlib import Path

import pytest

from keyglance.metrics_page import Look
from loadtest import report, soak
from loadtest.measure import Footprint
from loadtest.soak import decoders, differences, held

BEFORE = Footprint(processes=6, threads=60, descriptors=120, memory_mib=1000.0)


def test_the_same_is_no_difference() -> None:
    assert differences(BEFORE, BEFORE, (3, 3)) == []


def test_a_decoder_more_is_a_process_more() -> None:
    assert differences(BEFORE, replace(BEFORE, processes=7), (3, 4)) == []
    (found,) = differences(BEFORE, replace(BEFORE, processes=7), (3, 3))
    assert found.startswith("processes: 6 before, 7 after")


def test_a_lost_worker_is_found() -> None:
    (found,) = differences(BEFORE, replace(BEFORE, processes=5), (3, 3))
    assert found.startswith("processes")


def test_what_grew_is_named() -> None:
    grown = replace(BEFORE, threads=90, descriptors=300, memory_mib=1200.0)
    assert [line.split(":")[0] for line in differences(BEFORE, grown, (3, 3))] == ["threads", "descriptors", "memory"]


PAGE = """
keyglance_calls_active{process="front-0"} 1
keyglance_calls_active{process="front-1"} 2
keyglance_calls_serving{process="front-1",lane="software"} 4
keyglance_queue_depth{queue="pictures"} 5
keyglance_queue_depth{queue="turn",model="main"} 6
keyglance_receive_reserved_bytes{process="front-0"} 7
keyglance_decoders{kind="cpu",state="idle"} 3
keyglance_decoders{kind="cpu",state="leased"} 1
keyglance_decoders{kind="nvdec",state="settling"} 2
keyglance_decoders{kind="nvdec",state="closing"} 1
"""


def test_all_that_is_held_for_calls_is_seen() -> None:
    page = Look.parsed(PAGE, 0.0)
    assert held(page) == {"calls": 3, "places": 4, "queued": 11, "received_bytes": 7, "leases": 3}
    assert (decoders(page), decoders(page, "cpu")) == (7, 4)
    idle = Look.parsed("\n".join(f"{line.rpartition(' ')[0]} 0" for line in PAGE.split("\n") if line), 0.0)
    assert set(held(idle).values()) == {0}


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("fronts", [0, 2], ids=["one process", "fronts and an engine"])
def test_a_short_one(
    models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fronts: int
) -> None:
    monkeypatch.setattr(report.write, "__kwdefaults__", {"directory": tmp_path})
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    monkeypatch.setattr(soak, "MEMORY_TOLERANCE", 1.0)  # so few calls warm nothing up
    assert soak.main(["--calls", "100", "--set", f"server.fronts={fronts}", "--keep", "short"]) == 0, capsys.readouterr().out
    kept = json.loads((tmp_path / "short.json").read_text())
    assert sum(kept["outcomes"].values()) == 100
    assert 0 < kept["outcomes"]["answered"] < 100
    assert set(kept["after"]["held"].values()) == {0}
    assert kept["meanwhile"]["leases"]
    assert kept["faults"] == []
