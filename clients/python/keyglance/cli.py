"""The command `keyglance`.

Exit codes: 0 every file was answered (`health`: SERVING); 1 a file could not be read, or the server refused it (`health`: not
SERVING, for whatever reason); 2 wrong usage; 3 no Keyglance server answers; 4 the service failed, and later may not (overloaded,
out of time, a fault); 130 interrupted. With several files, the highest of them.
"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keyglance.aio import AsyncClient
from keyglance.answer import Answer, Health, as_dict
from keyglance.connection import DEFAULT_TARGET, DEFAULT_TIMEOUT, Tls
from keyglance.errors import KeyglanceError, RequestError, ServerUnreachable, Unimplemented
from keyglance.metrics_page import DEFAULT_ADDRESS, NoMetrics
from keyglance.table import answer_view, server_view
from keyglance.text import count, plain
from keyglance.top import watch

_STDIN = "-"


class Exit(enum.IntEnum):
    """The exit codes; the module's docstring says what they mean."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    FAILED = 4
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a file has no answer: a word, a line, and the exit code."""

    reason: str
    message: str
    exit: Exit
    facts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: KeyglanceError | OSError) -> Failure:
        """The failure that an error is; a traceback tells a caller nothing that this does not."""
        if isinstance(error, KeyglanceError):
            if isinstance(error, ServerUnreachable | Unimplemented):
                code = Exit.UNREACHABLE
            else:
                code = Exit.REFUSED if isinstance(error, RequestError) else Exit.FAILED
            message, trace_id = error.message, error.facts.get("trace_id", "")
            if code is Exit.FAILED and trace_id not in message:
                message += f" (trace {trace_id})"
            return cls(error.reason, plain(message), code, error.facts)
        words = {FileNotFoundError: "FILE_NOT_FOUND", IsADirectoryError: "IS_A_DIRECTORY", PermissionError: "FILE_NOT_READABLE"}
        return cls(words.get(type(error), "FILE_NOT_READABLE"), plain(error.strerror or str(error)), Exit.REFUSED)


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is and how to reach it, from the options."""

    target: str
    timeout: float
    tls: bool | Tls
    token: str | None

    def client(self) -> AsyncClient:
        """A client for it; a usage error where the options contradict each other."""
        try:
            return AsyncClient(self.target, timeout=self.timeout, tls=self.tls, token=self.token)
        except (ValueError, OSError) as error:
            raise click.UsageError(plain(str(error))) from error


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that say where the server is; they arrive as `server`."""
    pem = click.Path(exists=True, dir_okay=False)

    @click.option(
        "--server",
        "target",
        default=DEFAULT_TARGET,
        show_default=True,
        envvar="KEYGLANCE_SERVER",
        show_envvar=True,
        metavar="HOST:PORT",
        help="Where the server listens.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="For each call, retries included.",
    )
    @click.option("--tls", is_flag=True, help="Encrypt, and trust the public certificate authorities.")
    @click.option("--tls-ca", type=pem, metavar="FILE", help="Trust these root certificates (PEM) instead.")
    @click.option("--tls-cert", type=pem, metavar="FILE", help="The caller's own certificate (PEM).")
    @click.option("--tls-key", type=pem, metavar="FILE", help="Its key (PEM).")
    @click.option("--tls-name", metavar="NAME", help="The name to expect in the server's certificate.")
    @click.option(
        "--token", envvar="KEYGLANCE_TOKEN", show_envvar=True, metavar="TOKEN", help="Bearer token; better by environment."
    )
    @wraps(command)
    def wrapper(
        *,
        target: str,
        timeout: float,
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_name: str | None,
        token: str | None,
        **options: Any,
    ) -> None:
        chosen: bool | Tls = tls
        if tls_ca or tls_cert or tls_key or tls_name:
            try:
                chosen = Tls(root_certificates=tls_ca, certificate=tls_cert, key=tls_key, server_name=tls_name)
            except ValueError as error:
                raise click.UsageError(f"{error} (--tls-cert, --tls-key)") from error
        command(server=Server(target, timeout, chosen, token or None), **options)

    return wrapper


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how to look at a video; they arrive as `policy`, the arguments of `AsyncClient.label`."""

    @click.option("--frames", type=click.IntRange(1), metavar="N", help="Pictures wanted (default: 16).")
    @click.option(
        "--gap",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Largest time between two pictures looked at (default: 10).",
    )
    @click.option("--keyframes-only", is_flag=True, help="Decode no pictures between keyframes to keep the gap.")
    @click.option("--whole", is_flag=True, help="Send whole files, also where the bytes that matter would do.")
    @click.option("--models", metavar="A,B", help="Only these models (default: all that are on).")
    @click.option(
        "--priority",
        type=click.Choice(["interactive", "normal", "bulk"]),
        help="How urgent these files are beside others' (default: normal).",
    )
    @click.option("--least-score", type=click.FloatRange(0, 1), metavar="SCORE", help="Leave out labels below (default: 0.1).")
    @wraps(command)
    def wrapper(
        *,
        frames: int | None,
        gap: float | None,
        keyframes_only: bool,
        whole: bool,
        models: str | None,
        priority: str | None,
        least_score: float | None,
        **options: Any,
    ) -> None:
        policy: dict[str, Any] = {
            "frames": frames,
            "largest_gap": gap,
            "add_non_keyframes": False if keyframes_only else None,
            "models": [name.strip() for name in (models or "").split(",") if name.strip()],
            "least_score": least_score,
            "whole": whole,
            "priority": priority,
        }
        command(policy=policy, **options)

    return wrapper


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="keyglance", prog_name="keyglance")
def command() -> None:
    """Labels short videos with a Keyglance server.

    \b
    Exit codes:
      0    every file was answered (health: SERVING)
      1    a file could not be read, or was refused (health: not SERVING)
      2    wrong usage
      3    no Keyglance server answers
      4    the service failed; later it may not (overloaded, out of time, a fault)
      130  interrupted
    With several files, the highest of them.
    """


