"""One call's trace through all processes, as a picture: `python -m loadtest.trace_picture docs/trace.svg`.

Starts a server of a front and an engine, has a few callers ask it at once, each within a span of its own, and takes the spans of
one of these calls from a collector: the caller's, the front's, and the batches of the engine to which the call's inference links.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from keyglance import AsyncClient
from loadtest.otlp_sink import OtlpSink, Received
from loadtest.server_process import ServerProcess

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that people who see colours differently can tell apart (Okabe and Ito).
_COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_GREY = "#777777"
_CALLER = "caller"


def record(clip: Path, callers: int) -> list[Received]:
    """The spans of so many calls at once, after some that warm the server."""
    server = {"KEYGLANCE_SERVER__FRONTS": "1", "KEYGLANCE_SERVER__ENGINES": "1"}
    with tempfile.TemporaryDirectory() as scratch, OtlpSink() as sink:
        provider = TracerProvider(resource=Resource({"service.name": _CALLER}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=sink.endpoint, insecure=True)))
        tracer = provider.get_tracer(__name__)

        async def ask(client: AsyncClient) -> None:
            with tracer.start_as_current_span("label"):
                await client.label(clip)

        async def ask_all(address: str) -> None:
            async with AsyncClient(address, timeout=120) as client:
                await client.label(clip)
                await asyncio.gather(*(ask(client) for _ in range(callers)))

        with ServerProcess(Path(scratch), environment={**sink.environment(), **server}) as process:
            asyncio.run(ask_all(process.address))
        provider.shutdown()
        return list(sink.spans)


def one_call(spans: Sequence[Received]) -> list[Received]:
    """The spans of the call whose batches served most other calls too: of its trace, and those batches."""
    by_id = {each.span.span_id: each for each in spans}

    def batches(root: Received) -> list[Received]:
        infer = [each for each in spans if each.name == "infer" and each.span.trace_id == root.span.trace_id]
        return [by_id[link.span_id] for each in infer for link in each.span.links if link.span_id in by_id]

    roots = [each for each in spans if each.process == _CALLER]
    root = max(roots, key=lambda each: sum(len(batch.span.links) for batch in batches(each)))
    return [each for each in spans if each.span.trace_id == root.span.trace_id] + batches(root)


def rows(spans: Sequence[Received]) -> list[list[Received]]:
    """A row for each span, caller first, then front, then engine; batches of one model share one where they do not overlap."""
    placed: list[list[Received]] = []
    for each in sorted(spans, key=lambda each: (_order(each), _title(each), each.span.start_time_unix_nano)):
        last = placed[-1][-1] if placed else each
        apart = last.span.end_time_unix_nano <= each.span.start_time_unix_nano
        if apart and (_title(last), last.process) == (_title(each), each.process):
            placed[-1].append(each)
        else:
            placed.append([each])
    return sorted(placed, key=lambda row: (_order(row[0]), row[0].span.start_time_unix_nano))


def _order(each: Received) -> int:
    return 0 if each.process == _CALLER else 1 if each.process.startswith("front") else 2


def _title(each: Received) -> str:
    model = each.attributes.get("keyglance.model")
    return f"{each.name} {model}" if model else each.name


def draw(spans: Sequence[Received], path: Path) -> None:
    """Writes the picture; its format is that of the file's name."""
    import matplotlib  # not at the top: only this needs it
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "keyglance", "svg.fonttype": "none", "font.size": 9}
    lanes = rows(spans)
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(12, 1.1 + 0.3 * len(lanes)), layout="constrained")
        _draw(figure.subplots(), lanes)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axes: Axes, lanes: Sequence[Sequence[Received]]) -> None:
    begin = min(each.span.start_time_unix_nano for row in lanes for each in row)
    places = {each.span.span_id: place for place, row in enumerate(lanes) for each in row}
    processes = list(dict.fromkeys(row[0].process for row in lanes))
    end = max((each.span.end_time_unix_nano - begin) / 1e6 for row in lanes for each in row)
    for place, row in enumerate(lanes):
        colour = _COLOURS[processes.index(row[0].process) % len(_COLOURS)]
        for each in row:
            left, right = ((at - begin) / 1e6 for at in (each.span.start_time_unix_nano, each.span.end_time_unix_nano))
            axes.barh(place, max(right - left, end / 1000), left=left, height=0.7, color=colour, edgecolor="white", linewidth=0.5)
            wait = each.attributes.get("keyglance.wait", 0.0) * 1e3
            if wait:
                width = min(wait, right - left)
                axes.barh(place, width, left=left, height=0.7, color="white", alpha=0.45, hatch="///", linewidth=0)
            size = each.attributes.get("keyglance.batch.size")
            if size:
                text = f"{size} of {len(each.span.links)} calls" if len(each.span.links) > 1 else str(size)
                if right - left > end * (0.085 if len(each.span.links) > 1 else 0.015):
                    axes.text((left + right) / 2, place, text, ha="center", va="center", fontsize=7, color="black")
            for link in each.span.links:
                if each.name == "infer" and link.span_id in places:
                    batch = next(one for one in lanes[places[link.span_id]] if one.span.span_id == link.span_id)
                    at = (batch.span.start_time_unix_nano - begin) / 1e6
                    axes.plot([at, at], [place + 0.35, places[link.span_id] - 0.35], color=_GREY, linewidth=0.5, linestyle=":")
        widest = max(row, key=lambda each: each.span.end_time_unix_nano)
        if len(row) == 1 and not widest.attributes.get("keyglance.batch.size"):
            right = (widest.span.end_time_unix_nano - begin) / 1e6
            took = (widest.span.end_time_unix_nano - widest.span.start_time_unix_nano) / 1e6
            axes.text(right + end * 0.005, place, f"{took:.1f} ms", va="center", fontsize=8, color=_GREY)
    for process in processes:
        first = next(place for place, row in enumerate(lanes) if row[0].process == process)
        if first:
            axes.axhline(first - 0.5, color="#cccccc", linewidth=0.8)
        colour = _COLOURS[processes.index(process) % len(_COLOURS)]
        axes.plot([], [], color=colour, linewidth=8, label=f"process {process}" if process != _CALLER else "the caller")
    axes.barh([-9], [0], color="white", hatch="///", label="longest wait of a picture")
    axes.plot([], [], color=_GREY, linestyle=":", linewidth=1, label="link to a batch")
    axes.set_yticks(range(len(lanes)), [_title(row[0]) for row in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, end * 1.08)
    axes.set_xlabel("milliseconds since the caller began")
    trace_id = next(row[0].span.trace_id.hex() for row in lanes if row[0].process == _CALLER)
    axes.set_title(f"One call of several at once, trace {trace_id}; numbers: pictures in a batch", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(0.95, 0.84))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.trace_picture", description=__doc__)
    parser.add_argument("pictures", type=Path, nargs="+", help=".svg and .png files")
    parser.add_argument("--clip", type=Path, default=Path(".cache/clips/bikes.mp4"), help="default: %(default)s, of `make clips`")
    parser.add_argument("--callers", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args(arguments)
    spans = one_call(record(options.clip, options.callers))
    for picture in options.pictures:
        draw(spans, picture)


if __name__ == "__main__":
    main()
