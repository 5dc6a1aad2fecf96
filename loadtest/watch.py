"""What goes on over one part of a load, looked at from outside: processors, GPUs, and what the server's metrics say.

Processor time is the kernel's (`/proc`), of the machine, of the load's own processes and, where the server runs here, of each
of its processes; GPUs are asked of NVML all the time (`loadtest.utilisation`), the server's Prometheus port once at the
begin and once at the end, so that looking disturbs little.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil

from keyglance.metrics_page import Between, Look, NoMetrics, look
from loadtest.utilisation import Utilisation, gpus

_PAGE_SECONDS = 10.0  # for a page of metrics of a busy server, which comes from several processes


class Watch:
    """Looks from one moment to another; one for each part. `pid` is the server's process, `metrics` its Prometheus port.

    Without a `pid` (None) nothing is told of the server's processes, without `metrics` (empty) nothing of what it counts.
    """

    def __init__(self, pid: int | None, metrics: str) -> None:
        self._pid = pid
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watch")
        self._found: Future[dict[str, Any]] | None = None

    def between(self, begin: float, end: float) -> None:
        """To be called before `begin`; both are on `time.monotonic()`."""
        self._found = self._thread.submit(self._look, begin, end)
        self._thread.shutdown(wait=False)

    def figures(self) -> dict[str, Any]:
        """What was found, once `end` has come. RuntimeError without `between`.

        `cores` is processor time a second: 1 is one core, all of the time. Of processes that ended meanwhile, and of those
        that did not live yet at the begin, what is known of them counts.
        """
        if self._found is None:
            raise RuntimeError("nobody said when to look")
        return self._found.result()

    def _look(self, begin: float, end: float) -> dict[str, Any]:
        used = Utilisation(gpus())
        time.sleep(max(0.0, begin - time.monotonic()))
        with used:
            before, page = Used.now(self._pid), self._page()
            time.sleep(max(0.0, end - time.monotonic()))
            after, last = Used.now(self._pid), self._page()
        told: dict[str, Any] = {"seconds": round(after.at - before.at, 3), **after.since(before)}
        if found := used.figures():
            told["gpus"] = found
        if isinstance(page, Look) and isinstance(last, Look):
            told["metrics"] = counted(Between(page, last))
        elif self._metrics:
            told["metrics"] = {"missing": page if isinstance(page, str) else last}
        return told

    def _page(self) -> Look | str:
        if not self._metrics:
            return ""
        try:
            return look(self._metrics, timeout=_PAGE_SECONDS)
        except NoMetrics as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds until a moment: `busy` of all `cores`, and those of processes by what they do."""

    at: float
    busy: float
    cores: int
    by_role: Mapping[str, float]

    @classmethod
    def now(cls, pid: int | None) -> Used:
        """Of this machine, of this process with its children, and of the server `pid` with its."""
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        roles: dict[str, float] = {}
        server = () if pid is None else _tree(pid)
        for role, process in server:
            roles[role] = roles.get(role, 0.0) + _seconds(process)
        known = {process.pid for _, process in server}
        ours = [process for _, process in _tree(psutil.Process().pid) if process.pid not in known]
        roles["load"] = sum(_seconds(process) for process in ours)
        return cls(time.monotonic(), busy, psutil.cpu_count() or 1, roles)

    def since(self, before: Used) -> dict[str, Any]:
        """Share of all processors, and cores by role."""
        seconds = max(1e-9, self.at - before.at)
        cores = {role: (used - before.by_role.get(role, 0.0)) / seconds for role, used in self.by_role.items()}
        return {
            # The kernel counts in ticks, which may be a few more than there was time for.
            "machine_cpu_percent": round(min((self.busy - before.busy) / seconds / self.cores, 1.0) * 100, 1),
            "cores": {role: round(max(0.0, used), 3) for role, used in sorted(cores.items())},
        }


def _tree(pid: int) -> list[tuple[str, psutil.Process]]:
    """A process and its descendants, each with its role: `server`, the name of a front or an engine, or whose worker it is."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
    roles: dict[int, str] = {}
    for process in processes:  # parents come before their children
        try:
            command, parent = process.cmdline(), roles.get(process.ppid())
        except psutil.Error:
            continue
        if "--name" in command[:-1]:
            roles[process.pid] = command[command.index("--name") + 1]
        elif parent is None:
            roles[process.pid] = "server"
        else:
            roles[process.pid] = parent if parent.endswith("workers") else f"{parent}: workers"
    return [(roles[process.pid], process) for process in processes if process.pid in roles]


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def counted(between: Between) -> dict[str, Any]:
    """What a server's metrics say of the time between two looks: levels at its end, counts and means over it."""
    now = between.now

    def level(name: str, *by: str) -> dict[str, float]:
        return {" ".join(key): round(value, 3) for key, value in sorted(now.sums(name, *by).items())}

    def count(name: str, *by: str) -> dict[str, int]:
        rates = between.rates(f"{name}_total", *by).items()
        return {" ".join(key): counts for key, rate in sorted(rates) if (counts := round(rate * between.seconds))}

    def milliseconds(histogram: str) -> dict[str, float]:
        return {step: round(mean * 1e3, 3) for (step,), mean in sorted(between.means(histogram, "step").items())}

    batches, frames = count("keyglance_batches", "model"), count("keyglance_batch_frames", "model")
    return {
        "at_end": {
            "calls": now.total("keyglance_calls_active"),
            "places": level("keyglance_calls_places", "lane"),
            "serving": level("keyglance_calls_serving", "lane"),
            "load": level("keyglance_load_ratio", "process", "lane"),
            "load_step": level("keyglance_load_step", "process"),
            "queues": {name: depth for name, depth in level("keyglance_queue_depth", "queue", "model").items() if depth},
            "decoders": level("keyglance_decoders", "kind", "state"),
        },
        "batches": {
            model: {"batches": number, "mean_fill": round(frames.get(model, 0) / number, 2)} for model, number in batches.items()
        },
        "leases": count("keyglance_leases", "kind", "outcome"),
        "decoders_evicted": count("keyglance_decoders_evicted", "kind"),
        "failed": count("keyglance_calls_failed", "reason"),
        "refused": count("keyglance_calls_refused", "lane", "refused"),
        "degraded": count("keyglance_degradations", "reason"),
        "worker_restarts": count("keyglance_worker_restarts", "worker"),
        "spans_dropped": count("keyglance_spans_dropped", "reason"),
        "step_ms": milliseconds("keyglance_step_duration_seconds"),
        "wait_ms": milliseconds("keyglance_step_wait_seconds"),
    }
