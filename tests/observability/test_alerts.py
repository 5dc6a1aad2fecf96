"""Each alert fires when it should and stays quiet when it should not: by promtool, on made series."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from server.exposition import prometheus_name
from server.metrics import INSTRUMENTS, Kind

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "observability"
ALERTS = {
    rule["alert"]: rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
}

CALLS = (
    'rpc_server_call_duration_seconds_count{instance="a", rpc_method="k/Label", rpc_response_status_code="%s", error_type="%s"}'
)
BUCKET = 'rpc_server_call_duration_seconds_bucket{instance="a", rpc_method="k/Label", rpc_response_status_code="OK", le="%s"}'
FAILED = 'keyglance_calls_failed_total{instance="a", reason="%s"}'
LESS = 'keyglance_degradations_total{instance="a", reason="%s"}'
ANSWERED = 'keyglance_verdicts_total{instance="a", verdict="pass"}'
DECODERS = 'keyglance_decoders{instance="a", process="engine-0", kind="nvdec", state="%s"}'
LIMIT = 'keyglance_decoders_limit{instance="a", process="engine-0", kind="nvdec"}'
WAITING = 'keyglance_queue_depth{instance="a", process="engine-0", queue="decode", model="%s", priority="normal"}'
QUEUE = '{instance="a", process="engine-0", queue="infer", model="nsfw"%s}'
LEASES = 'keyglance_leases_total{instance="a", kind="nvdec", outcome="%s"}'
GPU = '{instance="a", hw_id="GPU-1"%s}'


def level(value: float) -> str:
    return f"{value}x200"


def rising(each: float) -> str:
    return f"0+{each}x200"


#: By alert: series for which it fires, and series near by for which it does not. A sample every 15 s, looked at after 40 minutes.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "KeyglanceDown": ({'up{job="keyglance", instance="a"}': level(0)}, {'up{job="keyglance", instance="a"}': level(1)}),
    "KeyglanceProcessSilent": (
        {'keyglance_scrape_missing{instance="a", process="front-1"}': level(1)},
        {'keyglance_scrape_missing{instance="a", process="front-1"}': level(0)},
    ),
    "KeyglanceEngineLost": (
        {'keyglance_engine_healthy{instance="a", process="engine-0"}': level(0)},
        {'keyglance_engine_healthy{instance="a", process="engine-0"}': level(1)},
    ),
    "KeyglanceWorkersMissing": (
        {
            'keyglance_workers{instance="a", worker="index"}': level(1),
            'keyglance_workers_wanted{instance="a", worker="index"}': level(2),
        },
        {
            'keyglance_workers{instance="a", worker="index"}': level(2),
            'keyglance_workers_wanted{instance="a", worker="index"}': level(2),
        },
    ),
    "KeyglanceWorkersRestarting": (
        {'keyglance_worker_restarts_total{instance="a", worker="cpu"}': rising(1)},
        {'keyglance_worker_restarts_total{instance="a", worker="cpu"}': rising(0.05)},
    ),
    "KeyglanceFaults": (
        {CALLS % ("OK", ""): rising(97), CALLS % ("INTERNAL", "INTERNAL"): rising(3)},
        {
            CALLS % ("OK", ""): rising(97),
            CALLS % ("INTERNAL", "INTERNAL"): rising(0.5),
            CALLS % ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"): rising(20),
        },
    ),
    "KeyglanceDeadlines": (
        {CALLS % ("OK", ""): rising(97), FAILED % "DEADLINE_EXCEEDED": rising(3)},
        {CALLS % ("OK", ""): rising(97), FAILED % "DEADLINE_EXCEEDED": rising(0.1), FAILED % "NOT_A_VIDEO": rising(50)},
    ),
    "KeyglanceRefusing": (
        {CALLS % ("OK", ""): rising(90), FAILED % "OVERLOADED": rising(9)},
        {CALLS % ("OK", ""): rising(90), FAILED % "OVERLOADED": rising(1), FAILED % "RANGES_NEEDED": rising(60)},
    ),
    "KeyglanceSlow": (
        {BUCKET % "1.0": rising(90), BUCKET % "5.0": rising(100), BUCKET % "+Inf": rising(100)},
        {BUCKET % "1.0": rising(100), BUCKET % "5.0": rising(100), BUCKET % "+Inf": rising(100)},
    ),
    "KeyglanceDegraded": (
        {LESS % "FEWER_FRAMES": rising(2), ANSWERED: rising(10)},
        {LESS % "FEWER_FRAMES": rising(0.5), LESS % "TRUNCATED": rising(9), ANSWERED: rising(10)},
    ),
    "KeyglanceBlindSpots": (
        {LESS % "GAP_EXCEEDED": rising(2), ANSWERED: rising(10)},
        {LESS % "GAP_EXCEEDED": rising(0.5), ANSWERED: rising(10)},
    ),
    "KeyglanceModelFailing": (
        {
            'keyglance_batches_failed_total{instance="a", model="m"}': rising(1),
            'keyglance_batches_total{instance="a", model="m"}': rising(20),
        },
        {
            'keyglance_batches_failed_total{instance="a", model="m"}': rising(0),
            'keyglance_batches_total{instance="a", model="m"}': rising(20),
        },
    ),
    "KeyglanceCallsNearLimit": (
        {
            'keyglance_calls_active{instance="a", process="p"}': level(250),
            'keyglance_calls_limit{instance="a", process="p"}': level(256),
        },
        {
            'keyglance_calls_active{instance="a", process="p"}': level(200),
            'keyglance_calls_limit{instance="a", process="p"}': level(256),
        },
    ),
    "KeyglanceReceiveBudgetFull": (
        {'keyglance_receive_reserved_bytes{instance="a"}': level(95), 'keyglance_receive_limit_bytes{instance="a"}': level(100)},
        {'keyglance_receive_reserved_bytes{instance="a"}': level(80), 'keyglance_receive_limit_bytes{instance="a"}': level(100)},
    ),
    "KeyglanceQueueFull": (
        {
            "keyglance_queue_depth" + QUEUE % ', priority="normal"': level(50),
            "keyglance_queue_depth" + QUEUE % ', priority="bulk"': level(12),
            "keyglance_queue_limit" + QUEUE % "": level(64),
        },
        {"keyglance_queue_depth" + QUEUE % ', priority="normal"': level(50), "keyglance_queue_limit" + QUEUE % "": level(64)},
    ),
    "KeyglanceDecodersExhausted": (
        {DECODERS % "leased": level(12), DECODERS % "idle": level(0), LIMIT: level(12), WAITING % "nvdec": level(3)},
        {DECODERS % "leased": level(12), LIMIT: level(12), WAITING % "nvdec": level(0), WAITING % "cpu": level(9)},
    ),
    "KeyglanceDecodersCreated": (
        {LEASES % "created": rising(1), LEASES % "reused": rising(9)},
        {LEASES % "created": rising(0.1), LEASES % "reused": rising(9)},
    ),
    "KeyglanceFrontBusy": (
        {'process_cpu_time_seconds_total{instance="a", process="front-1"}': rising(14.5)},
        {
            'process_cpu_time_seconds_total{instance="a", process="front-1"}': rising(9),
            'process_cpu_time_seconds_total{instance="a", process="server"}': rising(30),
        },
    ),
    "KeyglanceGpuMemory": (
        {"hw_gpu_memory_usage_bytes" + GPU % "": level(97), "hw_gpu_memory_limit_bytes" + GPU % "": level(100)},
        {"hw_gpu_memory_usage_bytes" + GPU % "": level(90), "hw_gpu_memory_limit_bytes" + GPU % "": level(100)},
    ),
    "KeyglanceGpuHot": (
        {"hw_temperature_celsius" + GPU % ', hw_type="gpu"': level(88)},
        {"hw_temperature_celsius" + GPU % ', hw_type="gpu"': level(70)},
    ),
    "KeyglanceNvdecSaturated": (
        {"hw_gpu_utilization_ratio" + GPU % ', hw_gpu_task="decoder"': level(0.99)},
        {"hw_gpu_utilization_ratio" + GPU % ', hw_gpu_task="general"': level(1.0)},
    ),
    "KeyglanceSpansDropped": (
        {'keyglance_spans_dropped_total{instance="a", process="front-1", reason="queue"}': rising(1)},
        {
            'keyglance_spans_dropped_total{instance="a", process="front-1", reason="queue"}': level(7),
            'keyglance_spans_exported_total{instance="a", process="front-1"}': rising(100),
        },
    ),
}


def test_each_alert_has_cases_and_a_section_for_operators():
    assert set(CASES) == set(ALERTS)
    page = (ROOT / "docs" / "operations.md").read_text()
    for name, rule in ALERTS.items():
        assert f"### {name}\n" in page, f"docs/operations.md says nothing of {name}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert set(re.findall(r"^### (Keyglance\w+)$", page, re.MULTILINE)) == set(ALERTS)


def series_names() -> set[str]:
    names = {"up", "keyglance_scrape_missing"}
    for each in INSTRUMENTS:
        gauge = each.kind in (Kind.OBSERVED_GAUGE, Kind.OBSERVED_SUM)
        name = prometheus_name(each.name, each.unit, gauge=gauge)
        counter = each.kind in (Kind.COUNTER, Kind.OBSERVED_COUNTER)
        names |= (
            {f"{name}_{part}" for part in ("bucket", "count", "sum")}
            if each.kind is Kind.HISTOGRAM
            else {f"{name}_total" if counter else name}
        )
    return names


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_speak_of_metrics_that_exist(name):
    spoken = set(re.findall(r"\b(?:keyglance|rpc|hw|process)_[a-z_]+\b(?=[{\[ )]|$)", ALERTS[name]["expr"]))
    labels = {"rpc_method", "rpc_response_status_code", "hw_gpu_task", "hw_type"}
    assert spoken - labels <= series_names()
    assert spoken or "up{" in ALERTS[name]["expr"]


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_fire_and_stay_quiet(name, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    fires, quiet = CASES[name]
    (tmp_path / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
    query = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    groups = [
        {
            "interval": "15s",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [
                {"expr": query, "eval_time": "40m", "exp_samples": [{"labels": "{}", "value": 1}] if firing else []}
            ],
        }
        for given, firing in ((fires, True), (quiet, False))
    ]
    if "for" in ALERTS[name]:  # not at once
        groups.append({**groups[0], "promql_expr_test": [{"expr": query, "eval_time": "0s", "exp_samples": []}]})
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": groups}))
    result = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
