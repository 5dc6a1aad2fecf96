"""May a model run in less than float32? A check on pictures whose scores spread from nothing to certainty.

A network that says 0 to everything is the same in any precision, so pictures alone prove nothing: they have to make the model
answer all along its scale. Such pictures come with a model as `spread.npz` beside its `model.toml`: small RGB pictures, made by
`loadtest.spread_pictures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange
from models.backend import Outputs
from models.manifest import Manifest

#: The most that a raw output may move.
LARGEST_MOVE = 0.01
#: Scores have to reach down and up to these, with no two neighbours further apart than the third.
LOWEST, HIGHEST, LARGEST_STEP = 0.15, 0.85, 0.25
FILE = "spread.npz"


@dataclass(frozen=True, slots=True)
class PrecisionCheck:
    """What a lower precision does to a model.

    `moves`: by output, the largest absolute difference of any value. `scores`: the float32 score of each picture, 0 to 1,
    ascending. `score_move`: the largest difference of a picture's score.
    """

    moves: Mapping[str, float]
    scores: tuple[float, ...]
    score_move: float

    @property
    def spread(self) -> bool:
        """Whether the pictures' scores spread over the scale."""
        inner = [score for score in self.scores if LOWEST - 0.1 <= score <= HIGHEST + 0.1]
        return (
            len(inner) > 1
            and inner[0] <= LOWEST
            and inner[-1] >= HIGHEST
            and all(b - a <= LARGEST_STEP for a, b in pairwise(inner))
        )

    @property
    def passed(self) -> bool:
        """Whether the precision may be used."""
        return self.spread and all(move <= LARGEST_MOVE for move in self.moves.values())

    def __str__(self) -> str:
        if not self.spread:
            return f"the pictures' scores ({', '.join(f'{score:.2f}' for score in self.scores)}) do not spread over 0.1 to 0.9"
        worst = max(self.moves, key=lambda name: self.moves[name])
        return f"output {worst!r} moves by up to {self.moves[worst]:.4f}, {LARGEST_MOVE} is allowed"


def check_precision(manifest: Manifest, exact: Outputs, lower: Outputs) -> PrecisionCheck:
    """Compares the outputs [n, …] of the same pictures in float32 and in a lower precision."""
    moves: dict[str, float] = {}
    for name in manifest.outputs:
        difference = np.abs(exact[name].astype(np.float64) - lower[name].astype(np.float64))
        moves[name] = float(difference.max()) if np.isfinite(difference).all() else float("inf")
    before, after = scores(manifest, exact), scores(manifest, lower)
    return PrecisionCheck(moves, tuple(sorted(before.tolist())), float(np.abs(before - after).max()))


def scores(manifest: Manifest, outputs: Outputs) -> NDArray[np.float64]:
    """The strongest answer to each of n pictures, 0 to 1: of the classes that labels name, or anywhere on the first map."""
    values = outputs[manifest.outputs[0]].astype(np.float64)
    classes = sorted({number for label in manifest.labels for number in label.classes})
    if not classes:
        return np.asarray(values.reshape(len(values), -1).max(axis=1))
    if manifest.options.get("softmax"):
        values = np.exp(values - values.max(axis=1, keepdims=True))
        values /= values.sum(axis=1, keepdims=True)
    return np.asarray(values[:, classes].max(axis=1))


def spread_pictures(folder: Path) -> tuple[Picture, ...]:
    """The pictures of the model in this folder of the repository; none where it has no such file."""
    if not (folder / FILE).is_file():
        return ()
    with np.load(folder / FILE, allow_pickle=False) as stored:
        return tuple(rgb_picture(rgb) for rgb in stored["pictures"])


def rgb_picture(rgb: NDArray[np.uint8]) -> Picture:
    """A picture of RGB values (height, width, 3)."""
    planes: Sequence[NDArray[np.uint8]] = [np.ascontiguousarray(rgb[..., channel]) for channel in (1, 2, 0)]
    return Picture(
        planes=tuple(planes),
        width=rgb.shape[1],
        height=rgb.shape[0],
        chroma_format="rgb",
        chroma_shift=(0, 0),
        colour=Colour(range=ColourRange.FULL),
    )
