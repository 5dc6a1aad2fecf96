"""Answers as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from keyglance import answer as reading
from keyglance.answer import Answer, ServerInfo
from keyglance.text import clock, container, count, plain, share, size
from keyglance.v1 import keyglance_pb2 as pb

_VERDICT_STYLES = {"PASS": "bold green", "REVIEW": "bold yellow", "BLOCK": "bold red"}
_MOST_SEGMENTS = 4
_MOST_FRAME_LABELS = 3


class ScoreBar:
    """A score of 0 to 1 as a bar of fixed width; ASCII where the output's encoding has no blocks."""

    def __init__(self, score: float, *, style: str, width: int = 10) -> None:
        self.score = share(score)
        self.style = style
        self.width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full, empty = ("#", ".") if options.ascii_only else ("━", "─")
        filled = round(self.score * self.width)
        yield Segment(full * filled, Style.parse(self.style))
        yield Segment(empty * (self.width - filled), Style.parse("bright_black"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def answer_view(name: str, answer: Answer, *, frame_scores: bool = False) -> RenderableType:
    """All that a person wants to know of one answer: verdict and why, labels with times, what was not seen, timings, trace."""
    parts: list[RenderableType] = [_headline(name, answer), _indented(Text(_video_line(answer), style="bright_black"))]
    parts += [_indented(Text(plain(why))) for why in answer.verdict_reasons]
    parts += [_indented(_degradation_line(degradation)) for degradation in answer.degradations]
    parts += ["", _indented(_labels_table(answer) if answer.labels else Text("no labels")), ""]
    if frame_scores:
        parts += [_indented(_frames_table(answer)), ""]
    if answer.timings:
        parts.append(_indented(Text(_timing_line(answer.timings), style="bright_black")))
    if answer.trace_id:
        parts.append(_indented(Text(f"trace {plain(answer.trace_id)}", style="bright_black")))
    return Group(*parts)


def server_view(target: str, info: ServerInfo) -> RenderableType:
    """What a server is: version, models, decoders, limits."""
    limits = info.limits
    models = _table()
    for heading in ("Model", "Version", "Labels", "Runs", "Licence", "Weights"):
        models.add_column(heading, justify="right" if heading == "Labels" else "left", overflow="fold")
    for model in info.models:
        runs = ("by default" if model.default_on else "on request") + (", required" if model.required else "")
        cells = (model.name, model.version, f"{len(model.labels):,}", runs, model.licence or "?", model.digest[:12])
        models.add_row(*(Text(plain(cell)) for cell in cells))
    decoders = [
        Text(
            f"decoder {plain(decoder.kind)}: {decoder.decoders} of at most {decoder.limit}; "
            + (", ".join(plain(codec) for codec in decoder.codecs) or "no codecs")
        )
        for decoder in info.decoders
    ]
    limit = (
        f"limits: {size(limits.bytes)}, {limits.pixels:,} pixels, {clock(limits.seconds)} long, "
        f"{count(limits.samples, 'sample')}, {count(limits.frames, 'picture')} looked at; "
        f"{limits.default_deadline:g} s for calls without a deadline"
    )
    labels = sum(len(model.labels) for model in info.models)
    head = Text.assemble((plain(target), "bold"), f"  Keyglance {plain(info.version)} on {plain(info.device)}")
    summary = f"{count(len(info.models), 'model')}, {count(labels, 'label')}"
    return Group(
        head, _indented(Text(summary)), _indented(models), *(_indented(line) for line in decoders), _indented(Text(limit))
    )


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, 2))


def _headline(name: str, answer: Answer) -> Text:
    verdict = reading.verdict(answer)
    return Text.assemble((plain(name), "bold"), "  ", (verdict, _VERDICT_STYLES.get(verdict, "bold")))


