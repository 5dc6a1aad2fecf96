"""From decoded pictures on a GPU to a model's tensor on it: the CUDA form of `models.preprocess`.

One kernel launch does a whole batch, whatever mix of sizes, formats, matrices, ranges, sitings, orientations and transfers its
pictures have. Geometry (`models.preprocess.layout`, `spans`) and colour (`models.colour`) are decided by the same functions as on
the CPU; the kernel, `kernels/preprocess.cu`, does the arithmetic in float32 from the filter's formula, without tables.

Pixels never pass through host memory: what is copied to the GPU for a batch is under 300 bytes a picture. Nothing is allocated
after the constructor. CuPy is imported by the constructor, not by the module.
"""

from __future__ import annotations

import importlib
import math
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoder_pool.cuda_calls import CudaCalls, cuda_calls
from decoder_pool.picture import Picture
from models import colour as colours
from models import tonemap
from models.preprocess import CanvasLayout, layout, spans
from models.resample import Span
from models.spec import ColourOrder, Filter, InputSpec, Layout, Placement

KERNEL = Path(__file__).parent / "kernels" / "preprocess.cu"

_SIDE = np.dtype(
    [
        ("step", np.float64),
        ("siting", np.float64),
        ("luma", np.int32),
        ("chroma", np.int32),
        ("factor", np.int32),
        ("size", np.int32),
        ("reverse", np.int32),
        ("skipped", np.int32),
        ("begin", np.int32),
        ("end", np.int32),
    ],
    align=True,
)
_SHAPE = np.dtype(
    [
        ("across", _SIDE),
        ("down", _SIDE),
        ("matrix", np.float32, 9),
        ("offset", np.float32, 3),
        ("to_bt709", np.float32, 9),
        ("luminance", np.float32, 3),
        ("planes", np.int32),
        ("bytes", np.int32),
        ("swaps_sides", np.int32),
        ("transfer", np.int32),
    ],
    align=True,
)
#: Addresses of three planes, the distance of their rows, the distance of samples in luma and in chroma: `Planes` of the kernel.
_PLANES = struct.Struct("8q")

_FILTERS = {Filter.BOX: 0, Filter.BILINEAR: 1, Filter.BICUBIC: 2}
_OUTPUTS = {"float32": 0, "float16": 1, "uint8": 2, "int8": 3}
_TILE = (32, 8)  # across and down the coded picture
_SAMPLES = (np.dtype(np.uint8), np.dtype(np.uint16))


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one picture: its place on the canvas, and `tone_mapped` as in `models.preprocess.Rendered`."""

    placement: Placement
    tone_mapped: bool | None


class _Key(tuple[object, ...]):
    """What a picture's plan hangs on; its hash is worked out once."""

    def __hash__(self) -> int:
        return self._hash

    def hashed(self) -> _Key:
        """Itself."""
        self._hash = super().__hash__()
        return self


@dataclass(frozen=True, slots=True)
class Located:
    """A picture on the GPU, found and checked: what several models' preprocessing of it shares."""

    picture: Picture
    planes: bytes  # the kernel's `Planes`
    key: _Key


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that depends on a picture's description alone: its canvas, its `Shape` for the kernel, what the caller is told."""

    canvas: tuple[int, int]
    shape: bytes
    prepared: Prepared


