from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.bitstream.bits import BitReader, BitstreamError
from keyglance.bitstream.nal import Usability, form_of, sei_messages, unescaped, units
from keyglance.video import Colour, ColourRange

from .build import BitWriter, Vui, annexb, escape, prefixed, sei

UNIT = st.binary(min_size=1, max_size=40).map(lambda data: escape(b"\x65" + data + b"\x80"))


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=60).map(bytes))
def test_emulation_prevention_is_undone(data: bytes) -> None:
    data += b"\x80"  # as rbsp_trailing_bits: a unit never ends in zeros
    assert unescaped(escape(data)) == data


@given(st.lists(UNIT, max_size=6), st.sampled_from([1, 2, 4]))
def test_units_come_apart_in_both_forms(parts: list[bytes], size: int) -> None:
    assert list(units(prefixed(*parts, size=size), size)) == parts
    assert [unescaped(unit).rstrip(b"\0") for unit in units(annexb(*parts), 0)] == [unescaped(part) for part in parts]


def test_lengths_that_lie() -> None:
    good = prefixed(b"\x67abc", b"\x65def")
    assert list(units(good[:-1], 4)) == [b"\x67abc"]
    assert list(units(good[:-1], 4, whole=False)) == [b"\x67abc", b"\x65de"]
    assert list(units(b"\0\0\0\0" * 3 + b"\0\0\0\1\x65", 4)) == [b"\x65"]
    assert list(units(b"\0\0\1", 4)) == []
    assert list(units(b"\0\0\1", 0)) == []


def test_long_units_and_many_units_are_bounded() -> None:
    (unit,) = units(prefixed(bytes(1 << 20)), 4)
    assert len(unit) == 1 << 14
    assert len(list(units(prefixed(b"\x65") * 5000, 4))) == 1024
    assert len(list(units(annexb(b"\x65") * 5000, 0))) == 1024


@pytest.mark.parametrize(
    ("payload", "told", "form"),
    [
        (prefixed(b"\x65abcdef"), 4, 4),
        (prefixed(b"\x65abcdef"), 0, 4),  # no record, or one with start codes, but lengths
        (annexb(b"\x65" + b"\xff" * 30), 0, 0),
        (annexb(b"\x65" + b"\xff" * 30), 4, 0),  # FFmpeg's rule: start code, and no length behind a first unit of one byte
        (prefixed(b"\x65", b"\x41abc"), 4, 4),
        (b"\0\0\1\x65abc", 0, 0),
        (b"", 0, 0),
        (b"\xff" * 40, 0, 0),
        (prefixed(b"\x65abc", size=2), 2, 2),
    ],
)
def test_form(payload: bytes, told: int, form: int) -> None:
    assert form_of(payload, told) == form


def test_sei_messages() -> None:
    messages = [(6, b"\x84"), (5, bytes(range(1, 250)) * 3), (300, b"x"), (147, b"\x12")]
    assert list(sei_messages(unescaped(sei(*messages))[1:])) == messages
    assert list(sei_messages(b"")) == []
    assert list(sei_messages(b"\xff" * 50)) == []
    assert len(list(sei_messages(b"\1\0" * 500))) == 64


@pytest.mark.parametrize(
    ("aspect", "expected"),
    [
        (0, None),
        (1, Fraction(1)),
        (14, Fraction(4, 3)),
        (16, Fraction(2)),
        (17, None),
        ((64, 45), Fraction(64, 45)),
        ((0, 9), None),
    ],
)
def test_sample_aspect(aspect: int | tuple[int, int], expected: Fraction | None) -> None:
    bits = BitWriter()
    Vui(aspect=aspect, overscan=True).write(bits)
    assert Usability.read(BitReader(bits.data()), 0, None) == Usability(expected, Colour(chroma_location=0))


def test_colour() -> None:
    bits = BitWriter()
    Vui(full=True, codes=(9, 16, 9), chroma_location=2).write(bits)
    assert Usability.read(BitReader(bits.data()), 0, None).colour == Colour(9, 16, 9, ColourRange.FULL, 2)
    bits = BitWriter()
    Vui(full=False, codes=(3, 0, 255), chroma_location=6).write(bits)
    assert Usability.read(BitReader(bits.data()), 0, None).colour == Colour(2, 2, 2, ColourRange.LIMITED, None)
    with pytest.raises(BitstreamError):
        Usability.read(BitReader(b"\x80"), 0, None)
