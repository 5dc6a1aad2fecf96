import json
from pathlib import Path

from loadtest import report


def test_a_result_is_kept_with_what_it_depends_on(tmp_path: Path) -> None:
    path = report.write("speed", {"calls": 3}, directory=tmp_path / "results")
    kept = json.loads(path.read_text())
    assert path.name == "speed.json"
    assert kept["calls"] == 3
    environment = kept["environment"]
    assert environment["cores"] >= 1
    assert environment["cpu"]
    assert environment["packages"]["av"]
    assert environment["date"].endswith("Z")
    assert environment["command"][0] == "python"
    assert "/" not in environment["command"][1]
