"""How a call stands beside others, for whoever decides which is next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from keyglance.request import PRIORITY_KEY
from keyglance.v1 import keyglance_pb2 as pb
from server.engine import Priority

_NAMES = {priority.name.lower(): priority for priority in Priority}
_FIELD = {
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_NORMAL: Priority.NORMAL,
    pb.PRIORITY_BULK: Priority.BULK,
}
_CALLER_LENGTH = 128
_MOST_FRAMES_BITS = 11


@dataclass(frozen=True, slots=True)
class Urgency:
    """`deadline` is on `time.monotonic()`'s clock, `caller` who asks, as far as the configuration wants to know it.

    `kind` groups calls that take about as long: the number of bits of the number of pictures asked for, 0 for the server's own.
    """

    priority: Priority = Priority.NORMAL
    deadline: float = float("inf")
    caller: str = ""
    kind: int = 0

    @classmethod
    def announced(cls, metadata: Iterable[tuple[str, str | bytes]], deadline: float, caller_key: str) -> Urgency:
        """What is known before the request is read. A priority that there is not is none; the request's counts then."""
        told = {key: value for key, value in metadata if key in (PRIORITY_KEY, caller_key)}
        caller = told.get(caller_key, "") if caller_key else ""
        if isinstance(caller, bytes):
            caller = caller.decode(errors="replace")
        priority = _NAMES.get(str(told.get(PRIORITY_KEY, "")).strip().lower(), Priority.NORMAL)
        return cls(priority, deadline, caller[:_CALLER_LENGTH])

    def of_request(self, request: object) -> Urgency:
        """With what the request says itself, which wins."""
        if not isinstance(request, pb.LabelRequest):
            return self
        kind = min(request.sampling.frames.bit_length(), _MOST_FRAMES_BITS)
        return replace(self, priority=_FIELD.get(request.priority, self.priority), kind=kind)
