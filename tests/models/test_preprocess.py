"""The CPU's preprocessing against the float64 reference, and the reference against Pillow and swscale."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import PIL.Image
import pytest
import skimage.data
from av.video.reformatter import Interpolation, VideoReformatter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange, Orientation
from models import preprocess
from models.preprocess import Preprocessor, Rendered, normalise
from models.spec import ColourOrder, Filter, Fit, Geometry, Layout, Normalisation, Placement
from tests.models import reference

SHIFTS = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "440": (0, 1), "411": (2, 0), "410": (2, 2), "rgb": (0, 0)}


def make_picture(
    rng: np.random.Generator, width: int, height: int, chroma_format: str = "420", *, semi_planar: bool = False, **rest: Any
) -> Picture:
    """Noise over all codes of the depth."""
    depth = rest.get("bit_depth", 8)
    across, down = SHIFTS[chroma_format]
    shapes = [(height, width)]
    if chroma_format != "400":
        shapes += [(-(-height >> down), -(-width >> across))] * 2
    planes = [rng.integers(0, 1 << depth, shape).astype(np.uint8 if depth == 8 else np.uint16) for shape in shapes]
    if rest.get("msb_aligned"):
        planes = [plane << (16 - depth) for plane in planes]
    if semi_planar and len(planes) == 3:
        planes = [planes[0], np.stack(planes[1:], axis=-1)]
    return Picture(
        planes=tuple(planes), width=width, height=height, chroma_format=chroma_format, chroma_shift=(across, down), **rest
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
        sample_aspect=draw(
            st.sampled_from([Fraction(1), Fraction(0), Fraction(64, 51), Fraction(7, 8), Fraction(2), Fraction(1, 3)])
        ),
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


def worst(rendered: Rendered, expected: reference.Array) -> float:
    """The largest distance from the reference on the scale of 0 to 255; rule 8 of the design allows 1.0."""
    assert rendered.rgb.shape == expected.shape
    assert rendered.rgb.dtype == np.float32
    return float(np.abs(rendered.rgb - expected).max())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(pictures(), geometries())
def test_every_pixel_is_near_the_reference(picture: Picture, geometry: Geometry) -> None:
    rendered = PREPROCESSOR.render(picture, geometry)
    # float32 alone costs less than a fiftieth of a code, the tables of tone mapping less than a third (dark, saturated HDR).
    assert worst(rendered, reference.render(picture, geometry)) < (0.35 if rendered.tone_mapped else 0.02)
    assert rendered.rgb.min() >= 0
    assert rendered.rgb.max() <= 255


@pytest.mark.parametrize(
    ("width", "height"),
    [(1280, 720), (721, 1279), (7680, 2), (3, 4320), (20000, 1), (1, 1), (2, 2), (16, 8)],
    ids=lambda n: str(n),
)
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(((224, 224),), Fit.CROP, short_side=256),
        Geometry(((288, 512), (512, 288)), Fit.LETTERBOX, Filter.BICUBIC, pad=(10.0, 20.0, 30.0)),
        Geometry(((64, 64),), Fit.STRETCH, Filter.BOX),
    ],
    ids=lambda geometry: geometry.fit.value,
)
def test_pictures_of_real_and_of_odd_sizes(width: int, height: int, geometry: Geometry) -> None:
    picture = make_picture(np.random.default_rng(width), width, height)
    assert worst(Preprocessor().render(picture, geometry), reference.render(picture, geometry)) < 0.02


@pytest.mark.parametrize("samples", [1, 500, 5000])
def test_bands_leave_no_seams(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    monkeypatch.setattr(preprocess, "SAMPLES_AT_A_TIME", samples)
    rng = np.random.default_rng(samples)
    geometry = Geometry(((40, 56),), Fit.LETTERBOX, Filter.BICUBIC)
    for size in ((90, 160), (300, 31)):
        for orientation in (Orientation(), Orientation(90), Orientation(180, True)):
            picture = make_picture(rng, *size, orientation=orientation)
            assert worst(Preprocessor().render(picture, geometry), reference.render(picture, geometry)) < 0.02


# The reference beside others


def photograph() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(skimage.data.astronaut()[:384, :480])


def of_rgb(image: np.ndarray[Any, Any], **rest: Any) -> Picture:
    red, green, blue = np.moveaxis(image, -1, 0)
    height, width = red.shape
    return Picture(planes=(green, blue, red), width=width, height=height, chroma_format="rgb", chroma_shift=(0, 0), **rest)


@pytest.mark.parametrize("filter_", list(Filter))
@pytest.mark.parametrize("short_side", [256, 500])
def test_reference_is_pillow_s_resize_and_crop(filter_: Filter, short_side: int) -> None:
    image = photograph()
    expected = reference.render(of_rgb(image), Geometry(((224, 224),), Fit.CROP, filter_, short_side))
    size = (round(480 * short_side / 384), short_side)
    left, top = (size[0] - 224 + 1) // 2, (short_side - 224 + 1) // 2
    method = PIL.Image.Resampling[filter_.name]

    # Pillow's float mode rounds nothing but its float32 results.
    for channel in range(3):
        plane = np.asarray(PIL.Image.fromarray(image[..., channel].astype(np.float32)).resize(size, method))
        cut = plane[top : top + 224, left : left + 224]
        assert np.abs(np.clip(cut, 0, 255) - expected[..., channel]).max() < 1e-3

    # Its 8-bit mode rounds after each of two passes: half a code each, and what the second makes of the first's half. Bicubic
    # weights add up to 1.25 in magnitude, and overshoots of the first pass are cut off before the second: more, but seldom.
    eight = np.asarray(PIL.Image.fromarray(image).resize(size, method))[top : top + 224, left : left + 224]
    apart = np.abs(eight - expected)
    assert apart.max() < (4.0 if filter_ is Filter.BICUBIC else 1.01)
    assert np.percentile(apart, 99) < 1.3


SWS = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP | Interpolation.BITEXACT


def planes_of(frame: av.VideoFrame) -> tuple[np.ndarray[Any, Any], ...]:
    dtype = np.uint8 if frame.format.components[0].bits == 8 else np.dtype("<u2")
    return tuple(np.frombuffer(bytes(p), dtype).reshape(p.height, -1)[:, : p.width] for p in frame.planes)


def coded(pixels: str, matrix: str = "ITU601", range_: str = "MPEG") -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(photograph()[:192, 100:340]), format="rgb24")
    return frame.reformat(format=pixels, dst_colorspace=matrix, dst_color_range=range_, interpolation=Interpolation.BICUBIC | SWS)


def swscaled(frame: av.VideoFrame, width: int, height: int, matrix: str = "ITU601", range_: str = "MPEG") -> np.ndarray[Any, Any]:
    return (
        VideoReformatter()
        .reformat(
            frame,
            width=width,
            height=height,
            format="rgb24",
            src_colorspace=matrix,
            dst_colorspace=matrix,
            src_color_range=range_,
            dst_color_range="JPEG",
            interpolation=Interpolation.BILINEAR | SWS,
            threads=1,
        )
        .to_ndarray()
    )


def assert_swscale_agrees(frame: av.VideoFrame, picture: Picture, matrix: str = "ITU601", range_: str = "MPEG") -> None:
    """Reduced: within swscale's own rounding to 8 bit, 0.5, and what its weights of 14 bits cost. Enlarged, its second pass has
    12 bits and rounds once more: 1.0. No systematic difference in either.

    Bilinear only: swscale's bicubic is another one (Keys with a = -0.6; Pillow's is -0.5). The outermost 8 pixels are left out:
    beyond the edge swscale repeats the last sample, Pillow and the reference share its weight among the others.
    """
    for width, height, most in ((240, 192, 0.6), (120, 96, 0.6), (160, 128, 0.6), (300, 240, 1.0)):
        expected = reference.render(picture, Geometry(((height, width),), Fit.STRETCH, Filter.BILINEAR))
        apart = (swscaled(frame, width, height, matrix, range_) - expected)[8:-8, 8:-8]
        assert np.abs(apart).max() < most, (width, height)
        assert abs(apart.mean()) < 0.03, (width, height)


@pytest.mark.parametrize(
    ("pixels", "depth", "matrix", "code", "range_"),
    [
        ("yuv444p", 8, "ITU601", 6, "MPEG"),
        ("yuv444p", 8, "ITU709", 1, "JPEG"),
        ("yuv422p", 8, "ITU709", 1, "MPEG"),
        ("yuv420p", 8, "ITU601", 5, "JPEG"),
        ("yuv420p", 8, "ITU709", 1, "MPEG"),
        ("yuv420p", 8, "FCC", 4, "MPEG"),
        ("yuv420p", 8, "SMPTE240M", 7, "MPEG"),
        ("yuv420p", 8, "BT2020", 9, "MPEG"),
        ("yuv440p", 8, "ITU601", 6, "JPEG"),
        ("yuv411p", 8, "ITU601", 6, "MPEG"),
        ("yuv410p", 8, "ITU601", 6, "MPEG"),
        ("gray", 8, "ITU601", 6, "JPEG"),
        # Full range beyond 8 bit is left out: swscale drops the low bits' share there (1023 is 255.75 to it), H.273 does not; and
        # so is limited grey, which swscale takes for full.
        ("yuv420p10le", 10, "BT2020", 9, "MPEG"),
        ("yuv422p12le", 12, "ITU709", 1, "MPEG"),
        ("yuv444p16le", 16, "ITU709", 1, "MPEG"),
    ],
)
def test_reference_is_swscale_s_conversion(pixels: str, depth: int, matrix: str, code: int, range_: str) -> None:
    frame = coded(pixels, matrix, range_)
    chroma_format = "400" if pixels == "gray" else pixels[3:6]
    picture = Picture(
        planes=planes_of(frame),
        width=240,
        height=192,
        bit_depth=depth,
        chroma_format=chroma_format,
        chroma_shift=SHIFTS[chroma_format],
        # A frame that says nothing is centred for swscale; what the streams say is the next test's.
        colour=Colour(matrix=code, range=ColourRange.FULL if range_ == "JPEG" else ColourRange.LIMITED, chroma_location=1),
    )
    assert_swscale_agrees(frame, picture, matrix, range_)


@pytest.mark.parametrize(
    ("encoder", "pixels", "options", "location"),
    [
        ("libx264", "yuv420p", {}, None),
        ("libx264", "yuv420p", {"chroma_sample_location": "left"}, 0),
        ("libx264", "yuv420p", {"chroma_sample_location": "center"}, 1),
        ("libx264", "yuv420p", {"chroma_sample_location": "topleft"}, 2),
        ("libx264", "yuv420p", {"chroma_sample_location": "top"}, 3),
        ("libx264", "yuv420p", {"chroma_sample_location": "bottomleft"}, 4),
        ("libx264", "yuv420p", {"chroma_sample_location": "bottom"}, 5),
        ("libx264", "yuv422p", {}, None),
        ("mpeg2video", "yuv420p", {}, None),
        ("mpeg4", "yuv420p", {}, None),
        ("mpeg1video", "yuv420p", {}, 1),
        ("mjpeg", "yuvj420p", {}, 1),
    ],
)
def test_chroma_siting_is_the_one_of_decoded_streams(
    encoder: str, pixels: str, options: dict[str, str], location: int | None
) -> None:
    """FFmpeg's decoders tell swscale where the chroma of their format lies."""
    range_ = "JPEG" if pixels.startswith("yuvj") else "MPEG"
    encode = av.CodecContext.create(encoder, "w")
    assert isinstance(encode, av.VideoCodecContext)
    encode.width, encode.height, encode.pix_fmt = 240, 192, pixels
    encode.time_base, encode.framerate, encode.options = Fraction(1, 25), Fraction(25), options
    frame = coded(pixels, range_=range_)
    frame.pts = 0
    packets = [*encode.encode(frame), *encode.encode(None)]
    decode = av.CodecContext.create({"libx264": "h264"}.get(encoder, encoder), "r")
    assert isinstance(decode, av.VideoCodecContext)
    decoded = next(frame for packet in [*packets, None] for frame in decode.decode(packet))
    colour = Colour(matrix=6, range=ColourRange.FULL if range_ == "JPEG" else ColourRange.LIMITED, chroma_location=location)
    picture = Picture(
        planes=planes_of(decoded), width=240, height=192, chroma_shift=SHIFTS["422" if "422" in pixels else "420"], colour=colour
    )
    assert_swscale_agrees(decoded, picture, range_=range_)


