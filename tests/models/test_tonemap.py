"""PQ and HLG to SDR: the standards' fixed points, and the tables against the float64 reference."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange
from models import tonemap
from models.preprocess import Preprocessor
from models.spec import Fit, Geometry
from models.tonemap import ToneMapper
from tests.models import reference

MAP = ToneMapper()
PQ, HLG = Colour(9, 16, 9), Colour(9, 18, 9)


def mapped(signal: reference.Array, colour: Colour) -> reference.Array:
    """`signal` (…, 3), 0 to 1, through the product's path; 0 to 255."""
    rgb = np.ascontiguousarray((signal * 255).reshape(-1, 1, 3).transpose(2, 0, 1), np.float32)
    MAP(rgb, colour)
    return rgb.transpose(1, 2, 0).reshape(signal.shape).astype(float)


def greys(*levels: float) -> reference.Array:
    return np.repeat(np.array(levels)[:, None], 3, axis=1)


def test_pq_s_fixed_points() -> None:
    """Signal levels of known light; BT.2408 rounds that of diffuse white to 58 %."""
    nits = tonemap.pq_to_nits(np.array([0.0, 0.508, 0.5807, 0.7518, 1.0]))
    np.testing.assert_allclose(nits, [0, 100, 203, 1000, 10000], rtol=0.005)
    np.testing.assert_allclose(tonemap.nits_to_pq(nits), [7.3e-7, 0.508, 0.5807, 0.7518, 1.0], atol=1e-6)


def test_hlg_s_fixed_points() -> None:
    """BT.2100 table 5 and BT.2408: half the signal is a twelfth of the light; 75 % is 203 nits of a 1000-nit display."""
    scene = tonemap.hlg_to_scene(np.array([0.0, 0.5, 0.75, 1.0]))
    np.testing.assert_allclose(scene, [0, 1 / 12, 0.265, 1], atol=3e-4)
    np.testing.assert_allclose(1000 * scene[2] ** 1.2, 203, atol=1)


def test_eetf() -> None:
    """BT.2390 section 5.4: the identity up to the knee, the target's peak from the source's on, never falling, never brighter."""
    nits = np.geomspace(1e-3, 10000, 2000)
    curve = tonemap.eetf(nits)
    np.testing.assert_allclose(curve[nits < 85], nits[nits < 85], rtol=1e-6)
    np.testing.assert_allclose(curve[nits >= 1000], 203, rtol=1e-6)
    assert (np.diff(curve) >= -1e-9).all()
    assert (curve <= nits * (1 + 1e-9)).all()


@pytest.mark.parametrize("colour", [PQ, HLG, Colour(1, 16, 1), Colour(12, 18, 9), Colour(2, 16, 2)], ids=str)
def test_greys(colour: Colour) -> None:
    steps = mapped(greys(*np.linspace(0, 1, 2001)), colour)
    assert (steps[0] == 0).all(), "black stays black"
    assert np.ptp(steps, axis=1).max() < 0.05, "grey stays grey"
    assert (np.diff(steps[:, 0]) >= -0.02).all(), "brighter is never darker, but for the last digits"
    assert steps[-1].min() > 254.9, "the brightest is white"


@pytest.mark.parametrize(("colour", "diffuse_white", "middle_grey"), [(PQ, 0.58, 0.38), (HLG, 0.75, 0.38)], ids=["pq", "hlg"])
def test_diffuse_white_and_middle_grey_look_as_in_sdr(colour: Colour, diffuse_white: float, middle_grey: float) -> None:
    """BT.2408 table 1: the levels of a 100 % and of an 18 % reflecting card; sRGB has them at 255 and 118."""
    white, grey = mapped(greys(diffuse_white, middle_grey), colour)[:, 0]
    assert 225 <= white <= 250
    assert 100 <= grey <= 130


def test_saturated_light_beyond_bt709_is_cut_not_wrapped() -> None:
    red, green, blue = mapped(np.eye(3), PQ)
    assert red.argmax() == 0
    assert green.argmax() == 1
    assert blue.argmax() == 2
    for colour in (red, green, blue):
        assert colour.max() > 254.9
        assert colour.min() >= 0


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(float, (64, 3), elements=st.floats(0, 1, width=32)),
    st.sampled_from([1, 2, 5, 6, 9, 12]),
    st.sampled_from([16, 18]),
)
def test_tables_are_near_the_reference(signal: reference.Array, primaries: int, transfer: int) -> None:
    colour = Colour(primaries, transfer, 9)
    assert np.abs(mapped(signal, colour) - 255 * reference.sdr(signal, colour)).max() < 0.35


def test_random_light_is_near_the_reference() -> None:
    """Many more colours than hypothesis draws, dark ones above all."""
    random = np.random.default_rng(0)
    signal = np.concatenate([random.random((100_000, 3)), random.random((100_000, 3)) ** 4])
    for colour in (PQ, HLG):
        assert np.abs(mapped(signal, colour) - 255 * reference.sdr(signal, colour)).max() < 0.35


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["hlg10_hevc_1080p.mp4", "hdr10_stream_sdr_container.mp4", "hdr10_av1_720x1280.mp4"])
def test_real_hdr_uses_the_range_of_sdr(corpus: Path, name: str) -> None:
    with av.open(str(corpus / name)) as container:
        frame = next(container.decode(video=0))
    picture = Picture(
        planes=tuple(np.frombuffer(bytes(p), "<u2").reshape(p.height, -1)[:, : p.width] for p in frame.planes),
        width=frame.width,
        height=frame.height,
        bit_depth=10,
        colour=Colour(int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace), ColourRange.LIMITED),
    )
    rendered = Preprocessor().render(picture, Geometry(((144, 256), (256, 144)), Fit.LETTERBOX))
    assert rendered.tone_mapped is True
    assert 40 < rendered.rgb.mean() < 200
    assert np.percentile(rendered.rgb, 99) - np.percentile(rendered.rgb, 1) > 100


def test_sdr_is_not_touched() -> None:
    picture = Picture(planes=(np.full((4, 4), 128, np.uint8),), width=4, height=4, chroma_format="400", chroma_shift=(0, 0))
    assert Preprocessor().render(picture, Geometry(((2, 2),), Fit.STRETCH)).tone_mapped is None
