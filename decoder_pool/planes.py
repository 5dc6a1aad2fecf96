"""How the planes of a picture lie in a decoder's shared memory: one behind the other, rows without gaps."""

from __future__ import annotations

from dataclasses import dataclass

#: log2 of horizontal and vertical chroma subsampling, by chroma format; no chroma planes where it is None.
CHROMA_SHIFTS: dict[str, tuple[int, int] | None] = {
    "400": None,
    "410": (2, 2),
    "411": (2, 0),
    "420": (1, 1),
    "422": (1, 0),
    "440": (0, 1),
    "444": (0, 0),
    "rgb": (0, 0),
}
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """Shapes (height, width) and byte offsets of a picture's planes. `itemsize` is 1 for 8 bits, else 2; `size` in bytes."""

    shapes: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...]
    itemsize: int
    size: int

    @classmethod
    def of(cls, width: int, height: int, bit_depth: int, chroma_format: str) -> PlaneLayout:
        """The layout; KeyError for a chroma format that `CHROMA_SHIFTS` does not know."""
        itemsize = 1 if bit_depth <= 8 else 2
        shapes = [(height, width)]
        if (shift := CHROMA_SHIFTS[chroma_format]) is not None:
            shapes += [(-(-height // (1 << shift[1])), -(-width // (1 << shift[0])))] * 2
        offsets, end = [], 0
        for rows, columns in shapes:
            offsets.append(end)
            end += -(-rows * columns * itemsize // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(shapes), tuple(offsets), itemsize, end)
