"""What was measured on a GPU: the goals, the ceilings, where the time of a call goes, and what limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadtest.figures.cpu import verdict
from loadtest.figures.results import Figures, Results, counted, listed, megabytes, ms, number, percent, prose
from loadtest.figures.section import Section, commit, link
from loadtest.gpu_batching import ACROSS, APART, BY_COST, IN_FLIGHT
from loadtest.gpu_beside import BUSY, IDLE, PRIORITIES
from loadtest.gpu_service import GOAL_IN_FLIGHT, SMALL_MODELS
from loadtest.load_report import table

#: Goals of `loadtest.gpu_summary` for somebody who has not read its code; others keep their own words.
_WORDS: Mapping[str, str] = {
    "reconfigure plus first 720p keyframe, of the decode of that keyframe alone": (
        "a decoder set to another clip and its first keyframe (720p), beside that keyframe alone"
    ),
    "a new decoder and that keyframe, of reconfigure plus keyframe": "a new decoder and that keyframe, beside the above",
    "12 keyframes, bytes in memory to frames in the arena, decoders reconfigured": (
        "12 keyframes, from bytes in memory to pictures on the GPU"
    ),
    "the same, decoders that had that size": "the same with decoders that had that size already",
    "the clip through gRPC, p50, over the models alone for that batch": (
        "one call through gRPC (p50), beyond what the models alone take"
    ),
    "16 clips in flight, keyframes/s, of the smaller of decoders alone and models alone": (
        "16 clips in flight, in process: pictures a second, as a share of what decoders alone or models alone reach"
    ),
    **{
        f"{name} alone, the same, of the decoders alone": f"the same with {name} as the only model, as a share of the "
        "decoders alone"
        for name in SMALL_MODELS
    },
}
#: Goals that the README tells although they are met; those that are missed it tells always.
_HEADLINES = frozenset(list(_WORDS)[:2] + list(_WORDS)[5:6])
#: The parts that goals are made of.
_GOAL_PARTS = ("alone", "batching", "engine", "memory", "one_model", "parity", "phone", "precision", "reconfigure", "throughput")
#: A device below this is not what limits.
_IDLE_PERCENT = 60.0


def ceiling(results: Results) -> float | None:
    """Pictures a second that nothing can exceed: the smaller of decoders alone and models alone."""
    alone = results.part("alone")
    return min(alone["decoders"]["pictures/s"], alone["models"]["pictures/s"]) if alone is not None else None


def _value(value: float, goal: str) -> str:
    unit = goal.rpartition(" ")[2]
    return f"{number(value)} {unit}" if unit in ("ms", "times") else number(value)


def _beside(beside: Mapping[str, Any]) -> str:
    """The two figures that a ratio or a difference is of."""
    for first, second, unit in (
        ("reconfigured_ms", "alone_ms", " ms"),
        ("new_ms", "reconfigured_ms", " ms"),
        ("p50_ms", "models alone_ms", " ms"),
    ):
        if first in beside and second in beside:
            return f" ({number(beside[first])} and {number(beside[second])}{unit})"
    if "pictures/s" in beside:
        limits = [beside[name] for name in ("decoders alone", "models alone") if name in beside]
        return f" ({number(beside['pictures/s'])} of {number(min(limits))})"
    if BY_COST in beside:
        return f" ({number(beside[BY_COST])} if both ways waited for nothing but their batches)"
    return ""


def _goal_row(line: Figures) -> tuple[str, str, str, str]:
    goal: str = line["goal"]
    what: str = _WORDS.get(line["what"], line["what"])
    if line["met"] is None:
        return what, goal, "not measured", ""
    missed = _value(line.get("misses by", 0.0), goal)
    return what, goal, _value(line["value"], goal) + _beside(line["beside"]), verdict(line["met"], missed)


def goal_rows(results: Results) -> list[tuple[str, str, str, str]]:
    """For the README: what is missed, and the goals that matter most."""
    told = results.get("gpu")
    return (
        []
        if told is None
        else [_goal_row(line) for line in told["goals"] if line["met"] is not True or line["what"] in _HEADLINES]
    )


def sections(results: Results) -> Iterator[Section]:
    """For docs/performance.md."""
    if (summary := results.get("gpu")) is not None:
        yield _goals(summary)
    for part, title, lines in (
        ("alone", "The ceilings: decoders alone, models alone", _alone),
        ("beside", "Decoding beside models", _decoding_beside),
        ("reconfigure", "A decoder set to another clip, and a new one", _reconfigure),
        ("phone", "The keyframes of a phone's clip, by all roads", _phone),
        ("engine", "Where the time of one call goes", _engine),
        ("throughput", "Many clips in flight", _throughput),
        ("batching", "Batches across calls", _batching),
        ("one_model", "One small model alone", _one_model),
        ("memory", "Memory", _memory),
        ("parity", "The same pixels", _parity),
        ("precision", "The same scores", _precision),
        ("overlap", "A stream for each model", _overlap),
        ("torch", "PyTorch as a backend", _torch),
    ):
        told, found = results.get(f"gpu_{part}"), results.part(part)
        if told is not None and found is not None:
            yield Section(title, f"gpu_{part}", told, lines(found, results))


def _goals(told: Figures) -> Section:
    rows = [_goal_row(line) for line in told["goals"]]
    counts = f"{told['met']} goals are met, {told['missed']} are missed"
    counts += f", {told['open']} not measured." if told["open"] else "."
    sources = [one for part, one in told["sources"].items() if part in _GOAL_PARTS and one["date"]]
    runs = sorted({(one["date"][:10], commit(one["commit"]), one["gpu"]) for one in sources})
    made = "; ".join(f"{date}, {measured}, {gpu}" for date, measured, gpu in runs)
    source = f"`make bench DEVICE=gpu` (`python -m loadtest.gpu`), {link('gpu')}, from its parts: {made}."
    lines = [counts, "", *prose(("what", "goal", "measured", ""), rows)]
    return Section("The goals", "gpu", told, lines, source)


def _alone(found: Figures, _: Results) -> list[str]:
    decoders, models = found["decoders"], found["models"]
    networks, results = models["networks"], models["pictures to results"]
    rows = [
        (counted(int(count), "decoder"), number(decoders["decode"][count]), number(decoders["decode and copy"][count]))
        for count in decoders["decode"]
    ]
    batches = [
        (f"batches of {size}", number(networks["pictures/s flat out"][size]), number(results["pictures/s flat out"][size]))
        for size in networks["pictures/s flat out"]
    ]
    each = models["each alone, networks, pictures/s flat out"]
    return [
        f"Keyframes of 720×1280 ({decoders['bytes of a keyframe'] / 1e3:.0f} KB each) through the hardware decoders "
        "and nothing "
        "else; all default models and nothing else, one batch enqueued while another runs. Pictures a second:",
        "",
        *table(("decoders", "decoded", "and copied to the arena"), rows),
        "",
        *table(("models", "the networks", "with preprocessing and results"), batches),
        "",
        f"Each model as the only one: {', '.join(f'{name} {number(rate)}' for name, rate in each.items())}. "
        f"All of them: {number(models['pictures/s'])}. A batch of 12: {ms(models['12 pictures_ms'])}.",
    ]


def _decoding_beside(found: Figures, _: Results) -> list[str]:
    rows = []
    for priority in PRIORITIES:
        for when in (IDLE, BUSY):
            one = found[priority][when]
            numbers = [number(one[name]) for name in ("p50_ms", "p90_ms", "p99_ms", "decoded/s")]
            models = number(one["models, pictures/s"]) if "models, pictures/s" in one else "–"
            rows.append((f"{priority}, {when}", *numbers, models))
    return [
        f"One keyframe (720×1280) at a time on each of {counted(found['decoders'], 'decoder')}, with a pause behind each, from "
        "its bytes to its place in the arena: what it costs of the GPU's processors waits behind the models' batches "
        f"(of {found['batch']}), unless the decoder's stream goes first. Models alone: "
        f"{number(found['models alone, pictures/s'])} pictures/s.",
        "",
        *table(("a decoder's stream has", "p50 ms", "p90 ms", "p99 ms", "decoded/s", "models, pictures/s"), rows),
    ]


def _reconfigure(found: Figures, _: Results) -> list[str]:
    names = (
        "keyframe alone",
        "reconfigured, then the keyframe",
        "of that, the call that reconfigures",
        "new decoder, then the keyframe",
    )
    rows = [
        (name, *(number(found[name][key]) if key in found[name] else "–" for key in ("median", "p10", "p90"))) for name in names
    ]
    return ["A warm decoder gets the first keyframe (720p) of another clip.", "", *table(("ms", "median", "p10", "p90"), rows)]


def _phone(found: Figures, _: Results) -> list[str]:
    steps = ("index", "plan", "packets", "lease", "decode", "all", "same")
    rows = [
        (counted(int(name.removesuffix(" decoders")), "decoder"), *(number(found[name][step]["median"]) for step in steps))
        for name in found
        if name.endswith(" decoders")
    ]
    others = [
        (f"{name}, {one['pictures']:,} pictures", number(one["median"]))
        for name, one in found.items()
        if name.startswith("SimpleDecoder")
    ]
    size = found["bytes"]
    return [
        f"60 s of 720×1280, {megabytes(size['file'])}, its 12 keyframes {megabytes(size['keyframes'])}: bytes in "
        "memory to pictures on "
        "the GPU. *All* is the sum where decoders have to be set to that size, *same* where they had it. Medians of "
        f"{found['1 decoders']['all']['n']}, in ms:",
        "",
        *table(("", "index", "plan", "packets", "lease", "decode", "all", "same"), rows),
        "",
        "Beside it PyNvVideoCodec's own `SimpleDecoder`:",
        "",
        *table(("", "ms"), others),
    ]


def _engine(found: Figures, results: Results) -> list[str]:
    told, inside = found["through gRPC"], found["engine in process"]
    steps = told["steps"]
    ends = {step: one["begins_ms"] + one["wall_ms"] for step, one in steps.items()}
    engine = ends["infer"] - steps["decode"]["begins_ms"]
    alone = results.part("alone")
    models = f"; the models alone take {ms(alone['models']['12 pictures_ms'])} of it" if alone is not None else ""
    parts = [
        ("outside the server: the client's plan, protobuf, gRPC both ways", told["outside the server_ms"]),
        ("receive, index and sample, until decoding begins", steps["decode"]["begins_ms"]),
        (f"the engine, from the first packet to the last result{models}", engine),
        ("fuse, and the answer's making", steps["total"]["wall_ms"] - ends["infer"]),
    ]
    rows = [(step, *(number(one[key]) for key in ("begins_ms", "wall_ms", "wait_ms"))) for step, one in steps.items()]
    crowd = next(((name, one) for name, one in found.items() if "callers in one client process" in name), None)
    lines = [
        f"The same clip, {told['pictures']} keyframes, all default models, by a client in another process that sends "
        f"{megabytes(told['request_bytes'])}; nothing else runs, the server is one process. {told['n']} calls: "
        f"p50 {ms(told['p50_ms'])}, p90 {ms(told['p90_ms'])}, p99 {ms(told['p99_ms'])}; {told['created on the way']} "
        "decoders made "
        "on the way.",
        "",
        *table(("where", "ms"), [(what, number(value)) for what, value in parts]),
        "",
        "Step by step (medians; decode, preprocess and infer overlap):",
        "",
        *table(("ms", "begins", "takes", "of that waits"), rows),
        "",
        f"The engine alone, called in its own process, takes {ms(inside['p50_ms'])} (p50). Its pictures do not arrive at once: "
        f"decoding takes {ms(steps['decode']['wall_ms'])}, and the models start with the first ones and run again for "
        "the rest. "
        "The Python in front of it (index, plan, protobuf) is a few milliseconds that no GPU makes shorter.",
    ]
    if crowd is not None:
        name, one = crowd
        index = one["steps"]["index"]["wall_ms"]
        lines += [
            "",
            f"{name}: {number(one['calls/s'])} calls a second, p50 {ms(one['p50_ms'])}. There index takes {ms(index)} "
            "instead of "
            f"{ms(steps['index']['wall_ms'])}: one process does gRPC, index and the engine, and its interpreter lock "
            "goes round. "
            "Fronts of their own (`server.fronts`) are the cure; see [under load](#under-load).",
        ]
    return lines


def _load_row(name: str, one: Figures) -> tuple[str, ...]:
    busy = one["utilisation"]
    percents = [f"{busy[key]:.0f} %" if key in busy else "–" for key in ("gpu_percent", "decoder_percent")]
    numbers = [number(one[key]) for key in ("calls/s", "pictures/s", "p50_ms", "p99_ms")]
    return name, *numbers, f"{one['batches']['mean fill']:.0f}", *percents


_LOAD_HEADING = ("", "calls/s", "pictures/s", "p50 ms", "p99 ms", "mean batch", "GPU busy", "decoders busy")


def _throughput(found: Figures, results: Results) -> list[str]:
    loads = {name: one for name, one in found.items() if name.endswith(" in flight")}
    full = loads[f"{GOAL_IN_FLIGHT} in flight"]
    busy, limit = full["utilisation"], ceiling(results)
    lines = [
        "Clips always in flight at the engine, in process, all default models, no gRPC. Busy is what NVML says: the "
        "share of the "
        "time in which something ran.",
        "",
        *table(_LOAD_HEADING, [_load_row(name, one) for name, one in loads.items()]),
    ]
    if limit is not None:
        lines += ["", f"{GOAL_IN_FLIGHT} in flight reach {percent(full['pictures/s'] / limit)} of the lower ceiling. "]
        if busy.get("gpu_percent", 0) > _IDLE_PERCENT > busy.get("decoder_percent", 100):
            lines[-1] += (
                f"The models are the limit: the GPU is busy {busy['gpu_percent']:.0f} % of the time, its decoders "
                f"{busy['decoder_percent']:.0f} %. More decoders would change nothing, a faster or a missing model would."
            )
    return [line.rstrip() for line in lines]


def _batching(found: Figures, _: Results) -> list[str]:
    rows, ratios = [], []
    for title, told in found.items():
        if title.endswith(" pictures a call"):
            for way in (ACROSS, APART):
                one = told[way]
                numbers = (number(one[key]) for key in ("calls/s", "pictures/s", "p50_ms", "p99_ms"))
                rows.append((title, way, *numbers, number(one["batches"]["mean fill"])))
            ratios.append(f"{title}: {number(told['ratio'])} times the rate")
            if BY_COST in told:
                ratios[-1] += f" ({number(told[BY_COST])} times if both ways waited for nothing but their batches)"
    return [
        f"{counted(IN_FLIGHT, 'call')} in flight at one engine in turns: its batches have pictures of whatever call, or of one "
        "call each, which then waits until all its pictures are decoded. Networks, CUDA graphs and decoders are the same.",
        "",
        *table(("", "a batch has pictures", "calls/s", "pictures/s", "p50 ms", "p99 ms", "mean batch"), rows),
        "",
        f"{listed(ratios)}.",
    ]


def _one_model(found: Figures, results: Results) -> list[str]:
    rows = [_load_row(f"{model}, {name}", one) for model, loads in found.items() for name, one in loads.items()]
    lines = [
        "The same with one model, which leaves most to decoding.",
        "",
        *table(_LOAD_HEADING, rows),
    ]
    alone, memory = results.part("alone"), results.part("memory")
    full = {model: loads[f"{GOAL_IN_FLIGHT} in flight"] for model, loads in found.items()}
    busy = [one["utilisation"].get(key, 100.0) for one in full.values() for key in ("gpu_percent", "decoder_percent")]
    if alone is None or max(busy) > _IDLE_PERCENT:
        return lines
    each = alone["models"]["each alone, networks, pictures/s flat out"]
    reached = [
        f"{number(one['pictures/s'])} pictures a second with {model}, which alone reaches {number(each[model])}"
        for model, one in full.items()
    ]
    percents = listed([f"{one['utilisation']['gpu_percent']:.0f} %" for one in full.values()])
    decoders = listed([f"{one['utilisation']['decoder_percent']:.0f} %" for one in full.values()])
    count = _decoders(memory) if memory is not None else None
    return [
        *lines,
        "",
        f"{GOAL_IN_FLIGHT} in flight: {listed(reached)}; the decoders alone reach "
        f"{number(alone['decoders']['pictures/s'])}. The GPU is "
        f"busy {percents} of the time, its decoders {decoders}: neither is the limit, and two models of different speed end at "
        "nearly the same rate. What is left is the engine's one Python process. Its interpreter lock goes from thread "
        "to thread several "
        f"times for each picture{f', between {count} threads of decoders' if count else ''}, the thread that infers "
        "and the event loop. "
        "This is read from the figures above; no profile was taken. What would help is less Python for each picture, "
        "or several engine processes on one GPU (`server.engines_per_gpu`).",
    ]


def _decoders(memory: Figures) -> int | None:
    """How many decoders the plan of the memory has room for."""
    if memory["budget"] is None:
        return None
    counts = [
        name.removeprefix("decoders").lstrip(": ") for name in memory["budget"]["lines in MiB"] if name.startswith("decoders")
    ]
    return sum(int(each.removeprefix("made later: ").split()[0]) for each in counts)


def _memory(found: Figures, _: Results) -> list[str]:
    lines = []
    if (plan := found["budget"]) is not None:
        kinds = {"decoders": "decoders", "arena": "the arena of decoded pictures", "CUDA": "CUDA's context and libraries"}
        sums: dict[str, float] = {}
        for name, size in plan["lines in MiB"].items():
            kind = next((text for start, text in kinds.items() if name.startswith(start)), f"the model {name.partition(':')[0]}")
            sums[kind] = sums.get(kind, 0.0) + size
        rows = [(kind, f"{size:,.0f}") for kind, size in sums.items()]
        models = sum(size for kind, size in sums.items() if kind.startswith("the model "))
        share = percent(plan["used in MiB"] / plan["planned in MiB"])
        lines += [
            f"The start plans {plan['planned in MiB']:,.0f} MiB and uses {plan['used in MiB']:,.0f} MiB of them ({share}). "
            f"{percent(models / plan['planned in MiB'])} of the plan are the models: each has a network and a CUDA "
            "graph for every batch size, and those whose input has several shapes for each of "
            "these. Fewer batch sizes (`gpu.batch_buckets`) or fewer models need less.",
            "",
            *table(("planned", "MiB"), rows),
            "",
        ]
    grown = [f"{name} {value:+g}" for name, value in found["grown"].items() if value]
    asked = found["allocations on the way"]
    lines += [
        f"{found['calls']:,} usual calls of changing sizes, {number(found['calls/s'])} a second: "
        f"{found['created on the way']} decoders "
        f"made, memory asked for {'not counted' if asked is None else f'{sum(asked.values())} times'}. "
        f"Grown: {', '.join(grown) or 'nothing'}.",
    ]
    return lines


def _parity(found: Figures, _: Results) -> list[str]:
    return [
        f"{found['pictures']} pictures of all layouts through the kernels for every model's input, float32 and "
        "float16: at most "
        f"{found['largest']:.2f} of 255 from the float64 reference at any pixel; {found['allowed']:g} is allowed."
    ]


def _precision(found: Figures, _: Results) -> list[str]:
    rows = []
    for name, one in found.items():
        model, precision, *origin = name.split(", ")
        if origin == ["pictures on the GPU"]:
            rows.append((model, precision, f"{max(one['moves'].values()):.6f}", "passes" if one["passed"] else "fails"))
    return [
        "How far a raw output moves from the CPU's on pictures whose scores spread from 0.1 to 0.9; 0.01 is allowed. "
        "Each model runs "
        "in float16 where its manifest allows it and the check passes, else in float32.",
        "",
        *table(("model", "precision", "largest move", "check"), rows),
    ]


def _overlap(found: Figures, _: Results) -> list[str]:
    rows = []
    for precision in (each for each in found if isinstance(found[each], dict)):
        for models, sizes in found[precision].items():
            if not isinstance(sizes, dict):
                continue
            for size, one in sizes.items():
                pair = [number(one[f"pictures to results, {way}"]) for way in ("one stream", "a stream each")]
                rows.append((f"{models}, {precision}, batches of {size}", *pair))
    return [
        "Why models overlap: a batch from pictures to results, all models on one CUDA stream or each on its own, in ms.",
        "",
        *table(("", "one stream", "a stream each"), rows),
    ]


def _torch(found: Figures, _: Results) -> list[str]:
    kept = {name: one for name, one in found.items() if isinstance(one, dict)}
    sizes = list(dict.fromkeys(size for one in kept.values() for size in one["ms"]))
    rows = [(name, *(number(one["ms"][size]) if size in one["ms"] else "–" for size in sizes)) for name, one in kept.items()]
    return [
        "EfficientNet-Lite0 as an exported program (`torch`) and as TorchScript (`script`), the same tensors by "
        "DLPack without a copy, "
        "in ms by batch size.",
        "",
        *table(("", *sizes), rows),
    ]


def capacity(results: Results) -> list[tuple[str, str, str]]:
    """Rows for docs/operations.md: what, how much, file."""
    rows: list[tuple[str, str, str]] = []
    alone, throughput, reconfigure = (results.part(name) for name in ("alone", "throughput", "reconfigure"))
    if alone is not None:
        much = f"{number(alone['models']['pictures/s'])} / {number(alone['decoders']['pictures/s'])} pictures a second"
        rows.append(("GPU, all four models alone / decoders alone", much, "gpu_alone"))
    if throughput is not None:
        one = throughput[f"{GOAL_IN_FLIGHT} in flight"]
        much = f"{number(one['pictures/s'])} pictures a second"
        rows.append((f"GPU, the engine in process, {GOAL_IN_FLIGHT} calls of 12 pictures in flight", much, "gpu_throughput"))
    if reconfigure is not None:
        pair = (reconfigure[of]["median"] for of in ("reconfigured, then the keyframe", "new decoder, then the keyframe"))
        rows.append(
            (
                "GPU, the first picture of a decoder set to another clip / of a new one",
                " / ".join(map(ms, pair)),
                "gpu_reconfigure",
            )
        )
    return rows