@command.command(short_help="Label files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of tables.")
@sampling_options
@click.option("--frame-scores", is_flag=True, help="The scores of each picture too.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N", help="Files asked about at once.")
@server_options
def label(files: Sequence[str], *, as_json: bool, frame_scores: bool, jobs: int, policy: dict[str, Any], server: Server) -> None:
    """Label each FILE; - is standard input.

    A file that fails is one line on standard error, and the others go on.
    """
    _run(_label(files, as_json=as_json, jobs=jobs, server=server, policy={**policy, "frame_scores": frame_scores}))


@command.command(short_help="What the server is: models, labels, decoders, limits.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@server_options
def info(*, as_json: bool, server: Server) -> None:
    """What the server is: models, labels, decoders, limits."""

    async def ask() -> Exit:
        async with server.client() as client:
            try:
                answer = await client.server_info()
            except KeyglanceError as error:
                return _complain("keyglance", Failure.of(error))
        if as_json:
            click.echo(json.dumps(as_dict(answer)))
        else:
            _console().print(server_view(server.target, answer))
        return Exit.OK

    _run(ask())


@command.command(short_help="Whether the server takes calls.")
@server_options
def health(*, server: Server) -> None:
    """Whether the server takes calls: its state on standard output, exit code 0 for SERVING and 1 for all else."""

    async def ask() -> Exit:
        async with server.client() as client:
            try:
                state = await client.health()
            except KeyglanceError as error:
                _complain("keyglance", Failure.of(error))
                return Exit.REFUSED
        click.echo(state.value)
        return Exit.OK if state is Health.SERVING else Exit.REFUSED

    _run(ask())


@command.command(short_help="A server live: calls, steps, queues, decoders, models, GPU.")
@click.argument("address", default=DEFAULT_ADDRESS, envvar="KEYGLANCE_METRICS", metavar="[HOST:PORT]")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks, which the rates are of.",
)
@click.option("--once", is_flag=True, help="Show one interval, and end.")
def top(address: str, *, interval: float, once: bool) -> None:
    """A server live, from its metrics at HOST:PORT (127.0.0.1:9464, or KEYGLANCE_METRICS), until Ctrl-C.

    The server gives them where its setting telemetry.prometheus says so. On a terminal the view is redrawn; in a pipe one
    view follows the other.
    """
    try:
        watch(address, _console(), interval=interval, once=once)
    except NoMetrics as error:
        click.echo(f"keyglance: {plain(str(error))} (the server's setting telemetry.prometheus says where they are)", err=True)
        sys.exit(Exit.UNREACHABLE)
    except KeyboardInterrupt:  # the usual way to end it
        sys.exit(Exit.OK)


