"""What was measured under load, on whatever machine: saturation, mixes, ghz, the usual ways beside the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loadtest import load_report
from loadtest.figures.cpu import verdict
from loadtest.figures.gpu import ceiling
from loadtest.figures.results import Figures, Results, counted, ms, number, percent, prose
from loadtest.figures.section import Hardware, Section, link
from loadtest.load_report import table

#: Share of the lower ceiling, decoders alone or models alone, that a saturated server on a GPU is to reach.
GOAL_SHARE = 0.9
#: Percentiles as shares of calls that wait as long or longer.
_SLOW = {"one in four": "p75", "one in a hundred": "p99"}
_WORDS = {
    "p99 at the steady load, ms": "Poisson arrivals at 80 % of the peak: p99",
    "goodput in overload, share of peak": "three times the peak offered: calls answered, as a share of the peak",
    "p99 of accepted calls in overload, times that of the steady load": "the same: p99 of the calls accepted, beside "
    "that at 80 %",
}


def best(told: Figures) -> Figures:
    """The step of the closed loop with the most calls answered."""
    step: Figures = max(told["closed_loop"], key=lambda each: float(each["goodput_per_s"]))
    return step


def peak(told: Figures) -> str:
    """Calls and pictures a second."""
    step = best(told)
    return f"{number(step['goodput_per_s'])} calls a second, {number(step['frames_per_s'])} pictures"


def goal_rows(results: Results, name: str) -> list[tuple[str, str, str, str]]:
    """What, goal, measured, verdict: of a saturation run, and of its share of the GPU's ceilings where it is one of a GPU."""
    told = results.get(name)
    if told is None:
        return []
    rows = []
    if Hardware.of(told).gpu and (limit := ceiling(results)) is not None:
        share = best(told)["frames_per_s"] / limit / _gpus(told)
        what = f"the server saturated through gRPC{_by_fronts(told)}, as a share of decoders alone or models alone"
        value = f"{share:.2f} ({peak(told)})"
        rows.append((what, f"at least {GOAL_SHARE:g}", value, verdict(share >= GOAL_SHARE, f"{GOAL_SHARE - share:.2f}")))
    for line in told["goals"]:
        name, value, limit = line["goal"], line["value"], line["limit"]
        side = "at least" if "goodput" in name else "at most"
        unit = " ms" if name.endswith(", ms") else "" if "share" in name else " times"
        measured = f"{number(value)}{unit}" if value is not None else "no call answered"
        missed = f"{number(abs(value - limit))}{unit}" if value is not None else ""
        rows.append((_WORDS.get(name, name), f"{side} {limit:g}{unit}", measured, verdict(line["holds"], missed)))
    if (ended := told.get("drain")) is not None:
        answered, refused = (ended["in_flight_ended"].get(status, 0) for status in ("OK", "RESOURCE_EXHAUSTED"))
        what = (
            f"of {ended['at_sigterm']['in_flight']} calls in flight {answered} answered, {refused} refused out of the waiting "
            f"room, {ended['cut_short']} cut short"
        )
        faults = "; ".join(ended["faults"])
        held = "met" if not faults else f"**missed**: {faults}"
        rows.append(("SIGTERM at full load", "every accepted call answered", what, held))
    return rows


def _gpus(told: Figures) -> int:
    """How many a server has, which names each; 1 without any."""
    return len(told["server"]["device"].split(", ")) if Hardware.of(told).gpu else 1


def _fronts(told: Figures) -> str:
    """3 fronts, or 3 fronts and 2 engines on a GPU, or on each of several; with MPS where they have it side by side."""
    if not (fronts := int(_setting(told, "server.fronts", "0"))):
        return ""
    engines, gpus = _engines(told), _gpus(told)
    side_by_side = " with MPS" if engines > 1 and _setting(told, "server.mps", "false").lower() == "true" else ""
    if gpus > 1:
        return f"{counted(fronts, 'front')} and {counted(engines, 'engine')} on each of {gpus} GPUs{side_by_side}"
    return counted(fronts, "front") + (f" and {engines} engines on a GPU{side_by_side}" if engines > 1 else "")


def _engines(told: Figures) -> int:
    return int(_setting(told, "server.engines_per_gpu", "1"))


def _setting(told: Figures, name: str, default: str) -> str:
    found: str = dict(setting.partition("=")[::2] for setting in told["generator"]["settings"]).get(name, default)
    return found


def _by_fronts(told: Figures) -> str:
    return f" by {fronts}" if (fronts := _fronts(told)) else ""


def _where(told: Figures) -> str:
    """The GPU, how many of them, or the cores."""
    if not (gpu := Hardware.of(told).gpu):
        return f"{told['environment']['cores']} cores"
    return f"{_gpus(told)} × {gpu}" if _gpus(told) > 1 else gpu


def sections(results: Results) -> Iterator[Section]:
    """For docs/performance.md."""
    for name, told in results.with_key("closed_loop"):
        with_fronts = ", ".join(filter(None, (_where(told), _fronts(told))))
        yield Section(f"Saturation and overload: {with_fronts}", name, told, _saturation(name, told, results))
    for key, title, lines in (
        ("poisson", "A mix of callers", load_report.poisson),
        ("software_lane", "Calls that a GPU leaves to software", load_report.software_lane),
        ("drain", "The end at full load", load_report.drain),
        ("loads", "ghz", load_report.ghz),
        ("behind", "The CPU server beside the usual ways", load_report.baselines),
        ("ours_to_theirs", "The GPU server beside the usual ways", load_report.baselines_gpu),
    ):
        for name, told in results.with_key(key):
            if key == "drain" and "closed_loop" in told:  # it stands with that
                continue
            yield Section(title, name, told, lines(told, Path(name)))


