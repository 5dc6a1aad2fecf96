"""Pictures of any pixel format of FFmpeg as planes: which planar format they become, and how they get into shared memory."""

from __future__ import annotations

import mmap
import re

import numpy as np
import numpy.typing as npt
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

from decoder_pool.planes import CHROMA_SHIFTS, PlaneLayout

_PLANAR = re.compile(r"^(yuv[aj]?(?P<chroma>4\d\d)p|gbra?p|gray)(?P<depth>9|1[0246])?(le)?$")
_FLOAT = re.compile(r"f(16|32)(le|be)?$")


def target_format(name: str) -> str:
    """The planar format of FFmpeg in which a picture of format `name` is handed out; `name` itself where it is one.

    Planar YUV, grey and GBR of 8 to 16 bits stay as they are. All others become planar with the same subsampling and depth
    (the next depth that there is): a copy of every value, but for bayer, float and XYZ pictures, which swscale computes.
    Alpha is left out, not composed over anything.
    """
    if _PLANAR.match(name):
        return name
    probe = VideoFormat(name, 16, 16)
    parts = [part for part in probe.components if not part.is_alpha]
    deepest = 16 if _FLOAT.search(name) else max(part.bits for part in parts)
    if probe.is_bayer:
        deepest = 16 if "16" in name else 8
    if probe.is_rgb or probe.has_palette or probe.is_bayer or name.startswith("xyz"):
        family = "gbrp"
    elif len(parts) < 3:
        family = "gray"
    else:
        small = (16 // parts[1].width, 16 // parts[1].height)
        family = f"yuv{({(1, 1): 444, (2, 1): 422, (2, 2): 420, (1, 2): 440, (4, 1): 411, (4, 4): 410})[small]}p"
    for depth in (8, 9, 10, 12, 14, 16):
        candidate = family if depth == 8 else f"{family}{depth}le"
        if depth >= deepest and _exists(candidate):
            return candidate
    return "yuv444p16le"


def _exists(name: str) -> bool:
    try:
        VideoFormat(name, 16, 16)
    except ValueError:
        return False
    return True


def planar(frame: VideoFrame) -> tuple[VideoFrame, str, int]:
    """The frame in a planar format, with its chroma format and bit depth."""
    target = target_format(frame.format.name)
    if target != frame.format.name:
        frame = frame.reformat(format=target)
    match = _PLANAR.match(target)
    if match is None:
        raise ValueError(f"{target} is not planar")
    chroma = match["chroma"] or ("400" if target.startswith("gray") else "rgb")
    if chroma not in CHROMA_SHIFTS:
        raise ValueError(f"chroma format {chroma} is not known")
    return frame, chroma, int(match["depth"] or 8)


def copy_planes(frame: VideoFrame, layout: PlaneLayout, memory: mmap.mmap) -> None:
    """Copies the planes of a planar frame into `memory` as the layout says."""
    for plane, shape, offset in zip(frame.planes, layout.shapes, layout.offsets, strict=False):  # alpha is left out
        _copy(plane, memory, shape, offset, layout.itemsize)


def _copy(plane: VideoPlane, memory: mmap.mmap, shape: tuple[int, int], offset: int, itemsize: int) -> None:
    """Copies rows without their padding; those of a picture stored bottom up come in the order in which they are shown."""
    rows, columns = shape
    pitch = abs(plane.line_size)
    given: npt.NDArray[np.uint8] = np.frombuffer(memoryview(plane), np.uint8)
    if (rows - 1) * pitch + columns * itemsize > given.size:
        raise ValueError(f"a plane of {given.size} bytes for {rows} rows of {columns * itemsize}")
    source = np.lib.stride_tricks.as_strided(given, (rows, columns * itemsize), (pitch, 1), writeable=False)
    target = np.frombuffer(memory, np.uint8, rows * columns * itemsize, offset).reshape(rows, columns * itemsize)
    np.copyto(target, source[::-1] if plane.line_size < 0 else source)
