from __future__ import annotations

import pytest

from keyglance.bitstream import SampleFacts, SampleKind, StreamHeaders, describe
from keyglance.video import Colour, ColourRange, StreamConfig

from .build import vp8_frame, vp9_frame, vp9_superframe

VP8, VP9 = StreamConfig("vp8", 0, 0), StreamConfig("vp9", 0, 0)


def test_vp8() -> None:
    stream = StreamHeaders(VP8)
    assert stream.kind(vp8_frame(175, 143, scale=2)) == SampleFacts(SampleKind.IDR)
    told = stream.describe()
    assert (told.config.width, told.config.height, told.coded_width, told.coded_height) == (175, 143, 176, 144)
    assert (told.interlaced, told.in_band, told.config.chroma_format) == (False, True, "420")
    assert told.config.colour == Colour(matrix=5, range=ColourRange.LIMITED)
    assert stream.kind(vp8_frame(key=False)) == SampleFacts(SampleKind.P)
    assert stream.kind(vp8_frame(key=False, shown=False)) == SampleFacts(SampleKind.HIDDEN, shown=False)
    assert stream.kind(vp8_frame(shown=False)) == SampleFacts(SampleKind.IDR, shown=False)
    for broken in (b"", b"\0\0", vp8_frame()[:9], b"\0\0\0abcdefgh", vp8_frame(0, 5)):
        assert stream.kind(broken).kind is SampleKind.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "depth", "chroma", "colour"),
    [
        ({}, 8, "420", Colour(matrix=1, range=ColourRange.LIMITED)),
        ({"space": 0, "full": True}, 8, "420", Colour(range=ColourRange.FULL)),
        ({"profile": 1, "sub": (0, 0), "space": 5}, 8, "444", Colour(matrix=9, range=ColourRange.LIMITED)),
        ({"profile": 1, "sub": (1, 0), "space": 6}, 8, "422", Colour(range=ColourRange.LIMITED)),
        ({"profile": 1, "sub": (0, 1)}, 8, "440", Colour(matrix=1, range=ColourRange.LIMITED)),
        ({"profile": 1, "space": 7}, 8, "rgb", Colour(matrix=0, range=ColourRange.FULL)),
        ({"profile": 2}, 10, "420", Colour(matrix=1, range=ColourRange.LIMITED)),
        ({"profile": 3, "twelve": True, "sub": (0, 0)}, 12, "444", Colour(matrix=1, range=ColourRange.LIMITED)),
        ({"profile": 2, "kind": "intra", "shown": False}, 10, "420", Colour(matrix=1, range=ColourRange.LIMITED)),
        ({"kind": "intra", "shown": False, "resilient": True}, 8, "420", Colour(matrix=5, range=ColourRange.LIMITED)),
    ],
)
def test_vp9_facts(changes: dict[str, object], depth: int, chroma: str, colour: Colour) -> None:
    told = describe(VP9, vp9_frame(width=353, height=1, **changes))  # type: ignore[arg-type]
    config = told.config
    assert (config.width, config.height, told.coded_width, told.coded_height) == (353, 1, 360, 8)
    assert (config.bit_depth, config.chroma_format, config.colour) == (depth, chroma, colour)
    assert config.profile == f"Profile {changes.get('profile', 0)}"


HIDDEN, INTRA = vp9_frame("inter", shown=False), vp9_frame("intra", shown=False)
INTER, EXISTING = vp9_frame("inter"), vp9_frame("existing")


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (vp9_frame(), SampleFacts(SampleKind.IDR)),
        (vp9_frame(shown=False), SampleFacts(SampleKind.IDR, shown=False)),
        (INTER, SampleFacts(SampleKind.P)),
        (HIDDEN, SampleFacts(SampleKind.HIDDEN, shown=False)),
        (INTRA, SampleFacts(SampleKind.I, shown=False)),
        (EXISTING, SampleFacts(SampleKind.REPEAT)),
        (vp9_superframe(HIDDEN, INTER), SampleFacts(SampleKind.P)),
        (vp9_superframe(HIDDEN, EXISTING), SampleFacts(SampleKind.P)),
        (vp9_superframe(INTRA, EXISTING), SampleFacts(SampleKind.I)),
        (vp9_superframe(INTRA, HIDDEN), SampleFacts(SampleKind.HIDDEN, shown=False)),
        (vp9_superframe(vp9_frame(shown=False), INTER, size=4), SampleFacts(SampleKind.IDR)),
        (vp9_superframe(INTER, b"", size=1), SampleFacts(SampleKind.P)),
        (vp9_superframe(INTER)[:-1] + b"\xc7", SampleFacts(SampleKind.P)),  # no index: too short for its count
        (INTER + b"\xc0", SampleFacts(SampleKind.P)),  # no index: its first byte is another
    ],
)
def test_vp9_kinds(payload: bytes, expected: SampleFacts) -> None:
    assert StreamHeaders(VP9).kind(payload) == expected


def test_vp9_refusals() -> None:
    stream = StreamHeaders(VP9)
    lying = vp9_superframe(INTER, INTER)
    lying = lying[:-5] + b"\xff\xff" + lying[-3:]
    for broken in (
        b"",
        b"\0",
        b"\x80",
        vp9_frame()[:4],
        b"\x82\x00\x00\x00\x00\x00\x00\x00",
        b"\xb8" + bytes(8),  # profile 3 with its reserved bit
        vp9_frame(space=7),
        vp9_frame(profile=1),
        vp9_superframe(b""),
        lying,
    ):
        assert stream.kind(broken).kind is SampleKind.UNKNOWN
    assert stream.describe().coded_width == 0


def test_sizes_in_a_sample() -> None:
    def sizes(payload: bytes) -> list[tuple[int, int]] | None:
        found = stream.sequences(payload)
        return None if found is None else [(each.width, each.height) for each in found]

    stream = StreamHeaders(VP9)
    assert sizes(vp9_frame("inter", width=9, height=9)) is None  # of unknown format
    assert sizes(vp9_superframe(vp9_frame(width=640, height=360), vp9_frame("inter", shown=False, resilient=True))) == [
        (640, 360),
        (352, 288),
    ]
    assert sizes(vp9_frame("inter", width=282, height=173)) == [(282, 173)]
    assert sizes(vp9_frame("inter", reference=0)) == sizes(vp9_frame("inter", reference=2)) == []
    assert sizes(vp9_frame("existing")) == sizes(vp9_frame("inter")[:3]) == []
    assert sizes(b"\0") is None
    stream = StreamHeaders(VP8)
    assert sizes(vp8_frame(64, 48)) == [(64, 48)]
    assert sizes(vp8_frame(key=False)) == []


def test_what_the_container_says_stays_where_the_bitstream_is_silent() -> None:
    record = bytes([1, 0, 0, 0, 2, 31, 10 << 4 | 1 << 1, 9, 16, 9, 0, 0])
    config = StreamConfig("vp9", 640, 360, extradata=record, colour=Colour(1, 1, 1, ColourRange.FULL))
    told = describe(config)
    assert (told.config.bit_depth, told.config.colour) == (10, Colour(9, 16, 9, ColourRange.LIMITED, 2))
    assert told.problem == "no headers of the sequence yet"
    told = describe(config, vp9_frame(width=640, height=360))
    assert (told.config.bit_depth, told.config.colour) == (8, Colour(9, 16, 1, ColourRange.LIMITED, 2))
    assert told.disagreements == (
        "colour range: the container says full, the bitstream limited",
        "bit depth: the configuration record says 10, the bitstream 8",
    )
