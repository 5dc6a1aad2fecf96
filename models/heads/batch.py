"""What every head does: takes the outputs of a batch, sets the broken rows apart, and reads the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest
from models.result import FrameResult
from models.spec import Placement


def settings(manifest: Manifest, defaults: Mapping[str, float]) -> Mapping[str, float]:
    """The manifest's options over `defaults`. Raises `ValueError` for an option that the head does not have."""
    if unknown := sorted(set(manifest.options) - set(defaults)):
        known = ", ".join(sorted(defaults))
        raise ValueError(f"options {unknown} of model {manifest.name!r} are unknown, head {manifest.head!r} has {known}")
    return {**defaults, **manifest.options}


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a batch: `values` [n, …], the largest value of each row, and which rows are finite everywhere."""

    values: NDArray[np.float32]
    highest: NDArray[np.float32]
    finite: NDArray[np.bool_]

    @classmethod
    def take(cls, outputs: Mapping[str, NDArray[Any]], name: str, dimensions: int, rows: int) -> Output:
        """Output `name`. Raises `ValueError` where it is missing or has other dimensions (without the batch axis) or rows."""
        if name not in outputs:
            raise ValueError(f"output {name!r} is missing, there are {', '.join(outputs) or 'none'}")
        array = np.asarray(outputs[name], np.float32)
        if array.ndim != dimensions + 1 or not array.size:
            raise ValueError(f"output {name!r} has shape {array.shape[1:]}, {dimensions} dimensions expected")
        if len(array) != rows:
            raise ValueError(f"output {name!r} has {len(array)} rows, {rows} expected")
        flat = array.reshape(rows, -1)
        # Both are NaN where any value is, and infinite where one is. Heads need the largest anyway.
        highest = flat.max(axis=1)
        return cls(array, highest, np.isfinite(highest) & np.isfinite(flat.min(axis=1)))

    def only(self, rows: NDArray[np.bool_]) -> Output:
        """Those `rows` alone."""
        return Output(self.values[rows], self.highest[rows], self.finite[rows])


class BatchHead(ABC):
    """A head of `models.heads.Head` that reads whole batches. `dimensions`: of its outputs by name, without the batch axis."""

    dimensions: Mapping[str, int]

    def read(self, outputs: Mapping[str, NDArray[Any]], placement: Placement) -> FrameResult:
        """As `models.heads.Head.read`."""
        (result,) = self.read_batch({name: np.asarray(array)[None] for name, array in outputs.items()}, [placement])
        if isinstance(result, ValueError):
            raise result
        return result

    def read_batch(self, outputs: Mapping[str, NDArray[Any]], placements: Sequence[Placement]) -> list[FrameResult | ValueError]:
        """As `models.heads.Head.read_batch`."""
        if not placements:
            return []
        try:
            taken = {name: Output.take(outputs, name, of, len(placements)) for name, of in self.dimensions.items()}
            sound = np.logical_and.reduce([output.finite for output in taken.values()])
            if sound.all():
                return [*self._read(taken, placements)]
            good = [placement for placement, is_sound in zip(placements, sound, strict=True) if is_sound]
            read = iter(self._read({name: output.only(sound) for name, output in taken.items()}, good) if good else [])
        except ValueError as error:
            return [ValueError(*error.args) for _ in placements]  # one each: whoever raises it adds its traceback
        return [next(read) if is_sound else _not_finite(taken, row) for row, is_sound in enumerate(sound)]

    @abstractmethod
    def _read(self, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> list[FrameResult]:
        """One result for each of one or more `placements`. Raises `ValueError` where the shapes do not fit the head."""


def _not_finite(outputs: Mapping[str, Output], row: int) -> ValueError:
    name = next(name for name, output in outputs.items() if not output.finite[row])
    return ValueError(f"output {name!r} is not finite everywhere")
