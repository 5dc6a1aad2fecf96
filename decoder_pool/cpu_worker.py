"""The child side of the `cpu` decoder: FFmpeg's software decoders through PyAV, one stream at a time.

Started by `decoder_pool.cpu` as a `Worker`. Everything here works on hostile bytes; what it says is checked by the parent.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import av
import av.logging
from av.video.frame import VideoFrame

from decoder_pool.cpu_formats import copy_planes, planar
from decoder_pool.cpu_stream import CodecStream
from decoder_pool.cpu_unit import Found, UnitDecoder
from decoder_pool.planes import PlaneLayout
from decoder_pool.worker_main import serve

_FULL_RANGE = 2  # AVCOL_RANGE_JPEG


@dataclass(slots=True)
class _Slot:
    memory: mmap.mmap | None = None

    def replace(self, fd: int, size: int) -> None:
        if self.memory is not None:
            self.memory.close()
        try:
            self.memory = mmap.mmap(fd, size)
        except OSError as error:
            raise MemoryError(f"no room for a picture of {size} bytes: {error}") from None


@dataclass(slots=True)
class _State:
    """What one worker holds: the stream, the unit at work, a frame that waits for a larger slot, the slots."""

    stream: CodecStream | None = None
    refusal: str = ""
    unit: Iterator[Found | None] | None = None
    source: int = -1
    pending: Found | None = None
    slots: dict[int, _Slot] = field(default_factory=dict)

    def configure(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Another stream: a new codec context. What the codec refuses is told by every unit, not here."""
        self._drop()
        self.grow(arguments, fds)
        self.stream, self.refusal = None, ""
        try:
            self.stream = CodecStream(arguments)
        except (av.FFmpegError, ValueError, OSError, OverflowError) as error:
            self.refusal = f"{type(error).__name__}: {error}"[:200]
        return {}

    def grow(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Memory for pictures: each of `slots` is [number, bytes], its descriptor at the same place."""
        for (number, size), fd in zip(arguments["slots"], fds, strict=True):
            self.slots.setdefault(number, _Slot()).replace(fd, size)
        return {}

    def begin(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Begins a unit, whatever became of the last one, and gives what `next` gives."""
        self._drop()
        self.slots = {number: slot for number, slot in self.slots.items() if arguments["held"][number]}
        if self.stream is None:
            self.unit = iter([Found(sample, alone=False, detail=self.refusal) for sample in arguments["wanted"]])
        else:
            self.source = os.dup(fds[0])
            self.unit = self._results(self.stream, arguments["packets"], arguments["wanted"], arguments["spare"])
        return self.next(arguments, fds)

    def _results(
        self, stream: CodecStream, packets: Sequence[Sequence[int]], wanted: Sequence[int], spare: int
    ) -> Iterator[Found | None]:
        left = set(wanted)
        for found in UnitDecoder(stream, packets, wanted, spare, self.source).run():
            if found is not None:
                if (found.frame is None or found.stand_in is not None) and stream.reopen_otherwise(found.detail):
                    yield from UnitDecoder(stream, packets, sorted(left), spare, self.source).run()
                    return
                left.discard(found.sample)
            yield found

    def next(self, arguments: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """The next result, its picture in slot `slot`: or that there is none yet (`more`), that the slot is too small
        (`grow`, in bytes), that all is told (`done`).
        """
        found = self.pending
        if found is None:
            if self.unit is None:
                return {"done": True}
            try:
                found = next(self.unit)
            except StopIteration:
                self._drop()
                return {"done": True}
            if found is None:
                return {"more": True}
        self.pending = None
        return self._tell(found, self.slots.setdefault(arguments["slot"], _Slot()))

    def _tell(self, found: Found, slot: _Slot) -> dict[str, Any]:
        told: dict[str, Any] = {
            "sample": found.sample,
            "damaged": found.damaged,
            "alone": found.alone,
            "stand_in": found.stand_in,
            "detail": found.detail,
        }
        if found.frame is None:
            return told
        try:
            frame, chroma, depth = planar(found.frame)
        except (av.FFmpegError, ValueError, KeyError, OSError) as error:
            return told | {"detail": f"{found.frame.format.name} pictures cannot be converted: {error}"[:200]}
        layout = PlaneLayout.of(frame.width, frame.height, depth, chroma)
        if slot.memory is None or len(slot.memory) < layout.size:
            self.pending = found
            return {"grow": layout.size}
        copy_planes(frame, layout, slot.memory)
        if self.stream is not None:
            self.stream.spend(found.frame)
        return told | {"picture": self._describe(frame, found.frame, chroma, depth)}

    def _describe(self, frame: VideoFrame, original: VideoFrame, chroma: str, depth: int) -> dict[str, Any]:
        aspect = self.stream.context.sample_aspect_ratio if self.stream is not None else None
        full = original.color_range == _FULL_RANGE or original.format.name.startswith("yuvj") or chroma == "rgb"
        return {
            "width": frame.width,
            "height": frame.height,
            "depth": depth,
            "chroma": chroma,
            "colour": [
                int(original.color_primaries),
                int(original.color_trc),
                0 if chroma == "rgb" else int(original.colorspace),
                _FULL_RANGE if full else int(original.color_range),
            ],
            "aspect": [aspect.numerator, aspect.denominator] if aspect else [0, 1],
        }

    def _drop(self) -> None:
        self.unit = self.pending = None
        if self.source >= 0:
            os.close(self.source)
            self.source = -1


def main() -> None:
    """Serves until the parent goes away."""
    libav = logging.getLogger("libav")  # what FFmpeg says is captured with the packet that made it say so
    libav.addHandler(logging.NullHandler())
    libav.propagate = False
    av.logging.set_level(av.logging.INFO)
    av.logging.set_skip_repeated(False)
    state = _State()
    serve({"configure": state.configure, "grow": state.grow, "begin": state.begin, "next": state.next})


if __name__ == "__main__":
    main()
