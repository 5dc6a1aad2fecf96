from __future__ import annotations

import pytest

from keyglance.errors import TooLarge
from keyglance.mp4 import BytesSource, Mp4Limits
from keyglance.mp4.boxes import Boxes, boxes_of
from keyglance.mp4.limits import Budget
from tests.mp4.build import box, u32, u64, wide_box

ROWS = [
    (box(b"free", b"ab") + box(b"skip"), [(b"free", b"ab"), (b"skip", b"")]),
    (wide_box(b"mdat", b"abc") + box(b"free"), [(b"mdat", b"abc"), (b"free", b"")]),
    (box(b"free") + u32(0) + b"mdat" + b"to the end", [(b"free", b""), (b"mdat", b"to the end")]),
    (u32(100) + b"mdat" + b"overrun", [(b"mdat", b"overrun")]),
    (box(b"free") + u32(7) + b"size", [(b"free", b"")]),
    (u32(1) + b"mdat" + u64(15), []),
    (u32(1) + b"mdat" + u64(1 << 63) + b"x", [(b"mdat", b"x")]),
    (u32(1) + b"mdat" + b"short", []),
    (box(b"free") + b"1234567", [(b"free", b"")]),
    (b"", []),
]


@pytest.mark.parametrize(("data", "expected"), ROWS)
def test_both_walks_agree(data: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    boxes = Boxes(BytesSource(data), Budget(Mp4Limits()))
    assert [(each.kind, bytes(boxes.read(each))) for each in boxes.children(0, len(data))] == expected
    assert [(kind, data[start:end]) for kind, start, end in boxes_of(data, 0, len(data), boxes.budget)] == expected


def test_an_overrun_is_told() -> None:
    (found,) = Boxes(BytesSource(u32(100) + b"mdat" + b"overrun"), Budget(Mp4Limits())).children(0, 15)
    assert (found.start, found.body, found.end, found.overrun, found.size) == (0, 8, 15, 85, 7)


def test_a_source_that_gives_less_than_its_size_ends_the_walk() -> None:
    class Short(BytesSource):
        def read(self, offset: int, size: int) -> memoryview:
            return super().read(offset, min(size, 7))

    assert list(Boxes(Short(box(b"free")), Budget(Mp4Limits())).children(0, 8)) == []


def test_boxes_and_bytes_are_limited() -> None:
    data = box(b"free") * 11
    boxes = Boxes(BytesSource(data), Budget(Mp4Limits(boxes=10, header_bytes=5)))
    with pytest.raises(TooLarge, match="boxes: 11, at most 10"):
        list(boxes.children(0, len(data)))
    with pytest.raises(TooLarge, match="boxes"):
        boxes_of(data, 0, len(data), Budget(Mp4Limits(boxes=10)))
    (longer,) = Boxes(BytesSource(box(b"free", b"123456")), Budget(Mp4Limits())).children(0, 14)
    boxes.read(longer, 5)
    with pytest.raises(TooLarge, match="header bytes"):
        boxes.read(longer, 1)
