"""Runs a program that is not ours and outlives nobody: `python -m server.engine_process.guardian PARENT PROGRAM [ARGUMENT …]`.

Whatever the program has started, in whatever session, ends with it, and all of it with the process PARENT, even where that is
killed: the guardian adopts what others leave behind (prctl(2), PR_SET_CHILD_SUBREAPER) and hears of PARENT's end
(PR_SET_PDEATHSIG). SIGTERM ends it too; where it is killed itself, the program alone ends with it. Its exit status is the
program's, 128 and the signal's number where that died of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from decoder_pool.parent_end import die_with

_PR_SET_CHILD_SUBREAPER = 36


class _End(BaseException):
    """SIGTERM has come."""


def descendants(pid: int) -> list[int]:
    """The process's children, theirs, and so on, by `/proc/PID/stat` (proc(5))."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    left = [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def main(arguments: list[str]) -> int:
    """Runs the program; returns the exit status."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _End

    parent, *command = arguments
    status = 128 + signal.SIGTERM
    with contextlib.suppress(_End):
        signal.signal(signal.SIGTERM, end)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        die_with(int(parent), by=signal.SIGTERM)
        status = subprocess.Popen(command, preexec_fn=functools.partial(die_with, os.getpid())).wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while left := [pid for pid in descendants(os.getpid()) if _killed(pid)]:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return 128 - status if status < 0 else status


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
