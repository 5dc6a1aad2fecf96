"""From a decoded picture to what a model is fed, the same everywhere: the CPU's form of the preprocessing.

The order is fixed, nothing is rounded on the way, and `tests/models/reference.py` states it in plain float64:

1. every plane is resampled from its own grid straight to the canvas grid, chroma with its siting (`models.resample`);
2. matrix and range give RGB (`models.colour`), clipped to 0 to 255;
3. PQ and HLG are tone-mapped (`models.tonemap`);
4. the picture is mirrored and turned to its orientation; the canvas around it is the pad colour.

Placement is defined on the picture as shown (`Picture.shown_size`): whole canvas pixels, sides rounded half to even, centred;
an odd pixel of margin goes to the right and the bottom, an odd pixel too many is cut off at the left and the top.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from decoder_pool.picture import Picture
from keyglance.video import Orientation
from models import colour as colours
from models.resample import Float32, Operator, Span, operator, resample
from models.spec import ColourOrder, Fit, Geometry, Layout, Normalisation, Placement
from models.tonemap import ToneMapper

#: Samples of a plane converted and resampled at a time: they stay in a core's cache, whatever the picture's size, and in memory
#: that the allocator keeps between pictures (from 1 MB an array on it was measured to give pages back and fault them in again).
SAMPLES_AT_A_TIME = 3 << 16


@dataclass(frozen=True, slots=True)
class Rendered:
    """A picture on a canvas.

    `rgb`: float32 (height, width, 3), 0 to 255, not rounded; its memory is planar (channel, row, column). `placement`: where the
    shown picture lies on it. `tone_mapped`: None for SDR, True where PQ or HLG was mapped to SDR, False where HDR could not be
    mapped because the stream's matrix is not implemented, so that its colours are off.
    """

    rgb: Float32
    placement: Placement
    tone_mapped: bool | None = None


@dataclass(frozen=True, slots=True)
class CanvasLayout:
    """Whole pixels: the canvas, and the shown picture's place and size on it."""

    canvas_height: int
    canvas_width: int
    left: int
    top: int
    width: int
    height: int


