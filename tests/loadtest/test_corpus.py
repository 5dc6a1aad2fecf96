from pathlib import Path

import pytest

from keyglance.errors import DeadlineExceeded, Encrypted, KeyglanceError, NotAVideo, WorkerLost
from loadtest.corpus import Row, meets, read_manifest, table


@pytest.mark.parametrize(
    ("expected", "error", "pictures", "met"),
    [
        ("ok", None, 3, True),
        ("ok", None, 0, False),
        ("ok", NotAVideo("text"), 0, False),
        ("refuse", NotAVideo("text"), 0, True),
        ("refuse", None, 3, False),
        ("refuse", WorkerLost("gone"), 0, False),
        ("refuse:ENCRYPTED", Encrypted("cenc"), 0, True),
        ("refuse:ENCRYPTED", NotAVideo("text"), 0, False),
        ("refuse:ENCRYPTED", None, 1, False),
        ("either", None, 1, True),
        ("either", NotAVideo("text"), 0, True),
        ("either", DeadlineExceeded("late"), 0, False),
    ],
)
def test_what_meets_an_expectation(expected: str, error: KeyglanceError | None, pictures: int, met: bool) -> None:
    assert meets(expected, error, pictures) is met


def test_the_manifest_is_read_by_column_name(tmp_path: Path) -> None:
    (tmp_path / "manifest.tsv").write_text('file\tsha256\texpect\na "b.mp4\t0\tok\nc.mkv\t1\trefuse:ENCRYPTED\n')
    assert read_manifest(tmp_path) == {'a "b.mp4': "ok", "c.mkv": "refuse:ENCRYPTED"}


def test_an_unknown_expectation_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.tsv").write_text("file\texpect\na.mp4\tperhaps\n")
    with pytest.raises(ValueError, match="perhaps"):
        read_manifest(tmp_path)


def test_the_table_shows_names_with_brackets_as_they_are() -> None:
    from rich.console import Console

    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table([Row("a[red].mp4", "ok", "NOT_A_VIDEO", False, 0.1, message="no [/] container")]))
    text = console.export_text()
    assert "a[red].mp4" in text
    assert "no [/] container" in text


@pytest.mark.corpus
def test_the_corpus_has_a_manifest_that_is_understood(corpus: Path) -> None:
    rows = read_manifest(corpus)
    assert len(rows) > 300
    assert all((corpus / name).is_file() for name in rows)
