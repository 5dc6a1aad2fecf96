"""Reading bits out of headers, most significant first, never past the end."""

from __future__ import annotations

#: Bytes of a header that are looked at; the longest lawful parameter set is shorter by far.
HEADER_BYTES = 1 << 12


class BitstreamError(ValueError):
    """A header is broken, ends too soon, or has a value outside its range: the one error of this package."""


class BitReader:
    """Bits of at most `HEADER_BYTES` bytes.

    The bytes are one integer, so a read costs time in proportion to the header's length, never to anything a header says.
    """

    __slots__ = ("_left", "_value")

    def __init__(self, data: bytes) -> None:
        data = data[:HEADER_BYTES]
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def __repr__(self) -> str:
        return f"BitReader({self._left} bits left)"

    @property
    def left(self) -> int:
        """Bits not read yet."""
        return self._left

    def u(self, count: int) -> int:
        """An unsigned number of `count` bits: u(n) of H.264 and H.265, f(n) of VP9 and AV1."""
        left = self._left - count
        if left < 0:
            raise BitstreamError(f"{count} bits wanted, {self._left} left")
        self._left = left
        return (self._value >> left) & ((1 << count) - 1)

    def flag(self) -> bool:
        """One bit."""
        left = self._left - 1
        if left < 0:
            raise BitstreamError("1 bit wanted, 0 left")
        self._left = left
        return bool(self._value >> left & 1)

    def skip(self, count: int) -> None:
        """Passes `count` bits."""
        if count > self._left:
            raise BitstreamError(f"{count} bits wanted, {self._left} left")
        self._left -= count

    def ue(self, most: int = 0xFFFFFFFE) -> int:
        """An unsigned Exp-Golomb number, ue(v) (ITU-T H.264, 9.1), at most `most`."""
        rest = self._value & ((1 << self._left) - 1)
        zeros = self._left - rest.bit_length()
        if zeros > 31 or 2 * zeros + 1 > self._left:
            raise BitstreamError("an Exp-Golomb number that does not end")
        self._left -= 2 * zeros + 1
        value = (rest >> self._left) - 1
        if value > most:
            raise BitstreamError(f"the number {value} where at most {most} is allowed")
        return value

    def se(self) -> int:
        """A signed Exp-Golomb number, se(v) (ITU-T H.264, 9.1.1)."""
        value = self.ue()
        return (value + 1) // 2 if value & 1 else -(value // 2)
