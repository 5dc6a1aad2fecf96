"""SIGTERM at full load: `python -m loadtest.drain --rate 40`, where 40 calls a second are more than the server can answer.

Calls come in an open loop, Poisson arrivals, until the server has places and waiting room full. Then it gets SIGTERM, and
calls keep coming for a while. Every call that the server had in flight must be answered or, where it had to wait too long,
refused in order; later ones must be told UNAVAILABLE, with which clients go elsewhere; no answer that the server gave may
be lost on its way. What the server did is read from its own log, what came of it from the callers. The exit code is 1
where anything is not so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from keyglance.errors import Draining, ServerUnreachable
from keyglance.metrics_page import Between, NoMetrics, look
from loadtest import schedule
from loadtest.generator import NOT_SENT, Generator, Record
from loadtest.mix import Mix
from loadtest.server_process import ServerFailed, ServerProcess
from loadtest.target import FAILURES, Target, add_options, keep, target
from loadtest.watch import counted

#: Ends of calls that were in flight at SIGTERM which are right: answered, refused in order, out of their own time.
_IN_ORDER = ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
#: What a server says to calls that come once it drains; clients repeat them.
_ELSEWHERE = "UNAVAILABLE"
#: A call that its caller cancelled as planned.
_GIVEN_UP = "cancelled"
_LOOK_BEFORE = 0.2  # seconds before SIGTERM at which its metrics are read
_END_SECONDS = 120.0  # in which a server must have ended


@dataclass(frozen=True, slots=True)
class Served:
    """What a server's log says of its end: calls in flight at SIGTERM, by status how these ended, and calls that came later.

    `cut` of those in flight were not waited for; `answered` are all calls that it answered.
    """

    in_flight: int
    ends: Mapping[str, int]
    cut: int
    later: int
    answered: int

    @classmethod
    def read(cls, lines: Iterable[str]) -> Served:
        """From JSON lines of one process or of several fronts. Raises `ValueError` where no front says that it drains."""
        draining: dict[str, int] = {}
        ends: Counter[str] = Counter()
        cut = later = answered = 0
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # a library's
            if not isinstance(told, dict):
                continue
            process, message = told.get("process", ""), str(told.get("message", ""))
            if message.startswith("draining, "):
                draining[process] = int(message.split()[1])
            elif told.get("logger") == "keyglance.access" and str(told.get("method", "")).endswith("/Label"):
                answered += told["status"] == "OK"
                if process not in draining:
                    continue
                if told["status"] == _ELSEWHERE and "no new calls" in message:
                    later += 1
                else:
                    ends[told["status"]] += 1
                    cut += told["status"] == _ELSEWHERE
        if not draining:
            raise ValueError("the server's log does not say that it drains")
        return cls(sum(draining.values()), dict(ends), cut, later, answered)


def run(server: Target, generator: Generator, mix: Mix, *, rate: float, before: float, after: float, seed: int) -> dict[str, Any]:
    """Figures of a server that gets SIGTERM after `before` of `before + after` seconds at `rate` calls a second.

    Raises `ServerFailed` for a server that was not started here, or that does not end.
    """
    process = server.process
    if process is None:
        raise ServerFailed("a server that was not started here cannot be told to end")
    arrivals = schedule.poisson(mix, rate, before + after, seed)
    known = process.errors.stat().st_size  # of the log: what it says of calls before these
    with ThreadPoolExecutor(1) as thread:
        ending = []
        records = generator.open_loop(
            mix, arrivals, lambda begin: ending.append(thread.submit(_end, server, process, begin + before))
        )
        levels, told = ending[0].result()
        code, seconds = _ended(process, told)
    served = Served.read(process.errors.read_bytes()[known:].decode(errors="replace").splitlines())
    figures = {
        "rate_per_s": round(rate, 3),
        "seconds_before": before,
        "seconds_after": after,
        "at_sigterm": {"in_flight": served.in_flight, **levels},
        "in_flight_ended": dict(served.ends),
        "cut_short": served.cut,
        "came_later": served.later,
        "answered_by_server": served.answered,
        **callers(records, before),
        "seconds_to_end": round(seconds, 2),
        "exit_code": code,
        "left_behind": process.left_behind(),
    }
    expected = {*_IN_ORDER, *(status for one in mix.classes for status in one.expect)}
    return {**figures, "faults": faults(figures, expected)}


def callers(records: Sequence[Record], sigterm: float) -> dict[str, Any]:
    """What callers got, of calls sent before SIGTERM and later; `sigterm` is in seconds after the run's begin."""
    early, late = ([record for record in records if (record.sent < sigterm) is first] for first in (True, False))
    return {
        "sent_before": dict(Counter(_end_of(record) for record in early)),
        "sent_later": dict(Counter(_end_of(record) for record in late)),
        "given_up": sum(record.to_be_cancelled or record.status == "DEADLINE_EXCEEDED" for record in records),
        "answered_to_callers": sum(record.status == "OK" for record in records),
        "answered_after_sigterm": sum(record.status == "OK" and record.ended > sigterm for record in records),
    }


