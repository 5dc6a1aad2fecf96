"""What every head checks: its settings, and the arrays it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest


def settings(manifest: Manifest, defaults: Mapping[str, float]) -> Mapping[str, float]:
    """The manifest's options over `defaults`. Raises `ValueError` for an option that the head does not have."""
    if unknown := sorted(set(manifest.options) - set(defaults)):
        known = ", ".join(sorted(defaults))
        raise ValueError(f"options {unknown} of model {manifest.name!r} are unknown, head {manifest.head!r} has {known}")
    return {**defaults, **manifest.options}


def take(outputs: Mapping[str, NDArray[Any]], name: str, dimensions: int) -> NDArray[np.float32]:
    """Output `name` as float32. Raises `ValueError` where it is missing, has other dimensions, or is not finite everywhere."""
    if name not in outputs:
        raise ValueError(f"output {name!r} is missing, there are {', '.join(outputs) or 'none'}")
    array = np.asarray(outputs[name], np.float32)
    if array.ndim != dimensions or not array.size:
        raise ValueError(f"output {name!r} has shape {array.shape}, {dimensions} dimensions expected")
    # One sum instead of an array of booleans: it is finite only if every element is, and a false alarm needs sums above 1e38.
    if not np.isfinite(array.sum()):
        raise ValueError(f"output {name!r} is not finite everywhere")
    return array
