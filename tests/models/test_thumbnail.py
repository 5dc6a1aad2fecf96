"""Thumbnails: what a person is shown."""

from __future__ import annotations

import dataclasses
import io
from fractions import Fraction

import numpy as np
import PIL.Image
import pytest
import skimage.data

from decoder_pool.picture import Picture
from keyglance.video import Colour, Orientation
from models.preprocess import Preprocessor
from models.thumbnail import thumbnail


def photograph(**rest: object) -> Picture:
    red, green, blue = np.moveaxis(skimage.data.coffee(), -1, 0)  # 600x400
    return Picture(
        planes=(green, blue, red),
        width=600,
        height=400,
        chroma_format="rgb",
        chroma_shift=(0, 0),
        **rest,  # type: ignore[arg-type]
    )


def opened(jpeg: bytes) -> PIL.Image.Image:
    image = PIL.Image.open(io.BytesIO(jpeg))
    assert image.format == "JPEG"
    assert image.mode == "RGB"
    return image


@pytest.mark.parametrize(
    ("longer_side", "orientation", "aspect", "size"),
    [
        (320, Orientation(), 1, (320, 213)),
        (320, Orientation(90), 1, (213, 320)),
        (320, Orientation(270, True), 1, (213, 320)),
        (300, Orientation(), Fraction(4, 3), (300, 150)),
        (300, Orientation(90), Fraction(1, 2), (300, 225)),
        (5000, Orientation(), 1, (600, 400)),  # never enlarged
        (5000, Orientation(), Fraction(4, 3), (800, 400)),
        (1, Orientation(), 1, (1, 1)),
    ],
)
def test_size_is_the_shown_picture_s(
    longer_side: int, orientation: Orientation, aspect: Fraction | int, size: tuple[int, int]
) -> None:
    picture = photograph(orientation=orientation, sample_aspect=Fraction(aspect))
    assert opened(thumbnail(picture, longer_side)).size == size


def test_picture_is_the_one_that_pillow_makes() -> None:
    expected = PIL.Image.fromarray(skimage.data.coffee()).resize((300, 200), PIL.Image.Resampling.BICUBIC)
    apart = np.abs(np.asarray(opened(thumbnail(photograph(), 300)), float) - np.asarray(expected, float))
    assert apart.mean() < 4  # what a JPEG of quality 85 loses


def test_turned_picture_is_upright() -> None:
    upright = np.asarray(opened(thumbnail(photograph(), 300)), float)
    lying = photograph(orientation=Orientation(90))
    planes = tuple(np.ascontiguousarray(np.rot90(plane)) for plane in lying.planes)  # stored turned counter-clockwise
    turned = dataclasses.replace(lying, planes=planes, width=400, height=600)
    assert np.abs(np.asarray(opened(thumbnail(turned, 300)), float) - upright).mean() < 3


def test_extremely_wide_pictures_keep_a_row() -> None:
    plane = np.full((1, 5000), 200, np.uint8)
    picture = Picture(planes=(plane,), width=5000, height=1, chroma_format="400", chroma_shift=(0, 0))
    assert opened(thumbnail(picture, 100)).size == (100, 1)


def test_hdr_is_shown_as_sdr() -> None:
    planes = tuple(np.full((32, 32), code, np.uint16) for code in (572, 512, 512))  # 58 % PQ: diffuse white
    picture = Picture(
        planes=planes, width=32, height=32, bit_depth=10, chroma_format="444", chroma_shift=(0, 0), colour=Colour(9, 16, 9)
    )
    assert np.asarray(opened(thumbnail(picture, 32))).min() > 220


def test_the_callers_preprocessor_keeps_the_operators() -> None:
    preprocessor = Preprocessor(cache_size=3)
    assert thumbnail(photograph(), 64, preprocessor=preprocessor) == thumbnail(photograph(), 64)
    assert repr(preprocessor) == "<Preprocessor 1 of 3 plans>"


@pytest.mark.parametrize("longer_side", [0, -1])
def test_nonsense_is_refused(longer_side: int) -> None:
    with pytest.raises(ValueError, match=f"longer side of a thumbnail is {longer_side}"):
        thumbnail(photograph(), longer_side)
