"""A caller in a process of its own: `python -m loadtest.gpu_client ADDRESS CLIP …` prints its figures as JSON.

The clip's bytes lie in memory; the client reads its index, sends the ranges that matter and waits for the answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keyglance import Answer, Client
from keyglance.request import label_request


def ask(client: Client, content: bytes, frames: int, calls: int) -> list[tuple[float, Answer]]:
    """So many calls one after the other: seconds, and the answer."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter()
        answer = client.label(content, frames=frames)
        found.append((time.perf_counter() - begin, answer))
    return found


def sent(content: bytes, frames: int) -> int:
    """Bytes of the request that the client makes of the clip."""
    with label_request(
        content,
        frames=frames,
        largest_gap=None,
        add_non_keyframes=None,
        models=(),
        least_score=None,
        frame_scores=False,
        thumbnails=False,
        thumbnail_size=None,
        request_id="",
        whole=False,
        max_message_bytes=1 << 30,
    ) as prepared:
        return prepared.message.ByteSize()


def told(found: Sequence[tuple[float, Answer]]) -> dict[str, Any]:
    """The figures of some calls: each call's milliseconds, medians by step, and what was not as it should be."""
    steps: dict[str, list[tuple[float, float, float]]] = {}
    outside = []
    for seconds, answer in found:
        for timing in answer.timings:
            steps.setdefault(timing.step, []).append((timing.start_ms, timing.wall_ms, timing.wait_ms))
            if timing.step == "total":
                outside.append(seconds * 1e3 - timing.wall_ms)
    first = found[0][1]
    return {
        "ms": [round(seconds * 1e3, 3) for seconds, _ in found],
        "steps": {
            step: {
                name: round(statistics.median(row[place] for row in rows), 3)
                for place, name in enumerate(("begins_ms", "wall_ms", "wait_ms"))
            }
            for step, rows in steps.items()
        },
        "outside the server_ms": round(statistics.median(outside), 3) if outside else None,
        "pictures": first.coverage.frames,
        "models": [model.name for model in first.models],
        "created on the way": sum(timing.created for _, answer in found for timing in answer.timings),
        "degradations": sorted({f"{d.reason}: {d.detail}" for _, answer in found for d in answer.degradations}),
        "verdicts": sorted({answer.verdict for _, answer in found}),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu_client", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("clip", type=Path)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--warm", type=int, default=10, help="calls before those that count")
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=1, help="callers, each with so many calls")
    options = parser.parse_args(arguments)
    content = options.clip.read_bytes()
    with Client(options.address, retries=0, timeout=60) as client, ThreadPoolExecutor(options.at_once) as callers:
        ask(client, content, options.frames, options.warm)

        def work(_: int) -> list[tuple[float, Answer]]:
            return ask(client, content, options.frames, options.calls)

        begin = time.perf_counter()
        found = [one for each in callers.map(work, range(options.at_once)) for one in each]
        seconds = time.perf_counter() - begin
    figures = told(found) | {
        "request_bytes": sent(content, options.frames),
        "calls/s": round(len(found) / seconds, 1),
        "callers": options.at_once,
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
