"""An ensemble on a device as it stands: one queue, and every model's batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelBatches:
    """Batches that had a model in them: frames of those that are not read yet, how many failed, all by their number of frames."""

    model: str
    in_flight: int
    failed: int
    fill: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Frames that wait, all and by priority, for a batch through all models that they want; from `queue_limit` on no batch waits
    for more of them. `largest_batch` in frames.
    """

    queued: int
    queue_limit: int
    priorities: Mapping[int, int]
    largest_batch: int
    models: tuple[ModelBatches, ...]
