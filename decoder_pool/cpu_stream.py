"""A stream in FFmpeg's hands: which of its decoders reads it, with which options, and how it starts over."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Mapping
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

#: Codecs whose FFmpeg decoders end a damaged picture early without a word: the rest of it keeps what its memory held.
_LEAVING_HOLES = frozenset({"hevc", "vvc"})
_HOLE_GRID = 8  # pixels: what is left out is made of coding blocks of at least this side
_MOST_SPENT = 8


class CodecStream:
    """One stream's decoder. `arguments` are those of `cpu.CpuDecoder`; raises FFmpegError or ValueError where it cannot be."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._spent: list[VideoFrame] = []
        self._worked = False
        self.context = self._open()

    def restart(self) -> None:
        """Forgets all that was fed, so that the next packet meets a decoder as good as new."""
        if self.context.name.startswith("libvpx"):  # its references outlive a flush
            self.context = self._open()
        else:
            self.context.flush_buffers()
        for frame in self._spent:  # nothing refers to them any more, and the next picture gets their memory
            itemsize = 1 if frame.format.components[0].bits == 8 else 2
            for plane in frame.planes:  # without what pads the last row: a cropped picture's last row may end its memory
                ctypes.memset(plane.buffer_ptr, 0, (plane.height - 1) * plane.line_size + plane.width * itemsize)
        self._spent.clear()

    def spend(self, frame: VideoFrame) -> None:
        """Takes a frame that is done with: `restart` clears its memory, so that `hole` finds what is not written anew."""
        self._worked = True
        if self._arguments["codec"] in _LEAVING_HOLES and len(self._spent) < _MOST_SPENT:
            self._spent.append(frame)

    def hole(self, frame: VideoFrame) -> bool:
        """Whether a part of the picture was never written: luma and both chroma are 0 there, a colour that no RGB has."""
        if self._arguments["codec"] not in _LEAVING_HOLES or not frame.format.name.startswith("yuv"):
            return False
        kind = np.uint8 if frame.format.components[0].bits == 8 else np.uint16
        luma, first, second = (self._rows(frame, number, kind) for number in range(3))
        step = (_HOLE_GRID * first.shape[0] // luma.shape[0], _HOLE_GRID * first.shape[1] // luma.shape[1])
        grids = [luma[4::_HOLE_GRID, 4::_HOLE_GRID]]
        grids += [chroma[step[0] // 2 :: step[0], step[1] // 2 :: step[1]] for chroma in (first, second)]
        rows, columns = min(grid.shape[0] for grid in grids), min(grid.shape[1] for grid in grids)
        return bool((grids[0][:rows, :columns] | grids[1][:rows, :columns] | grids[2][:rows, :columns] == 0).any())

    def reopen_otherwise(self, detail: str) -> bool:
        """Another way to read a stream whose picture failed for the reason `detail`; False where there is none left.

        x264 before build 151 wrote 4:4:4 CABAC wrong, and FFmpeg reads it as it was meant where the stream names its
        encoder; muxers strip that name, so what looks damaged is tried as such a stream. And libvpx refuses by name what
        only FFmpeg's own decoder of VP9 reads.
        """
        if self.context.name == "h264" and "444" in (self.context.pix_fmt or "") and "x264_build" not in self._arguments:
            self._arguments["x264_build"] = 150
        elif self.context.name == "libvpx-vp9" and not self._worked and "not supported" in detail:
            self._arguments["bit_depth"] = 0
        else:
            return False
        self.context = self._open()
        return True

    @staticmethod
    def _rows(frame: VideoFrame, number: int, kind: type[np.uint8 | np.uint16]) -> npt.NDArray[Any]:
        plane = frame.planes[number]
        rows = np.frombuffer(memoryview(plane), kind)[: plane.height * plane.line_size // np.dtype(kind).itemsize]
        return rows.reshape(plane.height, -1)[:, : plane.width]

    def _open(self) -> VideoCodecContext:
        told = self._arguments
        context = av.CodecContext.create(self._decoder(), "r")
        if not isinstance(context, VideoCodecContext):
            raise ValueError(f"{told['codec']} is no video codec")
        if extradata := base64.b64decode(told["extradata"]):
            context.extradata = extradata
        if tag := told["codec_tag"]:
            context.codec_tag = tag.to_bytes(4, "little").decode("latin-1")
        if told["width"] and told["height"]:
            context.width, context.height = told["width"], told["height"]
        if bits := told["bits_per_coded_sample"]:
            context.bits_per_coded_sample = bits
        context.thread_count = told["threads"]
        context.thread_type = "SLICE"  # frame threads give each picture several packets late
        # Frames before a recovery point come out as well, marked as corrupt: they are told as damaged, not silently missing.
        context.flags |= Flags.output_corrupt
        context.options = {"max_pixels": str(told["max_pixels"]), "err_detect": "crccheck"} | self._options(context.name)
        context.open()
        return context

    def _decoder(self) -> str:
        """FFmpeg's name of the decoder for the codec."""
        if self._arguments["codec"] == "av1":
            return "libdav1d"  # FFmpeg's own "av1" only feeds hardware
        if self._arguments["codec"] == "vp9" and self._arguments["bit_depth"] == 8:
            return "libvpx-vp9"  # the same pictures, and it notices damage four times as often; this build reads 8 bits only
        return str(self._arguments["codec"])

    def _options(self, decoder: str) -> dict[str, str]:
        if decoder == "libdav1d":  # strict: refuses pictures whose data do not end where the symbols do
            return {"max_frame_delay": "1", "strict": "1"}
        if build := self._arguments.get("x264_build"):
            return {"x264_build": str(build)}
        return {}