def _saturation(name: str, told: Figures, results: Results) -> list[str]:
    steady, overload = told["steady"], told["overload"]
    seconds = f"{steady['seconds']:g} s and {overload['seconds']:g} s"
    by_class = ", ".join(f"{one['name']} ({one['request_bytes'] / 1e6:.2f} MB a call)" for one in told["mix"])
    generator = told["generator"]
    lines = [
        f"Calls of the mix {by_class}, by {counted(generator['processes'], 'generator process', 'generator processes')} over "
        f"{generator['connections']} connections, "
        f"to a server with {', '.join(f'`{each}`' for each in generator['settings']) or 'the defaults'}. A closed "
        "loop: so many "
        "callers, each with one call after the other.",
        "",
        *table(
            ("callers", "calls/s", "pictures/s", "p50 ms", "p99 ms"),
            [
                (
                    step["callers"],
                    number(step["goodput_per_s"]),
                    number(step["frames_per_s"]),
                    *_times(step, "p50", "p99"),
                )
                for step in told["closed_loop"]
            ],
        ),
        "",
        f"Open loops: calls come at random moments (Poisson) whether the server keeps up or not, for {seconds}; latency counts "
        "from the moment at which a call was due.",
        "",
        *table(
            ("", "offered/s", "answered/s", "p50 ms", "p90 ms", "p99 ms", "answered", "refused", "out of time"),
            [
                (
                    what,
                    *(number(one[key]) for key in ("offered_per_s", "goodput_per_s")),
                    *_times(one, "p50", "p90", "p99"),
                    *(one["by_status"].get(status, 0) for status in ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")),
                )
                for what, one in (("80 % of the peak", steady), ("three times the peak", overload))
            ],
        ),
        "",
        *_peak_again(told),
        *prose(("what", "goal", "measured", ""), goal_rows(results, name)),
    ]
    lines += ["", *_why(told, results), *load_report.extras(told)]
    if results.has(f"{name}.svg"):
        lines += ["", f"![Latency by throughput, percentiles, overload](../loadtest/results/{name}.svg)"]
    return lines


def _peak_again(told: Figures) -> list[str]:
    """Where it was measured; results before that have their goodput as a share of the one peak."""
    if (again := told.get("peak_again")) is None:
        return []
    return [
        f"After the overload {counted(again['callers'], 'caller')} had {number(again['goodput_per_s'])} calls/s, before it "
        f"{number(told['peak_per_s'])}: the peak in what follows is the mean, since machines are not equally fast all the time.",
        "",
    ]


def _times(one: Figures, *names: str) -> list[str]:
    """Latencies by percentile; a dash where no call was answered."""
    return [number(one["answered_ms"][name]) if name in one["answered_ms"] else "–" for name in names]


def _why(told: Figures, results: Results) -> list[str]:
    """What the figures say of where the limit is."""
    one, few = told["overload"], told["closed_loop"][0]
    found = []
    inside = results.part("throughput")
    if Hardware.of(told).gpu and inside is not None:
        alone = max(float(load["pictures/s"]) for name, load in inside.items() if name.endswith(" in flight"))
        share = percent(best(told)["frames_per_s"] / alone / _gpus(told))
        why = "" if _engines(told) > 1 else ": the difference is what gRPC, fronts and the way between processes cost"
        each = " on each GPU" if _gpus(told) > 1 else ""
        found.append(
            f"An engine called in its own process reaches {number(alone)} pictures a second at most, the server {share} of "
            f"that{each}{why}."
        )
    if few["answered_ms"] and len(told["closed_loop"]) > 1:
        found.append(
            f"With {counted(few['callers'], 'caller')} an answer takes {ms(few['answered_ms']['p50'])} and the rate is "
            f"{percent(few['goodput_per_s'] / told['peak_per_s'])} of the peak already: more callers only wait longer."
        )
    if refused := one["by_status"].get("RESOURCE_EXHAUSTED", 0):
        share = refused / one["calls"]
        found.append(
            f"In overload {percent(share)} of the calls are refused, half of them within {ms(one['refused_ms']['p50'])}, "
            f"{one['refused_without_retry_info'] or 'none'} without a time to come back."
        )
    if Hardware.of(told).gpu and (ideal := results.get("queue_floor")) is not None:
        rate = told["steady"]["rate_per_s"] / _gpus(told)  # the floor is one GPU's
        slower = [row for row in ideal["floor"]["shares"] if row["rate_per_s"] <= rate]  # by rate
        if slower:
            where = "each GPU" if _gpus(told) > 1 else "this GPU"
            row, latency = slower[-1], slower[-1]["latency_ms"]
            found.append(
                f"A server that only waited for its models, in batches as dear as those measured alone, would answer "
                f"{number(row['rate_per_s'])} calls/s with a p50 of {ms(latency['p50'])} and a p99 of {ms(latency['p99'])} "
                f"({link('queue_floor')}); nothing below that can be reached at {number(rate)} with these models on {where}."
            )
    if one["answered_ms"]:
        waits = (f"{share} after {ms(one['answered_ms'][name])} or more" for share, name in _SLOW.items())
        found.append(f"Of the calls accepted there half are answered within {ms(one['answered_ms']['p50'])}, {', '.join(waits)}.")
    return [" ".join(found)] if found else []


def capacity(results: Results) -> list[tuple[str, str, str]]:
    """Rows for docs/operations.md: what, how much, file."""
    return [
        (
            f"{Hardware.of(told).named(_gpus(told))}: a server saturated through gRPC{_by_fronts(told)}",
            f"{peak(told)} a second",
            name,
        )
        for name, told in results.with_key("closed_loop")
    ]
