"""From the records of a load to its figures. Latency is counted from the moment at which a call was due."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from loadtest.generator import NOT_SENT, Record
from loadtest.mix import Mix

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
#: Ends that no call need excuse: refused, out of time.
_EXCUSED = frozenset({"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` percent of an ascending row do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def latencies(seconds: Iterable[float]) -> dict[str, float]:
    """Percentiles, mean and largest in milliseconds, and how many; empty where there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    named = {f"p{share:g}": percentile(ordered, share) for share in PERCENTILES}
    named |= {"mean": sum(ordered) / len(ordered), "max": ordered[-1]}
    return {**{name: round(value * 1e3, 2) for name, value in named.items()}, "n": len(ordered)}


def summary(records: Sequence[Record], mix: Mix, *, begin: float, end: float) -> dict[str, Any]:
    """The figures of the window from `begin` to `end` (seconds after the run's begin).

    Calls belong to it by their due moment; goodput counts the answers that arrived within it. `unexpected` are ends that
    their class does not name, with no excuse (refused, out of time, cancelled as planned).
    """
    due = [record for record in records if begin <= record.due < end]
    seconds = end - begin
    arrived = [record for record in records if record.status == "OK" and begin <= record.ended < end]
    figures = _figures(due, arrived, seconds)
    figures["unexpected"] = dict(Counter(word for record in due if (word := _unexpected(record, mix))))
    figures["generator_late_ms"] = latencies(record.sent - record.due for record in due if record.status != NOT_SENT)
    figures["by_class"] = {
        one.name: _figures([r for r in due if r.kind == kind], [r for r in arrived if r.kind == kind], seconds)
        for kind, one in enumerate(mix.classes)
    }
    figures["timeline"] = timeline(records)
    return figures


def _figures(due: Sequence[Record], arrived: Sequence[Record], seconds: float) -> dict[str, Any]:
    answered = [record for record in due if record.status == "OK"]
    refused = [record for record in due if record.status == "RESOURCE_EXHAUSTED"]
    return {
        "calls": len(due),
        "offered_per_s": round(len(due) / seconds, 3),
        "sent_per_s": round(sum(record.status != NOT_SENT for record in due) / seconds, 3),
        "goodput_per_s": round(len(arrived) / seconds, 3),
        "full_answers_per_s": round(sum(not record.degradations for record in arrived) / seconds, 3),
        "frames_per_s": round(sum(record.frames for record in arrived) / seconds, 3),
        "by_status": dict(Counter(record.status for record in due)),
        "by_reason": dict(Counter(record.reason for record in due if record.reason)),
        "answered_ms": latencies(record.ended - record.due for record in answered),
        "refused_ms": latencies(record.ended - record.due for record in refused),
        "refused_without_retry_info": sum(not record.retry_after for record in refused),
        "degraded": sum(bool(record.degradations) for record in answered),
        "degradations": dict(Counter(reason for record in answered for reason in set(record.degradations))),
    }


def _unexpected(record: Record, mix: Mix) -> str:
    one = mix.classes[record.kind]
    right = record.status in one.expect or record.status in _EXCUSED
    if right or (record.status == "CANCELLED" and record.to_be_cancelled):
        return ""
    return f"{one.name}: {record.status}" + (f" ({record.reason})" if record.reason else "")


def timeline(records: Sequence[Record], width: float = 1.0) -> list[dict[str, float]]:
    """By `width` seconds: calls due, answers and refusals that arrived, p99 in milliseconds of those answers."""
    last = max((record.ended for record in records), default=0.0)
    count = math.floor(last / width) + 1 if records else 0
    due, refused = [0] * count, [0] * count
    answers: list[list[float]] = [[] for _ in range(count)]
    for record in records:
        due[int(record.due / width)] += 1
        if record.status == "OK":
            answers[int(record.ended / width)].append(record.ended - record.due)
        elif record.status == "RESOURCE_EXHAUSTED":
            refused[int(record.ended / width)] += 1
    return [
        {
            "at": round(number * width, 6),
            "due": due[number],
            "answered": len(answers[number]),
            "refused": refused[number],
            "p99_ms": round(percentile(sorted(answers[number]), 99) * 1e3, 2) if answers[number] else 0.0,
        }
        for number in range(count)
    ]
