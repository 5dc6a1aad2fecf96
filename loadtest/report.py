"""What a benchmark keeps: its figures beside everything they depend on, as one JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

#: Where the results are kept.
RESULTS = Path(__file__).parent / "results"

_PACKAGES = ("keyglance", "keyglance-server", "av", "grpcio", "numpy", "onnxruntime", "protobuf", "opencv-python-headless")


def write(name: str, figures: Mapping[str, Any], *, directory: Path = RESULTS) -> Path:
    """Writes `figures`, with the machine, the versions, the date and the command before them, to `directory`/`name`.json."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **figures}, indent=1, ensure_ascii=False) + "\n")
    return path


def environment() -> dict[str, Any]:
    """The date (UTC), the command, the machine, the versions and the commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": _command(),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in _PACKAGES},
    }


def cpu_model() -> str:
    """The processor's name as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def commit() -> str | None:
    """The commit measured, with `-dirty` behind it where tracked files were changed, results left out, which change as they are
    measured; None outside a Git checkout.
    """
    folder = Path(__file__).parent
    try:
        name = _git("describe", "--always", "--abbrev=12", "--exclude=*", folder=folder)
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude)results", folder=folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}-dirty" if changed else name


def _git(*arguments: str, folder: Path) -> str:
    answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout.strip()


def _command() -> list[str]:
    spec = sys.modules["__main__"].__spec__  # None where a file was run by its path
    program = ["-m", spec.name.removesuffix(".__main__")] if spec else [Path(sys.argv[0]).name]
    # A folder's last name says what it is; where it lies is the machine's own affair.
    return ["python", *program, *(Path(each).name if each.startswith("/") else each for each in sys.argv[1:])]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
