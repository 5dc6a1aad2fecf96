"""Ranges reach a profiler: a small one is put in NVTX's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

_WORK = """
from server.config import Config
from server.nvtx import ranges_of

ranges = ranges_of(Config.load(overrides={"telemetry": {"nvtx": True}}))
with ranges("decode"), ranges("copy"):
    pass
with ranges("infer"):
    pass
"""


def test_ranges_reach_a_profiler(cupy: Any, tmp_path: Path) -> None:
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler")
    tool = tmp_path / "nvtx_tool.so"
    source = Path(__file__).with_name("nvtx_tool.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tool, source], check=True, timeout=60)
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(tool), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _WORK], capture_output=True, text=True, env=environment, timeout=60, check=True)
    seen = [line for line in done.stderr.splitlines() if line.startswith(("push ", "pop"))]
    assert seen == ["push decode", "push copy", "pop", "pop", "push infer", "pop"]
