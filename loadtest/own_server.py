"""A benchmark's own server: the usual parts around an engine that does not work, in a process of its own."""

from __future__ import annotations

import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from decoder_pool.containers import Indexer
from decoder_pool.opener import Opener
from models.policy import Policy
from server.config import Config
from server.engine import Engine
from server.lifecycle import Parts
from server.pipeline import Pipeline
from server.servicer import Labeler, limits_of

_START_SECONDS = 60.0


def parts_around(engine: Engine, config: Config) -> Parts:
    """What `server.lifecycle.serve` takes, with one index worker."""
    indexer = Indexer(size=1)
    sources, sampling = limits_of(config)
    pipeline = Pipeline(
        engine=engine, opener=Opener(indexer), policy=Policy.load(), source_limits=sources, sampling_limits=sampling
    )
    return Parts(Labeler(pipeline, engine, config, version("keyglance-server")), engine, (indexer,))


def address_of(process: subprocess.Popen[str], port_file: Path) -> str:
    """HOST:PORT, once the server has written it there. SystemExit where it ends before, or takes a minute."""
    end = time.monotonic() + _START_SECONDS
    while not (port_file.exists() and (address := port_file.read_text().strip())):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the server of {port_file.stem} did not start; its exit code is {process.poll()}")
        time.sleep(0.05)
    return address
