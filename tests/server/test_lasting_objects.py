"""What is there once a process is ready is left alone by the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys

PROGRAM = """
import gc
from server.lasting_objects import spare_the_collector
ring = []; ring.append(ring); del ring
lasting = [[] for _ in range(50_000)]
spare_the_collector()
assert gc.get_freeze_count() > 50_000
assert len(gc.get_objects()) < 1_000, len(gc.get_objects())
ring = []; ring.append(ring); del ring
assert gc.collect() == 1
"""


def test_only_what_comes_later_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_it_freezes_nothing() -> None:
    before = gc.get_freeze_count()
    import server.lasting_objects  # noqa: F401

    assert gc.get_freeze_count() == before
