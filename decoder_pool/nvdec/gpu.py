"""One GPU and its libraries: CuPy for memory and streams, PyNvVideoCodec for the decoders. Imported when a GPU is opened.

Both are typed as `Any`: they are there only where a GPU is.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from decoder_pool.cuda_calls import CudaCalls, cuda_calls
from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import Slot
from decoder_pool.nvdec.intake import Intake, Ready
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.nvdec.stream import Bounds, Sequence
from decoder_pool.nvdec.surface import Surface
from decoder_pool.nvdec.warm import warm_clips

#: PyNvVideoCodec's names of codecs (`cudaVideoCodec`), by FFmpeg's.
CODECS = {
    "av1": "AV1",
    "h264": "H264",
    "hevc": "HEVC",
    "mpeg1video": "MPEG1",
    "mpeg2video": "MPEG2",
    "mpeg4": "MPEG4",
    "vp8": "VP8",
    "vp9": "VP9",
}
#: Names of the surfaces (`Pixel_Format`) that `Surface` describes, by chroma format and bytes of a sample.
_FORMATS = {("420", 1): "NV12", ("420", 2): "P016", ("444", 1): "YUV444", ("444", 2): "YUV444_16Bit"}
_END_OF_STREAM, _END_OF_PICTURE = 1, 8  # CUVID_PKT_ENDOFSTREAM, CUVID_PKT_ENDOFPICTURE
#: What the library prints for a picture whose decoding status is an error, concealed or not (`cuvidGetDecodeStatus`).
_DAMAGE = "Decode Error occurred"
#: What calls get while somebody else in the process captures a CUDA graph (CUDA Runtime API, cudaError, cudaErrorStreamCapture…).
_CAPTURE = range(900, 909)
#: Of the decoders' streams; lower goes first, the driver clamps it (CUDA Driver API, cuStreamCreateWithPriority). What a picture
#: costs the GPU's processors, out of the decoder's tiles and into place, takes microseconds. Behind the blocks of a batch of 48
#: pictures it waits for milliseconds, and a decoder with it.
STREAM_PRIORITY = -5


class GpuUnusable(Exception):
    """There is no GPU that decodes here; the message says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An opened GPU: `codec` is the module PyNvVideoCodec, `cupy` is CuPy, `context` the address of the primary context."""

    device: int
    codec: Any
    cupy: Any
    context: int

    @classmethod
    def open(cls, device: int) -> Gpu:
        """Loads the libraries and takes the device's primary context. Raises GpuUnusable."""
        try:
            cupy = importlib.import_module("cupy")
            cupy.cuda.Device(device).use()
            cupy.cuda.runtime.free(0)  # makes the context
            context = int(cupy.cuda.driver.ctxGetCurrent())
            codec = importlib.import_module("PyNvVideoCodec")
        except Exception as error:  # drivers, loaders and bindings raise whatever they like
            raise GpuUnusable(f"GPU {device} cannot be used for decoding: {type(error).__name__}: {error}") from error
        return cls(device, codec, cupy, context)

    def bounds(self, codec: str, bit_depth: int, chroma_format: str) -> Bounds | None:
        """What the driver says that it decodes (`cuvidGetDecoderCaps`); None where it does not."""
        name = CODECS.get(codec)
        chroma = getattr(self.codec.cudaVideoChromaFormat, chroma_format, None)
        if name is None or chroma is None:
            return None
        try:
            told = self.codec.GetDecoderCaps(self.device, getattr(self.codec.cudaVideoCodec, name), chroma, bit_depth)
        except Exception:
            return None
        if not told["supported"]:
            return None
        return Bounds(told["width_min"], told["height_min"], told["width_max"], told["height_max"], told["mb_num_max"])

    def check(self) -> str | None:
        """What is wrong with the GPU, None if nothing: after an error in a decoder this tells whether it is lost.

        An error that only says that a graph is being captured elsewhere in the process is none: it ends with the capture.
        """
        try:
            with self.cupy.cuda.Device(self.device):
                stream = self.cupy.cuda.Stream(non_blocking=True)
                stream.synchronize()
                self.cupy.cuda.runtime.memGetInfo()
        except Exception as error:
            return None if getattr(error, "status", None) in _CAPTURE else f"{type(error).__name__}: {error}"
        return None


