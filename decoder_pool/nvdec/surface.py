"""How a hardware decoder's picture lies in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from decoder_pool.nvdec.arena import Slot
from decoder_pool.picture import Picture
from keyglance.video import Colour

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
    #: Bytes of one sample.
    itemsize: int = field(init=False, repr=False, compare=False)
    #: (rows, samples in a row) of each plane in memory; of NV12 the row of both chroma, so an even number of luma.
    shapes: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    #: Bytes of each plane, where it begins, and bytes of all.
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        itemsize = 1 if self.bit_depth == 8 else 2
        row = self.width + self.width % 2
        nv12 = (self.height, row), ((self.height + 1) // 2, row)
        shapes = ((self.height, self.width),) * 3 if self.chroma_format == "444" else nv12
        sizes = tuple(rows * columns * itemsize for rows, columns in shapes)
        offsets = (0, *itertools.accumulate(sizes[:-1]))
        told = {"itemsize": itemsize, "shapes": shapes, "sizes": sizes, "offsets": offsets, "size": sum(sizes)}
        for name, value in told.items():
            object.__setattr__(self, name, value)


class Layout:
    """A surface of a stream, cropped to `crop` (width, height) at the right and the bottom, with what is to be known of its
    pictures. Equal ones of one slot share their pictures, since making views costs more than all else that Python does here.
    """

    __slots__ = ("_facts", "_hash", "colour", "crop", "sample_aspect", "surface")

    def __init__(self, surface: Surface, crop: tuple[int, int], colour: Colour, sample_aspect: Fraction) -> None:
        self.surface = surface
        self.crop = min(crop[0], surface.width), min(crop[1], surface.height)
        self.colour = colour
        self.sample_aspect = sample_aspect
        self._facts = (surface, self.crop, colour, sample_aspect)
        self._hash = hash(self._facts)

    def picture(self, slot: Slot) -> Picture:
        """The planes as views of the slot's memory. The same slot gives the same picture again."""
        if (picture := slot.pictures.get(self)) is None:
            picture = self._picture(slot)
            slot.keep(self, picture)
        return picture

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._facts == other._facts

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout({self.surface}, {self.crop})"

    def _picture(self, slot: Slot) -> Picture:
        surface = self.surface
        width, height = self.crop
        planes: list[Any] = []
        places = zip(surface.shapes, surface.offsets, surface.sizes, strict=True)
        for number, ((rows, columns), at, size) in enumerate(places):
            plane = slot.memory[at : at + size].view("uint8" if surface.itemsize == 1 else "uint16")
            if surface.chroma_format == "420" and number == 1:
                planes.append(plane.reshape(rows, columns // 2, 2)[: (height + 1) // 2, : (width + 1) // 2])
            else:
                planes.append(plane.reshape(rows, columns)[:height, :width])
        return Picture(
            tuple(planes),
            width,
            height,
            bit_depth=surface.bit_depth,
            chroma_format=surface.chroma_format,
            chroma_shift=(1, 1) if surface.chroma_format == "420" else (0, 0),
            msb_aligned=surface.bit_depth > 8,
            colour=self.colour,
            sample_aspect=self.sample_aspect,
            lease=slot,
        )
