"""A report of the load tests beside their results: `python -m loadtest.load_report` writes loadtest/results/load.md.

It is made of the JSON files that are there: those of `loadtest.saturation` (each with a picture), `loadtest.poisson`,
`loadtest.drain`, `loadtest.ghz`, `loadtest.baselines` and `loadtest.baselines_gpu`. Nothing in it is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import load_picture, report

NAME = "load.md"

Figures = Mapping[str, Any]


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; the first column is text, the others numbers."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---", *("---:" for _ in heading[1:])]
    return [f"| {' | '.join(row)} |" for row in (heading, rule, *cells)]


def milliseconds(latency: Mapping[str, float], *names: str) -> list[str]:
    """Values by name, rounded as far as it matters; a dash for what is not there."""
    return [_short(latency[name]) if name in latency else "–" for name in names]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "none"


def commit(figures: Figures) -> str:
    """What was measured, where that is known."""
    return figures.get("measured_commit") or figures["environment"]["commit"] or "not recorded"


def _source(figures: Figures) -> str:
    about = figures["environment"]
    where = f"{about['cores']} cores of {about['cpu']}, Python {about['python']}"
    return f"`{' '.join(about['command'])}`, {about['date']}, commit {commit(figures)}, {where}."


def _server(figures: Figures) -> str:
    server, generator = figures["server"], figures["generator"]
    settings = ", ".join(generator["settings"]) or "the defaults"
    return (
        f"Server: {server['device']}; models {', '.join(server['models'])}; settings: {settings}. "
        f"Generator: {generator['processes']} processes, {generator['connections']} connections, mix {generator['mix_file']}, "
        f"seed {generator['seed']}."
    )


def _open_loop(name: str, one: Figures) -> list[object]:
    latency = milliseconds(one["answered_ms"], "p50", "p90", "p99", "max")
    numbers = [_short(one[key]) for key in ("offered_per_s", "goodput_per_s", "full_answers_per_s")]
    return [name, *numbers, *latency, _counts(one["by_status"])]


_OPEN_HEADING = ("", "offered/s", "answered/s", "in full/s", "p50 ms", "p90", "p99", "max", "statuses")


#: Of a GPU over a part of a load: heading and figure.
_GPU = {
    "GPU busy": "gpu_percent",
    "SM activity": "sm_activity_percent",
    "SM occupancy": "sm_occupancy_percent",
    "decoders busy": "decoder_percent",
    "W": "power_w",
    "SM MHz": "sm_mhz",
}


def watched(figures: Figures) -> list[str]:
    """How busy processors, processes and GPUs were at the peak and in the open loops, and the batches; nothing of old results.

    A GPU of the host that did nothing all the time is not the server's.
    """
    best = max(figures["closed_loop"], key=lambda step: float(step["goodput_per_s"]))
    named = ((f"{best['callers']} callers", best), ("steady", figures["steady"]), ("overload", figures["overload"]))
    parts = {name: part["watched"] for name, part in named if "watched" in part}
    if not parts:
        return []
    roles = sorted({_role(role) for part in parts.values() for role in part["cores"]})
    count = max(len(part.get("gpus", ())) for part in parts.values())
    gpus = [gpu for gpu in range(count) if any(part["gpus"][gpu]["gpu_percent"] for part in parts.values() if "gpus" in part)]
    which = {place: f" {place}" if len(gpus) > 1 else "" for place in gpus}
    told = [part["gpus"][place] for part in parts.values() for place in gpus if "gpus" in part]
    shown = {title: key for title, key in _GPU.items() if any(key in one for one in told)}
    heading = ["", "processors busy", *(f"{role}, cores" for role in roles)]
    heading += [f"{title}{which[place]}" for place in gpus for title in shown]
    heading += ["frames a batch", "calls worked on"]
    rows = []
    for name, part in parts.items():
        cores = [sum(used for process, used in part["cores"].items() if _role(process) == role) for role in roles]
        row: list[object] = [name, f"{part['machine_cpu_percent']:.0f} %", *(f"{used:.2f}" for used in cores)]
        row += [_of_gpu(part["gpus"][place], key) if "gpus" in part else "–" for place in gpus for key in shown.values()]
        counts = part.get("metrics", {})
        fills = {f"{one['mean_fill']:.1f}" for one in counts.get("batches", {}).values()}
        places = counts.get("at_end", {}).get("places", {}).get("main")
        rows.append([*row, ", ".join(sorted(fills)) or "–", "–" if places is None else f"{places:.0f} at most"])
    return table(heading, rows)


def _role(process: str) -> str:
    """All fronts together, all engines, and the workers of whomever."""
    name, _, workers = process.partition(": ")
    return workers or re.sub(r"-\d+$", "s", name)


def _of_gpu(one: Mapping[str, float], key: str) -> str:
    return f"{one[key]:.0f}" + (" %" if key.endswith("_percent") else "") if key in one else "–"


def connections(figures: Figures) -> list[str]:
    """The closed loop at its best with few connections and with more; nothing where that was not asked for."""
    if not (compared := figures.get("connections")):
        return []
    rows = []
    for count, step in compared.items():
        fronts = [
            f"{used:.2f}" for name, used in step.get("watched", {}).get("cores", {}).items() if re.fullmatch(r"front-\d+", name)
        ]
        latency = milliseconds(step["answered_ms"], "p50", "p99")
        rows.append([count, step["callers"], _short(step["goodput_per_s"]), *latency, ", ".join(fronts) or "–"])
    return table(("connections", "callers", "calls/s", "p50 ms", "p99 ms", "cores of each front"), rows)


def drained(one: Figures) -> list[str]:
    """A server's end at full load."""
    waiting = ", ".join(f"{depth:.0f} {name.strip()}" for name, depth in one["at_sigterm"].get("queues", {}).items()) or "none"
    return [
        f"SIGTERM at {_short(one['rate_per_s'])} calls/s: {one['at_sigterm']['in_flight']} calls were in flight (queues just "
        f"before: {waiting}); of them {_counts(one['in_flight_ended'])}; cut short: {one['cut_short']}. The server gave "
        f"{one['answered_by_server']} answers in all, callers got {one['answered_to_callers']}. Calls sent later: "
        f"{_counts(one['sent_later'])}. It ended after {one['seconds_to_end']:.1f} s with exit code {one['exit_code']}. "
        f"Faults: {'; '.join(one['faults']) or 'none'}."
    ]


