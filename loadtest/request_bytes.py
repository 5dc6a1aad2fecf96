"""Requests as bytes, made by the client's own code: what a load test sends is what `Client.label` would send."""

from __future__ import annotations

from collections.abc import Sequence

from keyglance.connection import DEFAULT_MAX_MESSAGE_BYTES
from keyglance.request import Source, label_request
from keyglance.v1 import keyglance_pb2 as pb

#: The method as gRPC writes it, for callers that send bytes as they are.
LABEL_METHOD = f"/{pb.DESCRIPTOR.services_by_name['ShortVideoLabeler'].full_name}/Label"


def request_message(
    source: Source,
    *,
    whole: bool = False,
    frames: int | None = None,
    largest_gap: float | None = None,
    models: Sequence[str] = (),
    priority: str = "",
) -> pb.LabelRequest:
    """The `LabelRequest` for a path or bytes: the ranges that matter where the client would send ranges, unless `whole`.

    `priority` is the name of one of the API's priorities, as in `interactive`; empty leaves it to the server. Raises
    `ValueError` for one that the API does not have, and what `keyglance.request.label_request` raises.
    """
    with label_request(
        source,
        frames=frames,
        largest_gap=largest_gap,
        add_non_keyframes=None,
        models=models,
        least_score=None,
        frame_scores=False,
        thumbnails=False,
        thumbnail_size=None,
        request_id="",
        whole=whole,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
    ) as prepared:
        message = prepared.message
    if priority:
        setattr(message, *_priority(priority))
    return message


def _priority(name: str) -> tuple[str, int]:
    """The field and its value: as the descriptor has them, for servers of an API before and after priorities."""
    field = pb.LabelRequest.DESCRIPTOR.fields_by_name.get("priority")
    if field is None or field.enum_type is None:
        raise ValueError(f"priority is {name!r}, but this API has no priorities")
    numbers = {value.name.removeprefix("PRIORITY_").lower(): value.number for value in field.enum_type.values}
    if name not in numbers:
        raise ValueError(f"priority is {name!r}; the API has {', '.join(sorted(numbers))}")
    return field.name, numbers[name]
