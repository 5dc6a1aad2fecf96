import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import keyglance

PACKAGE = Path(keyglance.__file__).parent


def imported(source: Path) -> set[str]:
    """The top-level packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add((node.module or "").split(".")[0])
    return found


def test_the_public_names_are_there() -> None:
    for name in keyglance.__all__:
        assert getattr(keyglance, name).__name__
        assert name in dir(keyglance)
    assert set(keyglance._HOMES) == set(keyglance.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = keyglance.nonsense


def test_the_client_needs_nothing_of_the_servers() -> None:
    names = set().union(*(imported(source) for source in PACKAGE.rglob("*.py")))
    assert not names & {"server", "decoder_pool", "models", "loadtest", "av", "onnxruntime", "cv2"}


def test_what_workers_import_does_not_load_grpc() -> None:
    probe = "import sys, keyglance.video; print(sorted({'grpc', 'PIL', 'rich', 'click', 'opentelemetry'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_readmes_examples_run(server: Any, video: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = PACKAGE.parent / "README.md"
    if not readme.exists():
        pytest.skip("the README is beside the sources only")
    monkeypatch.chdir(tmp_path)
    for name in ("clip.mp4", "a.mp4", "b.mp4"):
        Path(name).write_bytes(video)
    examples = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert len(examples) == 3
    told: list[tuple[Any, ...]] = []
    with keyglance.Client(server.target) as client:
        for example in examples:
            names = {"client": client, "path": __file__, "reject": lambda *facts: told.append(facts), "try_later": None}
            exec(example.replace("127.0.0.1:50051", server.target), names)
    assert len(server.requests) == 4
    assert told == [(__file__, "NOT_A_VIDEO")]