# Orientation and placement


def test_turns_are_clockwise_and_mirroring_comes_first() -> None:
    image = np.zeros((2, 3, 3), np.uint8)
    image[0, 0] = (255, 0, 0)  # red top left
    image[0, 2] = (0, 255, 0)  # green top right
    red, green = (255.0, 0.0, 0.0), (0.0, 255.0, 0.0)

    def shown(degrees: int, mirrored: bool) -> dict[tuple[int, int], tuple[float, ...]]:
        picture = of_rgb(image, orientation=Orientation(degrees, mirrored))
        width, height = picture.shown_size
        canvas = Preprocessor().render(picture, Geometry(((height, width),), Fit.STRETCH)).rgb
        return {(y, x): tuple(canvas[y, x].tolist()) for y in range(height) for x in range(width) if canvas[y, x].any()}

    assert shown(0, False) == {(0, 0): red, (0, 2): green}
    assert shown(90, False) == {(0, 1): red, (2, 1): green}  # the left side becomes the top
    assert shown(180, False) == {(1, 2): red, (1, 0): green}
    assert shown(270, False) == {(2, 0): red, (0, 0): green}
    assert shown(0, True) == {(0, 2): red, (0, 0): green}
    assert shown(90, True) == {(2, 1): red, (0, 1): green}


