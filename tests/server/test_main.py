"""`keyglance-server` as an operator meets it, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KEYGLANCE_", "OTEL_"))}
    command = [sys.executable, "-m", "server.main", *arguments]
    # Said of the device is one more line, and what is tested here is the same on each.
    settings = {"KEYGLANCE_ENGINE__DEVICE": "cpu", **environment}
    return subprocess.run(command, env={**clean, **settings}, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.models
@pytest.mark.slow
def test_a_dry_run(models_folder: Path):
    result = run("--check", KEYGLANCE_MODELS__FOLDER=str(models_folder))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ok: ")
    assert result.stdout.endswith(" on cpu\n")


def test_a_gpu_that_is_asked_for_and_not_there(tmp_path: Path):
    # No module of that name: of a machine that has a GPU it is hidden.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['cupy'] = None\n")
    result = run("--check", KEYGLANCE_ENGINE__DEVICE="gpu", PYTHONPATH=str(tmp_path))
    reason = 'engine.device = "gpu": CuPy is not installed, there is no Python module cupy'
    assert (result.returncode, result.stderr) == (1, f"error: {reason}\n")


def test_models_that_are_not_installed(tmp_path: Path):
    result = run("--check", KEYGLANCE_MODELS__FOLDER=str(tmp_path / "none"))
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: model ")
    assert "is not installed" in line


@pytest.mark.models
def test_a_port_in_use(models_folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("--listen", address, KEYGLANCE_MODELS__FOLDER=str(models_folder))
    assert (result.returncode, result.stderr) == (1, f"error: cannot listen on {address}: address already in use\n")


@pytest.mark.models
def test_a_warm_decoder_for_a_codec_that_is_not_there(models_folder: Path):
    result = run(
        "--check",
        KEYGLANCE_MODELS__FOLDER=str(models_folder),
        KEYGLANCE_DECODERS__WARM='[{"codec": "h265", "size_class": 1024}]',
    )
    assert (result.returncode, result.stderr) == (1, "error: decoders.warm: no decoder for codec 'h265', did you mean 'h264'?\n")


@pytest.mark.models
def test_a_policy_that_is_not_there(models_folder: Path, tmp_path: Path):
    result = run(
        KEYGLANCE_MODELS__FOLDER=str(models_folder),
        KEYGLANCE_MODELS__POLICY=str(tmp_path / "none.toml"),
        KEYGLANCE_SERVER__LISTEN="127.0.0.1:0",
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "none.toml" in line
