"""The CUDA kernel's arithmetic and the descriptions it is given, without a GPU: the same source, compiled for the CPU."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder_pool.picture import Picture
from keyglance.video import Colour, Orientation
from models import colour as colours
from models import preprocess_cuda
from models.preprocess import layout
from models.spec import ColourOrder, Filter, Fit, Geometry, InputSpec, Layout, Normalisation
from tests.models import reference
from tests.models.test_preprocess import make_picture, pictures

HEADER = Path(__file__).parent / "emulated_cuda.h"
RUN = """
extern "C" void run(int tiles, int pictures, const void* shapes, const void* planes, void* tensor) {
  for (blockIdx.y = 0; blockIdx.y < pictures; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < tiles; ++blockIdx.x)
      for (int pass = 0; pass < 2; ++pass) {
        before_barrier = pass == 0;
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x)
          preprocess((const Shape*)shapes, (const Planes*)planes, (Number*)tensor);
      }
}
"""

SPECS = {
    "crop": InputSpec(
        "x",
        Geometry(((56, 56),), Fit.CROP, Filter.BILINEAR, short_side=64),
        Normalisation(ColourOrder.BGR, (104.0, 117.0, 123.0), (1.0, 1.0, 1.0), Layout.NHWC),
    ),
    "letterbox": InputSpec(
        "x",
        Geometry(((40, 72), (64, 36), (48, 48)), Fit.LETTERBOX, Filter.BILINEAR, pad=(255.0, 127.5, 3.0)),
        Normalisation(mean=(127.0, 1.0, 2.0), scale=(1 / 128, 0.5, 2.0)),
    ),
    "stretch": InputSpec("x", Geometry(((33, 47),), Fit.STRETCH, Filter.BICUBIC), Normalisation()),
    "box": InputSpec("x", Geometry(((31, 65),), Fit.LETTERBOX, Filter.BOX), Normalisation(ColourOrder.BGR)),
    "uint8": InputSpec("x", Geometry(((27, 48),), Fit.STRETCH, Filter.BILINEAR), Normalisation(dtype="uint8")),
}

Kernel = Callable[[InputSpec, tuple[int, int]], Any]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """Compiles the kernel for one canvas; gives the function `run`."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernel")
    made: dict[tuple[InputSpec, tuple[int, int]], Any] = {}

    def compile_(inputs: InputSpec, canvas: tuple[int, int]) -> Any:
        if (inputs, canvas) not in made:
            code = folder / f"{len(made)}.cpp"
            code.write_text(HEADER.read_text() + preprocess_cuda.source(inputs, canvas, inputs.normalisation.dtype) + RUN)
            command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w", str(code)]
            subprocess.run([*command, "-o", str(code.with_suffix(".so"))], check=True)
            made[inputs, canvas] = ctypes.CDLL(str(code.with_suffix(".so"))).run
        return made[inputs, canvas]

    return compile_


class OnDevice(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array that says of itself what arrays on a GPU say."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3}


def on_device(picture: Picture) -> Picture:
    return dataclasses.replace(picture, planes=tuple(np.asarray(plane).view(OnDevice) for plane in picture.planes))


def rendered(compile_: Kernel, batch: list[Picture], inputs: InputSpec) -> np.ndarray[Any, Any]:
    """What the GPU would make of a batch of pictures that take one canvas."""
    batch = [on_device(picture) for picture in batch]
    placed = [layout(inputs.geometry, *picture.shown_size) for picture in batch]
    canvas = (placed[0].canvas_height, placed[0].canvas_width)
    tone_map = [colours.is_hdr(picture.colour) and colours.matrix_known(picture) for picture in batch]
    shapes = np.stack(
        [preprocess_cuda.shape_of(*each, tone_map=mapped) for *each, mapped in zip(batch, placed, tone_map, strict=True)]
    )
    planes = np.frombuffer(b"".join(preprocess_cuda.locate(picture).planes for picture in batch), np.int64)
    frame = (3, *canvas) if inputs.normalisation.layout is Layout.NCHW else (*canvas, 3)
    dtype = np.dtype(inputs.normalisation.dtype)
    tensor = np.full((len(batch), *frame), 77 if dtype.kind == "u" else np.nan, dtype)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (shapes, planes, tensor)]
    compile_(inputs, canvas)(preprocess_cuda._tiles(canvas), len(batch), *addresses)
    return tensor


