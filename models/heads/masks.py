"""Where a mask is set, found quickly in masks that hardly are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 8


def places(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """`np.flatnonzero` of a mask [n] for one with few places set: looks at eight elements at a time."""
    whole = mask.size // _WORD * _WORD
    octets = mask[:whole].reshape(-1, _WORD)
    some = np.flatnonzero(octets.view(np.uint64) != 0)  # of booleans that is ten times quicker than of integers
    row, column = np.nonzero(octets[some])
    return np.concatenate([some[row] * _WORD + column, np.flatnonzero(mask[whole:]) + whole])
