"""The whole life of a server of several processes, as `keyglance-server` runs it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from server import port_file as port_files
from server.config import Config
from server.engine_process.supervisor import Supervisor, engine_count
from server.engine_stats import WorkerStats
from server.lifecycle import end_telemetry
from server.readings import worker_readings
from server.stopping import stop_on_signals
from server.telemetry import Telemetry

_log = logging.getLogger(__name__)


async def supervise(config: Config, *, port_file: Path | None = None) -> bool:
    """Serves with fronts and engines in processes of their own until SIGTERM or SIGINT; a second signal ends all at once.

    Returns whether every call ended within the grace. Raises `StartError` where the server cannot start, `TelemetryError` for
    exporters that are not there.
    """
    with _metrics_folder(config) as folder, stop_on_signals() as stop:

        def adapt(name: str, config: Config) -> Config:
            prometheus = "" if folder is None else f"unix:{folder / name}"
            return config.model_copy(update={"telemetry": config.telemetry.model_copy(update={"prometheus": prometheus})})

        supervisor = Supervisor(config, engines=engine_count(config), adapt=adapt)
        telemetry = Telemetry.create(
            version=version("keyglance-server"),
            process="supervisor",
            prometheus=config.telemetry.prometheus,
            others=lambda: {} if folder is None else {name: folder / name for name in supervisor.names()},
        )
        if telemetry.prometheus:
            _log.info("metrics of all processes on %s", telemetry.prometheus)
        telemetry.metrics.observe(lambda: worker_readings(_workers(supervisor)))
        try:
            return await supervisor.run(stop, bound=lambda address: port_files.write(port_file, address))
        finally:
            port_files.remove(port_file)
            await end_telemetry(telemetry)


def _workers(supervisor: Supervisor) -> list[WorkerStats]:
    return [WorkerStats(state.kind, state.alive, state.wanted, state.restarts) for state in supervisor.state()]


@contextmanager
def _metrics_folder(config: Config) -> Iterator[Path | None]:
    """A folder of this user alone for the sockets on which the processes tell their metrics, where anybody wants them."""
    if not config.telemetry.prometheus:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="keyglance-") as folder:
        yield Path(folder)
