"""The server that a load test speaks to, and how its generator does: the options that the load tests share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyglance import Client
from loadtest.generator import Generator
from loadtest.mix import MIXES
from loadtest.server_process import ServerProcess

ROOT = Path(__file__).parent.parent
_START_SECONDS = 300.0  # on a GPU every graph is captured first


def add_options(parser: argparse.ArgumentParser, *, mix: str) -> None:
    """Adds them; `mix` is the name of the default mix."""
    parser.add_argument("--mix", type=Path, default=MIXES / f"{mix}.toml", help=f"see loadtest/mix.py; default: {mix}.toml")
    parser.add_argument("--seed", type=int, default=1, help="of moments, classes and cancellations")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already; default: one is started")
    parser.add_argument("--config", type=Path, help="TOML file of the server to start")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="a setting of the server to start; repeatable"
    )
    parser.add_argument("--processes", type=int, default=1, help="of the generator")
    parser.add_argument("--connections", type=int, default=8, help="of each of the generator's processes")
    parser.add_argument("--most-in-flight", type=int, default=2000, help="calls of each of the generator's processes")
    parser.add_argument("--keep", metavar="NAME", help="keep the figures in loadtest/results/NAME.json")


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers, what it says of itself, and its process where it was started here."""

    address: str
    about: dict[str, Any]
    process: ServerProcess | None

    def generator(self, options: argparse.Namespace) -> Generator:
        """The generator that the options ask for."""
        return Generator(self.address, options.processes, options.connections, options.most_in_flight)


@contextmanager
def target(options: argparse.Namespace) -> Iterator[Target]:
    """The server of the options. Raises `ServerFailed`, `ValueError` for a --set that is none, and the client's errors."""
    if options.server:
        yield Target(options.server, describe(options.server), None)
        return
    arguments = ["--config", str(options.config)] if options.config else []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-load-")))
        started = ServerProcess(scratch, arguments=arguments, environment=environment(options.set), start_timeout=_START_SECONDS)
        process = stack.enter_context(started)
        yield Target(process.address, describe(process.address), process)


def environment(settings: list[str]) -> dict[str, str]:
    """Environment variables for settings as SECTION.NAME=VALUE."""
    variables = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot and section and key):
            raise ValueError(f"--set {setting}: SECTION.NAME=VALUE is wanted")
        variables[f"KEYGLANCE_{section.upper()}__{key.upper()}"] = value
    return variables


def describe(address: str) -> dict[str, Any]:
    """What results keep of the server."""
    with Client(address, timeout=30) as client:
        info = client.server_info()
    return {
        "version": info.version,
        "device": info.device,
        "models": [f"{model.name} {model.version}" for model in info.models if model.default_on],
        "decoders": {decoder.kind: decoder.decoders for decoder in info.decoders},
    }


def how(options: argparse.Namespace) -> dict[str, Any]:
    """What results keep of the generator and the configuration."""
    return {
        "mix_file": options.mix.name,
        "seed": options.seed,
        "processes": options.processes,
        "connections": options.processes * options.connections,
        "settings": ([options.config.name] if options.config else []) + options.set,
    }
