"""The install steps of the image, without a container engine: the files that the Dockerfile copies, the commands that it runs.

The CPU's run for real, into an environment of their own (half a minute, out of pip's cache). Of the GPU's 2.8 GB CI only asks
whether each file is to be had with a hash of the lock's; KEYGLANCE_TEST_GPU_INSTALL=1 runs them for real, which needs no GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dockerfile import Dockerfile, build_context

ROOT = Path(__file__).parent.parent
INSTALL = ROOT / "scripts" / "install.sh"
PACKAGES = ("server", "decoder_pool", "models", "keyglance")


def run(command: list[str | Path], *, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KEYGLANCE_", "PYTHON"))}
    environment |= {"PYTHON": sys.executable, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_steps(target: str, context: Path, prefix: Path) -> None:
    """Runs a target's install commands in the order of the Dockerfile, all files being there from the start."""
    build_context(ROOT, target, context)
    commands = [each.words for each in Dockerfile(ROOT / "Dockerfile").stages[target].instructions if each.name == "RUN"]
    assert len(commands) == 2
    for words in commands:
        words = [target if word == "$FORM" else str(prefix) if word == "/opt/keyglance" else word for word in words]
        done = run(words, folder=context)
        assert done.returncode == 0, done.stderr


def site_packages(prefix: Path) -> Path:
    (folder,) = prefix.glob("lib/python3.*/site-packages")
    return folder


def tracked_files() -> set[str]:
    """The files of our packages that Git knows, as they lie in site-packages; clients/python stands for itself."""
    folders = ["server", "decoder_pool", "models", "clients/python/keyglance"]
    listing = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a Git checkout")
    names = [name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]
    return {name.removeprefix("clients/python/") for name in names}


@pytest.fixture(scope="module")
def cpu_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as the CPU image has it."""
    folder = tmp_path_factory.mktemp("image")
    run_steps("cpu", folder / "src", folder / "keyglance")
    shutil.rmtree(folder / "src")  # what is installed must not need it
    return folder / "keyglance"


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestCpu:
    def test_all_files_of_our_packages_are_installed(self, cpu_install: Path) -> None:
        site = site_packages(cpu_install)
        assert not {name for name in tracked_files() if not (site / name).is_file()}

    def test_the_commands_run(self, cpu_install: Path, tmp_path: Path) -> None:
        for command in (["keyglance", "--version"], ["keyglance-server", "--version"], ["keyglance-server", "--print-config"]):
            done = run([cpu_install / "bin" / command[0], *command[1:]], folder=tmp_path)
            assert done.returncode == 0, done.stderr
        done = run([cpu_install / "bin" / "python", "-m", "models.install", "--help"], folder=tmp_path)
        assert done.returncode == 0, done.stderr

    @pytest.mark.models
    def test_a_video_is_labelled(self, cpu_install: Path, tmp_path: Path, models_folder: Path) -> None:
        command = [cpu_install / "bin" / "keyglance-server", "--check"]
        done = run(command, folder=tmp_path, KEYGLANCE_MODELS__FOLDER=str(models_folder))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ok: ")

    def test_the_other_onnx_runtime_is_refused(self, cpu_install: Path) -> None:
        done = run([INSTALL, "gpu", cpu_install, "dependencies"])
        assert done.returncode == 1
        assert "has onnxruntime, which cannot be together" in done.stderr
        check = run([cpu_install / "bin" / "python", "-P", ROOT / "scripts" / "check_install.py", "gpu"])
        assert check.returncode == 1
        assert "onnxruntime-gpu is not installed" in check.stderr
        assert "onnxruntime is installed: its files" in check.stderr
        assert "has no CUDAExecutionProvider" in check.stderr
        assert "PyNvVideoCodec is not installed" in check.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the GPU's packages are for x86-64")
def test_the_gpu_s_packages_are_to_be_had_with_their_hashes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "pip"], check=True)
    pip = [tmp_path / "pip" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # An older pip fetches whole files also where it installs nothing.
    assert run([*pip, "install", "pip>=23.3"]).returncode == 0
    lock = ROOT / "requirements" / "gpu-dev.lock"  # tests/test_locks.py: it has all of the others
    told = tmp_path / "report.json"
    done = run([*pip, "install", "--dry-run", "--ignore-installed", "--report", told, "-r", lock])
    assert done.returncode == 0, done.stderr
    text = lock.read_text()
    files = [entry["download_info"] for entry in json.loads(told.read_text())["install"]]
    assert len(files) > 60
    assert not [file["url"] for file in files if not file["url"].endswith(".whl")], "nothing is to be compiled"
    assert not [file["url"] for file in files if f"sha256:{file['archive_info']['hashes']['sha256']}" not in text]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("KEYGLANCE_TEST_GPU_INSTALL" not in os.environ, reason="2.8 GB; KEYGLANCE_TEST_GPU_INSTALL=1 runs it")
def test_the_gpu_s_install_steps(tmp_path: Path) -> None:
    prefix = tmp_path / "keyglance"
    run_steps("gpu", tmp_path / "src", prefix)  # with the check, which compiles the kernels
    # And the check fails where something is missing.
    (library,) = site_packages(prefix).glob("nvidia/**/libcurand.so.10")
    library.unlink()
    done = run([prefix / "bin" / "python", "-P", ROOT / "scripts" / "check_install.py", "gpu"])
    assert done.returncode == 1
    assert re.search(r"libonnxruntime_providers_cuda\.so needs libcurand\.so\.10", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cpu"], "usage: install.sh"),
        (["tpu", "/nowhere"], "no form tpu: there are cpu, gpu"),
        (["cpu", "{here}", "everything"], "no step everything: there are dependencies"),
    ],
)
def test_a_wrong_call_says_what_is_allowed(arguments: list[str], said: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "here"], check=True)
    done = run([INSTALL, *(word.replace("{here}", str(tmp_path / "here")) for word in arguments)])
    assert done.returncode == 1
    assert said in done.stderr


def test_another_python_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1"\nexit 1\n')
    other.chmod(0o755)
    done = run([INSTALL, "cpu", tmp_path / "new"], PYTHON=str(other))
    assert done.returncode == 1
    assert "Python 3.11 or 3.12 is needed" in done.stderr
    assert "Python 3.9.1" in done.stderr
    assert not (tmp_path / "new").exists()
