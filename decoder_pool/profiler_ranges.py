"""Named stretches of work on one thread, for a profiler to show: by default nobody does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

#: Gives the block that is a stretch of that name. Entered and left on one thread, with no `await` in between.
ProfilerRanges = Callable[[str], AbstractContextManager[object]]

_NONE = nullcontext()


def no_ranges(name: str) -> AbstractContextManager[object]:
    """Shows nothing."""
    return _NONE
