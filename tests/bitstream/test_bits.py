from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.bitstream.bits import HEADER_BYTES, BitReader, BitstreamError

from .build import BitWriter

FIELDS = st.lists(
    st.one_of(
        st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(f"u{count}"), st.integers(0, (1 << count) - 1))),
        st.tuples(st.just("ue"), st.integers(0, 0xFFFFFFFE)),
        st.tuples(st.just("se"), st.integers(-(1 << 31) + 1, (1 << 31) - 1)),
    )
)


@given(FIELDS)
def test_what_is_written_is_read(fields: list[tuple[str, int]]) -> None:
    writer = BitWriter()
    for kind, value in fields:
        writer.fields(kind, value)
    reader = BitReader(writer.data())
    for kind, value in fields:
        assert (getattr(reader, kind)() if kind in ("ue", "se") else reader.u(int(kind[1:]))) == value
    assert 1 <= reader.left <= 8


@pytest.mark.parametrize("codes", [("1", 0), ("010", 1), ("011", 2), ("00100", 3), ("00111", 6), ("0001000", 7)])
def test_exp_golomb_as_in_the_standard(codes: tuple[str, int]) -> None:
    """ITU-T H.264, table 9-2."""
    bits, value = codes
    assert BitReader(int(bits.ljust(8, "1"), 2).to_bytes(1, "big")).ue() == value


def test_signed_numbers_as_in_the_standard() -> None:
    """ITU-T H.264, table 9-3."""
    data = BitWriter().fields("ue ue ue ue ue", 0, 1, 2, 3, 4).data()
    reader = BitReader(data)
    assert [reader.se() for _ in range(5)] == [0, 1, -1, 2, -2]


def test_nothing_is_read_behind_the_end() -> None:
    for read in (lambda r: r.u(9), lambda r: r.skip(9), lambda r: r.ue(), lambda r: [r.flag() for _ in range(9)]):
        with pytest.raises(BitstreamError):
            read(BitReader(b"\0"))
    with pytest.raises(BitstreamError, match="does not end"):
        BitReader(bytes(9)).ue()
    with pytest.raises(BitstreamError, match="at most 5"):
        BitReader(BitWriter().ue(6).data()).ue(5)


def test_long_headers_are_cut() -> None:
    assert BitReader(bytes(1 << 20)).left == 8 * HEADER_BYTES
    assert repr(BitReader(b"\1\2")) == "BitReader(16 bits left)"
