import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
API = ROOT / "clients" / "python" / "keyglance" / "v1"
INNER = ROOT / "server" / "engine_process"


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, Path]:
    """Folders with the code as protos/ gives it, and where it is committed."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from generate_code import generate, generate_inner  # type: ignore[import-not-found]

    inner = tmp_path / "inner"
    inner.mkdir()
    generate(tmp_path)
    generate_inner(inner)
    return {tmp_path / "keyglance" / "v1": API, inner: INNER}


def test_generating_the_code_anew_changes_nothing(generated: dict[Path, Path]) -> None:
    for folder, package in generated.items():
        fresh = {path.name: path.read_text() for path in folder.iterdir()}
        committed = {path.name: path.read_text() for path in package.glob("*_pb2*")}
        assert sorted(fresh) == sorted(committed)
        stale = [name for name, text in fresh.items() if committed[name] != text]
        assert not stale, f"run `make proto`: {stale} differ from what protos/ gives with {sys.executable}"
