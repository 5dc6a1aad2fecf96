"""The Dockerfile, which no container engine builds here: what it names is there, and what it promises is what it says."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.dockerfile import Dockerfile, Ignored

ROOT = Path(__file__).parent.parent
TARGETS = ("cpu", "gpu")


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return Dockerfile(ROOT / "Dockerfile")


def test_a_target_for_each_device_and_the_cpu_without_a_name(dockerfile: Dockerfile) -> None:
    assert set(TARGETS) <= set(dockerfile.stages)
    assert list(dockerfile.stages)[-1] == "cpu"


def test_a_stage_stands_on_earlier_ones_or_on_one_image(dockerfile: Dockerfile) -> None:
    seen: set[str] = set()
    images = set()
    for stage in dockerfile.stages.values():
        if stage.parent not in seen:
            images.add(stage.parent)
        assert {each.options["from"] for each in stage.instructions if "from" in each.options} <= seen
        seen.add(stage.name)
    assert images == {"python:3.12-slim"}


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_copied_is_there_and_reaches_the_builder(dockerfile: Dockerfile, target: str) -> None:
    ignored = Ignored(ROOT / ".dockerignore")
    copied = list(dockerfile.copied(target))
    assert len(copied) > 5
    for source, _ in copied:
        assert (ROOT / source).exists(), f"COPY {source}: there is none"
        assert source not in ignored, f"COPY {source}: .dockerignore keeps it from the builder"


def test_the_builder_gets_no_more_than_is_copied() -> None:
    ignored = Ignored(ROOT / ".dockerignore")
    for name in (
        ".git/config",
        ".venv/bin/python",
        ".cache/models/a.onnx",
        "tests/conftest.py",
        "server/__pycache__/a.pyc",
        "Makefile",
    ):
        assert name in ignored
    for name in ("server/main.py", "models/zoo/open-nsfw/model.toml", "scripts/install.sh", "requirements/gpu.lock"):
        assert name not in ignored


@pytest.mark.parametrize("target", TARGETS)
def test_nobody_is_root(dockerfile: Dockerfile, target: str) -> None:
    (user,) = dockerfile.last(target, "USER").words
    assert int(user) > 0
    made = [each.text for each in dockerfile.instructions(target) if each.name == "RUN" and "useradd" in each.text]
    assert any(f"--uid {user} " in text for text in made)
    names = [each.name for each in dockerfile.instructions(target)]
    assert "RUN" not in names[names.index("USER") :], "what an unprivileged user installs, it can change"


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_run_is_there(dockerfile: Dockerfile, target: str) -> None:
    installed = {"python", "sh"}
    for project in (ROOT / "pyproject.toml", ROOT / "clients" / "python" / "pyproject.toml"):
        installed |= set(tomllib.loads(project.read_text())["project"]["scripts"])
    health, entry = dockerfile.last(target, "HEALTHCHECK"), dockerfile.last(target, "ENTRYPOINT")
    assert re.search(r"--start-period=\d{3}s", health.text), "a GPU's start takes minutes"
    command = health.text.partition("CMD ")[2]
    assert re.findall(r'"([^"]+)"', command)[0] in installed
    shell, _, script, name = entry.words
    assert {shell, name} <= installed
    first, _, second = script.partition(" && ")
    assert second == 'exec keyglance-server "$@"', "without exec no signal reaches the server"
    assert importlib.util.find_spec(first.removeprefix("python -m ")) is not None
    assert dockerfile.last(target, "STOPSIGNAL").words == ["SIGTERM"]
    places = {place for _, place in dockerfile.copied(target)}
    for each in dockerfile.instructions(target):
        for script in re.findall(r"scripts/\S+", each.text) if each.name == "RUN" else ():
            assert script in places
            assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("target", TARGETS)
def test_the_models_lie_in_a_volume_that_the_user_owns(dockerfile: Dockerfile, target: str) -> None:
    folder = dockerfile.environment(target)["KEYGLANCE_MODELS__FOLDER"]
    assert dockerfile.last(target, "VOLUME").words == [folder]
    assert any(
        f"-o keyglance -g keyglance {folder}" in each.text for each in dockerfile.instructions(target) if each.name == "RUN"
    )


def test_the_gpu_target_asks_for_what_decoding_needs(dockerfile: Dockerfile) -> None:
    environment = dockerfile.environment("gpu")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video"
    assert environment["NVIDIA_REQUIRE_CUDA"] == "cuda>=13.0"
    assert environment["CUPY_CACHE_DIR"].startswith("/models/")
    assert not any(name.startswith("NVIDIA") for name in dockerfile.environment("cpu"))


@pytest.mark.parametrize("target", TARGETS)
def test_a_change_of_the_source_does_not_install_the_dependencies_anew(dockerfile: Dockerfile, target: str) -> None:
    stage = dockerfile.stages[target].instructions
    order = [each.text.rpartition(" ")[2] if each.name == "RUN" else each.name for each in stage if each.name in ("RUN", "COPY")]
    assert order == ["dependencies", "COPY", "check"]
