"""Ranges of NVTX, which NVIDIA Nsight Systems shows beside what the GPU does: `telemetry.nvtx`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from server.config import Config
from server.start_error import StartError


def ranges_of(config: Config) -> ProfilerRanges:
    """The ranges that the settings ask for. CuPy has them, which is imported only then; raises `StartError` where it has not."""
    if not config.telemetry.nvtx:
        return no_ranges
    try:
        nvtx = importlib.import_module("cupy.cuda").nvtx
    except (ImportError, AttributeError) as error:
        raise StartError(f"telemetry.nvtx: CuPy with NVTX is needed, which the GPU's packages have: {error}") from None

    @contextmanager
    def ranges(name: str) -> Iterator[None]:
        nvtx.RangePush(name)
        try:
            yield
        finally:
            nvtx.RangePop()

    return ranges
