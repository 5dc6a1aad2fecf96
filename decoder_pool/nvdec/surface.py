"""How a hardware decoder's picture lies in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoder_pool.picture import Picture
from keyglance.video import StreamConfig

#: Chroma formats whose surfaces are known here.
CHROMA_FORMATS = ("420", "444")


@dataclass(frozen=True, slots=True)
class Surface:
    """A picture of `width` x `height` as NV12 or P010 (4:2:0) or three planes (4:4:4), its rows without gaps.

    Samples of more than 8 bits lie in the high bits of two bytes.
    """

    width: int
    height: int
    bit_depth: int
    chroma_format: str

    @property
    def itemsize(self) -> int:
        """Bytes of one sample."""
        return 1 if self.bit_depth == 8 else 2

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(rows, samples in a row) of each plane in memory; of NV12 the row of both chroma, so an even number of luma."""
        if self.chroma_format == "444":
            return ((self.height, self.width),) * 3
        row = self.width + self.width % 2
        return (self.height, row), ((self.height + 1) // 2, row)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each plane."""
        return tuple(rows * columns * self.itemsize for rows, columns in self.shapes)

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(self.sizes)

    def picture(self, memory: Any, config: StreamConfig, crop: tuple[int, int], lease: Any) -> Picture:
        """The planes as views of `memory` (uint8, 1-D), cropped to `crop` (width, height) at the right and the bottom."""
        width, height = min(crop[0], self.width), min(crop[1], self.height)
        planes: list[Any] = []
        at = 0
        for number, ((rows, columns), size) in enumerate(zip(self.shapes, self.sizes, strict=True)):
            plane = memory[at : at + size].view("uint8" if self.itemsize == 1 else "uint16")
            at += size
            if self.chroma_format == "420" and number == 1:
                planes.append(plane.reshape(rows, columns // 2, 2)[: (height + 1) // 2, : (width + 1) // 2])
            else:
                planes.append(plane.reshape(rows, columns)[:height, :width])
        return Picture(
            tuple(planes),
            width,
            height,
            bit_depth=self.bit_depth,
            chroma_format=self.chroma_format,
            chroma_shift=(1, 1) if self.chroma_format == "420" else (0, 0),
            msb_aligned=self.bit_depth > 8,
            colour=config.colour,
            sample_aspect=config.sample_aspect,
            lease=lease,
        )
