"""Preprocessing on the GPU against the float64 reference, and what it must not do: allocate, copy pixels, write other rows."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from decoder_pool.picture import Picture
from keyglance.video import Colour, ColourRange, Orientation
from models.preprocess_cuda import CudaPreprocessor
from models.spec import ColourOrder, Filter, Fit, Geometry, InputSpec, Layout, Normalisation
from tests.gpu.pictures import make_picture, on_gpu
from tests.models import reference

pytestmark = pytest.mark.gpu

CROP = InputSpec(
    "x",
    Geometry(((224, 224),), Fit.CROP, Filter.BILINEAR, short_side=256),
    Normalisation(ColourOrder.BGR, (104.0, 117.0, 123.0), (1.0, 1.0, 1.0), Layout.NHWC),
)
LETTERBOX = InputSpec(
    "x",
    Geometry(((224, 384), (384, 224), (288, 288)), Fit.LETTERBOX, Filter.BILINEAR, pad=(10.0, 20.0, 30.0)),
    Normalisation(mean=(127.5,) * 3, scale=(1 / 127.5,) * 3),
)
BICUBIC = InputSpec("x", Geometry(((200, 300),), Fit.STRETCH, Filter.BICUBIC), Normalisation())
BOX = InputSpec("x", Geometry(((123, 217),), Fit.LETTERBOX, Filter.BOX), Normalisation(ColourOrder.BGR))
ORIENTATIONS = [Orientation(degrees, mirrored) for degrees in (0, 90, 180, 270) for mirrored in (False, True)]


def error(frame: Any, picture: Picture, inputs: InputSpec) -> float:
    """The largest distance from the reference, 0 to 255; 1.0 is allowed by rule 8 of the design."""
    expected = reference.normalise(reference.render(picture, inputs.geometry), inputs.normalisation)
    scale = np.array(inputs.normalisation.scale)
    if inputs.normalisation.layout is Layout.NCHW:
        scale = scale[:, None, None]
    return float((np.abs(frame.astype(np.float64) - expected) / scale).max())


def render(cupy: Any, batch: list[Picture], inputs: InputSpec, dtype: str = "float32") -> Any:
    preprocessor = CudaPreprocessor(inputs, largest_batch=len(batch), dtype=dtype)
    uploaded = [on_gpu(cupy, picture) for picture in batch]
    height, width = preprocessor.canvas(uploaded[0])
    frame = (3, height, width) if inputs.normalisation.layout is Layout.NCHW else (height, width, 3)
    tensor = cupy.full((len(batch), *frame), np.nan, dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    preprocessor.render(uploaded, tensor, stream)
    stream.synchronize()
    return tensor.get()


def mixed(rng: np.random.Generator) -> list[Picture]:
    """Landscape pictures as shown, of everything that a batch may mix."""
    pictures = [
        make_picture(rng, 1280, 720, semi_planar=True),
        make_picture(rng, 721, 405, semi_planar=True, colour=Colour(chroma_location=2)),
        make_picture(rng, 1920, 1080, semi_planar=True, bit_depth=10, msb_aligned=True, colour=Colour(9, 16, 9)),
        make_picture(rng, 640, 360, semi_planar=True, bit_depth=10, msb_aligned=True, colour=Colour(9, 18, 9)),
        make_picture(rng, 640, 362, "444", colour=Colour(matrix=6, range=ColourRange.FULL)),
        make_picture(rng, 640, 362, "444", bit_depth=10, msb_aligned=True),
        make_picture(rng, 350, 200, "400"),
        make_picture(rng, 333, 190, "422"),
        make_picture(rng, 333, 190, "rgb"),
        make_picture(rng, 320, 120, semi_planar=True, sample_aspect=Fraction(3, 4)),
    ]
    for number, orientation in enumerate(ORIENTATIONS):
        width, height = (360, 640) if orientation.swaps_sides else (640, 360)
        pictures.append(make_picture(rng, width + number, height, semi_planar=True, orientation=orientation))
    return pictures


@pytest.mark.parametrize("inputs", [CROP, LETTERBOX, BICUBIC, BOX], ids=["crop", "letterbox", "bicubic", "box"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_mixed_batch_is_near_the_reference(cupy: Any, inputs: InputSpec, dtype: str) -> None:
    batch = mixed(np.random.default_rng(1))
    frames = render(cupy, batch, inputs, dtype)
    errors = [error(frame, picture, inputs) for frame, picture in zip(frames, batch, strict=True)]
    assert max(errors) < (0.05 if dtype == "float32" else 0.2), errors


@pytest.mark.parametrize("size", [(7680, 4320), (3840, 2160), (4096, 2), (2, 2), (1, 1), (17, 16)], ids=str)
def test_extreme_sizes(cupy: Any, size: tuple[int, int]) -> None:
    picture = make_picture(np.random.default_rng(2), *size, semi_planar=True)
    assert error(render(cupy, [picture], CROP)[0], picture, CROP) < 0.05


def test_nothing_is_allocated_and_other_rows_stay(cupy: Any) -> None:
    rng = np.random.default_rng(3)
    batch = [on_gpu(cupy, make_picture(rng, 640, 360, semi_planar=True)) for _ in range(5)]
    preprocessor = CudaPreprocessor(CROP, largest_batch=8)
    tensor = cupy.full((8, 224, 224, 3), 77, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    preprocessor.render(batch, tensor, stream)
    allocated = []

    class Watch(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "watch"

        def alloc_preprocess(self, **facts: Any) -> None:
            allocated.append(facts)

        def malloc_preprocess(self, **facts: Any) -> None:
            allocated.append(facts)

    with Watch():
        for _ in range(20):
            preprocessor.render(batch, tensor, stream)
    stream.synchronize()
    assert allocated == []
    assert (tensor[5:] == 77).all()
    assert not (tensor[:5] == 77).all()
    assert preprocessor.launches == 21


def test_mistakes_are_refused(cupy: Any) -> None:
    rng = np.random.default_rng(4)
    picture = make_picture(rng, 640, 360, semi_planar=True)
    uploaded = on_gpu(cupy, picture)
    stream = cupy.cuda.Stream(non_blocking=True)
    preprocessor = CudaPreprocessor(LETTERBOX, largest_batch=2)
    tensor = cupy.empty((2, 3, 224, 384), "float32")
    with pytest.raises(ValueError, match="host memory"):
        preprocessor.render([picture], tensor, stream)
    with pytest.raises(ValueError, match="canvases"):
        preprocessor.render([uploaded, dataclasses.replace(uploaded, orientation=Orientation(90))], tensor, stream)
    with pytest.raises(ValueError, match="1 to 2"):
        preprocessor.render([uploaded] * 3, tensor, stream)
    with pytest.raises(ValueError, match="float16"):
        preprocessor.render([uploaded], tensor.astype("float16"), stream)
    assert preprocessor.launches == 0
