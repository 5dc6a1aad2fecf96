"""Which bytes of a file a server needs to see the pictures that a policy wants.

The file's index is read here as the server will read it, the same pictures are planned, and what was touched for that,
together with the planned samples, is what travels. The server trusts none of it: it computes index and plan itself, and
asks for what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyglance.errors import KeyglanceError
from keyglance.mp4 import CountingSource, Declined, RandomAccess
from keyglance.mp4.planning import plan_samples, read_checkable
from keyglance.sampling import SamplingLimits, SamplingPolicy

#: Ranges with at most so many bytes between them travel as one: a range costs about as much as these.
_GAP = 64
#: Selecting must save at least this share of the file, and this many bytes, to be worth a server's second question.
_LEAST_SAVING, _LEAST_BYTES = 0.1, 64 << 10


def select(source: RandomAccess, policy: SamplingPolicy, limits: SamplingLimits | None = None) -> list[tuple[int, int]] | None:
    """The ranges that matter, each (offset, size), ascending, without overlap; None where the whole file should travel.

    None where the index cannot be had here (another container, a broken file: the server's word counts) or where
    selecting saves too little. Errors of the source itself (OSError) pass through.
    """
    counting = CountingSource(source)
    try:
        index = read_checkable(counting)
        made, index = plan_samples(counting, index, policy, limits or SamplingLimits())
    except (Declined, KeyglanceError):
        return None
    samples = index.samples
    spans = [(begin, end) for begin, end in counting.touched()]
    for run in made.runs:
        for number in run.samples[: len(run.samples) - run.spare]:
            begin = int(samples.position[number])
            spans.append((begin, begin + int(samples.size[number])))
    ranges = _joined(spans, source.size)
    saved = source.size - sum(size for _, size in ranges)
    return ranges if saved >= max(_LEAST_BYTES, _LEAST_SAVING * source.size) else None


def _joined(spans: Iterable[tuple[int, int]], end_of_file: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        end = min(end, end_of_file)
        if joined and begin <= joined[-1][1] + _GAP:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > begin:
            joined.append((begin, end))
    return [(begin, end - begin) for begin, end in joined]