class CudaPreprocessor:
    """Renders batches for one model's input; to be used by one thread.

    `largest_batch`: most pictures of a batch. `dtype`: float32, float16, uint8 or int8; empty: the normalisation's. `cache_size`:
    how many descriptions of pictures keep their plan. `in_flight`: batches whose descriptions may be on their way to the GPU at a
    time; one more waits for the oldest. The current CUDA device is used.
    """

    def __init__(
        self, inputs: InputSpec, *, largest_batch: int, dtype: str = "", cache_size: int = 1024, in_flight: int = 4
    ) -> None:
        self.inputs = inputs
        self.largest_batch = largest_batch
        self.dtype = np.dtype(dtype or inputs.normalisation.dtype)
        if self.dtype.name not in _OUTPUTS:
            raise ValueError(f"a tensor of {self.dtype.name} cannot be made on the GPU, only of {', '.join(_OUTPUTS)}")
        if min(largest_batch, cache_size, in_flight) < 1:
            raise ValueError(f"largest_batch {largest_batch}, cache_size {cache_size}, in_flight {in_flight}: each is at least 1")
        self._cache_size = cache_size
        self._plans: OrderedDict[_Key, _Plan] = OrderedDict()
        self._cupy = importlib.import_module("cupy")
        self._calls = cuda_calls(self._cupy)
        self._kernels = {canvas: self._kernel(canvas) for canvas in inputs.geometry.canvases}
        self._uploads = [_Upload(self._cupy, self._calls, largest_batch) for _ in range(in_flight)]
        self.launches = 0
        #: The event behind the last batch's last use of its pictures; used again `in_flight` batches later.
        self.sent: Any = None

    def __repr__(self) -> str:
        return f"<CudaPreprocessor {self.inputs.name} {self.dtype.name} {len(self._plans)} of {self._cache_size} plans>"

    def _kernel(self, canvas: tuple[int, int]) -> Any:
        code = source(self.inputs, canvas, self.dtype.name)
        kernel = self._cupy.RawModule(code=code, options=("--std=c++17",)).get_function("preprocess")
        kernel.compile()
        return kernel

    def canvas(self, picture: Picture | Located) -> tuple[int, int]:
        """(height, width) of the canvas that this picture takes; a batch is of one canvas."""
        return self._plan(picture if isinstance(picture, Located) else locate(picture)).canvas

    def render(self, pictures: Sequence[Picture | Located], tensor: Any, stream: Any) -> tuple[Prepared, ...]:
        """Enqueues on `stream` (CuPy's) what fills the first rows of `tensor`, one a picture; the other rows stay as they are.

        The pictures' planes must be ready on that stream, and stay as they are until the work is done. `tensor` is
        [N, 3, height, width] or [N, height, width, 3] as the layout says, contiguous, of this preprocessor's dtype, on the GPU.
        Where several models see a picture, `locate` it once. Raises ValueError for pictures of several canvases, planes that lie
        in host memory or do not fit their description, and a tensor of another shape or type; nothing is enqueued then.
        """
        if not 0 < len(pictures) <= self.largest_batch:
            raise ValueError(f"a batch of {len(pictures)} pictures: 1 to {self.largest_batch} are allowed")
        located = [picture if isinstance(picture, Located) else locate(picture) for picture in pictures]
        plans = [self._plan(each) for each in located]
        canvas = plans[0].canvas
        if any(plan.canvas != canvas for plan in plans):
            raise ValueError(f"a batch has pictures of the canvases {sorted({plan.canvas for plan in plans})}: one is allowed")
        address = self._address(tensor, len(pictures), canvas)
        upload = self._uploads[self.launches % len(self._uploads)]
        with stream:
            planes_at, shapes_at = upload.send([each.planes for each in located], [plan.shape for plan in plans], stream)
            self._kernels[canvas]((_tiles(canvas), len(pictures)), (_TILE[0] * _TILE[1],), (shapes_at, planes_at, address))
            self._calls.record(upload.sent, stream)
        self.launches += 1
        self.sent = upload.sent
        return tuple([plan.prepared for plan in plans])

    def _address(self, tensor: Any, rows: int, canvas: tuple[int, int]) -> np.uint64:
        height, width = canvas
        frame = (3, height, width) if self.inputs.normalisation.layout is Layout.NCHW else (height, width, 3)
        facts = _device_facts(tensor, "the tensor")
        shape = tuple(facts["shape"])
        if shape[1:] != frame or shape[0] < rows or np.dtype(facts["typestr"]) != self.dtype or facts.get("strides"):
            raise ValueError(
                f"the tensor is {np.dtype(facts['typestr'])} of shape {shape}, strides {facts.get('strides')}; "
                f"a contiguous one of {self.dtype} and shape ({rows} or more, {', '.join(map(str, frame))}) is needed"
            )
        return np.uint64(facts["data"][0])

    def _plan(self, located: Located) -> _Plan:
        plan = self._plans.get(located.key)
        if plan is None:
            plan = self._plans[located.key] = self._new_plan(located.picture)
            if len(self._plans) > self._cache_size:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(located.key)
        return plan

    def _new_plan(self, picture: Picture) -> _Plan:
        placed = layout(self.inputs.geometry, *picture.shown_size)
        tone_mapped = colours.matrix_known(picture) if colours.is_hdr(picture.colour) else None
        placement = Placement(float(placed.left), float(placed.top), float(placed.width), float(placed.height))
        shape = shape_of(picture, placed, tone_map=bool(tone_mapped))
        return _Plan((placed.canvas_height, placed.canvas_width), shape.tobytes(), Prepared(placement, tone_mapped))