def _video_line(answer: Answer) -> str:
    video, coverage = answer.video, answer.coverage
    facts = [f"{container(video.container)}, {plain(' '.join((video.codec, video.profile)))}", f"{video.width}×{video.height}"]
    if video.rotation or video.mirrored:
        facts.append(f"turned {video.rotation}°" + (", mirrored" if video.mirrored else ""))
    if video.hdr:
        facts.append("HDR")
    facts += [
        clock(video.duration, decimals=1),
        size(video.size),
        f"{coverage.frames} of {count(video.samples, 'picture')} seen",
        f"largest gap {coverage.largest_gap:.1f} s at {clock(coverage.largest_gap_start)}",
    ]
    return " · ".join(facts)


def _labels_table(answer: Answer) -> Table:
    table = _table()
    table.add_column("Label", overflow="fold", min_width=8)
    table.add_column("Score", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("From", justify="right", no_wrap=True)
    table.add_column("Seen at", overflow="fold", min_width=9)
    table.add_column("Models", overflow="fold", min_width=10)
    for label in sorted(answer.labels, key=lambda label: (not label.passed, -label.score)):
        style = "" if label.passed else "bright_black"
        name = Text(plain(label.name), style="bold" if label.passed else style)
        if label.parent:
            name.append(f" ({plain(label.parent)})", style="bright_black")
        table.add_row(
            name,
            ScoreBar(label.score, style="cyan" if label.passed else "bright_black"),
            Text(f"{label.score:.2f}", style="bold" if label.passed else style),
            Text(f"{label.threshold:.2f}", style="bright_black"),
            Text(_segments(label.segments), style=style),
            Text(", ".join(f"{plain(source.model)} {source.score:.2f}" for source in label.sources), style="bright_black"),
        )
    return table


def _segments(segments: Iterable[pb.Segment]) -> str:
    shown = []
    for segment in segments:
        start, end = clock(segment.start), clock(segment.end)
        shown.append(start if start == end else f"{start}–{end}")
    more = len(shown) - _MOST_SEGMENTS
    return ", ".join(shown[:_MOST_SEGMENTS]) + (f", {more} more" if more > 0 else "")


def _frames_table(answer: Answer) -> Table:
    table = _table()
    table.add_column("Time", justify="right", no_wrap=True)
    table.add_column("Sample", justify="right", no_wrap=True)
    table.add_column("Picture", no_wrap=True)
    table.add_column("Best scores", overflow="fold")
    for frame in answer.frames:
        kind = ("keyframe" if frame.keyframe else "between") + (", not shown" if frame.outside_edit else "")
        if frame.skipped:
            scores = Text(f"skipped: {reading.reason(frame.skipped)}", style="yellow")
        else:
            best = reading.best_scores(frame)[:_MOST_FRAME_LABELS]
            regions = f"; {count(len(frame.regions), 'region')}" if frame.regions else ""
            scores = Text(", ".join(f"{plain(name)} {score:.2f}" for name, score in best) + regions)
        table.add_row(clock(frame.time, decimals=1), str(frame.index), kind, scores)
    return table


def _degradation_line(degradation: pb.Degradation) -> Text:
    times = f" ×{degradation.count}" if degradation.count > 1 else ""
    detail = f": {plain(degradation.detail)}" if degradation.detail else ""
    return Text.assemble((f"{reading.reason(degradation.reason)}{times}", "yellow"), detail)


def _timing_line(timings: Iterable[pb.StepTiming]) -> str:
    """All steps in milliseconds on one line, the total first."""
    steps, head = [], "steps"
    for timing in timings:
        if timing.step == "total":
            head = f"{timing.wall_ms:.0f} ms"
            continue
        notes = [f"{timing.wait_ms:.0f} waiting"] if timing.wait_ms >= 0.5 else []
        notes += [f"{timing.created} created"] if timing.created else []
        steps.append(f"{plain(timing.step)} {timing.wall_ms:.0f}" + (f" ({', '.join(notes)})" if notes else ""))
    return f"{head}: {' · '.join(steps)}" if steps else head
