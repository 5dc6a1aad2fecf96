"""Elementary streams of MPEG-1, MPEG-2 and MPEG-4 part 2: what lies behind each start code (ISO/IEC 13818-2, 5.2.3)."""

from __future__ import annotations

from collections.abc import Iterator

from keyglance.bitstream.bits import BitstreamError

START_CODE = b"\0\0\1"
#: Bytes behind one start code, and start codes of one sample, that are ever looked at.
_UNIT_BYTES, _UNITS = 256, 256


def all_units(payload: bytes, codes: frozenset[int]) -> list[bytes]:
    """What lies behind all start codes of `codes` in a whole sample, as in `units`; BitstreamError where there are too many."""
    found: list[bytes] = []
    at = payload.find(START_CODE)
    while at >= 0:
        if payload[at + 3 : at + 4] and payload[at + 3] in codes:
            if len(found) == _UNITS:
                raise BitstreamError(f"more than {_UNITS} headers in a sample")
            found.append(payload[at + 3 : at + 3 + _UNIT_BYTES].partition(START_CODE)[0])
        at = payload.find(START_CODE, at + 3)
    return found


def units(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """(position, beginning) of what follows each start code: the code's last byte first, never more than `_UNIT_BYTES`."""
    at = 0
    for _ in range(_UNITS):
        at = payload.find(START_CODE, at)
        if at < 0:
            return
        at += 3
        if unit := payload[at : at + _UNIT_BYTES].partition(START_CODE)[0]:
            yield at, unit
