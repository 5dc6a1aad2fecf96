"""Writes grafana/dashboards/keyglance.json: `python deploy/observability/make_dashboard.py`. A test compares the two."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent / "grafana" / "dashboards" / "keyglance.json"

_WIDTH, _HEIGHT = 24, 8  # of Grafana's grid, and of a panel
_AT = 'instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One panel: its queries with their legends. `unit` is Grafana's; `parts` of 24 is its width."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    parts: int = 8
    description: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    most: float | None = None


def rate(metric: str, labels: str = "") -> str:
    """The rate of a counter of the chosen instances."""
    return f"rate({metric}{{{_AT}{', ' if labels else ''}{labels}}}[$__rate_interval])"


def quantile(share: float, metric: str, by: str = "", labels: str = "") -> str:
    """A quantile of a histogram of the chosen instances."""
    return f"histogram_quantile({share}, sum by (le{', ' if by else ''}{by}) ({rate(metric + '_bucket', labels)}))"


CALLS = "rpc_server_call_duration_seconds"
LABEL = 'rpc_method=~".*/Label"'
STEP = "keyglance_step_duration_seconds"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Calls": (
        Panel(
            "Calls a second by status",
            ((f"sum by (rpc_response_status_code) ({rate(CALLS + '_count', LABEL)})", "{{rpc_response_status_code}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Duration of answered calls",
            tuple(
                (quantile(q, CALLS, labels=f'{LABEL}, rpc_response_status_code="OK"'), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)
            ),
            "s",
            description="Points are exemplars: each leads to a trace.",
        ),
        Panel(
            "Calls without an answer, by reason",
            ((f"sum by (reason) ({rate('keyglance_calls_failed_total')}) > 0 or vector(0)", "{{reason}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Answers that are less than full ones, by reason",
            ((f"sum by (reason) ({rate('keyglance_degradations_total')}) > 0 or vector(0)", "{{reason}}"),),
            "reqps",
        ),
        Panel("Verdicts", ((f"sum by (verdict) ({rate('keyglance_verdicts_total')})", "{{verdict}}"),), "reqps", stacked=True),
        Panel(
            "Calls in flight",
            (
                (f"sum by (instance, process) (keyglance_calls_active{{{_AT}}})", "{{instance}} {{process}}"),
                (f"sum(keyglance_calls_limit{{{_AT}}})", "limit"),
            ),
        ),
    ),
    "Steps": (
        Panel(
            "Mean time of each step of a call",
            ((f"sum by (step) ({rate(STEP + '_sum')}) / sum by (step) ({rate(STEP + '_count')})", "{{step}}"),),
            "s",
            12,
            "Steps overlap: decode, preprocess and infer of one call run at the same time.",
            stacked=True,
        ),
        Panel("p99 of each step", ((quantile(0.99, STEP, "step"), "{{step}}"),), "s", 12),
        Panel(
            "p99 of waits: to be received, for a decoder, for a batch",
            ((quantile(0.99, "keyglance_step_wait_seconds", "step, priority"), "{{step}} {{priority}}"),),
            "s",
        ),
        Panel(
            "Work that waits",
            (
                (
                    f"sum by (queue, model, priority) (keyglance_queue_depth{{{_AT}}})",
                    "{{queue}} {{model}} {{priority}}",
                ),
            ),
        ),
        Panel(
            "Queues, part of their places taken",
            (
                (
                    f"sum by (queue, model) (keyglance_queue_depth{{{_AT}}})"
                    f" / sum by (queue, model) (keyglance_queue_limit{{{_AT}}} > 0)",
                    "{{queue}} {{model}}",
                ),
            ),
            "percentunit",
            most=1,
        ),
    ),
    "What is looked at": (
        Panel("Pictures a second", ((f"sum by (outcome) ({rate('keyglance_frames_total')})", "{{outcome}}"),), "ops"),
        Panel(
            "Largest gap without a picture",
            tuple((quantile(q, "keyglance_coverage_gap_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)),
            "s",
        ),
        Panel(
            "Bytes sent, part of the files' size",
            (
                (
                    f"sum by (source) ({rate('keyglance_source_received_bytes_total')})"
                    f" / sum by (source) ({rate('keyglance_source_size_bytes_total')})",
                    "{{source}}",
                ),
            ),
            "percentunit",
            most=1,
        ),
    ),
    "Decoders": (
        Panel(
            "Decoders by state",
            (
                (f"sum by (kind, state) (keyglance_decoders{{{_AT}}})", "{{kind}} {{state}}"),
                (f"sum by (kind) (keyglance_decoders_limit{{{_AT}}})", "{{kind}} limit"),
            ),
        ),
        Panel(
            "Leases a second, by how they were had",
            ((f"sum by (kind, outcome) ({rate('keyglance_leases_total')})", "{{kind}} {{outcome}}"),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Decoders evicted, workers restarted",
            (
                (f"sum by (kind) (increase(keyglance_decoders_evicted_total{{{_AT}}}[$__rate_interval]))", "{{kind}} evicted"),
                (
                    f"sum by (worker) (increase(keyglance_worker_restarts_total{{{_AT}}}[$__rate_interval]))",
                    "{{worker}} restarted",
                ),
            ),
        ),
    ),
    "Batches": (
        Panel(
            "Batch fill by model",
            (
                (
                    f"sum by (model) ({rate('keyglance_batch_frames_total')})"
                    f" / sum by (model) ({rate('keyglance_batches_total')})"
                    f" / max by (model) (keyglance_batch_limit{{{_AT}}})",
                    "{{model}}",
                ),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Batches a second by size",
            ((f"sum by (size) ({rate('keyglance_batches_total')})", "up to {{size}}"),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Frames a second by model",
            ((f"sum by (model) ({rate('keyglance_batch_frames_total')})", "{{model}}"),),
            "ops",
        ),
    ),
    "GPU": (
        Panel(
            "How busy: multiprocessors, video decoders",
            (
                (f"keyglance_gpu_sm_activity_ratio{{{_AT}}}", "{{process}} SM activity"),
                (f"keyglance_gpu_sm_occupancy_ratio{{{_AT}}}", "{{process}} SM occupancy"),
                (f"hw_gpu_utilization_ratio{{{_AT}}}", "{{process}} {{hw_gpu_task}}"),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Memory",
            (
                (f"hw_gpu_memory_usage_bytes{{{_AT}}}", "{{process}}"),
                (f"hw_gpu_memory_limit_bytes{{{_AT}}}", "{{process}} limit"),
            ),
            "bytes",
        ),
        Panel(
            "Temperature and power",
            (
                (f"hw_temperature_celsius{{{_AT}}}", "{{process}} °C"),
                (f"hw_power_watts{{{_AT}}}", "{{process}} W"),
            ),
        ),
        Panel("Clocks", ((f"keyglance_gpu_clock_hertz{{{_AT}}}", "{{process}} {{clock}}"),), "hertz"),
    ),
    "Processes": (
        Panel("Processor time", ((rate("process_cpu_time_seconds_total"), "{{instance}} {{process}}"),), "percentunit"),
        Panel("Resident memory", ((f"process_memory_usage_bytes{{{_AT}}}", "{{instance}} {{process}}"),), "bytes"),
        Panel(
            "Workers that live and should",
            (
                (f"sum by (worker) (keyglance_workers{{{_AT}}})", "{{worker}}"),
                (f"sum by (worker) (keyglance_workers_wanted{{{_AT}}})", "{{worker}} wanted"),
            ),
        ),
        Panel("Engines that are healthy", ((f"sum by (instance) (keyglance_engine_healthy{{{_AT}}})", "{{instance}}"),)),
        Panel(
            "Traces kept a second by reason; spans sent and lost",
            (
                (f"sum by (reason) ({rate('keyglance_traces_kept_total')})", "{{reason}}"),
                (f"sum({rate('keyglance_spans_exported_total')})", "spans sent"),
                (f"sum by (reason) ({rate('keyglance_spans_dropped_total')})", "spans lost: {{reason}}"),
            ),
            "ops",
        ),
        Panel(
            "Receive budget",
            ((f"keyglance_receive_reserved_bytes{{{_AT}}} / keyglance_receive_limit_bytes", "{{instance}} {{process}}"),),
            "percentunit",
            most=1,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": _place(0, top, _WIDTH, 1),
            }
        )
        top, left = top + 1, 0
        for member in members:
            if left + member.parts > _WIDTH:
                left, top = 0, top + _HEIGHT
            panels.append(_panel(len(panels) + 1, member, _place(left, top, member.parts, _HEIGHT)))
            left += member.parts
        top += _HEIGHT
    return {
        "uid": "keyglance",
        "title": "Keyglance",
        "tags": ["keyglance"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "instance",
                    "label": "Server",
                    "type": "query",
                    "datasource": _source(),
                    "query": {"query": 'label_values(target_info{service_name="keyglance"}, instance)', "refId": "instance"},
                    "definition": 'label_values(target_info{service_name="keyglance"}, instance)',
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": _source(),
                    "enable": True,
                    "iconColor": "red",
                    "expr": 'ALERTS{alertname=~"Keyglance.*", alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{instance}}",
                }
            ]
        },
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    style = {
        "fillOpacity": 40 if panel.stacked else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    limits = {"min": 0} if panel.most is None else {"min": 0, "max": panel.most}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _source(),
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": style, **limits}, "overrides": []},
        "options": {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]},
            "tooltip": {"mode": "multi"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _source(),
                "expr": expr,
                "legendFormat": legend,
                "exemplar": "_bucket" in expr,
            }
            for place, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "prometheus"}


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text(), encoding="utf-8")
