"""Reading answers.

The clients return the API's own messages, `LabelResponse` and `GetServerInfoResponse`, and not classes of their own. The
messages are typed (`.pyi`), documented in one place (`protos/keyglance/v1/keyglance.proto`), compare and print by value, have
a stable JSON form, and keep the fields of a newer server. A second definition beside them would only have to be kept in step.
What is awkward about messages, names of enums and the usual questions, is here.
"""

from __future__ import annotations

import enum
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from keyglance.v1 import keyglance_pb2 as pb

Answer = pb.LabelResponse
ServerInfo = pb.GetServerInfoResponse


class Health(enum.StrEnum):
    """The states of `grpc.health.v1`."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


def health(response: health_pb2.HealthCheckResponse) -> Health:
    """The state that a health check answered."""
    return Health(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def verdict(answer: Answer) -> str:
    """The verdict's short name: `PASS`, `REVIEW` or `BLOCK`; `UNKNOWN` and the number for one of a newer server."""
    name = _name(pb.Verdict, answer.verdict, "VERDICT_")
    return name if name != "UNSPECIFIED" else "UNKNOWN"


def reason(value: pb.DegradationReason) -> str:
    """A degradation's short name, such as `FRAME_DAMAGED`."""
    return _name(pb.DegradationReason, value, "DEGRADATION_REASON_")


def passed(answer: Answer) -> list[pb.Label]:
    """The labels that reached their threshold, best score first."""
    return sorted((label for label in answer.labels if label.passed), key=lambda label: -label.score)


def best_scores(frame: pb.Frame) -> list[tuple[str, float]]:
    """A picture's labels with the best score that any model gave each, best first (needs `frame_scores=True`)."""
    best: dict[str, float] = {}
    for score in frame.scores:
        best[score.label] = max(score.score, best.get(score.label, 0.0))
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))


def as_dict(message: Message) -> dict[str, Any]:
    """The message in protobuf's JSON form: the names of the .proto file, enums by name, 64-bit integers and bytes as strings.

    Fields with their default value are there as well, so that a reader finds every name.
    """
    result: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return result


def _name(kind: Any, value: int, prefix: str) -> str:
    try:
        name: str = kind.Name(value)
    except ValueError:
        return f"UNKNOWN_{value}"
    return name.removeprefix(prefix)
