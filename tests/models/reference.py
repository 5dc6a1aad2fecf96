"""What preprocessing means, in plain float64: the definition that every path (CPU, CUDA) is measured against.

Written to be read, not to be fast, and sharing no code with `models/`: dense weight matrices made by loops, the equations of the
standards as they are printed. One picture in, one canvas out:

1. Placement. The picture as shown (square pixels, turned) is scaled to whole pixels and centred on the canvas.
2. Each plane is resampled from its own grid to that grid with Pillow's filter of the name. A canvas pixel's centre lies at a luma
   position, and from there at a chroma position by the siting. The kernel is as wide as the reduction of that plane asks for.
3. H.273's equations give R'G'B', clipped to 0 to 1.
4. PQ and HLG become SDR.
5. Mirrored left to right if said so, then turned clockwise. Everything else on the canvas is the pad colour.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange
from models.spec import ColourOrder, Filter, Fit, Geometry, Layout, Normalisation

Array = npt.NDArray[np.float64]


# 1. Placement


def place(geometry: Geometry, width: int, height: int) -> tuple[tuple[int, int], int, int, int, int]:
    """(canvas height, canvas width), left, top, width, height of a picture of this shown size."""
    best, canvas = Fraction(-1), geometry.canvases[0]
    for candidate in geometry.canvases:
        scale = min(Fraction(candidate[0], height), Fraction(candidate[1], width))
        if scale > best:
            best, canvas = scale, candidate
    if geometry.fit is Fit.STRETCH:
        return canvas, 0, 0, canvas[1], canvas[0]
    if geometry.fit is Fit.LETTERBOX:
        scale = best
    elif geometry.short_side:
        scale = Fraction(geometry.short_side) / min(width, height)
    else:
        scale = max(Fraction(canvas[0], height), Fraction(canvas[1], width))
    w, h = max(1, round(width * scale)), max(1, round(height * scale))
    return canvas, math.floor(Fraction(canvas[1] - w, 2)), math.floor(Fraction(canvas[0] - h, 2)), w, h


# 2. Resampling


def kernel(kind: Filter, x: float) -> float:
    if kind is Filter.BOX:
        return 1.0 if -0.5 < x <= 0.5 else 0.0
    x = abs(x)
    if kind is Filter.BILINEAR:
        return 1.0 - x if x < 1.0 else 0.0
    a = -0.5
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return 0.0


RADIUS = {Filter.BOX: 0.5, Filter.BILINEAR: 1.0, Filter.BICUBIC: 2.0}


def weights(kind: Filter, luma: int, size: int, samples: int, factor: int, siting: float, pixels: range) -> Array:
    """Row i: how much of each of a plane's `samples` goes into pixel `pixels[i]` of `size`.

    `siting`: where the plane's first sample lies, in luma samples from the first luma sample's centre.
    """
    matrix = np.zeros((len(pixels), samples))
    step = luma / size
    stretch = max(step / factor, 1.0)
    for row, pixel in enumerate(pixels):
        centre = ((pixel + 0.5) * step - 0.5 - siting) / factor + 0.5
        first = max(0, int(centre - RADIUS[kind] * stretch + 0.5))
        last = min(samples, int(centre + RADIUS[kind] * stretch + 0.5))
        for sample in range(first, last):
            matrix[row, sample] = kernel(kind, (sample - centre + 0.5) * (1.0 / stretch))
        if first >= last:  # the pixel lies beyond the outermost sample by more than the kernel reaches
            matrix[row, min(max(0, math.floor(centre)), samples - 1)] = 1.0
        matrix[row] /= matrix[row].sum()
    return matrix


def first_chroma_sample(location: int | None, shift: tuple[int, int]) -> tuple[float, float]:
    """H.273 figure 1; unspecified is left, but 4:1:0 is centred."""
    across, down = 2 ** shift[0] - 1, 2 ** shift[1] - 1
    if location is None or location not in range(6):
        location = 1 if shift == (2, 2) else 0
    return {
        0: (0.0, down / 2),
        1: (across / 2, down / 2),
        2: (0.0, 0.0),
        3: (across / 2, 0.0),
        4: (0.0, float(down)),
        5: (across / 2, float(down)),
    }[location]


# 3. Colour


def luma_coefficients(code: int) -> tuple[float, float]:
    """Kr and Kb, H.273 table 4."""
    return {
        1: (0.2126, 0.0722),
        4: (0.30, 0.11),
        5: (0.299, 0.114),
        6: (0.299, 0.114),
        7: (0.212, 0.087),
        9: (0.2627, 0.0593),
        10: (0.2627, 0.0593),
    }[code]


def matrix_code(picture: Picture) -> int:
    code = picture.colour.matrix
    if picture.chroma_format == "rgb" or (code == 0 and picture.chroma_shift == (0, 0)):
        return 0
    if code in (1, 4, 5, 6, 7, 8, 9, 10, 12, 13):
        return code
    if picture.colour.transfer in (16, 18) or picture.colour.primaries == 9:
        return 9
    return 1 if picture.height > 576 or picture.width >= 1280 else 6


def rgb(planes: list[Array], picture: Picture) -> Array:
    """R'G'B' (height, width, 3), 0 to 1, not clipped, from planes of stored values already resampled."""
    depth = picture.bit_depth
    if picture.msb_aligned:
        planes = [plane / 2 ** (16 - depth) for plane in planes]
    full_unless_told = picture.chroma_format in ("rgb", "400")
    if picture.colour.range is ColourRange.FULL or (full_unless_told and picture.colour.range is not ColourRange.LIMITED):
        luma = [plane / (2**depth - 1) for plane in planes]
        chroma = [(plane - 2 ** (depth - 1)) / (2**depth - 1) for plane in planes]
    else:
        luma = [(plane / 2 ** (depth - 8) - 16) / 219 for plane in planes]
        chroma = [(plane / 2 ** (depth - 8) - 128) / 224 for plane in planes]
    if len(planes) == 1:
        return np.stack([luma[0]] * 3, axis=-1)
    code = matrix_code(picture)
    if code == 0:
        return np.stack([luma[2], luma[0], luma[1]], axis=-1)
    y, cb, cr = luma[0], chroma[1], chroma[2]
    if code == 8:
        t = y - cb
        return np.stack([t + cr, y + cb, t - cr], axis=-1)
    if code in (12, 13):
        to_xyz = xyz_of(CHROMATICITIES[primaries_code(picture.colour)])
        kr, kb = to_xyz[1, 0], to_xyz[1, 2]
    else:
        kr, kb = luma_coefficients(code)
    r = y + 2 * (1 - kr) * cr
    b = y + 2 * (1 - kb) * cb
    g = (y - kr * r - kb * b) / (1 - kr - kb)
    return np.stack([r, g, b], axis=-1)