@pytest.mark.corpus
def test_phone_clips_are_upright(corpus: Path) -> None:
    """Three recordings of one keyboard, held at 0, 90 and 270 degrees: a key of the first is found best in the upright others."""

    def grey(name: str, further: int = 0) -> np.ndarray[Any, Any]:
        with av.open(str(corpus / name)) as container:
            frame = next(container.decode(video=0))
        picture = Picture(
            planes=planes_of(frame),
            width=frame.width,
            height=frame.height,
            colour=Colour(1, 1, 1),
            orientation=Orientation((-int(frame.rotation) + further) % 360),  # PyAV counts counter-clockwise
        )
        return PREPROCESSOR.render(picture, Geometry(((320, 568), (568, 320)), Fit.LETTERBOX)).rgb.mean(axis=2)

    key = grey("decord_rot0.mov")[225:315, 420:525]
    for name in ("decord_rot90.mov", "decord_rot270.mov"):
        likeness = {}
        for further in (0, 90, 180, 270):
            picture = grey(name, further)
            scaled = [cv2.resize(key, None, fx=s, fy=s) for s in np.arange(0.7, 1.5, 0.1)]
            likeness[further] = max(float(cv2.matchTemplate(picture, k, cv2.TM_CCOEFF_NORMED).max()) for k in scaled)
        assert max(likeness, key=lambda turn: likeness[turn]) == 0, (name, likeness)


