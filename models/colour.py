"""From the planes of a picture to RGB: matrices, ranges, chroma siting, and what holds where a stream says nothing.

Code points are those of ITU-T H.273 (2023): table 2 colour primaries, table 4 matrix coefficients, figure 1
chroma sample location.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange

UNSPECIFIED = 2
BT709 = 1
BT601 = 6
BT2020 = 9
PQ = 16
HLG = 18

#: Matrix code → (Kr, Kb). 10, BT.2020 with constant luminance, is read as 9, as FFmpeg does: no encoder in use writes it.
_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
    10: (0.2627, 0.0593),
}
_IDENTITY = 0  # planes are G, B, R
_YCGCO = 8
_FROM_PRIMARIES = (12, 13)  # Kr and Kb follow from the primaries

_NOT_IMPLEMENTED = (11, 14, 15, 16, 17)

_D65 = (0.3127, 0.3290)
#: Primaries code → chromaticities x, y of red, green, blue and white.
_PRIMARIES: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060), _D65),
    4: ((0.67, 0.33), (0.21, 0.71), (0.14, 0.08), (0.310, 0.316)),
    5: ((0.64, 0.33), (0.29, 0.60), (0.15, 0.06), _D65),
    6: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070), _D65),
    7: ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070), _D65),
    8: ((0.681, 0.319), (0.243, 0.692), (0.145, 0.049), (0.310, 0.316)),
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), _D65),
    11: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), (0.314, 0.351)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), _D65),
    22: ((0.630, 0.340), (0.295, 0.605), (0.155, 0.077), _D65),
}


def is_hdr(colour: Colour) -> bool:
    """True where the transfer is PQ (SMPTE ST 2084) or HLG (BT.2100), whose values are no display's usual ones."""
    return colour.transfer in (PQ, HLG)


def primaries(colour: Colour) -> int:
    """The primaries' code; unspecified: BT.2020 for HDR, BT.709 otherwise."""
    if colour.primaries in _PRIMARIES:
        return colour.primaries
    return BT2020 if is_hdr(colour) else BT709


def rgb_to_xyz(code: int) -> npt.NDArray[np.float64]:
    """The 3x3 matrix from linear RGB of these primaries to CIE XYZ with white at Y = 1 (SMPTE RP 177)."""
    red, green, blue, white = (np.array([x / y, 1.0, (1.0 - x - y) / y]) for x, y in _PRIMARIES[code])
    columns = np.stack([red, green, blue], axis=1)
    return np.asarray(columns * np.linalg.solve(columns, white))


def matrix_known(picture: Picture) -> bool:
    """False where the stream names a matrix that is not implemented (YDzDx, ICtCp, IPT-C2, YCgCo-R): the default is taken.

    Grey and RGB pictures need none.
    """
    return picture.colour.matrix not in _NOT_IMPLEMENTED or picture.chroma_format in ("400", "rgb")


def effective_matrix(colour: Colour, *, width: int, height: int, subsampled: bool) -> int:
    """The matrix code that holds: 0 (G, B, R), 8 (YCgCo), 12 (from the primaries) or one with known Kr and Kb.

    Unspecified: BT.2020 where transfer or primaries are those of BT.2020 and BT.2100, else BT.709 for high definition (taller
    than 576 or at least 1280 wide) and BT.601 below, as players guess. G, B, R are never subsampled: a stream that says so lies.
    """
    if colour.matrix in _LUMA_WEIGHTS or colour.matrix == _YCGCO:
        return colour.matrix
    if colour.matrix in _FROM_PRIMARIES:
        return 12
    if colour.matrix == _IDENTITY and not subsampled:
        return _IDENTITY
    if is_hdr(colour) or colour.primaries == BT2020:
        return BT2020
    return BT709 if height > 576 or width >= 1280 else BT601


