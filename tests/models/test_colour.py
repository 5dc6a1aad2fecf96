"""Matrices, ranges and defaults by known colours and published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange
from models import colour as colours
from models.preprocess import Preprocessor
from models.spec import Fit, Geometry
from tests.models import reference

FULL, LIMITED, UNSPECIFIED = ColourRange.FULL, ColourRange.LIMITED, ColourRange.UNSPECIFIED


def one_colour(codes: tuple[int, ...], size: tuple[int, int] = (8, 4), **rest: object) -> Picture:
    """A 4:4:4 (or grey) picture of one colour, given by its codes in the planes' order."""
    width, height = size
    dtype = np.uint8 if rest.get("bit_depth", 8) == 8 else np.uint16
    rest.setdefault("chroma_format", "400" if len(codes) == 1 else "444")
    planes = tuple(np.full((height, width), code, dtype) for code in codes)
    return Picture(planes=planes, width=width, height=height, chroma_shift=(0, 0), **rest)  # type: ignore[arg-type]


def shown(picture: Picture) -> list[int]:
    rgb = Preprocessor().render(picture, Geometry(((2, 2),), Fit.STRETCH)).rgb
    assert np.ptp(rgb, axis=(0, 1)).max() < 1e-3
    return [round(float(value)) for value in rgb[0, 0]]


@pytest.mark.parametrize(
    ("codes", "matrix", "range_", "depth", "rgb"),
    [
        # 100 % colour bars as every waveform monitor knows them
        ((235, 128, 128), 1, LIMITED, 8, (255, 255, 255)),
        ((16, 128, 128), 1, LIMITED, 8, (0, 0, 0)),
        ((63, 102, 240), 1, LIMITED, 8, (255, 0, 0)),
        ((173, 42, 26), 1, LIMITED, 8, (0, 255, 0)),
        ((32, 240, 118), 1, LIMITED, 8, (0, 0, 255)),
        ((81, 90, 240), 6, LIMITED, 8, (255, 0, 0)),
        ((145, 54, 34), 5, LIMITED, 8, (0, 255, 0)),
        ((41, 240, 110), 6, LIMITED, 8, (0, 0, 255)),
        ((76, 85, 255), 5, FULL, 8, (255, 0, 0)),  # JPEG
        ((150, 44, 21), 5, FULL, 8, (0, 255, 0)),
        ((29, 255, 107), 5, FULL, 8, (0, 0, 255)),
        ((940, 512, 512), 9, LIMITED, 10, (255, 255, 255)),
        ((64, 512, 512), 9, LIMITED, 10, (0, 0, 0)),
        ((294, 387, 960), 9, LIMITED, 10, (255, 0, 0)),  # 64 + 876 * 0.2627; 512 - 896 * 0.2627 / 1.8814; 512 + 448
        ((1023, 512, 512), 9, FULL, 10, (255, 255, 255)),
        ((65535, 32768, 32768), 1, FULL, 16, (255, 255, 255)),
        ((235,), 2, LIMITED, 8, (255, 255, 255)),
        ((235,), 2, FULL, 8, (235, 235, 235)),
        ((16,), 2, UNSPECIFIED, 8, (16, 16, 16)),
        ((16, 128, 128), 1, UNSPECIFIED, 8, (0, 0, 0)),
        # YCgCo: Y = (R + 2 G + B) / 4, Cg = (2 G - R - B) / 4, Co = (R - B) / 2
        ((64, 64, 255), 8, FULL, 8, (255, 1, 0)),
        ((128, 255, 128), 8, FULL, 8, (1, 255, 1)),
        # the identity matrix in a stream of 4:4:4: G, B, R
        ((10, 20, 30), 0, FULL, 8, (30, 10, 20)),
    ],
)
def test_known_colours(codes: tuple[int, ...], matrix: int, range_: ColourRange, depth: int, rgb: tuple[int, ...]) -> None:
    # The codes are rounded, so that a unit of the largest coefficient may be missing.
    np.testing.assert_allclose(shown(one_colour(codes, bit_depth=depth, colour=Colour(matrix=matrix, range=range_))), rgb, atol=2)


