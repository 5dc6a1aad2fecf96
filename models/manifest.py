"""A model's manifest: everything that the service knows of a model without running it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.spec import InputSpec


class FrameFusion(enum.StrEnum):
    """How one label's scores on the pictures of a video become one score."""

    MAX = "max"
    TOP_K_MEAN = "top_k_mean"  # mean of the k best, of fewer where there are fewer


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """A label that a model can give. `classes` are the output indices whose scores it takes (their sum, capped at 1)."""

    name: str
    parent: str = ""
    threshold: float = 0.5
    description: str = ""
    weight: float = 1.0  # share of this model in the fusion of models that give the same label
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model as its `model.toml` describes it."""

    name: str
    version: str
    digest: str  # SHA-256 of the weights file as served, hexadecimal
    licence: str  # SPDX expression
    source: str  # where the weights come from, in words
    backend: str  # onnx, torch, script
    head: str  # how outputs become scores: classification, centerface, text_map
    inputs: InputSpec
    outputs: tuple[str, ...]
    labels: tuple[LabelSpec, ...]
    required: bool = False
    default_on: bool = True
    default_on_gpu: bool | None = None  # on a GPU, where more models are affordable; None: as `default_on`
    frame_fusion: FrameFusion = FrameFusion.MAX
    top_k: int = 1
    largest_batch: int = 16  # on a CPU; on a GPU the configuration has the batch sizes
    half_precision: bool = False  # may run in float16 on a GPU, if it passes `models.precision`'s check there
    options: Mapping[str, float] = field(default_factory=dict)  # the head's own settings

    def on_gpu(self) -> Manifest:
        """The manifest as an engine on a GPU has it: `default_on` says what is on there."""
        return self if self.default_on_gpu is None else replace(self, default_on=self.default_on_gpu)
