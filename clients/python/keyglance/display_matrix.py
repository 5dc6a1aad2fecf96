"""Display matrices of tracks and movies (ISO/IEC 14496-12, 6.2.2 and 8.3.2)."""

from __future__ import annotations

import math
import struct

from keyglance.video import Orientation

#: Nine numbers a b u c d v x y w, as stored: 16.16 and (the third column) 2.30 fixed point.
Matrix = tuple[int, ...]
IDENTITY: Matrix = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)

_NINE = struct.Struct(">9i")
_SHIFT = (16, 16, 30)


def matrix_at(data: bytes | memoryview, offset: int) -> Matrix:
    """The matrix stored at an offset; identity where the data end before."""
    return _NINE.unpack_from(data, offset) if len(data) >= offset + _NINE.size else IDENTITY


def product(first: Matrix, second: Matrix) -> Matrix:
    """First one, then the other, rounded in fixed point as stored."""
    if second == IDENTITY:
        return first
    return tuple(sum((first[3 * i + e] * second[3 * e + j]) >> _SHIFT[e] for e in range(3)) for i in range(3) for j in range(3))


def orientation_of(matrix: Matrix, notes: list[str]) -> Orientation:
    """How to turn a picture for a display matrix (row vectors, y downwards): the nearest quarter turn."""
    if matrix == IDENTITY:
        return Orientation()
    a, b, _, c, d, *_ = matrix
    determinant = a * d - b * c
    if determinant == 0:
        if any((a, b, c, d)):  # all zero is how some writers say nothing
            notes.append("display matrix without inverse: not turned")
        return Orientation()
    mirrored = determinant < 0
    # Mirror first: (-1 0 / 0 1) times a clockwise turn (cos sin / -sin cos) is (-cos -sin / -sin cos).
    degrees = math.degrees(math.atan2(-b, -a) if mirrored else math.atan2(b, a)) % 360
    quarter = round(degrees / 90) % 4
    off = abs((degrees - quarter * 90 + 180) % 360 - 180)
    skew = math.degrees(math.asin(min(1.0, abs(a * c + b * d) / (math.hypot(a, b) * math.hypot(c, d)))))
    if max(off, skew) > 1:
        notes.append(f"display matrix turns by {degrees:.1f} degrees: taken as {quarter * 90}")
    return Orientation(quarter * 90, mirrored)
