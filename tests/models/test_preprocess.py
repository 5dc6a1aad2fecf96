"""The CPU's preprocessing against the float64 reference, and the reference against Pillow and swscale."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange, Orientation
from models.preprocess import Preprocessor
from models.spec import Filter, Fit, Geometry
from tests.models import reference

SHIFTS = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "440": (0, 1), "411": (2, 0), "410": (2, 2), "rgb": (0, 0)}


def make_picture(rng: np.random.Generator, width: int, height: int, chroma_format: str, **rest: object) -> Picture:
    """Noise over all codes of the depth, planar; `semi_planar` joins the chroma planes."""
    semi_planar = rest.pop("semi_planar", False)
    depth = int(rest.get("bit_depth", 8))  # type: ignore[call-overload]
    dtype = np.uint8 if depth == 8 else np.uint16
    across, down = SHIFTS[chroma_format]
    shapes = [(height, width)]
    if chroma_format != "400":
        shapes += [(-(-height >> down), -(-width >> across))] * 2
    planes = [rng.integers(0, 1 << depth, shape).astype(dtype) for shape in shapes]
    if rest.get("msb_aligned"):
        planes = [plane << (16 - depth) for plane in planes]
    if semi_planar and len(planes) == 3:
        planes = [planes[0], np.stack(planes[1:], axis=-1)]
    return Picture(
        planes=tuple(planes), width=width, height=height, chroma_format=chroma_format, chroma_shift=(across, down), **rest  # type: ignore[arg-type]
    )


def side() -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([1, 2, 3, 8, 16, 17]), st.integers(1, 90), st.just(300))


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    chroma_format = draw(st.sampled_from(list(SHIFTS)))
    depth = draw(st.sampled_from([8, 8, 9, 10, 12, 14, 16]))
    return make_picture(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        draw(side()),
        draw(side()),
        chroma_format,
        bit_depth=depth,
        semi_planar=draw(st.booleans()) and chroma_format != "rgb",
        msb_aligned=depth > 8 and draw(st.booleans()),
        colour=Colour(
            primaries=draw(st.sampled_from([1, 2, 5, 6, 9, 12])),
            transfer=draw(st.sampled_from([1, 2, 13, 14, 16, 18])),
            matrix=draw(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 99])),
            range=draw(st.sampled_from(list(ColourRange))),
            chroma_location=draw(st.sampled_from([None, 0, 1, 2, 3, 4, 5, 6])),
        ),
        orientation=Orientation(draw(st.sampled_from([0, 90, 180, 270])), draw(st.booleans())),
        sample_aspect=draw(st.sampled_from([Fraction(1), Fraction(0), Fraction(64, 51), Fraction(7, 8), Fraction(2), Fraction(1, 3)])),
    )


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    canvas = st.tuples(st.integers(1, 64), st.integers(1, 64))
    return Geometry(
        canvases=tuple(draw(st.lists(canvas, min_size=1, max_size=3))),
        fit=draw(st.sampled_from(list(Fit))),
        filter=draw(st.sampled_from(list(Filter))),
        short_side=draw(st.integers(0, 80)),
        pad=draw(st.sampled_from([(0.0, 0.0, 0.0), (255.0, 127.5, 3.0)])),
    )


PREPROCESSOR = Preprocessor(cache_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(pictures(), geometries())
def test_every_pixel_is_within_one_code_of_the_reference(picture: Picture, geometry: Geometry) -> None:
    rendered = PREPROCESSOR.render(picture, geometry)
    expected = reference.render(picture, geometry)
    assert rendered.rgb.shape == expected.shape
    assert rendered.rgb.dtype == np.float32
    assert np.abs(rendered.rgb - expected).max() < (0.35 if rendered.tone_mapped else 0.02)