@pytest.mark.parametrize(
    ("size", "aspect", "degrees", "geometry", "placement"),
    [
        ((1280, 720), 1, 0, Geometry(((224, 224),), Fit.CROP, short_side=256), Placement(-116, -16, 455, 256)),
        ((1280, 720), 1, 90, Geometry(((224, 224),), Fit.CROP, short_side=256), Placement(-16, -116, 256, 455)),
        ((1280, 720), 1, 0, Geometry(((224, 224),), Fit.CROP), Placement(-87, 0, 398, 224)),
        ((1280, 720), 1, 0, Geometry(((288, 512), (512, 288)), Fit.LETTERBOX), Placement(0, 0, 512, 288)),
        ((1280, 720), 1, 90, Geometry(((288, 512), (512, 288)), Fit.LETTERBOX), Placement(0, 0, 288, 512)),
        ((1280, 720), 1, 0, Geometry(((320, 320),), Fit.LETTERBOX), Placement(0, 70, 320, 180)),
        ((720, 576), Fraction(64, 45), 0, Geometry(((512, 512),), Fit.LETTERBOX), Placement(0, 112, 512, 288)),
        ((720, 480), Fraction(1, 2), 0, Geometry(((480, 480),), Fit.LETTERBOX), Placement(60, 0, 360, 480)),
        ((100, 50), 1, 0, Geometry(((224, 224),), Fit.CROP, short_side=100), Placement(12, 62, 200, 100)),
        ((100, 50), 1, 0, Geometry(((7, 9),), Fit.STRETCH), Placement(0, 0, 9, 7)),
        ((4000, 1), 1, 0, Geometry(((64, 64),), Fit.LETTERBOX), Placement(0, 31, 64, 1)),
    ],
)
def test_placement(size: tuple[int, int], aspect: Fraction | int, degrees: int, geometry: Geometry, placement: Placement) -> None:
    picture = make_picture(np.random.default_rng(0), *size, sample_aspect=Fraction(aspect), orientation=Orientation(degrees))
    rendered = PREPROCESSOR.render(picture, geometry)
    assert rendered.placement == placement
    assert rendered.rgb.shape[:2] in geometry.canvases