class _Upload:
    """Room for the descriptions of one batch, in pinned memory and on the GPU."""

    def __init__(self, cupy: Any, calls: CudaCalls, largest_batch: int) -> None:
        self._calls = calls
        size = largest_batch * (_PLANES.size + _SHAPE.itemsize)
        self._pinned = cupy.cuda.alloc_pinned_memory(size)
        self._host = memoryview(self._pinned).cast("B")
        self._address = int(self._pinned.ptr)
        self._device = cupy.empty(size, np.uint8)
        self._used = False
        self.sent = cupy.cuda.Event(disable_timing=True)

    def send(self, planes: Sequence[bytes], shapes: Sequence[bytes], stream: Any) -> tuple[np.uint64, np.uint64]:
        """Enqueues the copy; gives the addresses of planes and shapes on the GPU. Waits until the memory's last use is over."""
        if self._used:
            self._calls.finish(self.sent)
        self._used = True
        content = b"".join([*planes, *shapes])
        self._host[: len(content)] = content
        self._calls.copy(self._device.data.ptr, self._address, len(content), stream)
        return np.uint64(self._device.data.ptr), np.uint64(self._device.data.ptr + len(planes) * _PLANES.size)


def source(inputs: InputSpec, canvas: tuple[int, int], dtype: str) -> str:
    """The kernel's CUDA C++ for one canvas of a model's input: the constants, then `KERNEL`."""
    geometry, normalisation = inputs.geometry, inputs.normalisation
    bgr = normalisation.order is ColourOrder.BGR
    pad = geometry.pad[::-1] if bgr else geometry.pad
    normalised = [(value - mean) * scale for value, mean, scale in zip(pad, normalisation.mean, normalisation.scale, strict=True)]
    constants: Mapping[str, object] = {
        "FILTER": _FILTERS[geometry.filter],
        "OUTPUT": _OUTPUTS[dtype],
        "CHANNELS_LAST": int(normalisation.layout is Layout.NHWC),
        "BGR": int(bgr),
        "CANVAS_HEIGHT": canvas[0],
        "CANVAS_WIDTH": canvas[1],
        "MEAN": _floats(normalisation.mean),
        "SCALE": _floats(normalisation.scale),
        "PAD": _floats(normalised),
        **{name: _float(value) for name, value in tonemap_constants().items()},
    }
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + KERNEL.read_text()


def tonemap_constants() -> dict[str, float]:
    """The constants of the tone mapping: ST 2084 section 5, BT.2100 table 5, BT.2390 section 5.4.1 between our two displays."""
    peak = float(tonemap.nits_to_pq(np.array(tonemap.SOURCE_PEAK)))
    largest = float(tonemap.nits_to_pq(np.array(tonemap.SDR_WHITE))) / peak
    return {
        "PQ_M1": 2610 / 16384,
        "PQ_M2": 2523 / 4096 * 128,
        "PQ_C1": 3424 / 4096,
        "PQ_C2": 2413 / 4096 * 32,
        "PQ_C3": 2392 / 4096 * 32,
        "HLG_A": 0.17883277,
        "HLG_B": 0.28466892,
        "HLG_C": 0.55991073,
        "HLG_GAMMA": 1.2,
        "SOURCE_PEAK": tonemap.SOURCE_PEAK,
        "SDR_WHITE": tonemap.SDR_WHITE,
        "EETF_PEAK": peak,
        "EETF_LARGEST": largest,
        "EETF_KNEE": 1.5 * largest - 0.5,
    }


def _float(value: float) -> str:
    return f"({float(np.float32(value)).hex()}f)"


def _floats(values: Sequence[float]) -> str:
    return "{" + ", ".join(_float(value) for value in values) + "}"


