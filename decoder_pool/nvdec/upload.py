"""Pictures that software decoded, brought into the arena in the layout that hardware decoders give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from decoder_pool.nvdec.arena import FrameArena, Slot
from decoder_pool.nvdec.surface import CHROMA_FORMATS
from decoder_pool.picture import Picture

_ALIGNMENT = 64  # bytes, of a plane's beginning


def surface_planes(picture: Picture) -> tuple[npt.NDArray[Any], ...]:
    """The planes of a planar picture in host memory as NV12, P010 or three planes of 4:4:4 lie: contiguous, deep samples in
    the high bits. Other chroma formats stay as they are.
    """
    if picture.chroma_format not in CHROMA_FORMATS or len(picture.planes) != 3:
        return tuple(np.ascontiguousarray(plane) for plane in picture.planes)
    shift = 0 if picture.bit_depth == 8 else 16 - picture.bit_depth
    luma, *chroma = (np.left_shift(plane, shift) if shift else plane for plane in picture.planes)
    if picture.chroma_format == "420":
        chroma = [np.stack(chroma, axis=-1)]
    return tuple(np.ascontiguousarray(plane) for plane in (luma, *chroma))


class Uploader:
    """Copies pictures into slots of `arena`, one after the other, on a CUDA stream and a thread of its own."""

    def __init__(self, cupy: Any, device: int, arena: FrameArena) -> None:
        self._cupy = cupy
        self._device = device
        self._arena = arena
        self._stream: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")

    async def upload(self, picture: Picture) -> Picture:
        """The same picture with CuPy planes; whoever gets it holds `Picture.lease` and releases it.

        ValueError where it is larger than the largest slot.
        """
        loop = asyncio.get_running_loop()
        planes = await loop.run_in_executor(self._thread, surface_planes, picture)
        offsets, end = [], 0
        for plane in planes:
            offsets.append(end)
            end += -(-plane.nbytes // _ALIGNMENT) * _ALIGNMENT
        slot = await self._arena.lease(end)
        work = loop.run_in_executor(self._thread, self._copy, planes, offsets, slot)
        try:
            views = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(lambda _: slot.release())
            raise
        except BaseException:
            slot.release()
            raise
        known = picture.chroma_format in CHROMA_FORMATS and len(picture.planes) == 3
        return replace(picture, planes=views, msb_aligned=picture.msb_aligned or (known and picture.bit_depth > 8), lease=slot)

    def close(self) -> None:
        """Ends the thread once it is idle."""
        self._thread.shutdown(wait=False)

    def _copy(self, planes: Sequence[npt.NDArray[Any]], offsets: Sequence[int], slot: Slot) -> tuple[Any, ...]:
        with self._cupy.cuda.Device(self._device):
            if self._stream is None:
                self._stream = self._cupy.cuda.Stream(non_blocking=True)
            for event in slot.take_events():
                self._stream.wait_event(event)
            views = []
            for plane, offset in zip(planes, offsets, strict=True):
                view = slot.memory[offset : offset + plane.nbytes].view(plane.dtype).reshape(plane.shape)
                view.set(plane, stream=self._stream)
                views.append(view)
            self._stream.synchronize()
        return tuple(views)