def luma_weights(code: int, primaries_code: int) -> tuple[float, float]:
    """Kr and Kb of a matrix code."""
    if code in _FROM_PRIMARIES:
        luminance = rgb_to_xyz(primaries_code)[1]
        return float(luminance[0]), float(luminance[2])
    return _LUMA_WEIGHTS[code]


@dataclass(frozen=True, slots=True)
class ToRgb:
    """RGB (0 to 255) = `matrix` (3, planes) times the planes' values, plus `offset` (3,)."""

    matrix: npt.NDArray[np.float64]
    offset: npt.NDArray[np.float64]


def to_rgb(picture: Picture) -> ToRgb:
    """The affine map from the stored values of a picture's components, in the planes' order, to RGB of 0 to 255.

    Quantisation as in H.273 section 8.3: limited range has black at 16 and white at 235 (chroma 16 to 240 around 128), times
    2 ** (depth - 8); full range spans all codes. An unspecified range is limited, but full for RGB and for grey: video
    codecs with grey say what theirs is, what comes without a word is an image's (and swscale takes every grey for full).
    """
    colour = picture.colour
    is_rgb = picture.chroma_format == "rgb"
    unspecified_is_full = picture.chroma_format in ("rgb", "400")
    full = colour.range is ColourRange.FULL or (unspecified_is_full and colour.range is not ColourRange.LIMITED)
    depth = picture.bit_depth
    step = 2.0 ** (16 - depth) if picture.msb_aligned else 1.0  # what one code is worth in the stored value
    top = 2.0**depth - 1.0
    unit = 2.0 ** (depth - 8)
    if full:
        black, luma_scale, chroma_scale = 0.0, 255.0 / top, 255.0 / top
    else:
        black, luma_scale, chroma_scale = 16.0 * unit, 255.0 / (219.0 * unit), 255.0 / (224.0 * unit)
    middle = 128.0 * unit

    grey = len(picture.planes) == 1
    code = effective_matrix(colour, width=picture.width, height=picture.height, subsampled=picture.chroma_shift != (0, 0))
    if grey:
        mixing = np.ones((3, 1))
        scale, zero = np.array([luma_scale]), np.array([black])
    elif is_rgb or code == _IDENTITY:
        mixing = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        scale, zero = np.full(3, luma_scale), np.full(3, black)
    else:
        if code == _YCGCO:
            mixing = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, 0.0], [1.0, -1.0, -1.0]])
        else:
            kr, kb = luma_weights(code, primaries(colour))
            kg = 1.0 - kr - kb
            red, blue = 2.0 * (1.0 - kr), 2.0 * (1.0 - kb)
            mixing = np.array([[1.0, 0.0, red], [1.0, -blue * kb / kg, -red * kr / kg], [1.0, blue, 0.0]])
        scale, zero = np.array([luma_scale, chroma_scale, chroma_scale]), np.array([black, middle, middle])
    matrix = mixing * scale
    return ToRgb(matrix=matrix / step, offset=-(matrix @ zero))


def chroma_siting(location: int | None, chroma_shift: tuple[int, int]) -> tuple[float, float]:
    """Where the first chroma sample lies, (horizontal, vertical), in luma samples from the first luma sample's centre.

    `location` by H.273 figure 1: 0 left, 1 centre, 2 top-left, 3 top, 4 bottom-left, 5 bottom. Unspecified: left, as in
    MPEG-2 and H.264, with 4:1:0 in the centre. JPEG, MPEG-1 and H.263 are in the centre, but
    this cannot be seen in a picture: whoever describes the stream has to say it.
    """
    across, down = ((1 << shift) - 1 for shift in chroma_shift)
    if location not in (0, 1, 2, 3, 4, 5):
        location = 1 if across > 1 and down > 1 else 0
    horizontal = 0.0 if location in (0, 2, 4) else across / 2
    vertical = {2: 0.0, 3: 0.0, 4: float(down), 5: float(down)}.get(location, down / 2)
    return horizontal, vertical
