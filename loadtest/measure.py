"""What a server's processes hold at a moment: to be compared before and after a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Footprint:
    """A process and its children together; memory is proportional (PSS), so shared pages count once."""

    processes: int
    threads: int
    descriptors: int
    memory_mib: float

    def as_dict(self) -> Mapping[str, Any]:
        """For JSON."""
        return asdict(self)


def footprint(pid: int) -> Footprint:
    """The server's footprint now; a child that ends meanwhile is left out."""
    parent = psutil.Process(pid)
    processes, threads, descriptors, memory = 0, 0, 0, 0
    for process in (parent, *parent.children(recursive=True)):
        try:
            with process.oneshot():
                threads += process.num_threads()
                descriptors += process.num_fds()
                memory += process.memory_full_info().pss
                processes += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return Footprint(processes, threads, descriptors, round(memory / 2**20, 1))
