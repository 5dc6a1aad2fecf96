"""What a model wants to be fed: geometry (which pixels) and normalisation (which numbers)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fit(enum.StrEnum):
    """How a picture of any shape fills a canvas."""

    CROP = "crop"  # scaled so that its shorter side is `short_side`, then the centre is cut out
    STRETCH = "stretch"  # scaled to the canvas, its aspect is lost
    LETTERBOX = "letterbox"  # scaled to fit inside, centred, the rest is `pad`


class Filter(enum.StrEnum):
    """Resampling filter, PIL's of that name: its support grows with the reduction, so that nothing aliases."""

    BOX = "box"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class ColourOrder(enum.StrEnum):
    """Order of the channels in the tensor."""

    RGB = "rgb"
    BGR = "bgr"


class Layout(enum.StrEnum):
    """Order of the tensor's axes: N batch, C channel, H row, W column."""

    NCHW = "nchw"
    NHWC = "nhwc"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Which pixels a model sees. Models of equal geometry share one resampling.

    `canvases` are (height, width) in pixels; of several, each picture takes the one in which it is scaled largest, so a
    portrait and a landscape clip each fill theirs.
    """

    canvases: tuple[tuple[int, int], ...]
    fit: Fit
    filter: Filter = Filter.BILINEAR
    short_side: int = 0  # for Fit.CROP only
    pad: tuple[float, float, float] = (0.0, 0.0, 0.0)  # RGB 0 to 255, for Fit.LETTERBOX only


@dataclass(frozen=True, slots=True)
class Normalisation:
    """From RGB values of 0 to 255 to the tensor: (value - mean) * scale by channel, in `order`, laid out as `layout`."""

    order: ColourOrder = ColourOrder.RGB
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)  # in `order`
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)  # in `order`
    layout: Layout = Layout.NCHW
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model's image input: its name in the graph, geometry and normalisation."""

    name: str
    geometry: Geometry
    normalisation: Normalisation


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the shown picture lies in a canvas: shown x (0 to 1) is at canvas pixel `left + x * width`, y alike.

    `left`, `top` may be negative and `width`, `height` larger than the canvas where the picture was cropped.
    """

    left: float
    top: float
    width: float
    height: float
