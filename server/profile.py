"""A profile of a running server: the steps of all its processes for some seconds, as a Chrome trace on one clock.

Each process records the spans that end within its window, which begins with its first one, and writes them as a part beside the
profile's file; the server's first process (or its only one) joins the parts. Chrome (`chrome://tracing`) and Perfetto show the
file, whose form is Google's "Trace Event Format", JSON object format, complete events. Spans have the wall clock's time, which is
one for all processes of a host.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import format_trace_id

from server.config import Config

_log = logging.getLogger(__name__)

#: Spans of one process: beyond, the rest of the window is left out, and the profile says so.
MOST_SPANS = 500_000

_GRACE = 2.0  # seconds for the other processes' windows to end, once one has
_LOOK = 0.25  # seconds between two looks for parts
_STEPS = ("receive", "index", "sample", "decode", "preprocess", "infer", "infer_batch", "fuse")


@dataclass(frozen=True, slots=True)
class Profile:
    """What is wanted: how many seconds, and the file."""

    seconds: float
    file: Path

    def part(self, process: str) -> Path:
        """Where a process puts its own."""
        return self.file.with_name(f".{self.file.name}.{process}.part")

    def parts(self) -> list[Path]:
        """What is there."""
        return sorted(self.file.parent.glob(f".{self.file.name}.*.part"))


def profile_of(config: Config) -> Profile | None:
    """The profile that the settings ask for."""
    section = config.telemetry
    return Profile(section.profile_seconds, section.profile_file.absolute()) if section.profile_seconds else None


class ProfileRecorder(SpanProcessor):
    """One process's part: recorded once, written when the window or the process ends."""

    def __init__(self, profile: Profile, process: str) -> None:
        self._profile = profile
        self._process = process
        self._lock = threading.Lock()
        self._spans: list[ReadableSpan] = []
        self._left_out = 0
        self._timer: threading.Timer | None = None
        self._written = False

    def on_end(self, span: ReadableSpan) -> None:
        """Keeps a span of the window; the first one begins it."""
        with self._lock:
            if self._written:
                return
            if len(self._spans) < MOST_SPANS:
                self._spans.append(span)
            else:
                self._left_out += 1
            if self._timer is None:
                self._timer = threading.Timer(self._profile.seconds, self._write)
                self._timer.daemon = True
                self._timer.start()

    def shutdown(self) -> None:
        """Writes what there is, if the window is still open."""
        if self._timer is not None:
            self._timer.cancel()
            self._write()

    def _write(self) -> None:
        with self._lock:
            if self._written:
                return
            self._written, spans, self._spans = True, self._spans, []
        try:
            _replace(self._profile.part(self._process), {"left_out": self._left_out, "events": _events(spans, self._process)})
        except OSError as error:
            _log.error("the profile of %s cannot be written: %s", self._process, error)


class ProfileJoiner:
    """Joins the parts of all processes once there are any; `close` joins what has come until then."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._ending = threading.Event()
        for stale in profile.parts():  # of a server that was killed
            stale.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._run, name="profile", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Joins at once, and waits for it."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._profile.parts() and not self._ending.wait(_LOOK):
            pass
        self._ending.wait(_GRACE)
        if self._profile.parts():
            try:
                count = join(self._profile)
                _log.info("profile of %d spans written to %s", count, self._profile.file)
            except OSError as error:
                _log.error("the profile cannot be written to %s: %s", self._profile.file, error)
        elif self._ending.is_set():
            _log.warning("no call came, so there is no profile")


def join(profile: Profile) -> int:
    """Makes the profile of the parts, which are removed; returns the number of its spans. Raises `OSError`."""
    events: list[dict[str, Any]] = []
    left_out = 0
    parts = profile.parts()
    for number, part in enumerate(parts, 1):
        found = json.loads(part.read_text(encoding="utf-8"))
        left_out += found["left_out"]
        events += [{**event, "pid": number} for event in found["events"]]
    spans = len([event for event in events if event["ph"] == "X"])
    _replace(
        profile.file, {"displayTimeUnit": "ms", "otherData": {"spans": spans, "spans left out": left_out}, "traceEvents": events}
    )
    for part in parts:
        part.unlink(missing_ok=True)
    return spans


def _events(spans: Sequence[ReadableSpan], process: str) -> list[dict[str, Any]]:
    """Complete events, one lane for each span of a name that runs at the same time, and the names of process and lanes."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "tid": 0, "args": {"name": process}}]
    by_name: defaultdict[str, list[ReadableSpan]] = defaultdict(list)
    for span in spans:
        by_name[_step(span.name)].append(span)
    lane = 0
    for name in sorted(by_name, key=lambda name: (_STEPS.index(name) if name in _STEPS else -1, name)):
        ends: list[int] = []  # of the last span of each lane of this name
        for span in sorted(by_name[name], key=lambda span: span.start_time or 0):
            begin, end = span.start_time or 0, span.end_time or 0
            free = next((place for place, last in enumerate(ends) if last <= begin), len(ends))
            ends[free : free + 1] = [end]
            events.append(_event(span, name, lane + free, begin, end))
        events += [_lane(lane + place, f"{name} {place + 1}") for place in range(len(ends))]
        lane += len(ends)
    return events


def _event(span: ReadableSpan, name: str, lane: int, begin: int, end: int) -> dict[str, Any]:
    context = span.get_span_context()
    facts = {
        key.removeprefix("keyglance."): value for key, value in (span.attributes or {}).items() if key.startswith("keyglance.")
    }
    args = {"trace": format_trace_id(context.trace_id) if context else "", "status": span.status.status_code.name, **facts}
    return {"ph": "X", "name": name, "cat": "step", "ts": begin / 1e3, "dur": (end - begin) / 1e3, "tid": lane, "args": args}


def _lane(number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}}


def _step(name: str) -> str:
    """`keyglance.v1.ShortVideoLabeler/Label` is `Label`."""
    return name.rpartition("/")[2]


def _replace(path: Path, value: object) -> None:
    """Writes JSON so that whoever finds the file finds it whole."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    scratch.write_text(json.dumps(value, default=_plain), encoding="utf-8")
    scratch.replace(path)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Iterable) else str(value)
