"""The command line: `keyglance-server`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path

import click

from server import logs
from server.config import Config, ConfigError

EXIT_FAILED, EXIT_USAGE = 1, 2

_log = logging.getLogger(__name__)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file with settings; see --print-config.")
@click.option("--listen", metavar="ADDRESS", help="Address to listen on: HOST:PORT (port 0: any free one) or unix:PATH.")
@click.option("--port-file", type=click.Path(path_type=Path), help="Write the bound address into this file.")
@click.option("--print-config", is_flag=True, help="Print the settings in effect as a commented TOML file, and end.")
@click.option(
    "--profile", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Write a Chrome trace of so much work."
)
@click.option("--check", is_flag=True, help="Start everything, label one tiny video, and end: exit code 0 if that went well.")
@click.version_option(version("keyglance-server"), prog_name="keyglance-server")
def main(
    config_path: Path | None, listen: str | None, port_file: Path | None, print_config: bool, profile: float | None, check: bool
) -> None:
    """Labels short videos in one gRPC call.

    Settings come from the file, then from the environment (KEYGLANCE_SECTION__NAME), then from these options. SIGTERM and
    SIGINT drain: calls in flight end, new ones are refused. Exit codes: 0 ended as asked, 1 could not start, 2 wrong settings.
    """
    try:
        overrides: dict[str, dict[str, object]] = {"server": {"listen": listen}} if listen else {}
        if profile is not None:
            overrides["telemetry"] = {"profile_seconds": profile}
        config = Config.load(config_path, overrides=overrides)
    except ConfigError as error:
        _fail(str(error), EXIT_USAGE)
    if print_config:
        click.echo(config.annotated(), nl=False)
        return
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own lines have neither our format nor our level
    logs.configure(config.telemetry.log_format, config.telemetry.log_level)
    sys.exit(_run(config, port_file, check))


def _run(config: Config, port_file: Path | None, check: bool) -> int:
    # Imported late: --help and --print-config need none of it.
    from keyglance.errors import KeyglanceError
    from models.policy import PolicyError
    from models.repository import RepositoryError
    from server.assembly import assemble
    from server.check import check_server
    from server.engine_process.supervise import supervise
    from server.lifecycle import StartError, serve
    from server.profile import ProfileJoiner, profile_of
    from server.telemetry import Telemetry, TelemetryError

    profile = None if check else profile_of(config)
    if profile is not None and not profile.file.parent.is_dir():
        _fail(f"telemetry.profile_file: there is no folder {profile.file.parent}", EXIT_USAGE)
    joiner = None if profile is None else ProfileJoiner(profile)
    try:
        if config.server.fronts and not check:
            logs.configure(config.telemetry.log_format, config.telemetry.log_level, process="supervisor")
            asyncio.run(supervise(config, port_file=port_file))
            return 0
        console = sys.stderr if config.telemetry.console else None
        prometheus = "" if check else config.telemetry.prometheus
        telemetry = Telemetry.create(
            version=version("keyglance-server"),
            console=console,
            prometheus=prometheus,
            profile=profile,
            trace_ratio=config.telemetry.trace_ratio,
        )
        if check:
            click.echo(asyncio.run(check_server(config, telemetry, assemble)))
        else:
            asyncio.run(serve(config, telemetry, assemble, port_file=port_file))
    except TelemetryError as error:
        _fail(str(error), EXIT_USAGE)
    except (StartError, RepositoryError, PolicyError, KeyglanceError, OSError) as error:
        _fail(str(error), EXIT_FAILED)
    except Exception as error:
        _log.exception("unexpected error")
        _fail(f"{type(error).__name__}: {error}", EXIT_FAILED)
    finally:
        if joiner is not None:
            joiner.close()
    return 0


def _fail(message: str, code: int) -> None:
    for line in message.splitlines():
        click.echo(f"error: {line}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