def shape_of(picture: Picture, placed: CanvasLayout, *, tone_map: bool) -> npt.NDArray[np.void]:
    """The kernel's `Shape` of a picture placed so: everything but where its planes lie."""
    horizontal, vertical = spans(placed, picture.width, picture.height, picture.orientation)
    siting = colours.chroma_siting(picture.colour.chroma_location, picture.chroma_shift)
    to_rgb = colours.to_rgb(picture)
    shape = np.zeros((), _SHAPE)
    for name, span, shift, first in zip(("across", "down"), (horizontal, vertical), picture.chroma_shift, siting, strict=True):
        shape[name] = _side(span, shift, first)
    matrix = np.zeros((3, 3))
    matrix[:, : to_rgb.matrix.shape[1]] = to_rgb.matrix
    shape["matrix"] = matrix.reshape(-1)
    shape["offset"] = to_rgb.offset
    shape["planes"] = 1 if len(picture.planes) == 1 else 3
    shape["bytes"] = picture.planes[0].dtype.itemsize
    shape["swaps_sides"] = picture.orientation.swaps_sides
    if tone_map:
        code = colours.primaries(picture.colour)
        shape["transfer"] = picture.colour.transfer
        shape["luminance"] = colours.rgb_to_xyz(code)[1]
        shape["to_bt709"] = np.linalg.solve(colours.rgb_to_xyz(colours.BT709), colours.rgb_to_xyz(code)).reshape(-1)
    return shape


def _side(span: Span, shift: int, siting: float) -> tuple[float | int, ...]:
    window = span.window
    return (
        span.source / span.size,
        siting,
        span.source,
        -(-span.source >> shift),
        1 << shift,
        span.size,
        int(span.reverse),
        window.start - span.start,
        window.start,
        window.stop,
    )


def _tiles(canvas: tuple[int, int]) -> int:
    """Blocks for a canvas, whichever way the coded picture lies on it."""
    height, width = canvas
    upright = -(-width // _TILE[0]) * -(-height // _TILE[1])
    turned = -(-height // _TILE[0]) * -(-width // _TILE[1])
    return max(upright, turned)


def _device_facts(array: Any, what: str) -> Mapping[str, Any]:
    try:
        facts: Mapping[str, Any] = array.__cuda_array_interface__
    except AttributeError:
        raise ValueError(f"{what} lies in host memory ({type(array).__name__}): it must be on the GPU") from None
    return facts


def _address_and_strides(plane: Any, number: int) -> tuple[int, tuple[int, ...]]:
    try:
        return plane.data.ptr, plane.strides  # CuPy's, which is quicker than the interface
    except AttributeError:
        facts = _device_facts(plane, f"plane {number}")
    shape, size = facts["shape"], plane.dtype.itemsize
    strides = facts.get("strides") or tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return facts["data"][0], strides


def locate(picture: Picture) -> Located:
    """Finds a picture's planes on the GPU and checks them against its description.

    Raises ValueError for planes that lie in host memory, are smaller than the picture or of another type than uint8 and uint16.
    """
    planes, across, down = picture.planes, *picture.chroma_shift
    if picture.width < 1 or picture.height < 1 or len(planes) not in (1, 2, 3):
        raise ValueError(f"a picture of {picture.width}x{picture.height} in {len(planes)} planes cannot be shown")
    size = (picture.height, picture.width)
    chroma_size = (-(-picture.height >> down), -(-picture.width >> across))
    dtype = planes[0].dtype
    if dtype not in _SAMPLES:
        raise ValueError(f"plane 0 has samples of type {dtype}: uint8 and uint16 are allowed")
    addresses, rows, samples = [0, 0, 0], [0, 0, 0], [0, 0, 0]
    for i, plane in enumerate(planes):
        expected = size if i == 0 else (*chroma_size, 2) if len(planes) == 2 else chroma_size
        shape = plane.shape
        if len(shape) != len(expected) or shape[0] < expected[0] or shape[1] < expected[1] or shape[2:] != expected[2:]:
            raise ValueError(f"plane {i} has shape {shape}, at least {expected} is needed")
        if plane.dtype != dtype:
            raise ValueError(f"plane {i} has samples of type {plane.dtype}, plane 0 of {dtype}")
        addresses[i], strides = _address_and_strides(plane, i)
        rows[i], samples[i] = strides[0], strides[1]
        if len(shape) == 3:
            addresses[2], rows[2], samples[2] = addresses[1] + strides[2], strides[0], strides[1]
    if samples[1] != samples[2]:
        raise ValueError(f"the chroma planes have samples {samples[1]} and {samples[2]} bytes apart: the same in both is needed")
    key = _Key(
        (
            picture.width,
            picture.height,
            len(planes),
            dtype.itemsize,
            picture.bit_depth,
            picture.chroma_format,
            picture.chroma_shift,
            picture.msb_aligned,
            picture.colour,
            picture.orientation,
            picture.sample_aspect,
        )
    ).hashed()
    return Located(picture, _PLANES.pack(*addresses, *rows, samples[0], samples[1]), key)
