"""Streams whose decoder configuration changes on the way: the configuration is put into the samples themselves.

A decoder is configured once, with the first configuration; a packet has no side data. So where a container announces
another one (several sample entries), H.264 and HEVC samples are rewritten with start codes (Annex B) and every keyframe
carries the parameter sets it needs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Self

_START_CODE = b"\0\0\0\1"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A decoder configuration record, taken apart: bytes of a NAL unit's length, and the parameter sets."""

    length_size: int
    units: tuple[bytes, ...]

    @classmethod
    def parse(cls, codec: str, record: bytes) -> Self:
        """Of `avcC` or `hvcC` (ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1); ValueError where it is neither or broken."""
        try:
            if record[:1] != b"\1":
                raise ValueError("no decoder configuration record")
            return cls(*(_avcc(record) if codec == "h264" else _hvcc(record)))
        except IndexError:
            raise ValueError("a decoder configuration record that ends too soon") from None

    @property
    def annexb(self) -> bytes:
        """The parameter sets with start codes."""
        return b"".join(itertools.chain.from_iterable((_START_CODE, unit) for unit in self.units))

    def rewrite(self, payload: bytes, *, key: bool) -> bytes:
        """A sample's payload with start codes for lengths, a key sample's behind the parameter sets."""
        parts = [self.annexb] if key else []
        at = 0
        while at + self.length_size <= len(payload):
            length = int.from_bytes(payload[at : at + self.length_size], "big")
            at += self.length_size
            parts += (_START_CODE, payload[at : at + length])
            at += length
        return b"".join(parts)


def _avcc(record: bytes) -> tuple[int, tuple[bytes, ...]]:
    units: list[bytes] = []
    at = 5
    for mask in (0x1F, 0xFF):
        count, at = record[at] & mask, at + 1
        at = _take(record, at, count, units)
    return (record[4] & 3) + 1, tuple(units)


def _hvcc(record: bytes) -> tuple[int, tuple[bytes, ...]]:
    units: list[bytes] = []
    at = 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at = _take(record, at + 3, count, units)
    return (record[21] & 3) + 1, tuple(units)


def _take(record: bytes, at: int, count: int, units: list[bytes]) -> int:
    for _ in range(count):
        length = record[at] << 8 | record[at + 1]
        units.append(record[at + 2 : at + 2 + length])
        at += 2 + length
    return at