@pytest.mark.parametrize(("range_", "expected"), [(UNSPECIFIED, 200), (FULL, 200), (LIMITED, 214)])
def test_rgb_is_full_unless_it_says_otherwise(range_: ColourRange, expected: int) -> None:
    picture = one_colour((200, 200, 200), chroma_format="rgb", colour=Colour(range=range_))
    assert shown(picture) == [expected] * 3


@pytest.mark.parametrize(
    ("size", "colour", "code"),
    [
        ((720, 576), Colour(), 6),
        ((1279, 576), Colour(), 6),
        ((1280, 576), Colour(), 1),
        ((720, 577), Colour(), 1),
        ((3840, 2160), Colour(), 1),
        ((640, 360), Colour(matrix=1), 1),
        ((1920, 1080), Colour(matrix=5), 5),
        ((640, 360), Colour(primaries=9), 9),
        ((1920, 1080), Colour(transfer=16), 9),
        ((640, 360), Colour(transfer=18), 9),
        ((640, 360), Colour(matrix=3), 6),  # reserved
        ((640, 360), Colour(matrix=14), 6),  # ICtCp, not implemented
        ((640, 360), Colour(matrix=13), 12),
    ],
)
def test_matrix_of_a_stream(size: tuple[int, int], colour: Colour, code: int) -> None:
    width, height = size
    assert colours.effective_matrix(colour, width=width, height=height, subsampled=True) == code


def test_identity_cannot_be_subsampled() -> None:
    assert colours.effective_matrix(Colour(matrix=0), width=640, height=360, subsampled=True) == colours.BT601
    assert colours.effective_matrix(Colour(matrix=0), width=640, height=360, subsampled=False) == 0


def test_the_guess_shows() -> None:
    """The same codes are another red in standard and in high definition."""
    small, large = (shown(one_colour((81, 90, 240), size)) for size in ((720, 576), (1280, 720)))
    np.testing.assert_allclose(small, (255, 0, 0), atol=2)
    assert large[1] > small[1] + 10 or large[0] < 250


@pytest.mark.parametrize(
    ("matrix", "kind", "known"), [(14, "420", False), (11, "444", False), (17, "444", False), (14, "400", True)]
)
def test_matrices_that_are_not_implemented_are_told(matrix: int, kind: str, known: bool) -> None:
    picture = one_colour((100,) * (1 if kind == "400" else 3), chroma_format=kind, colour=Colour(9, 16, matrix))
    assert colours.matrix_known(picture) is known
    assert Preprocessor().render(picture, Geometry(((2, 2),), Fit.STRETCH)).tone_mapped is known


def test_luma_weights_follow_from_primaries() -> None:
    """H.273, MatrixCoefficients 12; BT.709's and BT.2020's own weights are their primaries', rounded."""
    np.testing.assert_allclose(colours.luma_weights(12, 1), (0.2126, 0.0722), atol=1e-4)
    np.testing.assert_allclose(colours.luma_weights(12, 9), (0.2627, 0.0593), atol=1e-4)


def test_bt2020_to_bt709_is_the_published_matrix() -> None:
    """BT.2407, rounded there to four digits."""
    matrix = np.linalg.solve(colours.rgb_to_xyz(1), colours.rgb_to_xyz(9))
    published = [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
    np.testing.assert_allclose(matrix, published, atol=1e-4)


@pytest.mark.parametrize("shift", [(1, 1), (1, 0), (0, 1), (2, 0), (2, 2), (0, 0)])
@pytest.mark.parametrize("location", [None, 0, 1, 2, 3, 4, 5, 6, -1])
def test_siting(location: int | None, shift: tuple[int, int]) -> None:
    assert colours.chroma_siting(location, shift) == reference.first_chroma_sample(location, shift)


def test_siting_of_420_in_numbers() -> None:
    """In luma samples from the first one: H.273 figure 1."""
    expected = {None: (0, 0.5), 0: (0, 0.5), 1: (0.5, 0.5), 2: (0, 0), 3: (0.5, 0), 4: (0, 1), 5: (0.5, 1)}
    assert {location: colours.chroma_siting(location, (1, 1)) for location in expected} == expected