def layout(geometry: Geometry, shown_width: int, shown_height: int) -> CanvasLayout:
    """Place a picture of this shown size on the canvas of `geometry` in which it is scaled largest (the first of equals)."""
    canvas_height, canvas_width = max(
        geometry.canvases, key=lambda canvas: min(Fraction(canvas[1], shown_width), Fraction(canvas[0], shown_height))
    )
    if geometry.fit is Fit.STRETCH:
        width, height = canvas_width, canvas_height
    else:
        across, down = Fraction(canvas_width, shown_width), Fraction(canvas_height, shown_height)
        if geometry.fit is Fit.LETTERBOX:
            scale = min(across, down)
        elif geometry.short_side > 0:
            scale = Fraction(geometry.short_side, min(shown_width, shown_height))
        else:
            scale = max(across, down)
        width, height = max(1, round(shown_width * scale)), max(1, round(shown_height * scale))
    return CanvasLayout(canvas_height, canvas_width, (canvas_width - width) // 2, (canvas_height - height) // 2, width, height)


def spans(placed: CanvasLayout, width: int, height: int, orientation: Orientation) -> tuple[Span, Span]:
    """How the coded picture's rows of `width` and columns of `height` samples lie along the sides of the canvas.

    Where the orientation swaps sides, the first (along the rows) lies along the canvas' height.
    """
    degrees = orientation.degrees_clockwise
    along_x = (placed.width, placed.left, placed.canvas_width)
    along_y = (placed.height, placed.top, placed.canvas_height)
    across, down = (along_y, along_x) if orientation.swaps_sides else (along_x, along_y)
    horizontal = Span(width, *across, reverse=orientation.mirrored != (degrees in (180, 270)))
    return horizontal, Span(height, *down, reverse=degrees in (90, 180))


@dataclass(frozen=True, slots=True)
class _Band:
    """Some outputs of the first pass, and the operators that give these."""

    outputs: slice
    luma: Operator
    chroma: Operator


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that depends on geometry and the picture's shape alone.

    The first pass mixes rows of the coded picture, or columns where that leaves less to the second, and runs band by band.
    """

    placed: CanvasLayout
    rows: slice  # of the canvas that the picture covers
    columns: slice
    columns_first: bool
    swaps_sides: bool
    bands: tuple[_Band, ...]
    luma: Operator  # of the second pass
    chroma: Operator


def _plan(
    geometry: Geometry,
    width: int,
    height: int,
    shown_size: tuple[int, int],
    orientation: Orientation,
    chroma_shift: tuple[int, int],
    siting: tuple[float, float],
) -> _Plan:
    placed = layout(geometry, *shown_size)
    horizontal, vertical = spans(placed, width, height, orientation)

    def operators(span: Span, shift: int, first_sample: float) -> tuple[Operator, Operator]:
        luma = operator(span, geometry.filter, samples=span.source)
        if shift == 0:
            return luma, luma
        return luma, operator(span, geometry.filter, samples=-(-span.source >> shift), factor=1 << shift, siting=first_sample)

    first = operators(vertical, chroma_shift[1], siting[1])
    second = operators(horizontal, chroma_shift[0], siting[0])
    columns_first = second[0].outputs * first[0].inputs < first[0].outputs * second[0].inputs
    if columns_first:
        first, second = second, first
    lines = max(1, first[0].outputs * SAMPLES_AT_A_TIME // (first[0].inputs * second[0].inputs))
    cuts = [slice(start, min(start + lines, first[0].outputs)) for start in range(0, first[0].outputs, lines)]
    rows, columns = (horizontal, vertical) if orientation.swaps_sides else (vertical, horizontal)
    return _Plan(
        placed=placed,
        rows=rows.window,
        columns=columns.window,
        columns_first=columns_first,
        swaps_sides=orientation.swaps_sides,
        bands=tuple(_Band(cut, first[0].part(cut), first[1].part(cut)) for cut in cuts),
        luma=second[0],
        chroma=second[1],
    )


class Preprocessor:
    """Renders pictures for models on the CPU. Safe to use from several threads; the heavy part holds no lock and no GIL.

    `cache_size`: how many combinations of geometry and picture shape keep their operators.
    """

    def __init__(self, cache_size: int = 256) -> None:
        if cache_size < 1:
            raise ValueError(f"cache_size is {cache_size}, it must be at least 1")
        self._cache_size = cache_size
        self._plans: OrderedDict[tuple[object, ...], _Plan] = OrderedDict()
        self._lock = threading.Lock()
        self._tone_map = ToneMapper()

    def __repr__(self) -> str:
        return f"<Preprocessor {len(self._plans)} of {self._cache_size} plans>"

    def render(self, picture: Picture, geometry: Geometry) -> Rendered:
        """Show a picture upright, in square pixels and SDR on the canvas that `geometry` asks for.

        Raises ValueError where the picture's planes do not fit its description.
        """
        planes = _planes(picture)
        plan = self._plan(picture, geometry)
        placed = plan.placed
        canvas = np.empty((3, placed.canvas_height, placed.canvas_width), np.float32)
        target = canvas[:, plan.rows, plan.columns]
        if target.shape[1:] != canvas.shape[1:]:
            canvas[...] = np.asarray(geometry.pad, np.float32)[:, None, None]
        to_rgb = colours.to_rgb(picture)
        if plan.columns_first:
            planes = [plane.T for plane in planes]
        # The bands come turned, (output of the second pass, of the first): which of them runs along the canvas' rows?
        upright = target if plan.columns_first != plan.swaps_sides else target.transpose(0, 2, 1)
        tone_mapped = colours.matrix_known(picture) if colours.is_hdr(picture.colour) else None
        for band in plan.bands:
            luma = resample(planes[0], band.luma, plan.luma)
            chroma = [resample(plane, band.chroma, plan.chroma) for plane in planes[1:]]
            rgb = _mixed([luma, *chroma], to_rgb)
            if tone_mapped:
                self._tone_map(rgb, picture.colour)
            upright[:, :, band.outputs] = rgb
        placement = Placement(float(placed.left), float(placed.top), float(placed.width), float(placed.height))
        return Rendered(canvas.transpose(1, 2, 0), placement, tone_mapped)

    def _plan(self, picture: Picture, geometry: Geometry) -> _Plan:
        shape = (
            geometry,
            picture.width,
            picture.height,
            picture.shown_size,
            picture.orientation,
            picture.chroma_shift,
            colours.chroma_siting(picture.colour.chroma_location, picture.chroma_shift),
        )
        with self._lock:
            plan = self._plans.get(shape)
            if plan is not None:
                self._plans.move_to_end(shape)
                return plan
        plan = _plan(*shape)
        with self._lock:
            self._plans[shape] = plan
            while len(self._plans) > self._cache_size:
                self._plans.popitem(last=False)
        return plan


def _planes(picture: Picture) -> list[npt.NDArray[np.uint8 | np.uint16]]:
    """The picture's component planes, semi-planar chroma taken apart (as views), checked and cut to the picture's size."""
    planes = list(picture.planes)
    if len(planes) == 2:
        planes = [planes[0], planes[1][..., 0], planes[1][..., 1]]
    if len(planes) not in (1, 3) or picture.width < 1 or picture.height < 1:
        raise ValueError(f"a picture of {picture.width}x{picture.height} in {len(planes)} planes cannot be shown")
    across, down = picture.chroma_shift
    for i, plane in enumerate(planes):
        width, height = (picture.width, picture.height) if i == 0 else (-(-picture.width >> across), -(-picture.height >> down))
        if plane.ndim != 2 or plane.shape[0] < height or plane.shape[1] < width:
            raise ValueError(f"plane {i} has shape {plane.shape}, at least {(height, width)} is needed")
        planes[i] = plane[:height, :width]
    return planes


def _mixed(planes: list[Float32], map_: colours.ToRgb) -> Float32:
    """RGB of 0 to 255, clipped, of shape (3, *shape of the planes); the matrix' zeros cost nothing."""
    rgb = np.empty((3, *planes[0].shape), np.float32)
    scratch = np.empty_like(planes[0])
    for channel, row, offset in zip(rgb, map_.matrix, map_.offset, strict=True):
        terms = [(plane, np.float32(factor)) for plane, factor in zip(planes, row, strict=True) if factor != 0]
        np.multiply(terms[0][0], terms[0][1], out=channel)
        channel += np.float32(offset)
        for plane, factor in terms[1:]:
            np.multiply(plane, factor, out=scratch)
            channel += scratch
        np.clip(channel, 0, 255, out=channel)
    return rgb


def normalise(rendered: Rendered, normalisation: Normalisation) -> npt.NDArray[np.floating | np.integer]:
    """The numbers a model is fed: (value - mean) * scale by channel, (3, H, W) or (H, W, 3) as the layout says, no batch axis.

    Computed in float32, then converted to the normalisation's dtype; integers are rounded to nearest and kept in their range.
    """
    planes = rendered.rgb.transpose(2, 0, 1)
    if normalisation.order is ColourOrder.BGR:
        planes = planes[::-1]
    chw = normalisation.layout is Layout.NCHW
    values = np.empty(planes.shape if chw else rendered.rgb.shape, np.float32)
    channels = values if chw else values.transpose(2, 0, 1)
    for channel, plane, mean, scale in zip(channels, planes, normalisation.mean, normalisation.scale, strict=True):
        np.subtract(plane, np.float32(mean), out=channel)
        if scale != 1:
            channel *= np.float32(scale)
    dtype = np.dtype(normalisation.dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return values.astype(dtype, copy=False)
