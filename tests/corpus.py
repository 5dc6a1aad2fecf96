"""The corpus of real video files and its manifest, for tests; none of its files belongs to the project."""

import csv
import functools
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("KEYGLANCE_CORPUS") or Path(__file__).parents[2] / "shared" / "corpus")


@dataclass(frozen=True)
class Row:
    """One file and what its manifest row says; every other column is in `facts`."""

    file: str
    expect: str  # ok, refuse, either
    reason: str  # of refuse:REASON, else empty
    facts: dict[str, str]

    @property
    def path(self) -> Path:
        return ROOT / self.file

    def read(self) -> bytes:
        return self.path.read_bytes()

    def number(self, column: str) -> float | None:
        """A numeric column, None where it is empty or no number."""
        try:
            return float(self.facts[column])
        except ValueError:
            return None


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows; none without a corpus."""
    if not (ROOT / "manifest.tsv").exists():
        return ()
    with (ROOT / "manifest.tsv").open(newline="") as lines:
        found = []
        for facts in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            expect, _, reason = facts["expect"].partition(":")
            found.append(Row(facts["file"], expect, reason, facts))
    return tuple(found)


def row(file: str) -> Row:
    """The row of one file."""
    return next(row for row in rows() if row.file == file)
