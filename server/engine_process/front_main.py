"""A front process: `python -m server.engine_process.front_main`, started by the supervisor."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable

from server.config import Config
from server.engine import Engine
from server.engine_process.child import Child, Settings, first_of, run_child, server_version
from server.engine_process.engine_group import EngineGroup
from server.front_share import FrontBoard
from server.lifecycle import Parts, serve_until
from server.profile import profile_of
from server.start_error import StartError
from server.telemetry import Telemetry

_log = logging.getLogger("server.engine_process.front_main")  # not __main__, which it is

#: Makes the parts of a front over an engine, not started.
MakeFront = Callable[[Config, Telemetry, Engine], Parts]

_LOOK = 1.0  # seconds between two looks at whether the engines still fit


async def run_front(child: Child, settings: Settings, make_front: MakeFront) -> None:
    """Serves gRPC over the engines that the supervisor connects, until it is told to end; then drains."""
    config = settings.config
    console = sys.stderr if config.telemetry.console else None
    if child.board is None:
        raise StartError("the supervisor did not say where fronts tell one another of their calls")
    board = FrontBoard.adopt(child.board, fronts=config.server.fronts, engines=settings.engines)
    engines = EngineGroup(settings.engines, sharers=config.server.sharers, loads=board.loads(settings.number))
    child.listen(engines.attach)
    if await first_of(engines.known(), child.ending.wait()) == 1:
        await engines.close()
        return
    telemetry = Telemetry.create(
        version=server_version(),
        console=console,
        process=child.name,
        prometheus=config.telemetry.prometheus,
        profile=profile_of(config),
        trace_ratio=config.telemetry.trace_ratio,
    )
    telemetry.tell_kept(engines.keep)
    watch = asyncio.create_task(_end_when_outdated(engines, child), name="watch the engines' models")
    try:
        await serve_until(
            child.ending,
            config,
            telemetry,
            lambda config, telemetry: dataclasses.replace(
                make_front(config, telemetry, engines), shares=board.shares(settings.number)
            ),
            bound=child.ready,
        )
    finally:
        watch.cancel()


async def _end_when_outdated(engines: EngineGroup, child: Child) -> None:
    """A front knows the models of its start. Once no engine has those any more, a front that knows the new ones is wanted."""
    while True:
        await asyncio.sleep(_LOOK)
        if reason := engines.outdated:
            _log.warning("this front ends, so that a new one takes its place: %s", reason)
            child.ending.set()
            return


def configured_front(config: Config, telemetry: Telemetry, engine: Engine) -> Parts:
    """The front that the configuration asks for."""
    from server.assembly import assemble_front  # imported when it is known that the engines are there

    return assemble_front(config, telemetry, engine)


async def _main(child: Child, settings: Settings) -> None:
    await run_front(child, settings, configured_front)


if __name__ == "__main__":
    run_child(_main)
