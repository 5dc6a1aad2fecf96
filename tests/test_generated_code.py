import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "clients" / "python" / "keyglance" / "v1"


def test_generating_the_code_anew_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from generate_code import generate  # type: ignore[import-not-found]

    generate(tmp_path)
    fresh = {path.name: path.read_text() for path in (tmp_path / "keyglance" / "v1").iterdir()}
    committed = {path.name: path.read_text() for path in PACKAGE.glob("keyglance_pb2*")}
    assert sorted(fresh) == sorted(committed)
    stale = [name for name, text in fresh.items() if committed[name] != text]
    assert not stale, f"run `make proto`: {stale} differ from what protos/ gives with {sys.executable}"