def test_what_lies_around_the_picture_is_the_pad_colour() -> None:
    white = of_rgb(np.full((10, 20, 3), 255, np.uint8))
    rgb = PREPROCESSOR.render(white, Geometry(((20, 20),), Fit.LETTERBOX, pad=(1.0, 2.5, 3.0))).rgb
    assert (rgb[5:15] == 255).all()
    assert (rgb[[*range(5), *range(15, 20)]] == (1.0, 2.5, 3.0)).all()


@pytest.mark.parametrize("aspect", [Fraction(2**31 - 1), Fraction(1, 2**31 - 1)], ids=["flat", "tall"])
@pytest.mark.parametrize("fit", list(Fit))
def test_absurd_sample_aspects_cost_nothing(aspect: Fraction, fit: Fit) -> None:
    """They come from the bitstream: the picture shrinks to a line or is cut to a few samples, as a player would show it."""
    picture = make_picture(np.random.default_rng(0), 64, 48, sample_aspect=aspect)
    geometry = Geometry(((32, 32),), fit, short_side=40)
    assert worst(PREPROCESSOR.render(picture, geometry), reference.render(picture, geometry)) < 0.02


def test_semi_planar_and_high_bits_are_the_same_picture() -> None:
    """NV12 is 4:2:0, P010 is its 10-bit form with the value in the high bits."""
    geometry = Geometry(((60, 60),), Fit.LETTERBOX)
    for depth in (8, 10):
        planar = make_picture(np.random.default_rng(depth), 97, 55, bit_depth=depth)
        y, u, v = (plane << (16 - depth if depth > 8 else 0) for plane in planar.planes)
        hardware = dataclasses.replace(planar, planes=(y, np.stack([u, v], axis=-1)), msb_aligned=depth > 8)
        np.testing.assert_allclose(
            PREPROCESSOR.render(hardware, geometry).rgb, PREPROCESSOR.render(planar, geometry).rgb, atol=1e-3
        )


