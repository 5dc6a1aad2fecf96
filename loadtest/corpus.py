"""Sends every file of the corpus to a server and compares what comes back with what the manifest expects.

`ok` is an answer with at least one picture looked at; `refuse` an error about the request, whichever reason fits;
`refuse:REASON` that reason; `either` an answer or an error about the request. An error about the service (a lost worker, a
missed deadline, a fault) is never expected. Afterwards the server must still answer, with as many workers as it may have, and
end on SIGTERM by itself, no lease lost. Of files of which the client sends only the bytes that matter the whole is sent as well,
and the two answers must be equal. The exit code is 0 where all that holds.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from keyglance import Answer, Client
from keyglance.answer import passed, reason, verdict
from keyglance.errors import KeyglanceError, RequestError
from keyglance.mp4 import FileSource
from keyglance.sampling import SamplingPolicy
from keyglance.selection import select
from loadtest import clips, report
from loadtest.measure import Footprint, footprint
from loadtest.server_process import ServerFailed, ServerProcess

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One file: what was expected of it and what came. `seconds` is wall time as the caller saw it."""

    file: str
    expected: str
    got: str
    as_expected: bool
    seconds: float
    pictures: int = 0
    degradations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    verdict: str = ""
    message: str = ""
    in_ranges: bool = False  # the client sent the bytes that matter, not the whole file
    whole_differs: str = ""  # how the answer to the whole file differs from that to the ranges


