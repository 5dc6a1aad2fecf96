"""Counters and histograms of our own against those of OpenTelemetry's SDK: the same records give the same points."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from server import tally as tally_module
from server.exposition import CollectingReader
from server.tally import HistogramCollection, Tallies, WithHistograms

SCOPE = InstrumentationScope("test", "1")
BOUNDS = (0.1, 0.5, 2.0)
SPAN, OTHER = SpanContext(1 << 100, 7, False), SpanContext(2 << 100, 8, False)

records = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.05, 0.1, 0.1000001, 0.5, 1.0, 2.0, 3.0]), st.sampled_from("ab"), st.sampled_from([None, "e"])
    )
)


class Exporter(MetricExporter):
    """Keeps what it is given."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__(preferred_temporality={Histogram: temporality})
        self.told: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        self.told.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        pass


class Both:
    """One histogram of each kind in one provider, which an exporter of each kind is told of."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        self.tallies = Tallies(SCOPE)
        self.ours = self.tallies.histogram("ours", "s", "Of ours.", ("step", "error"), BOUNDS)
        self.exporter = Exporter(temporality)
        self.reader = PeriodicExportingMetricReader(
            WithHistograms(self.exporter, self.tallies), export_interval_millis=float("inf")
        )
        meter = MeterProvider([self.reader], shutdown_on_exit=False).get_meter(SCOPE.name, SCOPE.version)
        self.theirs = meter.create_histogram("theirs", "s", explicit_bucket_boundaries_advisory=BOUNDS)
        other = self.tallies.counter(())
        other.add(1)
        meter.create_observable_gauge("other", [other.observe])  # a reader without anything is told nothing

    def record(self, values: Sequence[tuple[float, str, str | None]]) -> None:
        for value, step, error in values:
            self.theirs.record(value, {"step": step} if error is None else {"step": step, "error": error})
            self.ours.record(value, step, error)

    def points(self) -> tuple[dict, dict]:
        """Those of theirs and of ours, by labels, as just exported."""
        self.reader.collect()
        (resource,) = self.exporter.told[-1].resource_metrics
        (scope,) = resource.scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        del found["other"]
        for metric in found.values():
            assert metric.unit == "s"
            assert metric.data.aggregation_temporality is self.exporter._preferred_temporality[Histogram]
        of = [
            {frozenset(p.attributes.items()): p for p in found[n].data.data_points} if n in found else {}
            for n in ("theirs", "ours")
        ]
        return of[0], of[1]


def shape(point: HistogramDataPoint) -> tuple:
    return point.count, pytest.approx(point.sum), tuple(point.bucket_counts), tuple(point.explicit_bounds)


@given(st.lists(records, min_size=1, max_size=4))
def test_all_there_was(rounds):
    both = Both(AggregationTemporality.CUMULATIVE)
    for values in rounds:
        both.record(values)
        theirs, ours = both.points()
        assert {key: shape(point) for key, point in ours.items()} == {key: shape(point) for key, point in theirs.items()}
        assert {key: (p.min, p.max) for key, p in ours.items()} == {key: (p.min, p.max) for key, p in theirs.items()}
        assert all(point.start_time_unix_nano == both.tallies.begin_ns for point in ours.values())


@given(st.lists(records, min_size=1, max_size=4))
def test_what_came_since_the_last_look(rounds):
    both = Both(AggregationTemporality.DELTA)
    until = both.tallies.begin_ns
    for values in rounds:
        both.record(values)
        theirs, ours = both.points()
        assert {key: shape(point) for key, point in ours.items()} == {key: shape(point) for key, point in theirs.items()}
        for point in ours.values():
            assert (point.min, point.max) == (None, None)
            assert until <= point.start_time_unix_nano < point.time_unix_nano
        until = max((point.time_unix_nano for point in ours.values()), default=until)


def collected(collection: HistogramCollection) -> list[list[tuple[float, int | None, int | None]]]:
    """Exemplars of all points."""
    metrics = collection._metrics()
    return [
        [(e.value, e.trace_id, e.span_id) for e in point.exemplars] for metric in metrics for point in metric.data.data_points
    ]


def test_exemplars_are_the_last_of_their_buckets():
    tallies = Tallies(SCOPE)
    tally = tallies.histogram("a", "s", "A.", (), BOUNDS)
    asked, pushed = HistogramCollection(tallies), HistogramCollection(tallies, pushed=True)
    for value, span in ((0.2, SPAN), (0.3, OTHER), (0.4, None), (9.0, SPAN)):
        tally.record(value, span=span)
    told = [(0.3, OTHER.trace_id, OTHER.span_id), (9.0, SPAN.trace_id, SPAN.span_id)]
    assert collected(asked) == collected(pushed) == [told]
    tally.record(0.01, span=OTHER)
    new = (0.01, OTHER.trace_id, OTHER.span_id)
    assert collected(asked) == [[new, *told]]
    assert collected(pushed) == [[new]]


def test_nothing_is_told_of_what_has_no_records():
    tallies = Tallies(SCOPE)
    tallies.histogram("a", "s", "A.", (), BOUNDS)
    data = MetricsData([])
    assert HistogramCollection(tallies).add_to(data) is data


def test_a_reader_without_any_other_metric_of_the_scope():
    tallies = Tallies(SCOPE)
    tallies.histogram("a", "s", "A.", (), BOUNDS).record(1.0)
    reader = CollectingReader()
    reader.complete_with(tallies)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("another").create_counter("b").add(1)
    (resource,) = reader.collected().resource_metrics
    assert [(scope.scope.name, [metric.name for metric in scope.metrics]) for scope in resource.scope_metrics] == [
        ("another", ["b"]),
        ("test", ["a"]),
    ]


def test_a_counter_has_a_sum_for_each_of_its_labels():
    tally = Tallies(SCOPE).counter(["lane", "why"])
    tally.add(0, "main", "room")
    for amount in (1, 2):
        tally.add(amount, "main", "late")
    told = {tuple(each.attributes.items()): each.value for each in tally.observe(None)}
    assert told == {(("lane", "main"), ("why", "room")): 0, (("lane", "main"), ("why", "late")): 3}


def test_few_records_wait(monkeypatch):
    monkeypatch.setattr(tally_module, "_MOST_WAITING", 10)
    tallies = Tallies(SCOPE)
    tally = tallies.histogram("a", "s", "A.", (), BOUNDS)
    for _ in range(25):
        tally.record(1.0)
        assert len(tallies._waiting) < 10
    with tallies.settled():
        tally.record(1.0)
        for _ in range(20):  # while somebody looks nobody waits for it
            tally.record(1.0)
        assert [series.point(0, 0, 0).count for series in tally.series] == [25]
    with tallies.settled():
        assert [series.point(0, 0, 0).count for series in tally.series] == [46]


def test_threads_lose_no_record():
    tallies = Tallies(SCOPE)
    counter, tally = tallies.counter(["a"]), tallies.histogram("a", "s", "A.", ["a"], BOUNDS)

    def work() -> None:
        for number in range(5000):
            tally.record(0.25, str(number % 3))
            counter.add(1, "x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):  # somebody collects meanwhile
        count = sum(each.value for each in counter.observe(None))
        assert count >= seen
        seen = count
    for thread in threads:
        thread.join()
    assert [each.value for each in counter.observe(None)] == [20_000]
    points = [series.point(0, 0, 0) for series in tally.series]
    assert (sum(p.count for p in points), sum(p.sum for p in points)) == (20_000, 5000.0)
