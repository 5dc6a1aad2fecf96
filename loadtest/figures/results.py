"""The results that are there, and the words in which their figures are told."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import report

Figures = Mapping[str, Any]
_WIDTH = 127


class Results:
    """The JSON files of one folder; one that is missing is None, and its lines are left out."""

    def __init__(self, folder: Path = report.RESULTS) -> None:
        self._folder = folder

    def get(self, name: str) -> Figures | None:
        """The whole of NAME.json; ValueError, with the name, where it is not JSON."""
        path = self._folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            told: Figures = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path.name} is not JSON: {error}") from None
        return told

    def part(self, name: str) -> Figures | None:
        """The figures of gpu_NAME.json; None also where that part of `loadtest.gpu` failed or was cut off."""
        told = self.get(f"gpu_{name}")
        if told is None or told.get("ended") != "complete":
            return None
        found: Figures | None = told.get(name)
        return found

    def with_key(self, key: str) -> Iterator[tuple[str, Figures]]:
        """Name and whole of each file that has `key`, by name: load tests are kept under any name."""
        for path in sorted(self._folder.glob("*.json")):
            told = self.get(path.stem)
            if told is not None and key in told:
                yield path.stem, told

    def has(self, file: str) -> bool:
        """Whether a file of that name lies beside the results, a picture say."""
        return (self._folder / file).is_file()


def number(value: float) -> str:
    """As many digits as matter: 1,632, 30.2, 0.94."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.05:
        return f"{value:.2g}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ms(value: float) -> str:
    """Milliseconds."""
    return f"{number(value)} ms"


def megabytes(value: float) -> str:
    """Bytes as MB (10⁶)."""
    return f"{value / 1e6:.1f} MB"


def percent(share: float) -> str:
    """A share of 1."""
    return f"{share * 100:.0f} %"


def counted(count: int, noun: str, several: str = "") -> str:
    """1 front, 2 fronts; `several` where that is more than an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def prose(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table of words; `loadtest.load_report.table` is one of numbers."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *cells)]


def wrapped(lines: Iterable[str]) -> list[str]:
    """Lines of Markdown no wider than those around them; tables, headings and pictures as they are."""
    found: list[str] = []
    for line in lines:
        indent = "  " if line.startswith("- ") else ""
        kept = line[:1] in ("|", "#", "!")
        found += (
            [line]
            if kept or not line
            else textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )
    return found


def listed(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