def read_manifest(folder: Path) -> dict[str, str]:
    """File name to what the manifest expects. Raises `OSError`, or `ValueError` for a word that it may not say."""
    with (folder / "manifest.tsv").open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row["expect"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    if wrong := {expected for expected in rows.values() if not is_known(expected)}:
        raise ValueError(f"{folder / 'manifest.tsv'} expects {sorted(wrong)}; ok, refuse, refuse:REASON and either are known")
    return rows


def is_known(expected: str) -> bool:
    """Whether it is a word of the manifest's `expect` column."""
    return expected in {"ok", "refuse", "either"} or expected.startswith("refuse:")


def meets(expected: str, error: KeyglanceError | None, pictures: int) -> bool:
    """Whether an answer with so many pictures looked at, or an error, is what the manifest expects."""
    answered = error is None and pictures > 0
    refused = isinstance(error, RequestError)
    match expected.partition(":"):
        case ("ok", _, _):
            return answered
        case ("refuse", _, ""):
            return refused
        case ("refuse", _, wanted):
            return refused and error is not None and error.reason == wanted
        case _:
            return answered or refused


def send(client: Client, path: Path, expected: str) -> Row:
    """One call, never repeated; a second one with the whole file where the first sent ranges."""
    begin = time.monotonic()
    answer, error = ask(client, path, whole=False)
    seconds = round(time.monotonic() - begin, 3)
    with FileSource(path) as file:
        in_ranges = select(file, SamplingPolicy()) is not None
    differs = difference(answer, error, *ask(client, path, whole=True)) if in_ranges else ""
    if answer is None:
        assert error is not None
        met = meets(expected, error, 0)
        return Row(
            path.name, expected, error.reason, met, seconds, message=error.message, in_ranges=in_ranges, whole_differs=differs
        )
    return Row(
        path.name,
        expected,
        "ok",
        meets(expected, None, answer.coverage.frames),
        seconds,
        pictures=answer.coverage.frames,
        degradations=tuple(f"{reason(item.reason)} x{item.count}" for item in answer.degradations),
        labels=tuple(f"{label.name} {label.score:.2f}" for label in passed(answer)[:3]),
        verdict=verdict(answer),
        in_ranges=in_ranges,
        whole_differs=differs,
    )


def ask(client: Client, path: Path, *, whole: bool) -> tuple[Answer | None, KeyglanceError | None]:
    """The answer, or the error."""
    try:
        return client.label(path, least_score=0.5, frame_scores=True, whole=whole), None
    except KeyglanceError as error:
        return None, error


def difference(
    first: Answer | None, first_error: KeyglanceError | None, second: Answer | None, second_error: KeyglanceError | None
) -> str:
    """What differs between two answers to one video, or their errors; empty where nothing does."""
    if first is None or second is None:
        reasons = [error.reason if error else "ok" for error in (first_error, second_error)]
        return "" if reasons[0] == reasons[1] else " / ".join(reasons)
    for name, read in _COMPARED.items():
        if (mine := read(first)) != (theirs := read(second)):
            return f"{name}: {mine} / {theirs}"[:300]
    for a, b in zip(first.frames, second.frames, strict=True):
        scores = [{(s.label, s.model): s.score for s in frame.scores} for frame in (a, b)]
        # A batch's neighbours change a score's last digits.
        if scores[0].keys() != scores[1].keys() or any(abs(scores[0][key] - scores[1][key]) > 1e-3 for key in scores[0]):
            return f"scores of sample {a.index}"
    return ""


_COMPARED: Mapping[str, Callable[[Answer], object]] = {
    "verdict": verdict,
    "labels": lambda answer: sorted(label.name for label in answer.labels if label.passed),
    "frames": lambda answer: [(f.index, round(f.time, 6), f.keyframe, f.outside_edit, f.skipped) for f in answer.frames],
    "degradations": lambda answer: [(reason(item.reason), item.count) for item in answer.degradations],
    "gap": lambda answer: round(answer.coverage.largest_gap, 6),
    "video": lambda answer: answer.video.SerializeToString(deterministic=True),
}


def table(rows: Sequence[Row]) -> Table:
    """All files, one a line; what was not expected is red."""
    shown = Table(title=f"{len(rows)} files", title_justify="left", box=None, pad_edge=False)
    for name in ("file", "expected", "got", "s", "pictures", "what it says"):
        shown.add_column(name, justify="right" if name in {"s", "pictures"} else "left", overflow="fold")
    for row in rows:
        said = row.message or "; ".join((*row.labels, *row.degradations))
        style = None if row.as_expected else "bold red"
        cells = (row.file, row.expected, row.got, f"{row.seconds:.2f}", str(row.pictures or ""), said)
        shown.add_row(*(cell.replace("[", r"\[") for cell in cells), style=style)
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.corpus", description=__doc__)
    default = os.environ.get("KEYGLANCE_CORPUS") or ROOT.parent / "shared" / "corpus"
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(default), help="default: $KEYGLANCE_CORPUS or ../shared/corpus"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="files whose name matches, such as '*.mkv'; nothing is kept"
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that runs already, on this machine; default: start one")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds for one file (default 30)")
    parser.add_argument("--no-keep", action="store_true", help="do not write loadtest/results/corpus.json")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    try:
        expected = {name: word for name, word in read_manifest(options.folder).items() if fnmatch.fnmatch(name, options.only)}
        rows, faults, figures = _run(options, expected, console)
    except (OSError, ValueError, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(table(rows))
    wrong = [row for row in rows if not row.as_expected]
    outcomes = Counter(f"{row.expected.partition(':')[0]} -> {'ok' if row.got == 'ok' else 'refused'}" for row in rows)
    console.print(", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))
    console.print(f"{len(rows) - len(wrong)} of {len(rows)} files as expected, {figures['seconds']:.0f} s")
    ranges = [row for row in rows if row.in_ranges]
    faults += [f"{row.file}: in ranges and whole the answers differ, {row.whole_differs}" for row in ranges if row.whole_differs]
    console.print(f"{len(ranges)} files in ranges and whole: {sum(not row.whole_differs for row in ranges)} answers equal")
    for complaint in (*(f"{row.file}: {row.expected} expected, {row.got}: {row.message}" for row in wrong), *faults):
        console.print(complaint, style="bold red", markup=False)
    if not options.no_keep and options.only == "*":
        kept = {"as_expected": len(rows) - len(wrong), "files": len(rows), "in_ranges": len(ranges), "faults": faults, **figures}
        print(f"kept in {report.write('corpus', {**kept, 'rows': [asdict(row) for row in rows]}).relative_to(ROOT)}")
    return 1 if wrong or faults else 0


def _run(options: argparse.Namespace, expected: dict[str, str], console: Console) -> tuple[list[Row], list[str], dict[str, Any]]:
    """The rows, what is wrong with the server afterwards, and the figures about it."""
    with ExitStack() as stack:
        server = None
        if options.server is None:
            server = stack.enter_context(ServerProcess(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        client = stack.enter_context(Client(server.address if server else options.server, timeout=options.deadline, retries=0))
        good = clips.encode(clips.hold(clips.text_page(320, 240), 30), keyframe_interval=10)
        client.label(good)
        before = footprint(server.pid) if server else None
        begin = time.monotonic()
        files = track(expected.items(), "files", console=console, transient=True)
        rows = [send(client, options.folder / name, word) for name, word in files]
        seconds = round(time.monotonic() - begin, 1)
        faults = _faults(client, good)
        after = footprint(server.pid) if server else None
        if server:
            server.terminate()
            if code := server.wait(60):
                faults.append(f"the server ended with exit code {code} after SIGTERM")
            if left := server.left_behind():
                faults.append(left)
        return rows, faults, {"seconds": seconds, "before": _dict(before), "after": _dict(after)}


def _faults(client: Client, good: bytes) -> list[str]:
    """What is wrong with the server now: it must answer a good clip, and no decoder may be beyond its limit."""
    faults = []
    try:
        if not client.label(good).coverage.frames:
            faults.append("a good clip was answered without a picture looked at")
    except KeyglanceError as error:
        faults.append(f"a good clip was answered with {error.reason}: {error.message}")
    faults += [
        f"{decoder.decoders} {decoder.kind} decoders, at most {decoder.limit} allowed"
        for decoder in client.server_info().decoders
        if decoder.decoders > decoder.limit
    ]
    return faults


def _dict(value: Footprint | None) -> Any:
    return value and value.as_dict()


if __name__ == "__main__":
    sys.exit(main())
