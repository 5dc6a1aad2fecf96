import json
import subprocess
from pathlib import Path

import pytest

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


def test_results_that_are_written_do_not_change_the_commit_measured_and_code_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments], cwd=tmp_path, check=True)

    (tmp_path / "loadtest" / "results").mkdir(parents=True)
    monkeypatch.setattr(report, "__file__", str(tmp_path / "loadtest" / "report.py"))
    assert report.commit() is None
    code, result = tmp_path / "server.py", tmp_path / "loadtest" / "results" / "cpu.json"
    code.write_text("1")
    result.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = report.commit()
    assert clean is not None
    assert len(clean) == 12
    result.write_text("2")
    (tmp_path / "new.txt").write_text("not tracked")
    assert report.commit() == clean
    code.write_text("2")
    assert report.commit() == f"{clean}-dirty"
