"""The server that a load test speaks to, and how its generator does: the options that the load tests share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyglance import Client
from keyglance.errors import KeyglanceError
from loadtest import gpu_setup, report
from loadtest.generator import Generator, GeneratorFailed
from loadtest.mix import MIXES, Mix, MixError
from loadtest.server_process import ServerFailed, ServerProcess
from loadtest.watch import Watch

ROOT = Path(__file__).parent.parent
#: What ends a load test with a sentence and without figures: a mix, a server, a generator or a setting that is no good.
FAILURES = (MixError, ServerFailed, GeneratorFailed, KeyglanceError, ValueError, OSError)
#: In which a server must have started: on a GPU every graph is captured first.
START_SECONDS = 300.0


def add_options(parser: argparse.ArgumentParser, *, mix: str) -> None:
    """Adds them; `mix` is the name of the default mix."""
    parser.add_argument("--mix", type=Path, default=MIXES / f"{mix}.toml", help=f"see loadtest/mix.py; default: {mix}.toml")
    parser.add_argument("--seed", type=int, default=1, help="of moments, classes and cancellations")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already; default: one is started")
    parser.add_argument("--config", type=Path, help="TOML file of the server to start")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="a setting of the server to start; repeatable"
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="the server's Prometheus port; one that is started gets one, unless this is 'none'"
    )
    parser.add_argument("--processes", type=int, default=1, help="of the generator")
    parser.add_argument("--connections", type=int, default=8, help="of each of the generator's processes")
    parser.add_argument("--most-in-flight", type=int, default=2000, help="calls of each of the generator's processes")
    parser.add_argument("--keep", metavar="NAME", help="keep the figures in loadtest/results/NAME.json")
    parser.add_argument("--commit", default=report.commit(), help="what is measured, where this is no Git checkout")


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers, what it says of itself, where its metrics are, and its process where it was started here."""

    address: str
    about: dict[str, Any]
    metrics: str
    process: ServerProcess | None

    def generator(self, options: argparse.Namespace) -> Generator:
        """The generator that the options ask for."""
        return Generator(self.address, options.processes, options.connections, options.most_in_flight)

    def watch(self) -> Watch:
        """For one part of a load: looks at this machine, the server's processes and its metrics."""
        return Watch(None if self.process is None else self.process.pid, self.metrics)


@contextmanager
def target(options: argparse.Namespace) -> Iterator[Target]:
    """The server of the options. Raises `ServerFailed`, `ValueError` for a --set that is none, and the client's errors."""
    asked = options.metrics or ""
    if options.server:
        yield Target(options.server, describe(options.server), asked if asked != "none" else "", None)
        return
    arguments = ["--config", str(options.config)] if options.config else []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyglance-load-")))
        port = {} if asked == "none" else {"KEYGLANCE_TELEMETRY__PROMETHEUS": asked or "127.0.0.1:0"}
        # JSON: what a server does at its end is read from its log (`loadtest.drain`).
        settings = {**port, "KEYGLANCE_TELEMETRY__LOG_FORMAT": "json", **environment(options.set)}
        process = stack.enter_context(
            ServerProcess(scratch, arguments=arguments, environment=settings, start_timeout=START_SECONDS)
        )
        about = describe(process.address)
        yield Target(process.address, about, process.metrics, process)


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


def measured(options: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """What results keep of the code and, where the server has one, of the GPU and what drives it."""
    facts = gpu_setup.facts(options.commit)
    return {name: fact for name, fact in facts.items() if name != "gpu" or not about["device"].startswith("cpu")}


def known(options: argparse.Namespace, mix: Mix, about: dict[str, Any]) -> dict[str, Any]:
    """All that figures depend on."""
    return {**measured(options, about), "server": about, "generator": how(options), "mix": mix.describe()}


def keep(options: argparse.Namespace, mix: Mix, about: dict[str, Any], figures: Mapping[str, Any]) -> None:
    """Writes the figures as the result that the options name, if they name one, behind all that they depend on; says where."""
    if options.keep:
        kept = report.write(options.keep, {**known(options, mix, about), **figures})
        print(f"kept in {kept.relative_to(ROOT)}")
