"""Heads: from a model's output arrays to scores and regions of each picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from models.heads.centerface import CenterFaceHead
from models.heads.classification import ClassificationHead
from models.heads.text_map import TextMapHead
from models.heads.yolo import YoloHead
from models.manifest import Manifest
from models.result import FrameResult
from models.spec import Placement


class Head(Protocol):
    """Reads one model's outputs. Without state between pictures, so any number of threads may share it."""

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """What the model says of one picture: `read_batch` of one.

        `outputs` are arrays without a batch axis, by output name; `placement` says where the shown picture lay in the canvas.
        Raises `ValueError` where an output is missing, of another shape, or not finite.
        """
        ...

    def read_batch(self, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        """What the model says of each picture of a batch, in order; instead of it a `ValueError` where `read` would raise one.

        `outputs` are arrays [n, …] for n `placements`. No result refers to their memory, so it may be used again at once. A row
        that is not finite fails alone, a missing output or a wrong shape fails all. Never raises for what the outputs hold.
        """
        ...


#: The heads by the name that a manifest uses.
HEADS: Mapping[str, Callable[[Manifest], Head]] = {
    "classification": ClassificationHead,
    "centerface": CenterFaceHead,
    "text_map": TextMapHead,
    "yolo": YoloHead,
}


def make_head(manifest: Manifest) -> Head:
    """The head that `manifest` names. Raises `ValueError` where it is unknown or the manifest does not fit it."""
    if manifest.head not in HEADS:
        raise ValueError(f"unknown head {manifest.head!r}, known are {', '.join(sorted(HEADS))}")
    return HEADS[manifest.head](manifest)
