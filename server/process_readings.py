"""What the operating system says of this process, as metrics."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from server.metrics import PROCESS_CPU, PROCESS_MEMORY, Reading


def process_readings() -> Iterator[Reading]:
    """Processor time and memory of this process (`/proc/self/statm`, see proc(5); without one: the largest memory so far)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Reading(PROCESS_CPU, used.ru_utime + used.ru_stime)
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = used.ru_maxrss * 1024
    yield Reading(PROCESS_MEMORY, resident)
