"""`keyglance top`: what happened between two looks, the view, and the command against a real port."""

from __future__ import annotations

import math
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from keyglance.cli import command
from keyglance.metrics_page import Between, Look, NoMetrics, look
from keyglance.top import view
from server.telemetry import Telemetry
from tests.server.test_metrics import record_everything


def between(before: str, now: str, seconds: float = 2.0) -> Between:
    return Between(Look.parsed(before, 0.0), Look.parsed(now, seconds))


def histogram(*counts: float, labels: str = "") -> str:
    bounds = ("0.1", "0.2", "0.4", "+Inf")
    lines = ["# TYPE h histogram"]
    lines += [f'h_bucket{{{labels}le="{le}"}} {count}' for le, count in zip(bounds, counts, strict=True)]
    plain = f"{{{labels.rstrip(',')}}}" if labels else ""
    return "\n".join([*lines, f"h_count{plain} {counts[-1]}", f"h_sum{plain} {counts[-1] * 0.15}"]) + "\n"


def test_rates_are_of_the_time_between():
    page = '# TYPE c_total counter\nc_total{a="1",b="x"} %d\nc_total{a="1",b="y"} %d\nc_total{a="2",b="x"} %d\n'
    found = between(page % (10, 20, 30), page % (14, 21, 30))
    assert found.rates("c_total", "a") == {("1",): 2.5, ("2",): 0.0}
    assert found.rate("c_total") == 2.5
    assert found.rates("nothing", "a") == {}
    assert found.now.sums("c_total", "b") == {("x",): 44, ("y",): 21}


def test_a_counter_that_begins_anew_counts_from_0():
    page = '# TYPE c_total counter\nc_total{instance="%s"} %d\n'
    assert between(page % ("a", 1000), page % ("a", 6)).rate("c_total") == 3
    assert between(page % ("a", 1000), page % ("b", 6)).rate("c_total") == 3


def test_quantiles_are_of_what_came_meanwhile():
    found = between(histogram(50, 50, 50, 50), histogram(50, 54, 60, 60))
    assert found.quantiles(0.4, "h") == {(): pytest.approx(0.2)}
    assert found.quantiles(0.2, "h") == {(): pytest.approx(0.15)}
    assert found.quantiles(0.7, "h") == {(): pytest.approx(0.3)}
    assert found.means("h") == {(): pytest.approx(0.15)}
    assert between(histogram(1, 1, 1, 1), histogram(1, 1, 1, 1)).quantiles(0.5, "h") == {}
    assert between(histogram(0, 0, 0, 0), histogram(0, 0, 0, 5)).quantiles(0.5, "h") == {(): 0.4}, "beyond the last bound"


def test_quantiles_by_label_and_of_some_series():
    old = histogram(0, 0, 0, 0, labels='step="a",') + histogram(0, 0, 0, 0, labels='step="b",').partition("\n")[2]
    new = histogram(2, 2, 2, 2, labels='step="a",') + histogram(0, 0, 2, 2, labels='step="b",').partition("\n")[2]
    found = between(old, new)
    assert found.quantiles(1.0, "h", "step") == {("a",): pytest.approx(0.1), ("b",): pytest.approx(0.4)}
    assert found.quantiles(1.0, "h", step="a") == {(): pytest.approx(0.1)}


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), st.floats(0.01, 1))
def test_a_quantile_lies_in_its_bucket(counts, share):
    cumulated = [sum(counts[: n + 1]) for n in range(4)]
    (value,) = between(histogram(0, 0, 0, 0), histogram(*cumulated)).quantiles(share, "h").values()
    rank = share * cumulated[-1]
    place = next(n for n, count in enumerate(cumulated) if count >= rank)
    low, high = ((0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, math.inf))[place]
    assert low - 1e-9 <= value <= high + 1e-9


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry.create(version="1.2", prometheus="127.0.0.1:0")
    record_everything(telemetry.metrics)
    yield telemetry
    telemetry.shutdown()


def shown(between: Between, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(view("here:1", between))
    return capture.get()


def test_the_view_has_all_of_it(telemetry):
    before = look(telemetry.prometheus)
    telemetry.metrics.call(0.2, method="a/b", status="OK")
    telemetry.metrics.call(0.1, method="a/b", status="RESOURCE_EXHAUSTED", reason="OVERLOADED")
    telemetry.metrics.step("decode", 0.1, waited=0.05)
    time.sleep(0.3)  # a fresh look at what is observed
    text = shown(Between(before, look(telemetry.prometheus)))
    for word in ("Keyglance 1.2 at here:1  healthy", "calls a second", "p99", "OVERLOADED", "of 9 in flight"):
        assert word in text
    for line in ("decode", "nvdec", "nsfw", "H200", "server", "index workers", "NVDEC", "SM activity", "55 °C", "bulk"):
        assert line in text, line
    assert "of 8" in text
    assert "1 of 2" in text
    assert "CORRUPT_VIDEO" not in text, "what did not happen is not shown"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_view_fits_the_terminal(telemetry, width):
    before = look(telemetry.prometheus)
    text = shown(Between(before, look(telemetry.prometheus)), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_what_goes_wrong_is_said():
    page = '# TYPE keyglance_engine_healthy gauge\nkeyglance_engine_healthy{process="engine-0"} 0\n'
    page += '# TYPE keyglance_scrape_missing gauge\nkeyglance_scrape_missing{process="front-1\x1b[2J"} 1\n'
    text = shown(between(page, page))
    assert "engine lost" in text
    assert "front-1" in text
    assert "is silent" in text
    assert "\x1b" not in text


def test_once(telemetry):
    result = CliRunner().invoke(command, ["top", telemetry.prometheus, "--once", "--interval", "0.2"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.output.startswith(f"Keyglance 1.2 at {telemetry.prometheus}  healthy")


class Answering:
    """An HTTP server that gives one answer to everything."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b"", "it answers with status 500"),
        (200, b"<html>{", "no page of metrics"),
        (200, b"\xff\xfe", "no page of metrics"),
        (200, b"# TYPE up gauge\nup 1\n", "no Keyglance server"),
    ],
)
def test_what_answers_is_no_keyglance(status, body, why):
    answering = Answering(status, body)
    result = CliRunner().invoke(command, ["top", answering.address, "--once"])
    answering.server.shutdown()
    answering.server.server_close()
    assert result.exit_code == 3
    assert result.stderr.startswith("keyglance: ")
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "host:port", "127.0.0.1:99999"])
def test_nobody_is_there(address):
    with pytest.raises(NoMetrics):
        look(address)


def test_live_on_a_terminal_until_ctrl_c(telemetry):
    terminal, child_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "keyglance", "top", telemetry.prometheus, "--interval", "0.2"],
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "60"},
    )
    os.close(child_end)
    seen = b""
    try:
        while seen.count(b"calls a second") < 3:
            seen += os.read(terminal, 65536)
        telemetry.shutdown()
        while b"the last answer came" not in seen:
            seen += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        drained = threading.Thread(target=_drain, args=(terminal,), daemon=True)
        drained.start()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert b"\x1b[?1049h" in seen, "on the terminal's other screen, which leaves what was there"


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # the other end is closed
        pass