def drain(figures: Figures, _: Path) -> list[str]:
    """A run of `loadtest.drain`."""
    return [_server(figures), "", *drained(figures["drain"])]


def extras(figures: Figures) -> list[str]:
    """What results of a saturation have besides: how busy everything was, connections compared, the end at full load."""
    parts = (watched(figures), connections(figures), drained(figures["drain"]) if "drain" in figures else [])
    return [line for lines in parts if lines for line in ("", *lines)]


def saturation(figures: Figures, path: Path) -> list[str]:
    """A closed loop, and open loops at 80 % and beyond; draws the picture beside the results."""
    picture = path.with_suffix(".svg")
    load_picture.draw(figures, picture)
    steps = [
        [
            step["callers"],
            _short(step["goodput_per_s"]),
            *milliseconds(step["answered_ms"], "p50", "p99"),
            _counts(step["by_status"]),
        ]
        for step in figures["closed_loop"]
    ]
    held = [[row["goal"], row["value"], row["limit"], "yes" if row["holds"] else "**no**"] for row in figures["goals"]]
    late = figures["overload"]["generator_late_ms"]
    return [
        _server(figures),
        "",
        f"![Latency by throughput, percentiles, overload]({picture.name})",
        "",
        *table(("callers", "calls/s", "p50 ms", "p99 ms", "statuses"), steps),
        "",
        f"Peak: {_short(figures['peak_per_s'])} calls/s{peak_again(figures)}. Open loops, latency from the moment at which each "
        "call was due:",
        "",
        *table(_OPEN_HEADING, [_open_loop(name, figures[name]) for name in ("steady", "overload")]),
        "",
        f"Degradations in overload: {_counts(figures['overload']['degradations'])}. The generator sent within "
        f"{milliseconds(late, 'p99')[0]} ms of the moment (p99). Faults: {'; '.join(figures['faults']) or 'none'}.",
        "",
        *table(("goal", "value", "limit", "holds"), held),
        *extras(figures),
    ]


def peak_again(figures: Figures) -> str:
    """What the callers of the peak brought after the overload, where that was measured."""
    again = figures.get("peak_again")
    return f", after the overload {_short(again['goodput_per_s'])}" if again else ""


def poisson(figures: Figures, _: Path) -> list[str]:
    """A mix in an open loop, by class."""
    one = figures["poisson"]
    rows = [_open_loop(name, its) for name, its in one["by_class"].items()]
    return [
        _server(figures),
        "",
        f"{one['seconds']:g} s at {one['rate_per_s']:g} calls/s; degradations: {_counts(one['degradations'])}; "
        f"faults: {'; '.join(figures['faults']) or 'none'}.",
        "",
        *table(_OPEN_HEADING, [*rows, _open_loop("all", one)]),
    ]


