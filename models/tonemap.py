"""From HDR (PQ and HLG) to the SDR picture that models were trained on.

Display light in nits by SMPTE ST 2084 (PQ), or by the HLG inverse OETF and the OOTF of a 1000-nit display (BT.2100 tables 4
and 5); primaries to BT.709; the EETF of BT.2390 section 5.4 from a 1000-nit to a 203-nit display, on the largest of R, G and B so
that the hue stays; 203 nits, diffuse white by BT.2408, as SDR's 1.0; the sRGB transfer function (IEC 61966-2-1). Diffuse white
(58 % PQ, 75 % HLG) lands at about 0.9, the rest is for highlights; 1000 nits and beyond are white. Mastering metadata is not
consulted, so that a clip cannot darken itself by what it claims.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keyglance.video import Colour
from models import colour as colours

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

SOURCE_PEAK = 1000.0  # nits
SDR_WHITE = 203.0  # nits

_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
_HLG_A, _HLG_B, _HLG_C = 0.17883277, 0.28466892, 0.55991073
_HLG_GAMMA = 1.2

_STEPS = 65536  # of a table; looking up the nearest moves a result by less than a third of an 8-bit code
#: In units of `SDR_WHITE`: what one channel can reach, as saturated BT.2020 at 10,000 nits takes 1.7 times that in BT.709.
_BRIGHTEST = 20000.0 / SDR_WHITE


def pq_to_nits(signal: Float64) -> Float64:
    """The ST 2084 EOTF: signal 0 to 1 to display light, 0 to 10,000 nits."""
    root = np.power(signal, 1 / _M2)
    return np.asarray(10000.0 * np.power(np.maximum(root - _C1, 0.0) / (_C2 - _C3 * root), 1 / _M1))


def nits_to_pq(nits: Float64) -> Float64:
    """The inverse of `pq_to_nits`."""
    power = np.power(nits / 10000.0, _M1)
    return np.asarray(np.power((_C1 + _C2 * power) / (1.0 + _C3 * power), _M2))


def hlg_to_scene(signal: Float64) -> Float64:
    """The BT.2100 HLG inverse OETF: signal 0 to 1 to scene light 0 to 1."""
    return np.where(signal <= 0.5, signal * signal / 3.0, (np.exp((signal - _HLG_C) / _HLG_A) + _HLG_B) / 12.0)


def eetf(nits: Float64) -> Float64:
    """BT.2390's EETF from `SOURCE_PEAK` to `SDR_WHITE`, black at 0: straight, then a Hermite spline from the knee."""
    peak = float(nits_to_pq(np.array(SOURCE_PEAK)))
    largest = float(nits_to_pq(np.array(SDR_WHITE))) / peak
    knee = 1.5 * largest - 0.5
    e1 = np.minimum(nits_to_pq(nits) / peak, 1.0)
    t = np.maximum(e1 - knee, 0.0) / (1.0 - knee)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * largest
    return pq_to_nits(np.where(e1 < knee, e1, spline) * peak)


def srgb(linear: Float64) -> Float64:
    """The sRGB transfer function, 0 to 1 on both sides."""
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.power(np.maximum(linear, 0.0031308), 1 / 2.4) - 0.055)


def _look_up(table: Float32, where: Float32) -> Float32:
    """The table's value at `where` (0 to 1), nearest step. `where` is overwritten."""
    where *= _STEPS - 1
    where += 0.5
    return table[where.astype(np.uint16)]


class ToneMapper:
    """Maps RGB planes of PQ or HLG to SDR by tables made once; may be used from several threads."""

    def __init__(self) -> None:
        step = np.linspace(0.0, 1.0, _STEPS)
        self._light = {
            colours.PQ: (pq_to_nits(step) / SDR_WHITE).astype(np.float32),
            colours.HLG: hlg_to_scene(step).astype(np.float32),
        }
        # The fourth root spreads the steps over the dark end; the value is the gain, so that black needs no division.
        nits = np.maximum(step, step[1]) ** 4 * _BRIGHTEST * SDR_WHITE
        self._gain = (eetf(nits) / nits).astype(np.float32)
        self._signal = (255.0 * srgb(step**2)).astype(np.float32)

    def __call__(self, rgb: Float32, colour: Colour) -> None:
        """Map `rgb` (3, height, width), 0 to 255 in PQ or HLG, in place to SDR of 0 to 255."""
        light = self._light[colour.transfer]
        for plane in rgb:
            plane *= 1 / 255
            plane[...] = _look_up(light, plane)
        if colour.transfer == colours.HLG:
            r, g, b = colours.rgb_to_xyz(colours.primaries(colour))[1]
            luminance = rgb[0] * np.float32(r) + rgb[1] * np.float32(g) + rgb[2] * np.float32(b)
            # OOTF: F = 1000 nits * Y ** (gamma - 1) * E
            np.power(luminance, np.float32(_HLG_GAMMA - 1), out=luminance)
            luminance *= SOURCE_PEAK / SDR_WHITE
            rgb *= luminance
        self._convert_primaries(rgb, colour)
        np.maximum(rgb, 0, out=rgb)
        brightest = rgb.max(axis=0)
        brightest *= 1 / _BRIGHTEST
        np.minimum(brightest, 1, out=brightest)
        np.sqrt(brightest, out=brightest)
        np.sqrt(brightest, out=brightest)
        rgb *= _look_up(self._gain, brightest)
        np.minimum(rgb, 1, out=rgb)
        np.sqrt(rgb, out=rgb)
        for plane in rgb:
            plane[...] = _look_up(self._signal, plane)

    @staticmethod
    def _convert_primaries(rgb: Float32, colour: Colour) -> None:
        code = colours.primaries(colour)
        if code == colours.BT709:
            return
        matrix = np.linalg.solve(colours.rgb_to_xyz(colours.BT709), colours.rgb_to_xyz(code)).astype(np.float32)
        red, green, blue = (plane.copy() for plane in rgb)
        for plane, (r, g, b) in zip(rgb, matrix, strict=True):
            np.multiply(red, r, out=plane)
            plane += green * g
            plane += blue * b
