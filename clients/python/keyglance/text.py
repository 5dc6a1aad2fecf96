"""Short forms of values for people, shared by the table and the contact sheet."""

from __future__ import annotations

import math
import unicodedata


def plain(text: str) -> str:
    """One line without control characters: names and texts may come from a hostile file, and terminals obey escapes."""
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else char
        for char in " ".join(text.split())
    )
    return shown or "(none)"


def container(name: str) -> str:
    """FFmpeg's name of a demuxer, of which those for families of formats list every one, as at most two of them."""
    return plain("/".join(name.split(",")[:2]))


def clock(seconds: float, *, decimals: int = 0) -> str:
    """Seconds as m:ss or h:mm:ss, with `decimals` more digits."""
    if not math.isfinite(seconds):
        return "?"
    sign = "-" if seconds < 0 else ""
    # Cut, not rounded, to whole units: 59.96 is not yet 1:00.
    units = int(abs(seconds) * 10**decimals + 1e-6)
    whole, part = divmod(units, 10**decimals)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    tail = f"{second:02d}" + (f".{part:0{decimals}d}" if decimals else "")
    return f"{sign}{hours}:{minute:02d}:{tail}" if hours else f"{sign}{minutes}:{tail}"


def share(value: float) -> float:
    """The value kept within 0 to 1, 0 where it is no number: what is drawn must not depend on a server that keeps ranges."""
    return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)


def size(count: int) -> str:
    """Bytes with a binary unit."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def count(number: int, noun: str) -> str:
    """The number with its noun, in the plural where it is not one."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