def bounds_of_key(key: DecoderKey, driver: Bounds) -> Bounds:
    """Of a decoder for the key: square, so that it takes both orientations, and no larger than the driver allows."""
    side = min(-(-key.size_class // 64) * 64, math.isqrt(driver.macroblocks) * 16)
    return Bounds(driver.least_width, driver.least_height, min(side, driver.width), min(side, driver.height), driver.macroblocks)


class Answer(NamedTuple):
    """What one packet gave: frames of the library, valid until the next packet, and whether it told damage."""

    frames: list[Any]
    damaged: bool


class HardwareSession:
    """One decoder of the library with its CUDA stream. Every method belongs to one thread, `open` first.

    Whatever the library raises comes through; after that only `close` is left.

    At every size that is announced to it the library frees the memory of its frame and allocates it anew.
    `priority` is its stream's.
    """

    def __init__(self, gpu: Gpu, key: DecoderKey, bounds: Bounds, watch: StdoutWatch, *, priority: int = STREAM_PRIORITY) -> None:
        self._gpu = gpu
        self._priority = priority
        self._key = key
        self._bounds = bounds
        self._watch = watch
        self._stream: Any = None
        self._decoder: Any = None
        self._packet: Any = None
        self._calls: CudaCalls
        self._clips = warm_clips(key.codec, key.bit_depth, key.chroma_format)
        self._sequence: Sequence | None = None
        self._looked_at = False  # the first frame behind an announcement
        self._on_the_way = False  # some copy
        #: What packets are made ready in.
        self.intake = Intake()
        self.announced: Surface | None = None

    @property
    def codec(self) -> str:
        """FFmpeg's name."""
        return self._key.codec

    def open(self) -> None:
        """Makes stream and decoder; the hardware's own session appears with the first picture."""
        cupy, codec = self._gpu.cupy, self._gpu.codec
        cupy.cuda.Device(self._gpu.device).use()
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=self._priority)
        self._calls = cuda_calls(cupy)
        self._packet = codec.PacketData()  # one for all: the library reads it within the call
        self._decoder = codec.CreateDecoder(
            gpuid=self._gpu.device,
            codec=getattr(codec.cudaVideoCodec, CODECS[self._key.codec]),
            cudacontext=self._gpu.context,
            cudastream=self._stream.ptr,
            usedevicememory=True,
            maxwidth=self._bounds.width,
            maxheight=self._bounds.height,
            latency=codec.DisplayDecodeLatencyType.ZERO,
        )

    def warm_up(self) -> None:
        """Decodes the tiny clips of its format (`decoder_pool.nvdec.warm`), if there are any."""
        for data, width, height in self._clips:
            self._visit(data, width, height)

    def follow(self, surface: Surface, sequence: Sequence) -> bool:
        """Sets it to what the next sequence header says. Returns whether that was something else.

        The library does not reconfigure its decoder where only cropping, or the number of reference pictures, changes: then
        pictures come out wrong, without a word, or the call raises. So it visits another size on the way.
        """
        if surface is self.announced and sequence is self._sequence:  # nearly always the very same
            return False
        if surface == self.announced and sequence == self._sequence:
            self.announced, self._sequence = surface, sequence
            return False
        if self._sequence is not None and sequence.coded == self._sequence.coded:
            away = next(((d, w, h) for d, w, h in self._clips if (w, h) != sequence.coded), None)
            if away is not None:
                self._visit(*away)
        self._announce(surface)
        self._sequence = sequence
        return True

    def _visit(self, data: bytes, width: int, height: int) -> None:
        self._announce(Surface(width, height, self._key.bit_depth, self._key.chroma_format))
        self._sequence = Sequence((width, height))
        frames = self._decode(data, _END_OF_PICTURE)
        if len(frames) != 1:
            raise RuntimeError(f"the warm-up clip of {self._key.codec} gave {len(frames)} pictures instead of one")

    def _announce(self, surface: Surface) -> None:
        self._arrive()
        if self.announced is not None:  # the first sequence header makes the session, of whatever size
            self._decoder.setReconfigParams(surface.width, surface.height)
        self.announced = surface
        self._looked_at = False

    def reset(self) -> None:
        """Ends the stream, so that no later picture is predicted from an earlier one."""
        self._decode(b"\0", _END_OF_STREAM)

    def feed(self, data: bytes | Ready) -> Answer:
        """One whole packet."""
        said = self._watch.listen()
        try:
            frames = self._decode(data, _END_OF_PICTURE)
        finally:
            self._watch.ignore()
        return Answer(frames, bool(said) and _DAMAGE in "".join(said))

    def copy(self, frame: Any, surface: Surface, slot: Slot, *, wait: bool = True) -> None:
        """Copies a frame into the slot and waits until it is there, or leaves that to others: then `Slot.ready` says when.

        The library copies its next picture into the same memory, behind this copy on the same stream.
        """
        views = frame.cuda()
        shape = tuple(views[0].shape[:2])
        if shape != surface.shapes[0] or not self._looked_at:
            self._look_at(shape, str(frame.format).rpartition(".")[2], surface)
        for event in slot.take_events():
            self._calls.wait(self._stream, event)
        target, starts = slot.memory.data.ptr, [view.dataptr for view in views]
        if tuple([start - starts[0] for start in starts]) == surface.offsets:  # one piece, as it is in fact
            self._calls.copy(target, starts[0], surface.size, self._stream)
        else:
            for start, offset, size in zip(starts, surface.offsets, surface.sizes, strict=True):
                self._calls.copy(target + offset, start, size, self._stream)
        if wait:
            self._stream.synchronize()
            return
        if slot.event is None:
            slot.event = self._gpu.cupy.cuda.Event(disable_timing=True)
        self._calls.record(slot.event, self._stream)
        slot.ready = slot.event
        self._on_the_way = True

    def _arrive(self) -> None:
        """Waits for all copies: the library is about to free what they read."""
        if self._on_the_way:
            self._stream.synchronize()
            self._on_the_way = False

    def _look_at(self, shape: tuple[int, ...], name: str, surface: Surface) -> None:
        if shape != surface.shapes[0] or name != _FORMATS[surface.chroma_format, surface.itemsize]:
            raise RuntimeError(f"the decoder gave a {name} surface of {shape} (height, width) where {surface} was announced")
        self._looked_at = True

    def close(self) -> None:
        """Ends it; never raises."""
        with contextlib.suppress(Exception):
            self._arrive()
        with contextlib.suppress(Exception):
            self._decoder = None
            self._stream = None

    def _decode(self, data: bytes | Ready, flag: int) -> list[Any]:
        packet = self._packet
        if isinstance(data, Ready):
            packet.bsl_data = data.address
        else:  # `data` itself keeps its bytes alive over the call
            packet.bsl_data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        packet.bsl = len(data)
        packet.decode_flag = flag
        frames: list[Any] = self._decoder.Decode(packet)
        return frames