def worst(tensor: np.ndarray[Any, Any], picture: Picture, inputs: InputSpec) -> float:
    """The largest distance from the reference, on the scale of 0 to 255."""
    expected = reference.normalise(reference.render(picture, inputs.geometry), inputs.normalisation)
    scale = np.array(inputs.normalisation.scale)
    if inputs.normalisation.layout is Layout.NCHW:
        scale = scale[:, None, None]
    return float((np.abs(tensor.astype(float) - expected) / scale).max())


def test_pictures_that_are_described_alike_have_one_key() -> None:
    rng = np.random.default_rng(3)
    located = [preprocess_cuda.locate(on_device(make_picture(rng, 16, 8, semi_planar=True))) for _ in range(2)]
    other = preprocess_cuda.locate(on_device(make_picture(rng, 16, 8, semi_planar=True, orientation=Orientation(90))))
    assert located[0].key == located[1].key
    assert hash(located[0].key) == hash(located[1].key)
    assert located[0].planes != located[1].planes
    assert other.key not in {each.key for each in located}


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(picture=pictures(), name=st.sampled_from(sorted(SPECS)))
def test_every_pixel_is_near_the_reference(compiled: Kernel, picture: Picture, name: str) -> None:
    inputs = SPECS[name]
    error = worst(rendered(compiled, [picture], inputs)[0], picture, inputs)
    # Design rule 8 allows 1.0. Whole numbers are rounded; PQ's curve is so steep at its end that float32's own rounding shows.
    hdr = colours.is_hdr(picture.colour) and colours.matrix_known(picture)
    assert error < (0.55 if name == "uint8" else 0.05) + (0.2 if hdr else 0.0)


def test_a_batch_may_mix_everything(compiled: Kernel) -> None:
    rng = np.random.default_rng(0)
    batch = [
        make_picture(rng, 320, 180, semi_planar=True),
        make_picture(rng, 180, 320, semi_planar=True, orientation=Orientation(90)),
        make_picture(rng, 257, 131, bit_depth=10, msb_aligned=True, semi_planar=True, colour=Colour(9, 16, 9)),
        make_picture(rng, 99, 57, "444", orientation=Orientation(180, mirrored=True)),
        make_picture(rng, 640, 352, "400"),
        make_picture(rng, 64, 30, "422", bit_depth=12, colour=Colour(9, 18, 9)),
        make_picture(rng, 33, 18, "rgb"),
    ]
    inputs = SPECS["letterbox"]
    tensor = rendered(compiled, batch, inputs)
    assert max(worst(frame, picture, inputs) for frame, picture in zip(tensor, batch, strict=True)) < 0.05


def test_planes_of_padded_rows_are_read_where_they_lie(compiled: Kernel) -> None:
    """Hardware surfaces have a pitch, and rows below the picture."""
    rng = np.random.default_rng(1)
    picture = make_picture(rng, 98, 50, semi_planar=True)
    luma, chroma = (np.zeros((64, 128, *plane.shape[2:]), np.uint8) for plane in picture.planes)
    luma[:50, :98], chroma[:25, :49] = picture.planes
    padded = dataclasses.replace(picture, planes=(luma, chroma))
    np.testing.assert_array_equal(rendered(compiled, [padded], SPECS["crop"]), rendered(compiled, [picture], SPECS["crop"]))


def test_what_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(2)
    picture = make_picture(rng, 16, 8, semi_planar=True)
    with pytest.raises(ValueError, match="host memory"):
        preprocess_cuda.locate(picture)
    small = dataclasses.replace(picture, width=17)
    with pytest.raises(ValueError, match=r"at least \(8, 17\)"):
        preprocess_cuda.locate(on_device(small))
    floats = dataclasses.replace(picture, planes=(picture.planes[0].astype(np.float32), picture.planes[1]))
    with pytest.raises(ValueError, match="float32"):
        preprocess_cuda.locate(on_device(floats))
