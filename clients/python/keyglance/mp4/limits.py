"""What the reader accepts, and what it leaves to others."""

from __future__ import annotations

from dataclasses import dataclass

from keyglance.errors import TooLarge


class Declined(Exception):
    """This reader cannot read the source, or not well enough; another reader may. `reason` is one line for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Mp4Limits:
    """The most that is accepted of a source; past one of them the reader raises `TooLarge`."""

    #: Width times height as declared, before rotation.
    pixels: int = 8192 * 4352
    #: The longer side in pixels, as declared.
    side: int = 16384
    seconds: float = 3600.0
    #: Samples of all video tracks together.
    samples: int = 1_000_000
    tracks: int = 200
    #: Boxes looked at; some kinds count for several, by the work that they are.
    boxes: int = 200_000
    #: Bytes of tables and other payloads read.
    header_bytes: int = 64 << 20
    edits: int = 10_000


class Budget:
    """What is left of the limits on work while one source is read."""

    def __init__(self, limits: Mp4Limits) -> None:
        self._limits = limits
        self._boxes = limits.boxes
        self._bytes = limits.header_bytes
        self._samples = limits.samples

    def box(self, count: int = 1) -> None:
        """One more box is looked at, or several."""
        self._boxes -= count
        if self._boxes < 0:
            raise TooLarge.over("boxes", self._limits.boxes - self._boxes, self._limits.boxes)

    def read(self, size: int) -> None:
        """`size` more bytes are read."""
        self._bytes -= size
        if self._bytes < 0:
            raise TooLarge.over("header bytes", self._limits.header_bytes - self._bytes, self._limits.header_bytes)

    def samples(self, count: int) -> None:
        """`count` more samples are taken into an index."""
        self._samples -= count
        if self._samples < 0:
            raise TooLarge.over("samples", self._limits.samples - self._samples, self._limits.samples)
