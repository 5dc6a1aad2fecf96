"""Pictures of noise, and pictures on the GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from decoder_pool.picture import Picture

SHIFTS = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "rgb": (0, 0)}


def make_picture(
    rng: np.random.Generator, width: int, height: int, chroma_format: str = "420", *, semi_planar: bool = False, **rest: Any
) -> Picture:
    """Noise over all codes of the depth, in the layout asked for."""
    depth = rest.get("bit_depth", 8)
    across, down = SHIFTS[chroma_format]
    shapes = [(height, width)]
    if chroma_format != "400":
        shapes += [(-(-height >> down), -(-width >> across))] * 2
    planes = [rng.integers(0, 1 << depth, shape, dtype=np.uint16) for shape in shapes]
    planes = [plane.astype(np.uint8) if depth == 8 else plane for plane in planes]
    if rest.get("msb_aligned"):
        planes = [plane << (16 - depth) for plane in planes]
    if semi_planar:
        planes = [planes[0], np.stack(planes[1:], axis=-1)]
    return Picture(
        planes=tuple(planes), width=width, height=height, chroma_format=chroma_format, chroma_shift=(across, down), **rest
    )


def on_gpu(cupy: Any, picture: Picture) -> Picture:
    """The picture with its planes copied to the current device."""
    return dataclasses.replace(picture, planes=tuple(cupy.asarray(plane) for plane in picture.planes))