@command.command(short_help="A contact sheet of a file.")
@click.argument("file", metavar="FILE")
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False), metavar="IMAGE", help="A .png, .jpg or .webp file."
)
@click.option("--columns", type=click.IntRange(1, 16), metavar="N", help="Pictures in a row (default: what fills the rows best).")
@sampling_options
@server_options
def sheet(file: str, *, output: str, columns: int | None, policy: dict[str, Any], server: Server) -> None:
    """A contact sheet of FILE: the pictures looked at, with times, labels and boxes."""
    from keyglance.sheet import FORMATS, THUMBNAIL_SIZE, render  # Pillow is only for this command.

    if Path(output).suffix.lower() not in FORMATS:
        raise click.BadParameter(f"{output!r} ends in none of {', '.join(FORMATS)}", param_hint="--output")
    if not Path(output).parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(Path(output).parent)!r}", param_hint="--output")

    async def ask() -> Exit:
        async with server.client() as client:
            options = {"frame_scores": True, "thumbnails": True, "thumbnail_size": THUMBNAIL_SIZE}
            outcome = await _ask(client, file, {**policy, **options})
        if isinstance(outcome, Failure):
            return _complain(file, outcome)
        try:
            render(outcome, title="standard input" if file == _STDIN else Path(file).name, columns=columns).save(output)
        except OSError as error:
            return _complain(output, Failure.of(error))
        return Exit.OK

    _run(ask())


async def _label(files: Sequence[str], *, as_json: bool, jobs: int, server: Server, policy: dict[str, Any]) -> Exit:
    """Asks about all files, `jobs` at once, and tells in the order given as soon as that order allows.

    Where no server answers, the files left are not tried: each would only wait for the same.
    """
    console = _console()
    worst, lost, silenced = Exit.OK, None, 0
    with _progress(len(files)) as progress:
        bar = progress.add_task("labelling", total=len(files))
        async with server.client() as client, _asked(client, files, jobs, policy) as tasks:
            for name, task in zip(files, tasks, strict=True):
                outcome = lost or await task
                with _paused(progress):
                    if isinstance(outcome, Answer):
                        _tell(console, name, outcome, as_json=as_json, frame_scores=policy["frame_scores"])
                    else:
                        _complain(name, outcome, as_json=as_json, silent=lost is not None)
                        silenced += lost is not None
                        worst = max(worst, outcome.exit)
                        lost = outcome if outcome.exit is Exit.UNREACHABLE else None
                progress.advance(bar)
    if silenced:
        click.echo(f"keyglance: {count(silenced, 'more file')} not sent", err=True)
    return worst


@asynccontextmanager
async def _asked(
    client: AsyncClient, files: Sequence[str], jobs: int, policy: dict[str, Any]
) -> AsyncIterator[list[asyncio.Task[Answer | Failure]]]:
    """One task for each file, `jobs` of which run at once; what still runs at the end is cancelled."""
    turn = asyncio.Semaphore(jobs)

    async def ask(name: str) -> Answer | Failure:
        async with turn:
            return await _ask(client, name, policy)

    tasks = [asyncio.create_task(ask(name)) for name in files]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(client: AsyncClient, name: str, options: dict[str, Any]) -> Answer | Failure:
    try:
        return await client.label(sys.stdin.buffer if name == _STDIN else name, **options)
    except (KeyglanceError, OSError) as error:
        return Failure.of(error)


def _tell(console: Console, name: str, answer: Answer, *, as_json: bool, frame_scores: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": name, **as_dict(answer)}))
    else:
        console.print(answer_view(name, answer, frame_scores=frame_scores))
        console.print()


def _complain(name: str, failure: Failure, *, as_json: bool = False, silent: bool = False) -> Exit:
    """The failure as one line on standard error (unless `silent`), and as an object on standard output with `as_json`."""
    if not silent:
        click.echo(f"{plain(name)}: {failure.reason}: {failure.message}", err=True)
    if as_json:
        error = {"reason": failure.reason, "message": failure.message, "facts": failure.facts}
        click.echo(json.dumps({"file": name, "error": error}))
    return failure.exit


def _console() -> Console:
    """Standard output; rich leaves styles out where that is no terminal, and here NO_COLOR means no styles at all."""
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


def _progress(total: int) -> Progress:
    """A bar on standard error, for several files and a person who watches."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=total < 2 or not console.is_terminal,
    )


@contextmanager
def _paused(progress: Progress) -> Iterator[None]:
    """Takes the bar off the screen while something else is written to it."""
    if progress.disable:
        yield
        return
    progress.stop()
    try:
        yield
    finally:
        progress.start()


def _run(work: Coroutine[Any, Any, Exit]) -> NoReturn:
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    sys.exit(code)
