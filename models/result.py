"""What a model says of one picture."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest


class LabelNames:
    """The labels that one model gives, in the order of its scores: made once a model, shared by all its `LabelScores`.

    `names` in order, `index` the place of each. Equal where the names are. Raises `ValueError` for a name that comes twice.
    """

    __slots__ = ("index", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.index = {name: place for place, name in enumerate(self.names)}
        if len(self.index) != len(self.names):
            twice = sorted(name for name, place in self.index.items() if self.names.index(name) != place)
            raise ValueError(f"labels come twice: {', '.join(twice)}")

    @classmethod
    def of(cls, manifest: Manifest) -> LabelNames:
        """The labels of `manifest`, in its order."""
        return cls(label.name for label in manifest.labels)

    def array_of(self, scores: Mapping[str, float]) -> NDArray[np.floating[Any]]:
        """`scores` as an array in this order, 0 where one is missing; not copied where they are `LabelScores` of equal names.

        Raises `ValueError` for scores of other labels.
        """
        if isinstance(scores, LabelScores) and scores.labels == self:
            return scores.array
        if unknown := sorted(scores.keys() - self.index.keys()):
            raise ValueError(f"labels that are not known: {', '.join(unknown)}")
        return np.array([scores.get(name, 0.0) for name in self.names], np.float64)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelNames):
            return NotImplemented
        return self is other or self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __reduce__(self) -> tuple[type[LabelNames], tuple[tuple[str, ...]]]:
        return LabelNames, (self.names,)

    def __repr__(self) -> str:
        return f"LabelNames({list(self.names)})"


class LabelScores(Mapping[str, float]):
    """Scores by label over an array: a thousand of them cost no more to make than one, and are sent as their bytes.

    `array` has one value for each of `labels`, and is the scores' own: it may be a row of a whole batch's array, which lives as
    long as its last row, and is not to be written to.
    """

    __slots__ = ("array", "labels")

    def __init__(self, labels: LabelNames, array: NDArray[np.floating[Any]]) -> None:
        self.labels = labels
        self.array = array

    def __getitem__(self, name: str) -> float:
        return float(self.array[self.labels.index[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels.names)

    def __len__(self) -> int:
        return len(self.labels.names)

    def __contains__(self, name: object) -> bool:
        return name in self.labels.index

    def keys(self) -> KeysView[str]:
        """As a dictionary's."""
        return self.labels.index.keys()

    def items(self) -> ItemsView[str, float]:
        """As a dictionary's, of the scores as they are now."""
        return self._dict().items()

    def values(self) -> ValuesView[float]:
        """As a dictionary's, of the scores as they are now."""
        return self._dict().values()

    def _dict(self) -> dict[str, float]:
        return dict(zip(self.labels.names, self.array.tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LabelScores) and self.labels == other.labels:
            return np.array_equal(self.array, other.array)
        if isinstance(other, Mapping):
            return self._dict() == dict(other.items())
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a mapping, like the dictionary that it stands for

    def __repr__(self) -> str:
        return f"LabelScores({self._dict()})"


@dataclass(frozen=True, slots=True)
class Region:
    """A place in the picture as shown; `x`, `y`, `width`, `height` are shares of its sides, 0 to 1, from the top left."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class FrameResult:
    """One model's scores by label, each 0 to 1, and the regions behind them."""

    scores: Mapping[str, float] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
