"""The pages with figures: what stands between `<!-- figures:NAME -->` and `<!-- /figures -->` is made here.

A block begins on the line after its mark; where text follows the mark on its line, the figure stands within the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from loadtest.figures import cpu, gpu, load
from loadtest.figures.results import Results, ms, number, prose, wrapped
from loadtest.figures.section import Hardware, Machines, link

#: By path in the repository.
PAGES = ("README.md", "CONTRIBUTING.md", "docs/performance.md", "docs/operations.md")
_README = "loadtest/results"
_MARK = re.compile(r"<!-- figures:([a-z-]+) -->(.*?)<!-- /figures -->", re.DOTALL)
_ANY_MARK = re.compile(r"<!-- (?:figures:|/figures)")


class PageError(Exception):
    """A page's marks are wrong; the message says where and what is allowed."""


def filled(text: str, blocks: Mapping[str, str], page: str) -> str:
    """`text` with its blocks made anew. Raises `PageError` for a mark without its counterpart, or of an unknown name."""

    def block(found: re.Match[str]) -> str:
        name, old = found.groups()
        if name not in blocks:
            raise PageError(f"{page}: figures:{name} is not known; there are {', '.join(sorted(blocks))}")
        if _ANY_MARK.search(old):
            raise PageError(f"{page}: figures:{name} has no <!-- /figures --> before the next mark")
        new = f"\n{blocks[name]}\n" if old.startswith("\n") else blocks[name]
        return f"<!-- figures:{name} -->{new}<!-- /figures -->"

    if loose := _ANY_MARK.search(_MARK.sub("", text)):
        line = _MARK.sub("", text)[loose.start() :].splitlines()[0]
        raise PageError(f"{page}: a mark without its counterpart: {line}")
    return _MARK.sub(block, text)


def blocks(results: Results) -> dict[str, str]:
    """The text of every block, by name."""
    found = {"cpu": list(cpu.sections(results)), "gpu": list(gpu.sections(results)), "load": list(load.sections(results))}
    machines = Machines(section for sections in found.values() for section in sections)
    made: dict[str, list[str]] = {
        "headline": _headline(results),
        "cpu": cpu.short(results, _README),
        "gpu": _gpu(results),
        "machines": machines.table(),
        **{f"{name}-sections": machines.render(sections) for name, sections in found.items()},
        "capacity": _capacity(results),
    }
    return {name: "\n".join(wrapped(lines)) for name, lines in made.items()} | {
        name: tell(results) for name, tell in _INLINE.items()
    }


def _headline(results: Results) -> list[str]:
    lines = []
    if (told := results.get("cpu")) is not None:
        clip = told["clips"][cpu.MADE]["one"]
        lines.append(
            f"- {_capital(Hardware.of(told))} label a video of 16 keyframes (720p, three models) in "
            f"{ms(clip['call']['median_ms'])}; what is usual, decoding all of it frame by frame, takes "
            f"{ms(clip['everything, PyAV']['median_ms'])}."
        )
    engine, saturated = results.get("gpu_engine"), results.get("saturation_gpu")
    if (told := results.part("engine")) is not None and engine is not None:
        many = f"; saturated it answers {load.peak(saturated)}" if saturated is not None else ""
        lines.append(
            f"- One {Hardware.of(engine).gpu} labels {told['through gRPC']['pictures']} keyframes of a phone's clip (60 s, "
            f"four models) in {ms(told['through gRPC']['p50_ms'])}{many}."
        )
    return lines


def _capital(what: object) -> str:
    text = str(what)
    return text[:1].upper() + text[1:]


def _gpu(results: Results) -> list[str]:
    lines: list[str] = []
    told, rows = results.get("gpu_engine"), [*gpu.goal_rows(results), *load.goal_rows(results, "saturation_gpu")]
    if not rows:
        return lines
    if told is not None:
        names = ("gpu_alone", "gpu_engine", "gpu_phone", "gpu_throughput", "saturation_gpu")
        hosts = sorted({str(Hardware.of(one)) for name in names if (one := results.get(name)) is not None})
        lines += [
            f"Measured on {'; or on '.join(hosts)}. All four models, 12 keyframes of a clip of 60 s (720×1280). *Decoders alone* "
            "and *models alone* are what the GPU reaches when it does nothing else.",
            "",
        ]
    lines += prose(("what", "goal", "measured", ""), rows)
    if (summary := results.get("gpu")) is not None:
        lines += [
            "",
            f"In all {summary['met']} goals of the engine are met and {summary['missed']} missed: `make bench DEVICE=gpu`, "
            f"{link('gpu', _README)}.",
        ]
    if (saturation := results.get("saturation_gpu")) is not None:
        lines += ["", f"Under load: `{' '.join(saturation['environment']['command'])}`, {link('saturation_gpu', _README)}."]
    if (baselines := results.get("baselines_gpu")) is not None:
        ratios = [
            f"{number(min(by_count.values()))} to {number(max(by_count.values()))} times {name}"
            for name, by_count in baselines["ours_to_theirs"].items()
            if by_count
        ]
        if ratios:
            lines += [
                "",
                f"Calls a second beside what a team would build on the same GPU: {', '.join(ratios)} (a: PyNvVideoCodec's "
                "`SimpleDecoder` new for each call, one inference a picture; b: one for each caller, reconfigured, "
                "one inference a call). "
                f"`python -m loadtest.baselines_gpu`, {link('baselines_gpu', _README)}.",
            ]
    return lines


def _capacity(results: Results) -> list[str]:
    rows = [*cpu.capacity(results), *gpu.capacity(results), *load.capacity(results)]
    return prose(("what", "measured", "file"), [(what, much, f"`{name}.json`") for what, much, name in rows])


def _one_call(results: Results) -> str:
    told = results.get("cpu")
    return (
        "a time that is not measured yet"
        if told is None
        else f"{told['clips'][cpu.MADE]['one']['call']['median_ms'] / 1e3:.2f} s"
    )


def _new_decoder(results: Results) -> str:
    found = results.part("reconfigure")
    return "tens of ms" if found is None else f"{found['new decoder, then the keyframe']['median']:.0f} ms"


def _messages(results: Results) -> str:
    told = results.get("flood")
    if told is None:
        return "a few"
    more = told["memory_peak_mib"] - told["memory_before_mib"] - told["budget_mib"]
    return f"{more / told['message_mib']:.1f}"


def _decode_share(results: Results) -> str:
    told = results.get("cpu")
    if told is None:
        return "the smaller part"
    one = told["clips"][cpu.MADE]["one"]
    share = one["bare decode"]["median_ms"] / one["bare"]["median_ms"]
    return f"{share * 100:.0f} % of the bare work"


#: Figures within a sentence.
_INLINE: Mapping[str, Callable[[Results], str]] = {
    "one-call": _one_call,
    "new-decoder": _new_decoder,
    "messages-more": _messages,
    "decode-share": _decode_share,
}