def faults(figures: Mapping[str, Any], expected: Collection[str] = _IN_ORDER) -> list[str]:
    """What must not be, in words; `expected` are the statuses with which calls of the mix may end."""
    found = []
    at_sigterm, ended = figures["at_sigterm"]["in_flight"], figures["in_flight_ended"]
    if (known := sum(ended.values())) != at_sigterm:
        found.append(f"{at_sigterm} calls were in flight at SIGTERM, the end of {known} is known")
    found += [
        f"{count} calls in flight at SIGTERM ended with {status}"
        for status, count in ended.items()
        if status not in (*expected, "CANCELLED")
    ]
    lost = figures["answered_by_server"] - figures["answered_to_callers"]
    if lost > figures["given_up"]:  # a caller may turn away in the moment of the answer
        found.append(f"{lost} answers were given and did not arrive")
    for when in ("sent_before", "sent_later"):
        for end, count in figures[when].items():
            status, _, reason = end.partition(" ")
            if status not in (*expected, _ELSEWHERE, _GIVEN_UP, NOT_SENT) and reason != ServerUnreachable.reason:
                found.append(f"{count} calls {when.replace('_', ' ')} got {end}")
            if status == NOT_SENT:
                found.append(f"{count} calls were not sent: the generator held too many")
    if figures["exit_code"]:
        found.append(f"the server ended with exit code {figures['exit_code']}")
    if figures["left_behind"]:
        found.append(figures["left_behind"])
    return found


def text(figures: Mapping[str, Any]) -> str:
    """The figures for people, on a few lines."""
    ended = ", ".join(f"{count} {status}" for status, count in figures["in_flight_ended"].items())
    later = ", ".join(f"{count} {end}" for end, count in figures["sent_later"].items())
    return (
        f"SIGTERM at {figures['rate_per_s']:g} calls/s: {figures['at_sigterm']['in_flight']} in flight, of which "
        f"{ended or 'none'}; "
        f"the server gave {figures['answered_by_server']} answers in all, callers got {figures['answered_to_callers']}\n"
        f"calls sent later: {later or 'none'}; ended after {figures['seconds_to_end']:g} s with exit code {figures['exit_code']}"
    )


def _end(server: Target, process: ServerProcess, at: float) -> tuple[dict[str, Any], float]:
    time.sleep(max(0.0, at - _LOOK_BEFORE - time.monotonic()))
    levels: dict[str, Any] = {}
    if server.metrics:
        try:
            page = look(server.metrics)
            levels = counted(Between(page, page))["at_end"]
        except NoMetrics as error:
            levels = {"missing": str(error)}
    time.sleep(max(0.0, at - time.monotonic()))
    process.terminate()
    return levels, time.monotonic()


def _ended(process: ServerProcess, told: float) -> tuple[int, float]:
    try:
        return process.wait(_END_SECONDS), time.monotonic() - told
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"the server did not end within {_END_SECONDS:g} s of SIGTERM\n{process.log()}") from None


def _end_of(record: Record) -> str:
    if record.status == "CANCELLED" and record.to_be_cancelled:
        return _GIVEN_UP
    # Calls that gRPC holds for the server when it stops end as cancelled by nobody: for clients the connection broke.
    gone = record.reason in (ServerUnreachable.reason, Draining.reason)
    return f"{record.status} {record.reason}" if gone else record.status


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.drain", description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="calls a second, on average: more than the server can answer")
    parser.add_argument("--before", type=float, default=8.0, help="seconds of calls before SIGTERM")
    parser.add_argument("--after", type=float, default=4.0, help="seconds of calls after it")
    add_options(parser, mix="small")
    options = parser.parse_args(arguments)
    try:
        mix = Mix.load(options.mix)
        with target(options) as server:
            about = server.about
            times = {"rate": options.rate, "before": options.before, "after": options.after}
            figures = run(server, server.generator(options), mix, **times, seed=options.seed)
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text(figures))
    for fault in figures["faults"]:
        print(f"fault: {fault}")
    keep(options, mix, about, {"drain": figures})
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
