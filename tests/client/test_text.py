import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyglance.text import clock, container, count, plain, size


@pytest.mark.parametrize(
    ("seconds", "decimals", "shown"),
    [
        (0, 0, "0:00"),
        (59.99, 0, "0:59"),
        (59.96, 1, "0:59.9"),
        (0.3, 1, "0:00.3"),
        (65.5, 0, "1:05"),
        (3600, 0, "1:00:00"),
        (3725.25, 1, "1:02:05.2"),
        (-1.5, 1, "-0:01.5"),
        (float("inf"), 0, "?"),
        (float("nan"), 1, "?"),
    ],
)
def test_clock(seconds: float, decimals: int, shown: str) -> None:
    assert clock(seconds, decimals=decimals) == shown


@given(st.floats(0, 1e6), st.integers(0, 3))
def test_a_clock_reads_back(seconds: float, decimals: int) -> None:
    parts = [float(part) for part in clock(seconds, decimals=decimals).split(":")]
    total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
    assert -1e-5 < seconds - total < 10**-decimals + 1e-5
    assert all(part < 60 for part in parts[1:])


@given(st.text())
def test_plain_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    shown = plain(text)
    assert shown
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in shown)
    shown.encode()


def test_plain_keeps_what_is_plain() -> None:
    assert plain("clip é 中.mp4") == "clip é 中.mp4"
    assert "\x1b" not in plain("\x1b[31mred\nnext\udcff")


def test_sizes_and_counts() -> None:
    assert [size(number) for number in (0, 1023, 1024, 64 << 20, 3 << 40)] == ["0 B", "1023 B", "1.0 KiB", "64.0 MiB", "3.0 TiB"]
    assert [count(1, "label"), count(2, "label"), count(1200, "label")] == ["1 label", "2 labels", "1,200 labels"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("mov,mp4,m4a,3gp,3g2,mj2", "mov/mp4"),
        ("matroska,webm", "matroska/webm"),
        ("avi", "avi"),
        ("", "(none)"),
        ("a\x1b[1m", "a\ufffd[1m"),
    ],
)
def test_container(name: str, shown: str) -> None:
    assert container(name) == shown