# 4. HDR

CHROMATICITIES = {  # H.273 table 2: red, green, blue, white
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060), (0.3127, 0.3290)),
    5: ((0.64, 0.33), (0.29, 0.60), (0.15, 0.06), (0.3127, 0.3290)),
    6: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070), (0.3127, 0.3290)),
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), (0.3127, 0.3290)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), (0.3127, 0.3290)),
}


def primaries_code(colour: Colour) -> int:
    if colour.primaries in CHROMATICITIES:
        return colour.primaries
    return 9 if colour.transfer in (16, 18) else 1


def xyz_of(points: tuple[tuple[float, float], ...]) -> Array:
    """Linear RGB to XYZ: columns are the primaries, scaled so that they add up to white at Y = 1."""
    (xr, yr), (xg, yg), (xb, yb), (xw, yw) = points
    p = np.array([[xr, xg, xb], [yr, yg, yb], [1 - xr - yr, 1 - xg - yg, 1 - xb - yb]])
    w = np.array([xw / yw, 1.0, (1 - xw - yw) / yw])
    return np.asarray(p @ np.diag(np.linalg.inv(p) @ w))


def pq_eotf(e: Array) -> Array:
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    n = e ** (1 / m2)
    return np.asarray(10000 * (np.maximum(n - c1, 0) / (c2 - c3 * n)) ** (1 / m1))


def pq_inverse(nits: Array | float) -> Array:
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    y = (np.asarray(nits, float) / 10000) ** m1
    return np.asarray(((c1 + c2 * y) / (1 + c3 * y)) ** m2)


