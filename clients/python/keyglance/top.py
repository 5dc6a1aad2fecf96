"""`keyglance top`: a server live in a terminal, from the metrics on its Prometheus port."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from keyglance.metrics_page import Between, Look, NoMetrics, look
from keyglance.table import ScoreBar
from keyglance.text import plain, size

_CALLS = "rpc_server_call_duration_seconds"
_STEPS = ("receive", "index", "sample", "decode", "preprocess", "infer", "fuse")
_BUSY, _FULL = 0.7, 0.9  # where a bar turns yellow, and red


def watch(address: str, console: Console, *, interval: float, once: bool) -> None:
    """Shows the server at `address` until Ctrl-C, anew every `interval` seconds; `once`: what happened in one interval, and ends.

    Raises `NoMetrics` where nobody answers at the start; later on the view says so and goes on.
    """
    before = look(address)
    time.sleep(interval)
    if once or not console.is_terminal:
        while True:
            now = look(address)
            console.print(view(address, Between(before, now)))
            if once:
                return
            before = now
            time.sleep(interval)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        shown: Between | None = None
        while True:
            try:
                now = look(address, timeout=max(1.0, interval))
            except NoMetrics as error:
                gone = Text(f"{error}; the last answer came {time.monotonic() - before.at:.0f} s ago", style="bold red")
                live.update(Group(gone, "", view(address, shown)) if shown else gone, refresh=True)
            else:
                before, shown = now, Between(before, now)
                live.update(view(address, shown), refresh=True)
            time.sleep(interval)


def view(address: str, between: Between) -> RenderableType:
    """All of it: calls, steps, queues, decoders, models, GPUs, processes."""
    sections: list[tuple[str, RenderableType | None]] = [
        ("Steps", _steps(between)),
        ("Waiting", _queues(between.now)),
        ("Decoders", _decoders(between)),
        ("Models", _models(between)),
        ("GPU", _gpus(between.now)),
        ("Processes", _processes(between)),
    ]
    parts: list[RenderableType] = [_headline(address, between), _calls(between)]
    for title, section in sections:
        if section is not None:
            parts += ["", Text(title, style="bold"), Padding(section, (0, 0, 0, 2))]
    return Group(*parts)


def _headline(address: str, between: Between) -> Text:
    targets = [labels for labels, _ in between.now.series("target_info")]
    versions = sorted({plain(target.get("service_version", "?")) for target in targets})
    healthy = [value for _, value in between.now.series("keyglance_engine_healthy")]
    state = ("engine lost", "bold red") if any(value < 1 for value in healthy) else ("healthy", "green")
    missing = sorted(
        plain(labels.get("process", "?")) for labels, value in between.now.series("keyglance_scrape_missing") if value
    )
    line = Text.assemble(("Keyglance ", "bold"), ", ".join(versions), f" at {plain(address)}  ", state)
    line.append(f"  last {between.seconds:.1f} s", style="bright_black")
    for process in missing:
        line.append(f"  {process} is silent", style="bold red")
    return line


def _calls(between: Between) -> Text:
    by_status = between.rates(f"{_CALLS}_count", "rpc_response_status_code")
    now = between.now
    line = Text.assemble((f"{sum(by_status.values()):.1f}", "bold"), " calls a second")
    times = [(share, between.quantiles(share, _CALLS, rpc_response_status_code="OK").get(())) for share in (0.5, 0.99)]
    line.append("".join(f" · p{share * 100:g} {_ms(value)}" for share, value in times if value is not None))
    line.append(f" · {now.total('keyglance_calls_active'):.0f} of {now.total('keyglance_calls_limit'):.0f} in flight")
    line.append(f" · {between.rate('keyglance_frames_total'):.0f} pictures a second")
    received, whole = between.rate("keyglance_source_received_bytes_total"), between.rate("keyglance_source_size_bytes_total")
    if whole:
        line.append(f" · {size(round(received))}/s in, {received / whole:.0%} of the files")
    _append_rates(line, "\nnot answered a second: ", between.rates("keyglance_calls_failed_total", "reason"), "red")
    _append_rates(line, "\ndegraded a second: ", between.rates("keyglance_degradations_total", "reason"), "yellow")
    return line


def _append_rates(line: Text, title: str, rates: dict[tuple[str, ...], float], style: str) -> None:
    shown = [f"{plain(reason)} {rate:.1f}" for (reason,), rate in sorted(rates.items(), key=lambda item: -item[1]) if rate > 0]
    if shown:
        line.append(title).append(", ".join(shown), style=style)


def _steps(between: Between) -> RenderableType | None:
    means = between.means("keyglance_step_duration_seconds", "step")
    if not means:
        return None
    waits = between.means("keyglance_step_wait_seconds", "step")
    late = between.quantiles(0.99, "keyglance_step_duration_seconds", "step")
    longest = max(means.values())
    table = _table("", "mean", "", "waiting", "p99")
    known = [(step,) for step in _STEPS if (step,) in means]
    for key in known + sorted(set(means) - set(known)):
        wait = waits.get(key)
        table.add_row(
            plain(key[0]),
            _ms(means[key]),
            ScoreBar(means[key] / longest if longest else 0.0, style="cyan", width=24),
            "" if wait is None else _ms(wait),
            _ms(late[key]) if key in late else "",
        )
    return table


def _queues(now: Look) -> RenderableType | None:
    depths = now.sums("keyglance_queue_depth", "queue", "model", "priority")
    if not depths:
        return None
    limits = now.sums("keyglance_queue_limit", "queue", "model")
    table = _table("", "", "waiting", "of", "")
    for (queue, model, priority), depth in sorted(depths.items()):
        limit = limits.get((queue, model))
        words = " ".join(plain(word) for word in (model, "" if priority == "normal" else priority) if word)
        bar = _fill(depth / limit) if limit else ""
        table.add_row(plain(queue), words, f"{depth:.0f}", "" if not limit else f"{limit:.0f}", bar)
    return table


def _decoders(between: Between) -> RenderableType | None:
    now = between.now
    states = now.sums("keyglance_decoders", "kind", "state")
    if not states:
        return None
    leases = between.rates("keyglance_leases_total", "kind", "outcome")
    evicted, lost = (
        between.rates("keyglance_decoders_evicted_total", "kind"),
        between.rates("keyglance_worker_restarts_total", "worker"),
    )
    table = _table("", "lent", "idle", "other", "of", "", "leases a second")
    for (kind,), limit in sorted(now.sums("keyglance_decoders_limit", "kind").items()):
        lent, idle = (states.get((kind, state), 0.0) for state in ("leased", "idle"))
        other = sum(value for (of, _), value in states.items() if of == kind) - lent - idle
        shown = [f"{plain(outcome)} {rate:.1f}" for (of, outcome), rate in sorted(leases.items()) if of == kind and rate > 0]
        line = Text(", ".join(shown))
        for word, rates in (("evicted", evicted), ("restarted", lost)):
            if rate := rates.get((kind,)):
                line.append(f"  {word} {rate:.1f}", style="yellow")
        bar = _fill(lent / limit if limit else 0.0)
        table.add_row(plain(kind), f"{lent:.0f}", f"{idle:.0f}", f"{other:.0f}", f"{limit:.0f}", bar, line)
    return table


def _models(between: Between) -> RenderableType | None:
    limits: dict[tuple[str, ...], float] = {}
    for labels, value in between.now.series("keyglance_batch_limit"):
        name = (labels.get("model", ""),)
        limits[name] = max(value, limits.get(name, 0.0))
    if not limits:
        return None
    frames, batches = between.rates("keyglance_batch_frames_total", "model"), between.rates("keyglance_batches_total", "model")
    failed = between.rates("keyglance_batches_failed_total", "model")
    table = _table("", "pictures/s", "batches/s", "pictures a batch", "", "")
    for model, limit in sorted(limits.items()):
        mean = frames.get(model, 0.0) / batches[model] if batches.get(model) else 0.0
        table.add_row(
            plain(model[0]),
            f"{frames.get(model, 0.0):.0f}",
            f"{batches.get(model, 0.0):.1f}",
            f"{mean:.1f} of {limit:.0f}",
            ScoreBar(mean / limit if limit else 0.0, style="cyan"),
            Text(f"{failed[model]:.1f} fail a second", style="red") if failed.get(model) else "",
        )
    return table


def _gpus(now: Look) -> RenderableType | None:
    uses = now.sums("hw_gpu_memory_limit_bytes", "hw_id", "hw_name")
    if not uses:
        return None

    def of(name: str, gpu: str, **only: str) -> float | None:
        found = [
            value
            for labels, value in now.series(name)
            if labels.get("hw_id") == gpu and all(labels.get(label) == word for label, word in only.items())
        ]
        return max(found, default=None)

    table = _table("", "", "", "")
    for (gpu, name), _ in sorted(uses.items()):
        ratios = {
            "SM activity": of("keyglance_gpu_sm_activity_ratio", gpu),
            "busy": of("hw_gpu_utilization_ratio", gpu, hw_gpu_task="general"),
            "NVDEC": of("hw_gpu_utilization_ratio", gpu, hw_gpu_task="decoder"),
        }
        used, limit = of("hw_gpu_memory_usage_bytes", gpu), of("hw_gpu_memory_limit_bytes", gpu)
        if used is not None and limit:
            ratios["memory"] = used / limit
        facts = [
            (of("hw_temperature_celsius", gpu), "{:.0f} °C"),
            (of("hw_power_watts", gpu), "{:.0f} W"),
            ((of("keyglance_gpu_clock_hertz", gpu, clock="sm") or 0) / 1e6 or None, "{:.0f} MHz"),
        ]
        title = f"{plain(name)}  " + " · ".join(form.format(value) for value, form in facts if value is not None)
        for place, (word, ratio) in enumerate((word, ratio) for word, ratio in ratios.items() if ratio is not None):
            table.add_row(title if place == 0 else "", word, f"{ratio:.0%}", _fill(ratio))
    return table


def _processes(between: Between) -> RenderableType | None:
    memory = between.now.sums("process_memory_usage_bytes", "process")
    if not memory:
        return None
    busy = between.rates("process_cpu_time_seconds_total", "process")
    alive, wanted = (between.now.sums(name, "worker") for name in ("keyglance_workers", "keyglance_workers_wanted"))
    table = _table("", "CPU", "memory")
    for key, used in sorted(memory.items()):
        table.add_row(plain(key[0]), f"{busy.get(key, 0.0):.0%}", size(round(used)))
    for key, number in sorted(wanted.items()):
        few = alive.get(key, 0.0) < number
        table.add_row(
            f"{plain(key[0])} workers", "", Text(f"{alive.get(key, 0.0):.0f} of {number:.0f}", style="red" if few else "")
        )
    return table


def _fill(share: float) -> ScoreBar:
    style = "red" if share >= _FULL else "yellow" if share >= _BUSY else "green"
    return ScoreBar(share, style=style)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black", show_header=any(columns))
    for number, column in enumerate(columns):
        prose = column == "leases a second"
        table.add_column(column, justify="right" if column and number and not prose else "left", no_wrap=not prose)
    return table
