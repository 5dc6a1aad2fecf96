"""Bounds on what one source may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """The most that is accepted of a source; past one of them the call fails with `TooLarge`."""

    bytes: int = 64 << 20
    #: Width times height as declared, before rotation.
    pixels: int = 8192 * 4352
    #: The longer side in pixels, as declared.
    side: int = 16384
    seconds: float = 3600.0
    samples: int = 1_000_000
