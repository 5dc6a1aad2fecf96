"""A GPU of numpy arrays whose "hardware decoder" is FFmpeg: what the nvdec decoder asks of its libraries, and no more.

It keeps the traps of the real one: sizes that were not announced come back as the announced one, a picture below the
smallest size breaks it for good, damage is only printed by C code, and packets need start codes.
"""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import av
import numpy as np

from decoder_pool.nvdec.gpu import Gpu

_NAMES = {"H264": "h264", "HEVC": "hevc", "VP8": "vp8", "VP9": "vp9", "MPEG4": "mpeg4", "MPEG2": "mpeg2video"}
_LEAST = {"H264": (48, 16), "HEVC": (144, 144), "VP9": (128, 128)}
#: A packet that ends in this counts as damaged, whatever FFmpeg thinks of it.
DAMAGE = b"damage"


class FakeArray(np.ndarray):
    """A numpy array with what of CuPy's is used."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def dataptr(self) -> int:
        return self.ctypes.data

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        assert stream is not None
        self[...] = values


class FakeStream:
    AHEAD = 8

    def __init__(self, non_blocking: bool = False, priority: int | None = None) -> None:
        assert non_blocking
        self.ptr = self.AHEAD if priority is not None and priority < 0 else 7
        self.waited: list[Any] = []

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class FakeEvent:
    """Has happened once it was waited for on the host, or a stream that waited for it went on."""

    def __init__(self, disable_timing: bool = False) -> None:
        assert disable_timing
        self.recorded = 0

    def record(self, stream: Any) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        assert self.recorded


class _Device:
    def __init__(self, number: int) -> None:
        self.number = number

    def use(self) -> None: ...

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None: ...


class FakeDecoder:
    """PyNvDecoder: one picture a packet, in decoding order."""

    def __init__(self, library: FakeLibrary, codec: str, width: int, height: int) -> None:
        self.library = library
        self.codec = codec
        self.largest = (width, height)
        self.announced: tuple[int, int] | None = None
        self.scales = False
        self.broken = False
        self.left: int | None = None  # packets until it breaks
        self.context: Any = None
        self.reset()

    def reset(self) -> None:
        self.context = av.CodecContext.create(_NAMES[self.codec], "r")
        self.context.thread_count = 1
        self.context.flags |= av.codec.context.Flags.output_corrupt | av.codec.context.Flags.low_delay

    def setReconfigParams(self, width: int, height: int) -> None:
        self.library.calls.append(("announce", width, height))
        self.announced = (width, height) if width and height else None  # None: as the next sequence has it
        if self.announced is not None:
            self.scales = True
        elif self.scales:
            raise AssertionError("the crop of a size that was announced stays")

    def Decode(self, packet: Any) -> list[Any]:
        data = ctypes.string_at(packet.bsl_data, packet.bsl)
        self.library.calls.append(("decode", len(data), packet.decode_flag))
        if packet.decode_flag == 1:
            self.reset()
            return []
        assert packet.decode_flag == 8
        time.sleep(self.library.decode_seconds)
        self.left = self.left and self.left - 1
        if self.broken or self.library.lost or self.left == 0:
            raise RuntimeError("HandlePictureDecode : cuvidDecodePicture returned error 1")
        with av.logging.Capture(local=True) as lines:
            try:
                padded = av.Packet(len(data))  # with the zeros behind it that FFmpeg's bit readers need
                memoryview(padded)[:] = data
                frames = list(self.context.decode(padded))
            except (av.FFmpegError, EOFError):
                frames = []
        told = data.endswith(DAMAGE) or any(level <= av.logging.ERROR for level, _, _ in lines)
        if frames and (told or frames[0].is_corrupt):
            ctypes.CDLL(None).printf(b"Decode Error occurred for picture %d\n", 1)
        return [self._surface(frame) for frame in frames]

    def _surface(self, frame: av.VideoFrame) -> Any:
        least = _LEAST.get(self.codec, (16, 16))
        if frame.width < least[0] or frame.height < least[1]:
            self.broken = True
            raise RuntimeError("cuvidCreateDecoder returned error 1")
        deep = frame.format.components[0].bits > 8
        kind = np.uint16 if deep else np.uint8
        planes = []
        for plane in frame.planes:
            rows = np.frombuffer(memoryview(plane), kind).reshape(-1, plane.line_size // kind().itemsize)
            planes.append(rows[: plane.height, : plane.width] << (6 if deep else 0))
        if self.announced is None:
            self.announced = (frame.width, frame.height)
        width, height = self.announced
        if (width, height) != (frame.width, frame.height):  # scaled without a word
            planes = [np.resize(p, (height, width) if n == 0 else (height // 2, width // 2)) for n, p in enumerate(planes)]
        if "420" in frame.format.name:
            row = width + width % 2
            luma = np.zeros((height, row), kind)
            luma[:, :width] = planes[0]
            views, name = [luma[..., None], np.stack(planes[1:], axis=-1)], "P016" if deep else "NV12"
        else:
            views, name = [plane[..., None] for plane in planes], "YUV444_16Bit" if deep else "YUV444"
        views = [np.ascontiguousarray(view).view(FakeArray) for view in views]
        return SimpleNamespace(cuda=lambda: views, format=f"Pixel_Format.{name}")


class FakeLibrary:
    """PyNvVideoCodec. `calls` lists what its decoders were asked; `lost`: everything raises."""

    cudaVideoCodec = SimpleNamespace(**{name: name for name in (*_NAMES, "AV1", "MPEG1")})
    cudaVideoChromaFormat = SimpleNamespace(**{"420": "420", "422": "422", "444": "444"})
    DisplayDecodeLatencyType = SimpleNamespace(ZERO="zero")
    PacketData = SimpleNamespace

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.decoders: list[FakeDecoder] = []
        self.decode_seconds = 0.0
        self.lost = False

    def GetDecoderCaps(self, device: int, codec: str, chroma: str, depth: int) -> dict[str, int]:
        supported = (codec in _NAMES and chroma == "420" and depth == 8) or (codec == "HEVC" and depth <= 10)
        least = _LEAST.get(codec, (16, 16))
        most = 2048 if codec == "MPEG4" else 4096
        return {
            "supported": int(supported),
            "width_min": least[0],
            "height_min": least[1],
            "width_max": most,
            "height_max": most,
            "mb_num_max": 8192 if codec == "MPEG4" else 65536,
        }

    def CreateDecoder(self, **options: Any) -> FakeDecoder:
        assert options["latency"] == "zero"
        assert options["usedevicememory"]
        assert options["cudastream"] == FakeStream.AHEAD, "a decoder waits for whatever the models do"
        decoder = FakeDecoder(self, options["codec"], options["maxwidth"], options["maxheight"])
        self.decoders.append(decoder)
        return decoder


def fake_gpu() -> Gpu:
    """A GPU whose `codec` is a `FakeLibrary`."""

    def copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    runtime = SimpleNamespace(memcpyAsync=copy, memGetInfo=lambda: (1, 1))
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(Device=_Device, Stream=FakeStream, Event=FakeEvent, runtime=runtime),
        empty=lambda size, kind: np.zeros(size, kind).view(FakeArray),
    )
    return Gpu(0, FakeLibrary(), cupy, 1)
