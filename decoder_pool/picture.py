"""A decoded picture, as planes, wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from keyglance.video import Colour, Orientation


class PlaneLease(Protocol):
    """What keeps planes in leased memory valid: one more holder by `retain`, one less by `release`."""

    @property
    def ready(self) -> Any:
        """The CUDA event behind which the planes are complete; None where they are."""
        ...

    def retain(self) -> None:
        """One more holder."""
        ...

    def release(self, after: Any = None) -> None:
        """One holder less, whose work is done, or is done once the CUDA event `after` has happened."""
        ...


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded picture in its coded orientation, with all that is needed to show it right.

    `planes` are 2-D arrays (height, width) of uint8, or uint16 with the value in the low bits, numpy on the CPU and CuPy on
    the GPU: (Y,), (Y, U, V), or (G, B, R) where `chroma_format` is "rgb". The semi-planar layout of hardware decoders is
    (Y, UV) with UV of shape (height, width, 2); there 10-bit values lie in the high bits (P010), as `msb_aligned` says.
    `chroma_shift` is (log2 of horizontal, log2 of vertical) subsampling. The planes are valid until the lease that gave
    them is released or the next picture is taken, as the decoder's contract says.
    """

    planes: tuple[Any, ...]
    width: int
    height: int
    bit_depth: int = 8
    chroma_format: str = "420"
    chroma_shift: tuple[int, int] = (1, 1)
    msb_aligned: bool = False
    colour: Colour = field(default_factory=Colour)
    orientation: Orientation = field(default_factory=Orientation)
    sample_aspect: Fraction = Fraction(1)
    #: Keeps the planes valid beyond that, for whoever retains it in time; None where they cannot be kept.
    lease: PlaneLease | None = field(default=None, compare=False, repr=False)

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height in square pixels as shown: sample aspect applied (widening, never narrowing), then turned."""
        width, height, aspect = self.width, self.height, self.sample_aspect
        if aspect != 1:  # hardly ever, and fractions are slow
            if aspect > 1:
                width = max(1, round(width * aspect))
            elif aspect > 0:
                height = max(1, round(height / aspect))
        return (height, width) if self.orientation.swaps_sides else (width, height)