def test_planes_wider_than_the_picture_are_cut() -> None:
    picture = make_picture(np.random.default_rng(0), 31, 17)
    padded = tuple(np.pad(plane, ((0, 3), (0, 13)), constant_values=255) for plane in picture.planes)
    geometry = Geometry(((30, 30),), Fit.STRETCH)
    expected = PREPROCESSOR.render(picture, geometry).rgb
    np.testing.assert_array_equal(PREPROCESSOR.render(dataclasses.replace(picture, planes=padded), geometry).rgb, expected)


def test_planes_that_do_not_fit_are_refused() -> None:
    picture = make_picture(np.random.default_rng(0), 32, 16)
    geometry = Geometry(((8, 8),), Fit.STRETCH)
    y, u, v = picture.planes
    with pytest.raises(ValueError, match=r"plane 1 has shape \(7, 16\), at least \(8, 16\)"):
        PREPROCESSOR.render(dataclasses.replace(picture, planes=(y, u[:-1], v)), geometry)
    with pytest.raises(ValueError, match="32x16 in 0 planes"):
        PREPROCESSOR.render(dataclasses.replace(picture, planes=()), geometry)
    with pytest.raises(ValueError, match="0x16"):
        PREPROCESSOR.render(dataclasses.replace(picture, width=0), geometry)


# The object


def test_threads_share_a_preprocessor() -> None:
    preprocessor = Preprocessor(cache_size=2)  # smaller than what is asked for, so that plans come and go
    pictures_ = [make_picture(np.random.default_rng(n), 320 + n, 180) for n in range(4)]
    geometries_ = [Geometry(((64, 64),), Fit.CROP, short_side=70), Geometry(((90, 90),), Fit.LETTERBOX)]
    work = [(picture, geometry) for picture in pictures_ for geometry in geometries_] * 8
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda pair: preprocessor.render(*pair).rgb, work))
    for (picture, geometry), rgb in zip(work, together, strict=True):
        np.testing.assert_array_equal(rgb, Preprocessor().render(picture, geometry).rgb)
    assert repr(preprocessor) == "<Preprocessor 2 of 2 plans>"


def test_cache_needs_room() -> None:
    with pytest.raises(ValueError, match="cache_size is 0"):
        Preprocessor(cache_size=0)


# Normalisation


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("order", list(ColourOrder))
@pytest.mark.parametrize("scale", [(1.0, 1.0, 1.0), (1 / 58.4, 1 / 57.1, 1 / 57.4)])
def test_normalisation(layout: Layout, order: ColourOrder, scale: tuple[float, float, float]) -> None:
    picture = make_picture(np.random.default_rng(3), 64, 48)
    rendered = PREPROCESSOR.render(picture, Geometry(((32, 40),), Fit.LETTERBOX))
    before = rendered.rgb.copy()
    normalisation = Normalisation(order, (104.0, 117.0, 123.0), scale, layout)
    tensor = normalise(rendered, normalisation)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    assert tensor.shape == ((3, 32, 40) if layout is Layout.NCHW else (32, 40, 3))
    np.testing.assert_allclose(tensor, reference.normalise(rendered.rgb.astype(float), normalisation), atol=2e-5 * max(scale))
    np.testing.assert_array_equal(rendered.rgb, before)  # models of equal geometry share it


def test_normalisation_to_other_types() -> None:
    rendered = Rendered(np.array([[[0.4, 127.6, 300.0]]], np.float32), Placement(0, 0, 1, 1))
    assert normalise(rendered, Normalisation(dtype="uint8")).ravel().tolist() == [0, 128, 255]
    assert normalise(rendered, Normalisation(dtype="float16", mean=(0.4, 0.0, 0.0))).dtype == np.float16
    assert normalise(rendered, Normalisation(dtype="int8", mean=(128.0,) * 3)).ravel().tolist() == [-128, 0, 127]
