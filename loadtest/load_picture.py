"""The results of `loadtest.saturation` as a picture: `python -m loadtest.load_picture RESULT.json PICTURE.svg`.

Three panels: latency by throughput as callers are added, with the open loops beside it; the percentiles of both open loops;
what was offered, answered and refused in each second of the overload.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that people who see colours differently can tell apart (Okabe and Ito).
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
_SHARES = ("p50", "p75", "p90", "p95", "p99", "p99.9", "max")


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Writes the picture; its format is that of the file's name. The same figures give the same file."""
    import matplotlib  # not at the top: only this needs it
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": "keyglance",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        by_rate, percentiles, overload = figure.subplots(1, 3)
        _latency_by_rate(by_rate, figures)
        _percentiles(percentiles, figures)
        _overload(overload, figures)
        figure.suptitle(title(figures), fontsize=10)
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def title(figures: Mapping[str, Any]) -> str:
    """What was measured, on one line."""
    environment, server = figures["environment"], figures["server"]
    device = server["device"].partition(" (")[0]
    where = f"{environment['cores']} cores of {environment['cpu']}" if device == "cpu" else device
    classes = ", ".join(one["name"] for one in figures["mix"])
    commit = figures.get("measured_commit") or environment["commit"] or "commit not recorded"
    return f"Keyglance {server['version']} on {where}; calls: {classes}; {environment['date'][:10]}, {commit}"


def rate(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _latency_by_rate(axes: Axes, figures: Mapping[str, Any]) -> None:
    steps = [step for step in figures["closed_loop"] if step["answered_ms"]]
    rates = [step["goodput_per_s"] for step in steps]
    for name, colour in (("p50", _BLUE), ("p99", _ORANGE)):
        values = [step["answered_ms"][name] for step in steps]
        axes.plot(rates, values, "o-", color=colour, label=f"closed loop, {name}", markersize=4)
    for step in steps:
        place = (step["goodput_per_s"], step["answered_ms"]["p50"])
        axes.annotate(str(step["callers"]), place, textcoords="offset points", xytext=(4, -11), color=_BLUE, fontsize=8)
    for name, marker in (("steady", "s"), ("overload", "D")):
        one = figures[name]
        if one["answered_ms"]:
            values = [one["answered_ms"][share] for share in ("p50", "p99")]
            label = f"Poisson, {rate(one['rate_per_s'])}/s offered, p50 and p99"
            axes.plot([one["goodput_per_s"]] * 2, values, marker, color=_GREEN if name == "steady" else _RED, label=label)
    axes.axvline(figures["peak_per_s"], color=_GREY, linestyle=":", linewidth=1)
    axes.set(
        xlabel="calls answered a second", ylabel="latency, ms", yscale="log", title="Latency by throughput (number: callers)"
    )
    axes.set_xlim(left=0)
    _plain_log(axes)
    axes.legend(fontsize=7)


def _percentiles(axes: Axes, figures: Mapping[str, Any]) -> None:
    for name, colour in (("steady", _GREEN), ("overload", _RED)):
        one = figures[name]
        latency = one["answered_ms"]
        if latency:
            values = [latency[share] for share in _SHARES]
            label = f"{rate(one['rate_per_s'])}/s offered: {latency['n']} answered"
            axes.plot(range(len(_SHARES)), values, "o-", color=colour, label=label, markersize=4)
    axes.set_xticks(range(len(_SHARES)), _SHARES)
    axes.set(ylabel="latency from the moment due, ms", yscale="log", title="Latency of accepted calls, open loop")
    _plain_log(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _overload(axes: Axes, figures: Mapping[str, Any]) -> None:
    one = figures["overload"]
    rows = [row for row in one["timeline"] if row["at"] < one["warm_up_seconds"] + one["seconds"]]
    seconds = [row["at"] for row in rows]
    for key, colour, label in (("due", _GREY, "due"), ("answered", _GREEN, "answered"), ("refused", _RED, "refused")):
        axes.step(seconds, [row[key] for row in rows], where="post", color=colour, label=label, linewidth=1.2)
    axes.axhline(figures["peak_per_s"], color=_BLUE, linestyle="--", linewidth=1, label="peak of the closed loop")
    ratio = one["rate_per_s"] / figures["peak_per_s"]
    axes.set(xlabel="seconds", ylabel="calls a second", title=f"At {ratio:.3g} times the peak")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _plain_log(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.load_picture", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path, help="a .svg or .png file")
    options = parser.parse_args(arguments)
    draw(json.loads(options.result.read_text()), options.picture)


if __name__ == "__main__":
    main()
