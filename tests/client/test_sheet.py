import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from keyglance import sheet
from keyglance.sheet import render
from keyglance.v1 import keyglance_pb2 as pb

RED, GREEN, GREY, YELLOW = (200, 30, 30), (30, 200, 30), sheet._CELL, (255, 193, 7)


def near(pixel: object, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.asarray(pixel, int) - colour).max() <= 8)


def extent(image: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """The box around all pixels near a colour: left, top, right, bottom (past the last)."""
    mask = np.abs(np.asarray(image, int) - colour).max(axis=2) <= 8
    return Image.fromarray(mask).getbbox()


def test_pictures_stand_side_by_side_and_a_skipped_one_is_grey(answer: pb.LabelResponse) -> None:
    image = render(answer, title="clip.mp4")
    red, green = extent(image, RED), extent(image, GREEN)
    assert red is not None
    assert green is not None
    assert (red[2] - red[0], red[3] - red[1]) == (256, 144) == (green[2] - green[0], green[3] - green[1])
    assert red[1] == green[1]
    assert green[0] - red[2] == sheet._GUTTER
    third = (green[2] + sheet._GUTTER + 5, green[1] + 5)
    assert near(image.getpixel(third), GREY)
    assert image.width == green[2] + sheet._GUTTER + 256 + sheet._MARGIN


def test_a_region_lies_where_the_message_says(answer: pb.LabelResponse) -> None:
    image = render(answer, title="clip.mp4")
    red = extent(image, RED)
    assert red is not None
    left, top = red[0] + 0.25 * 255, red[1] + 0.25 * 143
    for x, y in ((left, top + 36), (left + 0.25 * 255, top + 36), (left + 32, top + 0.5 * 143)):
        window = [image.getpixel((round(x) + dx, round(y) + dy)) for dx in range(-3, 4) for dy in range(-3, 4)]
        assert any(near(pixel, YELLOW) for pixel in window)
    assert near(image.getpixel((round(left + 32), round(top + 36))), RED)


def test_columns(answer: pb.LabelResponse) -> None:
    wide, tall = render(answer, title="x", columns=3), render(answer, title="x", columns=1)
    assert tall.height > wide.height
    assert [sheet._best_columns(number) for number in (0, 1, 2, 3, 4, 6, 8, 9, 12, 16, 25)] == [1, 1, 2, 3, 4, 3, 4, 3, 4, 4, 5]


def test_a_thumbnail_that_is_no_picture_is_a_grey_cell(answer: pb.LabelResponse) -> None:
    answer.frames[0].thumbnail = b"\xff\xd8\xff broken"
    answer.frames[1].thumbnail = b""
    image = render(answer, title="clip.mp4")
    assert extent(image, RED) is None
    assert extent(image, GREEN) is None


def test_no_frames_at_all() -> None:
    assert render(pb.LabelResponse(), title="").height > 0


@settings(max_examples=25, deadline=None)
@given(
    st.text(max_size=300),
    st.lists(st.tuples(*[st.floats(width=32) for _ in range(5)]), max_size=6),
    st.integers(1, 16) | st.none(),
    st.integers(0, 5),
)
def test_no_answer_breaks_the_sheet(text: str, regions: list[tuple[float, ...]], columns: int | None, frames: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    answer = pb.LabelResponse(verdict_reasons=[text], labels=[pb.Label(name=text, score=math.nan)])
    for number in range(frames):
        frame = answer.frames.add(time=number, thumbnail=TINY)
        frame.scores.add(label=text, score=math.inf if number % 2 else math.nan)
        for x, y, width, height, score in regions:
            frame.regions.add(label=text, x=x, y=y, width=width, height=height, score=score)
    image = render(answer, title=text, columns=columns)
    assert image.mode == "RGB"


def _tiny() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 16), RED).save(file, "JPEG")
    return file.getvalue()


TINY = _tiny()


@pytest.mark.parametrize(
    ("text", "drawn"), [("café", "cafe"), ("a – b", "a - b"), ("中文.mp4", "??.mp4"), ("3×", "3x"), ("", "(none)")]
)
def test_only_what_the_font_has_is_drawn(text: str, drawn: str) -> None:
    assert sheet._drawable(text) == drawn
