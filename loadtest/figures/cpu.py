"""What was measured without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.figures.results import Figures, Results, counted, listed, megabytes, ms, number, percent, prose
from loadtest.figures.section import Hardware, Section, link
from loadtest.load_report import table

#: The clip of the first table, made by `loadtest.cpu`: 16 shots of 1280x720.
MADE = "made-1280x720.mp4"
#: The layout of an MP4 file that the short figures are of.
USUAL = "moov first"
GOAL_INDEX_MS = 1.0
#: Bytes in ranges against the whole file: of the time to send, index and sample them.
GOAL_RANGES = 0.2

_TELEMETRY_GOAL = 5  # per cent
_WAYS = {
    "call": "Keyglance, the whole call",
    "bare": "bare decoding and batched inference of the same pictures, scaling not counted",
    "bare with scaling": "the same with scaling by swscale and numpy",
    "seek, PyAV": "seeking to each picture with PyAV, inferring one by one",
    "seek, OpenCV": "the same with OpenCV",
    "everything, PyAV": "decoding everything frame by frame with PyAV",
}
#: `loadtest.soak` against one process, and against several.
_SOAKS = ("soak", "soak_fronts")
_SHORT = ("call", "bare", "seek, PyAV", "seek, OpenCV", "everything, PyAV")


def verdict(met: bool, missed_by: str = "") -> str:
    """In a table of goals."""
    return "met" if met else f"**missed**{f' by {missed_by}' if missed_by else ''}"


def short(results: Results, folder: str) -> list[str]:
    """For the README: one table, and a line on what else was run."""
    lines: list[str] = []
    if (told := results.get("cpu")) is not None:
        clip = told["clips"][MADE]
        heading = (f"{clip['pictures']} keyframes of 720p, three models", "one call", f"{clip['at_once']['calls']} at once")
        rows = [(_WAYS[way], *(ms(clip[load][way]["median_ms"]) for load in ("one", "at_once"))) for way in _SHORT]
        lines += [f"On {Hardware.of(told)}:", "", *table(heading, rows), ""]
        lines += [f"{_bare_goal(told, MADE)} `python -m loadtest.cpu`, {link('cpu', folder)}.", ""]
    return [*lines, *_bullets(results, folder)]


def _bare_goal(told: Figures, clip: str) -> str:
    alone, goal = told["clips"][clip]["one"]["call"]["of_bare"], told["goal_of_bare"]
    at_once = told["clips"][clip]["at_once"]["call"]["of_bare"]
    count = told["clips"][clip]["at_once"]["calls"]
    missed = f"{alone - goal:.2f}"
    return (
        f"The goal is {goal:g} times the bare work or less for one call: {alone:.2f}, {verdict(alone <= goal, missed)}; "
        f"{count} at once: {at_once:.2f}."
    )


def _bullets(results: Results, folder: str) -> Iterator[str]:
    if (told := results.get("transport")) is not None:
        one = told["layouts"][USUAL]
        yield (
            f"- An MP4 of {megabytes(one['file_bytes'])} travels as the {megabytes(one['ranges']['message_bytes'])} "
            "that matter: "
            f"sent, indexed and sampled over loopback in {ms(one['ranges']['median_ms'])}, whole in "
            f"{ms(one['whole']['median_ms'])}. `python -m loadtest.transport`, {link('transport', folder)}."
        )
    if (told := results.get("baselines")) is not None:
        yield f"- {_ahead(told)} `make baselines`, {link('baselines', folder)}."
    if (told := results.get("corpus")) is not None:
        yield (
            f"- {told['as_expected']} of {told['files']} real files of all kinds (damaged, encrypted and hostile ones "
            "among them) "
            f"get what is expected of them, and the server goes on. `python -m loadtest.corpus`, {link('corpus', folder)}."
        )
    for name in _SOAKS:
        if (told := results.get(name)) is not None:
            yield f"- {_soaked(told)} `{' '.join(told['environment']['command'])}`, {link(name, folder)}."


def _ahead(told: Figures) -> str:
    names = {
        "c": "OpenCV and batched inference",
        "d, OpenCV": "a general model server (mosec)",
        "d, keyframes": "one given keyframes",
    }
    ratios: dict[str, list[float]] = {}
    for ways in told["clips"].values():
        for way, one in ways.items():
            if way in names:
                ratios.setdefault(way, []).append(one["ours_to_it"])
    ranges = [f"{min(each):.2f} to {max(each):.2f} times {names[way]}" for way, each in ratios.items()]
    behind = f"; **behind** {', '.join(told['behind'])}" if told["behind"] else ""
    return f"Calls a second, {told['callers']} at once, on {told['cores']} cores: {', '.join(ranges)}{behind}."


def _soaked(told: Figures) -> str:
    outcomes, before, after = told["outcomes"], told["before"], told["after"]
    late = sum(count for name, count in outcomes.items() if name not in ("answered", "cancelled"))
    counts = [f"{name} {before[name]} and {after[name]}" for name in ("processes", "threads", "descriptors", "decoders")]
    left = {name: count for name, count in after["held"].items() if count}
    kept = "**not as before**: " + "; ".join(told["faults"]) + "; " if told["faults"] else ""
    return (
        f"{told['calls']:,} calls to {_layout(told)}, {outcomes.get('cancelled', 0):,} cancelled and {late:,} out of time at a "
        f"random moment, {outcomes.get('answered', 0):,} answered. Before and after: {kept}{listed(counts)}; memory "
        f"{before['memory_mib']:.0f} MiB and {after['memory_mib']:.0f} MiB; leases, places, queues and memory held for calls: "
        f"{left or 'none'}."
    )


def _layout(told: Figures) -> str:
    fronts = next((setting.partition("=")[2] for setting in told["settings"] if setting.startswith("server.fronts=")), "0")
    return f"{counted(int(fronts), 'front')} and an engine" if int(fronts) else "one process"


def sections(results: Results) -> Iterator[Section]:
    """For docs/performance.md."""
    for name, title, lines in (
        ("cpu", "One call beside the bare work in it, and beside the usual ways", _calls),
        ("index", "The index of an MP4 file", _index),
        ("transport", "Sending what matters", _transport),
        ("corpus", "Real files of all kinds", _corpus),
        ("fuzz_mp4", "Broken MP4 files", _fuzz),
        ("soak", "Calls that are cancelled or late", lambda told: [_soaked(told), "", _memory(told)]),
        ("soak_fronts", "The same with fronts and an engine", lambda told: [_soaked(told), "", _memory(told)]),
        ("flood", "The largest messages, all at once", _flood),
        ("front_cost", "What stands between the wire and the engine", _front_cost),
        ("engine_process", "What an engine in another process costs", _engine_process),
        ("telemetry", "What telemetry costs", _telemetry),
    ):
        if (told := results.get(name)) is not None:
            yield Section(title, name, told, lines(told))


def _calls(told: Figures) -> list[str]:
    lines = [
        "A client sends the clip's ranges to a server in its own process and gets labels; beside it, in turns, the "
        "bare work and "
        f"what a script would do. Medians of {told['rounds']} rounds, in ms; in brackets times the bare work. "
        "Steps overlap, so they are more than the whole together.",
    ]
    for name, clip in told["clips"].items():
        rows = [
            (text, *(f"{number(clip[load][way]['median_ms'])} ({clip[load][way]['of_bare']:.2f})" for load in ("one", "at_once")))
            for way, text in _WAYS.items()
        ]
        count = clip["at_once"]["calls"]
        lines += ["", *table((f"{name}, {clip['pictures']} pictures", "one call", f"{count} at once"), rows)]
        steps = [f"{step} {number(one['wall'])} ({number(one['wait'])} waiting)" for step, one in clip["steps_ms"].items()]
        lines += ["", f"Steps of one call, ms: {', '.join(steps)}. {_bare_goal(told, name)}"]
    return lines


def _index(told: Figures) -> list[str]:
    rows = []
    for layout, one in told["layouts"].items():
        times = [one[reader]["median_ms"] for reader in ("reader", "reader_from_file", "ffmpeg_entries", "ffmpeg_walk")]
        met = verdict(times[0] <= GOAL_INDEX_MS, ms(times[0] - GOAL_INDEX_MS))
        touched = f"{one['touched_bytes'] / 1e3:.0f} KB of {megabytes(one['bytes'])}"
        rows.append((layout, *(number(each) for each in times), touched, met))
    heading = ("60 s, ms", "our reader", "the same from a file", "FFmpeg's entries", "FFmpeg, all packets", "bytes read")
    longest = max(one["seconds"] for one in told["growth"])
    grown = [
        f"{'fragmented' if one['fragmented'] else 'plain'} {ms(one['median_ms'])} and {one['peak_mib']:.0f} MiB"
        for one in told["growth"]
        if one["seconds"] == longest
    ]
    return [
        f"What is in the file, where and when, from its bytes in memory; the goal is {GOAL_INDEX_MS:g} ms.",
        "",
        *table((*heading, f"goal, {GOAL_INDEX_MS:g} ms"), rows),
        "",
        f"A file of {longest / 3600:g} h: {', '.join(grown)}.",
    ]


def _transport(told: Figures) -> list[str]:
    rows = []
    for layout, one in told["layouts"].items():
        share = one["ranges_to_whole_time"]
        sizes = [megabytes(one[way]["message_bytes"]) for way in ("ranges", "whole")]
        times = [number(one[way]["median_ms"]) for way in ("ranges", "whole")]
        rows.append((layout, *sizes, *times, f"{share:.2f}", verdict(share <= GOAL_RANGES, f"{share - GOAL_RANGES:.2f}")))
    heading = ("60 s, 720p", "ranges", "whole", "ranges, ms", "whole, ms", "of the time", f"goal, {GOAL_RANGES:g}")
    return [
        "A request over loopback to a server whose engine does nothing: received, indexed, sampled.",
        "",
        *table(heading, rows),
    ]


def _corpus(told: Figures) -> list[str]:
    rows = [(f"`{row['file']}`", row["expected"], row["got"]) for row in told["rows"] if not row["as_expected"]]
    differ = sum(bool(row["whole_differs"]) for row in told["rows"])
    lines = [
        f"{told['as_expected']} of {told['files']} files get what their list expects, in {told['seconds']:.0f} s; "
        f"{told['in_ranges']} of them travel in ranges, {differ or 'none'} with another answer than whole. "
        f"Faults (a crash, a hang, a lease that is lost): {len(told['faults']) or 'none'}."
    ]
    return [*lines, "", *prose(("not as expected", "expected", "got"), rows)] if rows else lines


def _fuzz(told: Figures) -> list[str]:
    failed = "none of them raised anything but our own errors" if not told["failures"] else f"**{told['failures']} failed**"
    return [
        f"{told['inputs']:,} files, bent from {sum(told['seeds'].values())} real and made ones, through our own MP4 "
        f"reader: {failed}; "
        f"{told['outcomes'].get('index', 0):,} could still be indexed. {number(told['mean_reading_ms'])} ms each, the slowest "
        f"{number(told['slowest_ms'])} ms of processor time."
    ]


def _memory(told: Figures) -> str:
    tenths = told["memory_mib_at_each_tenth"]
    return (
        f"{told['concurrency']} at once, {told['seconds']:.0f} s; in between memory goes from {min(tenths):.0f} to "
        f"{max(tenths):.0f} MiB. Faults: "
        f"{len(told['faults']) or 'none'}."
    )


def _flood(told: Figures) -> list[str]:
    ends = ", ".join(f"{count} {status}" for status, count in told["statuses"].items())
    return [
        f"{told['callers']} callers send {told['message_mib']:g} MiB each at once to a server with a receive budget of "
        f"{told['budget_mib']:,} MiB: {ends} in {told['seconds']:.0f} s; the server's memory goes from "
        f"{told['memory_before_mib']:,} MiB to {told['memory_peak_mib']:,} MiB at most."
    ]


def _front_cost(told: Figures) -> list[str]:
    rows = []
    for at_once, load in told["at_once"].items():
        for way, text in (("bare", "gRPC alone, the same bytes"), ("front", "a front")):
            one = load[way]
            beside = f" ({load['front_of_bare']:.1f} times)" if way == "front" else ""
            times = f"{number(one['cpu_ms'])}{beside}"
            kernel, switches = number(one["of_it_in_the_kernel_ms"]), number(one["thread_switches"])
            rows.append(
                (f"{text}, {at_once} at once", number(one["calls_per_second"]), number(one["p50_ms"]), times, kernel, switches)
            )
    steps = [f"{step} {number(value)}" for step, value in told["at_once"]["1"]["steps_ms"].items()]
    return [
        f"Calls of {megabytes(told['message_bytes'])} with {told['pictures']} keyframes, to a front in one process whose engine "
        f"does nothing but has scores of four models; beside it a server that reads as many bytes and sends the "
        f"{told['answer_bytes']:,} of an answer back. Medians of {told['turns']} turns, for one call.",
        "",
        *table(("", "calls/s", "p50 ms", "ms of CPU", "in the kernel", "changes of threads"), rows),
        "",
        f"Steps of one call alone, ms: {', '.join(steps)}.",
    ]


def _engine_process(told: Figures) -> list[str]:
    rows = []
    for load in told["measured"]:
        for one in load["processes"]:
            times = [number(one[name]) for name in ("ms_p50", "ms_p99", "front_cpu_ms_per_job", "engine_cpu_ms_per_job")]
            rows.append((f"{load['at_once']} at once, {counted(one['fronts'], 'front')}", number(one["jobs_per_second"]), *times))
    return [
        f"Jobs of {told['pictures']} pictures with scores of {len(told['labels_by_model'])} models, through an engine "
        "process that "
        "does nothing: what fronts and an engine cost beside one process, where the same takes next to nothing. With two cores "
        "fronts, engine and generator share them.",
        "",
        *table(("", "jobs/s", "p50 ms", "p99 ms", "front, ms of CPU", "engine, ms of CPU"), rows),
    ]


_TELEMETRY = {
    "off": "none",
    "metrics": "metrics, read every second",
    "on": "metrics, and the traces that are kept",
    "every_trace": "metrics, and every trace",
}


def _telemetry(told: Figures) -> list[str]:
    rows = []
    for way, text in _TELEMETRY.items():
        one = told[way]
        low, high = (f"{value:.2f}" for value in one["throughput_against_off_quartiles"])
        against = f"{one['throughput_against_off']:.2f} ({low} to {high})" if way != "off" else ""
        spans = f"{one['spans_sent']:,}, {one['spans_dropped']:,} lost" if one.get("spans_sent") else ""
        times = f"{one['server_cpu_ms_per_call']:.2f} ({one['cpu_against_off']:.2f})"
        rows.append((text, number(one["calls_per_second"]), against, times, spans))
    on, lost = told["on"], sum(told[way].get("spans_dropped", 0) for way in _TELEMETRY)
    share = (on["cpu_against_off"] - 1) * 100
    slower = (1 - on["throughput_against_off"]) * 100
    verdict = "met" if slower <= _TELEMETRY_GOAL else "missed"
    return [
        "A server that is saturated with calls for which no model runs and nothing is decoded, so that telemetry is compared "
        f"with the least that a call can cost: {share:.0f} % of its processor time, {slower:.0f} % of its throughput, where at "
        f"most {_TELEMETRY_GOAL} % was the goal: **{verdict}**. Beside calls of which models run it is "
        f"{on['server_cpu_ms_per_call'] - told['off']['server_cpu_ms_per_call']:.1f} ms of a core a call. "
        f"{'No span was lost' if not lost else f'**{lost:,} spans were lost**'}. "
        f"{told['turns']} turns of each, in brackets quartiles, or times the processor time without telemetry.",
        "",
        *table(("", "calls/s", "of none", "ms of CPU a call", "spans"), rows),
        *_telemetry_with_models(told),
    ]


def _telemetry_with_models(told: Figures) -> list[str]:
    if (real := told.get("with_models")) is None:
        return []
    off, on = real["off"], real["on"]
    low, high = (f"{value:.2f}" for value in on["throughput_against_off_quartiles"])
    return [
        "",
        f"Calls that are decoded and of which the default models run on the processor, {real['callers']} at once: "
        f"{on['throughput_against_off']:.2f} of the throughput without telemetry ({low} to {high}) with metrics and the traces "
        f"that are kept, {number(on['server_cpu_ms_per_call'])} ms of processor time a call beside "
        f"{number(off['server_cpu_ms_per_call'])}; {on['spans_sent']:,} spans, {on['spans_dropped']:,} lost.",
    ]


def capacity(results: Results) -> list[tuple[str, str, str]]:
    """Rows for docs/operations.md: what, how much, file."""
    rows: list[tuple[str, str, str]] = []
    if (told := results.get("cpu")) is not None:
        cores = told["environment"]["cores"]
        for name, clip in told["clips"].items():
            rate = clip["at_once"]["calls"] / clip["at_once"]["call"]["median_ms"] * 1e3
            pictures = rate * clip["pictures"]
            what = f"{Hardware.of(told)}, {clip['at_once']['calls']} calls at once, `{name}`, {clip['pictures']} pictures a call"
            much = f"{rate:.2f} calls a second: {pictures:.0f} pictures a second, {pictures / cores:.0f} for each core"
            rows.append((what, much, "cpu"))
        clip = told["clips"][MADE]
        rows.append((f"one call alone there, {clip['pictures']} pictures", ms(clip["one"]["call"]["median_ms"]), "cpu"))
    if (told := results.get("transport")) is not None:
        one = told["layouts"][USUAL]
        share = percent(one["ranges"]["message_bytes"] / one["whole"]["message_bytes"])
        times = f"{ms(one['ranges']['median_ms'])} / {ms(one['whole']['median_ms'])}; {share} of the bytes"
        what = f"a file of {megabytes(one['file_bytes'])} sent as ranges / whole, to an engine that does nothing"
        rows.append((what, times, "transport"))
    for name in _SOAKS:
        if (told := results.get(name)) is not None:
            memory = f"memory {told['before']['memory_mib']:.0f} MiB before, {told['after']['memory_mib']:.0f} MiB after"
            rows.append((f"{told['calls']:,} calls to {_layout(told)}, one in five cancelled or late", memory, name))
    if (told := results.get("flood")) is not None:
        what = (
            f"{told['callers']} callers with messages of {told['message_mib']:g} MiB each, a budget of {told['budget_mib']:,} MiB"
        )
        memory = f"memory {told['memory_before_mib']:,} MiB before, {told['memory_peak_mib']:,} MiB at most"
        rows.append((what, memory, "flood"))
    return rows
