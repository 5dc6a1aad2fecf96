"""From FFmpeg's words about a video stream to ours."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from keyglance.display_matrix import IDENTITY, Matrix
from keyglance.video import Colour, ColourRange, StreamConfig

#: Sample aspects beyond this, or below its inverse, are taken for errors.
WIDEST_ASPECT = 20
#: Codecs whose pictures carry no chroma location and whose chroma lies in the centre (H.273's 1), as their standards have it:
#: ISO/IEC 11172-2 2.4.1, ITU-T H.263 4.1, JFIF 1.02.
_SITED_BY_CODEC = {"mjpeg": 1, "mpeg1video": 1, "h263": 1}
_CHROMA_LOCATIONS = ("left", "center", "topleft", "top", "bottomleft", "bottom")


def config_of(stream: Any, dump: str, notes: list[str]) -> StreamConfig:
    """The configuration of an `av.VideoStream`; `dump` is `Container.dumps_format()`, the only place for some facts."""
    context = stream.codec_context
    pixels = context.format
    bit_depth, chroma = 8, "420"
    if pixels is not None and pixels.components:
        bit_depth = min(16, max(8, pixels.components[0].bits))
        chroma = _chroma_format(pixels)
    return StreamConfig(
        codec=context.codec.canonical_name,
        width=context.width,
        height=context.height,
        bit_depth=bit_depth,
        chroma_format=chroma,
        profile=context.profile or "",
        extradata=context.extradata or b"",
        codec_tag=_tag(context),
        bits_per_coded_sample=max(0, context.bits_per_coded_sample),
        sample_aspect=_aspect(stream, notes),
        colour=_colour(context, context.codec.canonical_name, pixels.name if pixels else "", _section(dump, stream.index)),
    )


def _tag(context: Any) -> int:
    try:
        return int.from_bytes(context.codec_tag.encode("ascii"), "little")
    except UnicodeDecodeError as error:  # PyAV takes every tag for ASCII; the error holds the four bytes
        return int.from_bytes(error.object, "little")


def _chroma_format(pixels: Any) -> str:
    if pixels.is_rgb or pixels.has_palette or pixels.is_bayer:
        return "rgb"
    if sum(not component.is_alpha for component in pixels.components) < 3:  # `is_chroma` is false where nothing is subsampled
        return "400"
    wide, high = pixels.chroma_width(64), pixels.chroma_height(64)
    return {(64, 64): "444", (32, 64): "422", (32, 32): "420", (16, 64): "411", (16, 16): "410", (64, 32): "440"}.get(
        (wide, high), f"{64 // max(wide, 1)}x{64 // max(high, 1)}"
    )


def _aspect(stream: Any, notes: list[str]) -> Fraction:
    try:
        aspect = stream.sample_aspect_ratio
    except (ZeroDivisionError, ValueError):
        aspect = None
    if not aspect:
        return Fraction(1)
    if not Fraction(1, WIDEST_ASPECT) <= aspect <= WIDEST_ASPECT:
        notes.append(f"sample aspect {aspect} absurd: taken for square")
        return Fraction(1)
    return Fraction(aspect)


def _colour(context: Any, codec: str, pixels: str, section: str) -> Colour:
    ranges = {1: ColourRange.LIMITED, 2: ColourRange.FULL}
    described = ranges.get(int(context.color_range), ColourRange.UNSPECIFIED)
    if pixels.startswith("yuvj"):
        described = ColourRange.FULL
    location = re.search(r"yuv\w+\([^)]*?\b(" + "|".join(_CHROMA_LOCATIONS) + r")\)", section)
    return Colour(
        primaries=_code_point(context.color_primaries) or 2,
        transfer=_code_point(context.color_trc) or 2,
        matrix=_code_point(context.colorspace),
        range=described,
        chroma_location=_CHROMA_LOCATIONS.index(location.group(1)) if location else _SITED_BY_CODEC.get(codec),
    )


def _code_point(value: Any) -> int:
    return int(value) if 0 <= int(value) <= 22 else 2


def _section(dump: str, index: int) -> str:
    """What `av_dump_format` says of one stream."""
    match = re.search(rf"^ *Stream #0:{index}\b.*?(?=^ *Stream #|\Z)", dump, re.DOTALL | re.MULTILINE)
    return match.group() if match else ""


def matrix_of(dump: str, index: int) -> Matrix:
    """The display matrix of a stream of a container other than ISO base media; its mirroring, if any, is not told."""
    match = re.search(r"Display Matrix: rotation of (-?[\d.]+) degrees", _section(dump, index), re.IGNORECASE)
    if not match:
        return IDENTITY
    turn = math.radians(-float(match.group(1)))
    a, b = round(math.cos(turn) * 65536), round(math.sin(turn) * 65536)
    return (a, b, 0, -b, a, 0, 0, 0, 1 << 30)
