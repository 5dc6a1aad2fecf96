"""A contact sheet of an answer: the pictures looked at in a grid, with times, labels and regions, as one image."""

from __future__ import annotations

import io
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from keyglance import answer as reading
from keyglance.answer import Answer
from keyglance.text import clock, container, count, plain, share, size
from keyglance.v1 import keyglance_pb2 as pb

#: What `Image.save` is asked for, by the file name's ending.
FORMATS = (".png", ".jpg", ".jpeg", ".webp")
#: The longer side of a thumbnail in pixels; ask the server for this size.
THUMBNAIL_SIZE = 256

Colour = tuple[int, int, int]
_Box = tuple[float, float, float, float]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_PAPER: Colour = (250, 250, 249)
_INK: Colour = (28, 30, 33)
_MUTED: Colour = (112, 117, 124)
_RULE: Colour = (222, 224, 227)
_CELL: Colour = (236, 237, 239)
_ACCENT: Colour = (11, 105, 163)
_VERDICTS: dict[str, Colour] = {"PASS": (22, 128, 74), "REVIEW": (176, 112, 0), "BLOCK": (190, 38, 38)}
#: Of many regions of one label in a picture only the best get their tag: the others' boxes say enough, and tags would hide them.
_MOST_TAGS = 3
#: Boxes of regions, by the order in which labels appear; readable on any picture with the dark line around them.
_REGION_COLOURS: tuple[Colour, ...] = ((255, 193, 7), (64, 196, 255), (105, 240, 174), (255, 128, 171), (234, 128, 252))

_MARGIN = 28
_GUTTER = 18
_LABEL_ROWS = 3
_ROW = 19
_CAPTION = 24 + _LABEL_ROWS * _ROW
_MOST_HEADER_LABELS = 6
_BAR = 52
#: Cells that a portrait video leaves narrower would have no room for captions.
_NARROWEST_CELL = 208


@dataclass(frozen=True, slots=True)
class _Fonts:
    title: Font
    text: Font
    small: Font


def render(answer: Answer, *, title: str, columns: int | None = None) -> Image.Image:
    """The sheet, in RGB. `answer` is one with thumbnails and frame scores; a picture without a thumbnail is a grey cell.

    `columns` None takes the number from 3 to 6 that fills its rows best.
    """
    fonts = _Fonts(*(ImageFont.load_default(size=points) for points in (26, 15, 13)))
    pictures = [_thumbnail(frame) for frame in answer.frames]
    seen = [picture for picture in pictures if picture is not None]
    cell_width = max([_NARROWEST_CELL, *(picture.width for picture in seen)])
    cell_height = max([120, *(picture.height for picture in seen)]) if seen else 144
    columns = max(1, columns or _best_columns(len(pictures)))
    rows = -(-len(pictures) // columns)

    width = 2 * _MARGIN + max(columns, 3) * (cell_width + _GUTTER) - _GUTTER
    header = _Header(answer, title, fonts, width)
    height = header.height + rows * (cell_height + _CAPTION + _GUTTER) + _MARGIN
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    header.draw(sheet, draw)
    thresholds = _thresholds(answer)
    colours = _region_colours(answer)
    for number, (frame, picture) in enumerate(zip(answer.frames, pictures, strict=True)):
        row, column = divmod(number, columns)
        x = _MARGIN + column * (cell_width + _GUTTER)
        y = header.height + row * (cell_height + _CAPTION + _GUTTER)
        _draw_picture(sheet, draw, (x, y, cell_width, cell_height), frame, picture, colours, fonts)
        _draw_caption(draw, (x, y + cell_height, cell_width), frame, thresholds, fonts)
    return sheet


class _Header:
    """Title, verdict, the video's facts, the verdict's reasons and the main labels, on as many lines as they need."""

    def __init__(self, answer: Answer, title: str, fonts: _Fonts, width: int) -> None:
        self._answer = answer
        self._fonts = fonts
        self._width = width
        self._verdict = reading.verdict(answer)
        inner = width - 2 * _MARGIN
        pill = _text_width(fonts.text, self._verdict) + 28
        self._title = _fit(fonts.title, _drawable(title), inner - pill - 16)
        self._facts = _wrapped(fonts.small, [_video_facts(answer)], inner)
        notes = [*answer.verdict_reasons, *(_degradation(each) for each in answer.degradations)]
        self._notes = _wrapped(fonts.small, [_drawable(note) for note in notes], inner)[:6]
        self._chips = _chips(answer, fonts.text, inner)
        chip_rows = 1 + max((row for row, *_ in self._chips), default=-1)
        self.height = _MARGIN + 40 + 18 * len(self._facts) + 8 + 18 * len(self._notes) + 10 + 36 * chip_rows + 14

    def draw(self, sheet: Image.Image, draw: ImageDraw.ImageDraw) -> None:
        fonts, y = self._fonts, _MARGIN
        draw.text((_MARGIN, y + 14), self._title, _INK, fonts.title, anchor="lm")
        text_width = _text_width(fonts.text, self._verdict)
        right = self._width - _MARGIN
        box = (right - text_width - 28, y, right, y + 28)
        _pill(sheet, box, 14, _VERDICTS.get(self._verdict, _MUTED))
        draw.text(((box[0] + box[2]) / 2, y + 14), self._verdict, (255, 255, 255), fonts.text, anchor="mm")
        y += 40
        for line in self._facts:
            draw.text((_MARGIN, y + 9), line, _MUTED, fonts.small, anchor="lm")
            y += 18
        y += 8
        for line in self._notes:
            draw.text((_MARGIN, y + 9), line, _INK, fonts.small, anchor="lm")
            y += 18
        y += 10
        for row, x, chip_width, text, passed in self._chips:
            top = y + 36 * row
            fill, ink = (_ACCENT, (255, 255, 255)) if passed else (_CELL, _MUTED)
            _pill(sheet, (_MARGIN + x, top, _MARGIN + x + chip_width, top + 28), 6, fill)
            draw.text((_MARGIN + x + chip_width / 2, top + 14), text, ink, fonts.text, anchor="mm")


def _pill(sheet: Image.Image, box: tuple[int, int, int, int], radius: int, colour: Colour) -> None:
    """A filled rectangle with smooth round corners: Pillow draws them jagged, so they are drawn larger and scaled down."""
    width, height, scale = box[2] - box[0], box[3] - box[1], 4
    mask = Image.new("L", (width * scale, height * scale))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, width * scale - 1, height * scale - 1), radius * scale, 255)
    sheet.paste(colour, box, mask.resize((width, height), Image.Resampling.BOX))