def sdr(signal: Array, colour: Colour) -> Array:
    """R'G'B' of PQ or HLG, 0 to 1, to R'G'B' of sRGB."""
    to_xyz = xyz_of(CHROMATICITIES[primaries_code(colour)])
    if colour.transfer == 16:
        nits = pq_eotf(signal)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
        luminance = scene @ to_xyz[1]
        nits = 1000 * luminance[..., None] ** 0.2 * scene  # BT.2100 OOTF, gamma 1.2
    if primaries_code(colour) != 1:
        nits = nits @ (np.linalg.inv(xyz_of(CHROMATICITIES[1])) @ to_xyz).T
    nits = np.maximum(nits, 0)
    brightest = nits.max(axis=-1, keepdims=True)
    # BT.2390 EETF, 1000 nits to 203 nits, black at 0
    peak = pq_inverse(1000)
    largest = pq_inverse(203) / peak
    knee = 1.5 * largest - 0.5
    e1 = np.minimum(pq_inverse(brightest) / peak, 1)
    t = (e1 - knee) / (1 - knee)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * largest
    mapped = pq_eotf(np.where(e1 < knee, e1, spline) * peak)
    with np.errstate(invalid="ignore"):
        linear = np.where(brightest > 0, nits * mapped / brightest, 0) / 203
    linear = np.clip(linear, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


# 5. All together


def components(picture: Picture) -> list[Array]:
    planes = [np.asarray(plane, float) for plane in picture.planes]
    if len(planes) == 2:  # semi-planar
        planes = [planes[0], planes[1][:, :, 0], planes[1][:, :, 1]]
    return planes


def render(picture: Picture, geometry: Geometry) -> Array:
    """The canvas, (height, width, 3), 0 to 255."""
    (canvas_height, canvas_width), left, top, width, height = place(geometry, *picture.shown_size)
    degrees, mirrored = picture.orientation.degrees_clockwise, picture.orientation.mirrored
    columns = range(max(0, -left), min(width, canvas_width - left))  # of the scaled picture as shown: what the canvas shows
    rows = range(max(0, -top), min(height, canvas_height - top))

    # The same pixels in the coded picture: shown = turned(mirrored(coded)).
    if degrees in (90, 270):
        coded_width, coded_height, coded_columns, coded_rows = height, width, rows, columns
    else:
        coded_width, coded_height, coded_columns, coded_rows = width, height, columns, rows
    if mirrored != (degrees in (180, 270)):
        coded_columns = range(coded_width - coded_columns.stop, coded_width - coded_columns.start)
    if degrees in (90, 180):
        coded_rows = range(coded_height - coded_rows.stop, coded_height - coded_rows.start)

    resampled = []
    siting = first_chroma_sample(picture.colour.chroma_location, picture.chroma_shift)
    for number, plane in enumerate(components(picture)):
        shift, (x, y) = (picture.chroma_shift, siting) if number else ((0, 0), (0.0, 0.0))
        down = weights(geometry.filter, picture.height, coded_height, plane.shape[0], 2 ** shift[1], y, coded_rows)
        across = weights(geometry.filter, picture.width, coded_width, plane.shape[1], 2 ** shift[0], x, coded_columns)
        resampled.append(down @ plane @ across.T)

    shown = np.clip(rgb(resampled, picture), 0, 1)
    if picture.colour.transfer in (16, 18):
        shown = sdr(shown, picture.colour)
    if mirrored:
        shown = shown[:, ::-1]
    shown = np.rot90(shown, -degrees // 90)
    canvas = np.empty((canvas_height, canvas_width, 3))
    canvas[:] = geometry.pad
    x, y = max(0, left), max(0, top)
    canvas[y : y + len(rows), x : x + len(columns)] = 255 * shown
    return canvas


def normalise(canvas: Array, normalisation: Normalisation) -> Array:
    """The model's numbers before conversion to its dtype."""
    values: Array = canvas[..., ::-1] if normalisation.order is ColourOrder.BGR else canvas
    values = (values - np.array(normalisation.mean)) * np.array(normalisation.scale)
    return values.transpose(2, 0, 1) if normalisation.layout is Layout.NCHW else values
