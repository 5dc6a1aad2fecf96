"""What tests of all parts share: where the corpus, the models and the clips lie, and a running server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from loadtest.server_process import ServerProcess

ROOT = Path(__file__).parent.parent

# Tests assert no timings: how long an example takes is the machine's affair.
# In CI examples are the same each time, so that a commit that passed passes again; elsewhere new ones are looked for.
settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """A shell's background jobs ignore SIGINT, and so would all that tests start: some of it is to be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real video files, with manifest.tsv; skips where it is not there."""
    folder = Path(os.environ.get("KEYGLANCE_CORPUS") or ROOT.parent / "shared" / "corpus")
    if not (folder / "manifest.tsv").is_file():
        pytest.skip(f"no corpus at {folder}; KEYGLANCE_CORPUS names another folder")
    return folder


@pytest.fixture(scope="session")
def models_folder() -> Path:
    """The folder of installed models; skips where they are not installed."""
    folder = Path(os.environ.get("KEYGLANCE_MODELS__FOLDER") or ROOT / ".cache" / "models")
    if not any(folder.glob("*/*.onnx")):
        pytest.skip(f"no models in {folder}; `make test` installs them")
    return folder


@pytest.fixture(scope="session")
def clips_folder() -> Path:
    """The folder of real clips (bikes.mp4, bigbuckbunny.mp4); skips where they were not fetched."""
    folder = ROOT / ".cache" / "clips"
    if not (folder / "bikes.mp4").is_file():
        pytest.skip(f"no clips in {folder}; `make test` fetches them")
    return folder


@pytest.fixture(scope="session")
def server(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server in its own process, with the default models and the text detector; one for the whole run."""
    if not any((models_folder / "ppocr-text").glob("*.onnx")):
        pytest.skip(f"ppocr-text is not in {models_folder}; `make test` installs it")
    enabled = ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"]
    environment = {"KEYGLANCE_MODELS__FOLDER": str(models_folder), "KEYGLANCE_MODELS__ENABLED": json.dumps(enabled)}
    with ServerProcess(tmp_path_factory.mktemp("server"), environment=environment) as process:
        yield process
