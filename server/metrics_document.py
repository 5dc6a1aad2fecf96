"""Writes docs/metrics.md from the table of instruments: `python -m server.metrics_document > docs/metrics.md`."""

from __future__ import annotations

from server.exposition import prometheus_name
from server.metrics import INSTRUMENTS, Instrument, Kind

_HEAD = """\
# Metrics

Every metric that Keyglance has, as OpenTelemetry and as Prometheus name it. This page is written from `server/metrics.py`
by `python -m server.metrics_document > docs/metrics.md`; a test compares the two.

OTLP leaves the process when OpenTelemetry's own variables say so (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_METRICS_EXPORTER`, …).
Prometheus reads `http://HOST:PORT/metrics` where `[telemetry] prometheus = "HOST:PORT"` says so, for all processes of a server on
one port. There each sample also has the labels `service_instance_id` (one for each process that was started) and `process`
(`server`, or `front-1`, `engine-0`, … where there are several), and `target_info` has what else is known of the process. Buckets
carry exemplars, the trace and span ids of a call that fell into them, for readers that ask for OpenMetrics.

The buckets of histograms are those below, whatever `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION` says.

No label has values that a caller sends: each comes from a closed set, which the tables name.
`keyglance_scrape_missing` (gauge, label `process`) exists on the port of several processes only: 1 for each that did not answer.
"""


def document() -> str:
    """The page."""
    return "\n".join([_HEAD, *(_section(each) for each in INSTRUMENTS)])


def _section(each: Instrument) -> str:
    gauge = each.kind in (Kind.OBSERVED_GAUGE, Kind.OBSERVED_SUM)
    counter = each.kind in (Kind.COUNTER, Kind.OBSERVED_COUNTER)
    shown = prometheus_name(each.name, each.unit, gauge=gauge) + ("_total" if counter else "")
    lines = [
        f"## {each.name}",
        "",
        each.description,
        "",
        f"{each.kind.value.capitalize()} in `{each.unit}`; Prometheus: `{shown}`.",
    ]
    if each.boundaries:
        lines[-1] += f" Buckets: {', '.join(f'{bound:g}' for bound in each.boundaries)}."
    if each.labels:
        lines += ["", "| label | values |", "|---|---|", *(f"| `{label}` | {values} |" for label, values in each.labels.items())]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(document(), end="")