def ghz(figures: Figures, _: Path) -> list[str]:
    """ghz's own figures."""
    rows = []
    for name, one in figures["loads"].items():
        latency = {f"p{item['percentage']}": item["latency"] / 1e6 for item in one["latencyDistribution"] or ()}
        codes = _counts(one["statusCodeDistribution"] or {})
        rows.append([name, f"{one['rps']:.2f}", *milliseconds(latency, "p50", "p95", "p99"), codes])
    return [f"Clip: {figures['clip']}.", "", *table(("load", "calls/s", "p50 ms", "p95", "p99", "statuses"), rows)]


def baselines(figures: Figures, _: Path) -> list[str]:
    """The CPU server beside the usual ways."""
    lines = [
        f"{figures['callers']} calls at once on {figures['cores']} cores; the ways are described in `loadtest/baselines.py`."
    ]
    for clip, ways in figures["clips"].items():
        rows = [
            [
                name,
                f"{one['calls_per_s']:.2f}",
                f"{one['ours_to_it']:.2f}",
                *milliseconds(one["latency_ms"], "p50", "p99"),
                "the same" if one["same_labels"] else ", ".join(one["labels"]),
            ]
            for name, one in ways.items()
        ]
        lines += ["", *table((clip, "calls/s", "ours to it", "p50 ms", "p99", "labels"), rows)]
    return lines


def baselines_gpu(figures: Figures, _: Path) -> list[str]:
    """The GPU server beside the usual ways."""
    rows = []
    for way, by_count in figures["ways"].items():
        for count, one in by_count.items():
            ratio = figures["ours_to_theirs"].get(way, {}).get(count, "–")
            rate = _short(one["calls_per_s"]) if "calls_per_s" in one else one["failed"]
            rows.append([way, count, rate, ratio, *milliseconds(one.get("latency_ms", {}), "p50", "p99")])
    return [
        f"{figures['gpu'].get('gpu', '')}, {figures['pictures']} pictures a call; the ways are described in "
        "`loadtest/baselines_gpu.py`.",
        "",
        *table(("way", "callers", "calls/s", "ours to it", "p50 ms", "p99"), rows),
    ]


def software_lane(figures: Figures, _: Path) -> list[str]:
    """What calls that hardware decodes notice of those that software decodes."""
    one = figures["software_lane"]
    rows = [
        _open_loop(f"{name} {one['software']}: {class_name}", its)
        for name, runs in one["turns"].items()
        for run in runs
        for class_name, its in run["by_class"].items()
    ]
    ratio = "unknown" if one["ratio"] is None else f"{one['ratio']:.2f}"
    goal = figures["goals"][0]
    return [
        _server(figures),
        "",
        *table(_OPEN_HEADING, rows),
        "",
        f"{one['share'] * 100:.0f} % of the calls are decoded in software: the p99 of the others is {ratio} times what it is "
        f"without them, at most {goal['limit']:g} times was the goal: {'**met**' if goal['holds'] else '**missed**'}. Faults: "
        f"{'; '.join(figures['faults']) or 'none'}.",
    ]


#: By a key that only these results have: the title and how the section is made.
_KINDS: Mapping[str, tuple[str, Callable[[Figures, Path], list[str]]]] = {
    "closed_loop": ("Saturation and overload", saturation),
    "poisson": ("A mix of callers", poisson),
    "software_lane": ("Calls that a GPU leaves to software", software_lane),
    "drain": ("The end at full load", drain),
    "loads": ("ghz", ghz),
    "behind": ("The CPU server beside the usual ways", baselines),
    "ours_to_theirs": ("The GPU server beside the usual ways", baselines_gpu),
}


def render(folder: Path) -> str:
    """The report of what lies in `folder`, pictures drawn there; results of other benchmarks are left out."""
    lines = ["# Load tests", "", "Made by `python -m loadtest.load_report` from the JSON files beside it."]
    read = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    for key, (heading, section) in _KINDS.items():
        for path, figures in read:
            if key in figures and not (key == "drain" and "closed_loop" in figures):
                lines += ["", f"## {heading}: [{path.stem}]({path.name})", "", _source(figures), "", *section(figures, path)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.load_report", description=__doc__)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder of results; the report is written there")
    folder = parser.parse_args(arguments).results
    (folder / NAME).write_text(render(folder))
    print(folder / NAME)


if __name__ == "__main__":
    main()
