"""The end of the parent process, of which the kernel tells its child (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT = 1


def die_with(parent: int, *, by: int = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when its parent, of that process id, is gone; it ends at once where it is.

    What counts is the end of the thread that started this process. It holds for a program that this process becomes, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(_EXIT)