def _chips(answer: Answer, font: Font, inner: int) -> list[tuple[int, int, int, str, bool]]:
    """The main labels as (row, left, width, text, passed): those that passed, or the best few where none did."""
    labels = reading.passed(answer) or sorted(answer.labels, key=lambda label: -label.score)[:3]
    chips: list[tuple[int, int, int, str, bool]] = []
    row = x = 0
    for label in labels[:_MOST_HEADER_LABELS]:
        text = _fit(font, f"{_drawable(label.name)}  {label.score:.2f}", inner - 24)
        width = _text_width(font, text) + 24
        if x and x + width > inner:
            row, x = row + 1, 0
        chips.append((row, x, width, text, label.passed))
        x += width + 10
    return chips


def _draw_picture(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    cell: tuple[int, int, int, int],
    frame: pb.Frame,
    picture: Image.Image | None,
    colours: dict[str, Colour],
    fonts: _Fonts,
) -> None:
    x, y, width, height = cell
    draw.rectangle((x, y, x + width - 1, y + height - 1), _CELL)
    if picture is None:
        why = reading.reason(frame.skipped).replace("_", " ").lower() if frame.skipped else "no thumbnail"
        lines = _wrapped(fonts.text, [_drawable(why)], width - 24)
        for number, line in enumerate(lines):
            draw.text(
                (x + width / 2, y + height / 2 + 20 * (number - (len(lines) - 1) / 2)), line, _MUTED, fonts.text, anchor="mm"
            )
        return
    left, top = x + (width - picture.width) // 2, y + (height - picture.height) // 2
    sheet.paste(picture, (left, top))
    bounds = (left, top, picture.width, picture.height)
    boxes = [(region, _region_box(region, bounds)) for region in sorted(frame.regions, key=lambda region: -region.score)]
    for region, box in boxes:
        draw.rectangle(box, outline=_INK, width=4)
        inner = (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1)
        if inner[0] < inner[2] and inner[1] < inner[3]:
            draw.rectangle(inner, outline=colours[region.label], width=2)
    taken: list[_Box] = []
    tagged: Counter[str] = Counter()
    for region, box in boxes:  # After all boxes, so that none is drawn over a tag.
        tagged[region.label] += 1
        if tagged[region.label] > _MOST_TAGS:
            continue
        _tag(draw, f"{_drawable(region.label)} {region.score:.2f}", box, bounds, colours[region.label], fonts, taken)


def _region_box(region: pb.Region, bounds: tuple[int, int, int, int]) -> _Box:
    """The region's corners on the sheet, kept within the picture whatever the message says."""
    left, top, width, height = bounds

    def place(at: float, start: int, length: int) -> float:
        return start + share(at) * (length - 1)

    x0, x1 = place(region.x, left, width), place(region.x + region.width, left, width)
    y0, y1 = place(region.y, top, height), place(region.y + region.height, top, height)
    return x0, y0, max(x0, x1), max(y0, y1)


