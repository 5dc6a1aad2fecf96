"""The benchmark of telemetry: its figures, and one of its servers with all that it counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from loadtest.index import clip
from loadtest.otlp_sink import OtlpSink
from loadtest.request_bytes import request_message
from loadtest.telemetry import Server, figures, saturate, serving, take_turns


def server(way: str, rates: list[float], cpu_ms: list[float]) -> Server:
    return Server(way, SimpleNamespace(), "", "", calls=9, rates=rates, cpu_ms=cpu_ms)  # type: ignore[arg-type]


def test_each_turn_is_compared_with_its_neighbour():
    told = figures([server("off", [100.0, 50.0, 200.0], [2.0, 4.0, 1.0]), server("on", [90.0, 50.0, 160.0], [2.2, 4.0, 1.5])])
    assert told["off"]["throughput_against_off"] == told["off"]["cpu_against_off"] == 1.0
    assert told["on"]["throughput_against_off"] == 0.9
    assert told["on"]["throughput_against_off_quartiles"] == [0.8, 1.0]
    assert told["on"]["cpu_against_off"] == 1.1
    assert (told["on"]["calls_per_second"], told["on"]["server_cpu_ms_per_call"]) == (90.0, 2.2)


def test_a_server_that_tells_all_and_one_that_tells_nothing(tmp_path: Path):
    message = request_message(clip(4, rate=100_000)).SerializeToString()
    with (
        OtlpSink(keep=False) as sink,
        serving("off", sink.endpoint, tmp_path) as off,
        serving("every_trace", sink.endpoint, tmp_path) as every,
    ):
        assert off.metrics == ""
        warm = asyncio.run(saturate(every, message, 2, 0.2))
        take_turns([off, every], message, 2, 2, 0.3)
        told = figures([off, every])
    assert off.calls > 0
    assert len(off.rates) == len(every.cpu_ms) == 2
    kept = told["every_trace"]["traces_kept"]
    assert kept >= every.calls + warm > 0
    assert told["every_trace"]["spans_sent"] == sink.count == kept * 9, "the call, its seven steps and a batch"
    assert told["every_trace"]["spans_dropped"] == 0
