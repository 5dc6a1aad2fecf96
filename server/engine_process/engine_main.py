"""An engine process: `python -m server.engine_process.engine_main`, started by the supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from server.config import Config
from server.engine import Engine
from server.engine_process.child import Child, Settings, first_of, run_child, server_version
from server.engine_process.engine_host import EngineHost
from server.lasting_objects import spare_the_collector
from server.lifecycle import end_telemetry
from server.profile import profile_of
from server.readings import EngineSource
from server.telemetry import Telemetry

_log = logging.getLogger("server.engine_process.engine_main")  # not __main__, which it is

#: Makes the engine of a configuration, not started.
MakeEngine = Callable[[Config, Telemetry], Engine]

_HEALTH_INTERVAL = 1.0  # seconds between two looks at the engine
_LEAST_JOBS = 1024  # jobs of one engine at once; fronts admit fewer


async def run_engine(child: Child, settings: Settings, make_engine: MakeEngine) -> None:
    """Starts an engine, serves it to the fronts that the supervisor connects, until it is told to end or the engine is lost."""
    config = settings.config
    # No trees of traces on the console here: a batch's root is printed where its callers' traces end, which is in the fronts.
    telemetry = Telemetry.create(
        version=server_version(),
        process=child.name,
        prometheus=config.telemetry.prometheus,
        profile=profile_of(config),
        trace_ratio=config.telemetry.trace_ratio,
    )
    engine = make_engine(config, telemetry)
    telemetry.metrics.observe(EngineSource(engine))
    most_jobs = max(_LEAST_JOBS, config.server.concurrent_calls * config.server.fronts)
    host = EngineHost(engine, most_jobs=most_jobs, keep=telemetry.keep)
    child.listen(lambda number, sock: host.attach(sock, f"front-{number}"))
    try:
        if await first_of(engine.start(), child.ending.wait()) == 0:
            spare_the_collector()
            host.open()
            child.ready()
            _log.info("ready: %r", engine)
            if await first_of(child.ending.wait(), _lost(engine)) == 1:
                _log.error("the engine is lost, its process ends: %r", engine)
            else:
                # Every decoder idle, nobody waiting: whoever reads the log sees that no call left anything behind.
                _log.info("drained: %r", engine)
    finally:
        await host.close()
        await engine.close()
        await end_telemetry(telemetry)


async def _lost(engine: Engine) -> None:
    while True:
        await asyncio.sleep(_HEALTH_INTERVAL)
        if not engine.healthy:
            return


def configured_engine(config: Config, telemetry: Telemetry) -> Engine:
    """The engine that the configuration asks for."""
    from server.engine_factory import make_engine as make  # heavy, and of no use to tests with engines of their own

    return make(config, telemetry.tracer)


async def _main(child: Child, settings: Settings) -> None:
    await run_engine(child, settings, configured_engine)


if __name__ == "__main__":
    run_child(_main)