def _tag(
    draw: ImageDraw.ImageDraw,
    text: str,
    at: _Box,
    bounds: tuple[int, int, int, int],
    colour: Colour,
    fonts: _Fonts,
    taken: list[_Box],
) -> None:
    """A region's name above its box, or inside or below where there is no room; left out where it would cover another."""
    left, top, width, height = bounds
    x0, y0, _, y1 = at
    text = _fit(fonts.small, text, width - 8)
    wide = _text_width(fonts.small, text) + 8
    x = min(x0, left + width - wide)
    for y in (y0 - 17, y0 + 2, y1 + 1):
        box = (x, y, x + wide, y + 16)
        inside = y >= top and y + 16 <= top + height
        if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            draw.rectangle(box, colour)
            draw.text((x + 4, y + 8), text, _INK, fonts.small, anchor="lm")
            taken.append(box)
            return


def _draw_caption(
    draw: ImageDraw.ImageDraw, at: tuple[int, int, int], frame: pb.Frame, thresholds: dict[str, float], fonts: _Fonts
) -> None:
    x, y, width = at
    draw.text((x, y + 14), clock(frame.time, decimals=1), _INK, fonts.text, anchor="lm")
    kind = ("keyframe" if frame.keyframe else "between keyframes") + (", not shown" if frame.outside_edit else "")
    kind = _fit(fonts.small, kind, width - _text_width(fonts.text, clock(frame.time, decimals=1)) - 12)
    draw.text((x + width, y + 14), kind, _MUTED, fonts.small, anchor="rm")
    y += 24
    for label, score in reading.best_scores(frame)[:_LABEL_ROWS]:
        strong = label in thresholds and score >= thresholds[label]
        ink = _INK if strong else _MUTED
        number = f"{score:.2f}"
        bar_right = x + width - 36
        bar_left = bar_right - _BAR
        draw.text((x, y + 9), _fit(fonts.small, _drawable(label), bar_left - x - 10), ink, fonts.small, anchor="lm")
        draw.rectangle((bar_left, y + 7, bar_right, y + 11), _RULE)
        filled = round(_BAR * share(score))
        if filled:
            draw.rectangle((bar_left, y + 7, bar_left + filled, y + 11), _ACCENT if strong else _MUTED)
        draw.text((x + width, y + 9), number, ink, fonts.small, anchor="rm")
        y += _ROW


def _thumbnail(frame: pb.Frame) -> Image.Image | None:
    """The frame's picture, or None where there is none that can be read."""
    if frame.skipped or not frame.thumbnail:
        return None
    try:
        with Image.open(io.BytesIO(frame.thumbnail), formats=("JPEG",)) as image:
            if max(image.size) > 4 * 1024:
                return None
            picture = image.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    picture.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    return picture


def _best_columns(pictures: int) -> int:
    if pictures <= 3:
        return max(1, pictures)
    return min(range(3, 7), key=lambda columns: (-pictures % columns, abs(columns * columns - 1.5 * pictures)))


def _thresholds(answer: Answer) -> dict[str, float]:
    """The score from which each label counts as present."""
    known = {info.name: info.threshold for model in answer.models for info in model.labels}
    return known | {label.name: label.threshold for label in answer.labels}


def _region_colours(answer: Answer) -> dict[str, Colour]:
    names = dict.fromkeys(region.label for frame in answer.frames for region in frame.regions)
    return {name: _REGION_COLOURS[number % len(_REGION_COLOURS)] for number, name in enumerate(names)}


def _video_facts(answer: Answer) -> str:
    video, coverage = answer.video, answer.coverage
    facts = (
        f"{container(video.container)}, {video.codec} {video.profile}".strip(),
        f"{video.width} x {video.height}",
        clock(video.duration, decimals=1),
        size(video.size),
        f"{coverage.frames} of {count(video.samples, 'picture')} seen",
        f"largest gap {coverage.largest_gap:.1f} s",
    )
    return _drawable("  ·  ".join(facts))


def _degradation(degradation: pb.Degradation) -> str:
    times = f" x{degradation.count}" if degradation.count > 1 else ""
    return f"{reading.reason(degradation.reason)}{times}" + (f": {degradation.detail}" if degradation.detail else "")


def _drawable(text: str) -> str:
    """The text in what Pillow's bundled font can draw: accents taken off, anything else foreign as a question mark."""
    text = plain(text).translate({0x2013: "-", 0x2014: "-", 0xD7: "x", 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})
    bare = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return "".join(char if char.isascii() or char in "·°" else "?" for char in bare)


def _text_width(font: Font, text: str) -> int:
    return round(font.getlength(text))


def _fit(font: Font, text: str, width: int) -> str:
    """The text, cut to `width` pixels with an ellipsis where it is longer."""
    if _text_width(font, text) <= width:
        return text
    while text and _text_width(font, text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def _wrapped(font: Font, paragraphs: Sequence[str], width: int) -> list[str]:
    lines = []
    for paragraph in paragraphs:
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if line and _text_width(font, joined) > width:
                lines.append(line)
                line = word
            else:
                line = joined
        lines.append(_fit(font, line, width))
    return lines
