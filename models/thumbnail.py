"""A small JPEG of a picture as it is shown."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image

from decoder_pool.picture import Picture
from models.preprocess import Preprocessor
from models.spec import Filter, Fit, Geometry

QUALITY = 85


def thumbnail(picture: Picture, longer_side: int, *, preprocessor: Preprocessor | None = None) -> bytes:
    """A JPEG (RGB, quality 85) of the picture upright, in square pixels and SDR, its longer side at most `longer_side` pixels.

    A picture is made smaller, never larger. `preprocessor` keeps the operators between pictures of one shape. Raises ValueError
    where `longer_side` is below 1 or the picture's planes do not fit its description.
    """
    if longer_side < 1:
        raise ValueError(f"the longer side of a thumbnail is {longer_side}, it must be at least 1")
    width, height = picture.shown_size
    longest = max(width, height)
    side = min(longer_side, longest)
    canvas = (max(1, round(height * side / longest)), max(1, round(width * side / longest)))
    # STRETCH: the canvas already has the picture's shape, and takes up the rounding.
    geometry = Geometry(canvases=(canvas,), fit=Fit.STRETCH, filter=Filter.BICUBIC)
    rgb = (preprocessor or Preprocessor()).render(picture, geometry).rgb
    stream = io.BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(np.rint(rgb).astype(np.uint8))).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
