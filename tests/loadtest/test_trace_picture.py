"""The picture of a trace: which call it is of, and where its spans are put."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loadtest.otlp_sink import Received
from loadtest.trace_picture import draw, one_call, rows


def span(process: str, name: str, number: int, begin: int, end: int, *, trace: int = 1, links: tuple[int, ...] = (), **facts):
    made = Span(
        name=name,
        trace_id=bytes([trace] * 16),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=b"" if process == "caller" else b"12345678",
        start_time_unix_nano=begin * 10**6,
        end_time_unix_nano=end * 10**6,
        links=[Span.Link(trace_id=bytes(16), span_id=each.to_bytes(8, "big")) for each in links],
    )
    for key, value in facts.items():
        kind = {"string_value": value} if isinstance(value, str) else {"int_value": value}
        made.attributes.append(KeyValue(key=f"keyglance.{key.replace('_', '.')}", value=AnyValue(**kind)))
    return Received(process, made)


def batch(number: int, begin: int, end: int, links: tuple[int, ...]) -> Received:
    return span("engine-0", "infer_batch", number, begin, end, trace=100 + number, links=links, model="m", batch_size=4)


ALONE = [
    span("caller", "label", 1, 0, 30, trace=1),
    span("front-0", "a.B/Label", 2, 1, 29, trace=1),
    span("front-0", "infer", 3, 2, 20, trace=1, links=(4,)),
    batch(4, 3, 19, (2,)),
]
TOGETHER = [
    span("caller", "label", 11, 0, 60, trace=2),
    span("front-0", "a.B/Label", 12, 1, 59, trace=2),
    span("front-0", "infer", 13, 2, 40, trace=2, links=(14, 15)),
    span("front-0", "fuse", 16, 41, 58, trace=2),
    batch(14, 3, 19, (12, 99)),
    batch(15, 19, 39, (12,)),
]


def test_the_call_that_shared_its_batches_is_shown_with_them():
    assert {each.span.span_id for each in one_call([*ALONE, *TOGETHER])} == {each.span.span_id for each in TOGETHER}


def test_rows_are_by_process_and_batches_share_one():
    placed = rows(TOGETHER)
    assert [(row[0].process, row[0].name, len(row)) for row in placed] == [
        ("caller", "label", 1),
        ("front-0", "Label", 1),
        ("front-0", "infer", 1),
        ("front-0", "fuse", 1),
        ("engine-0", "infer_batch", 2),
    ]


def test_the_same_trace_gives_the_same_picture(tmp_path: Path):
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        draw(TOGETHER, path)
    first, second = (path.read_text() for path in paths)
    assert first == second
    for text in ("infer_batch m", "process engine-0", "4 of 2 calls", "milliseconds"):
        assert text in first
