"""From the caller's arguments to a `LabelRequest`, with what can be checked before a byte is sent.

How the video travels is decided in `_put_source`, and there alone: as its whole bytes for now. A reader of the container on
this side can put the byte ranges that matter there instead; `RangesNeeded`, the answer where they do not suffice, then meets
the retry in the clients' `_call`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from keyglance.errors import BadPolicy, EmptySource, TooLarge
from keyglance.v1 import keyglance_pb2 as pb

_UINT32_MAX = 2**32 - 1


class Readable(Protocol):
    """A file object, open in binary mode."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


#: A path, the bytes themselves, or a binary file object, which is read from where it stands to its end.
Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable


def label_request(
    source: Source,
    *,
    frames: int | None,
    largest_gap: float | None,
    add_non_keyframes: bool | None,
    models: Sequence[str],
    least_score: float | None,
    frame_scores: bool,
    thumbnails: bool,
    thumbnail_size: int | None,
    request_id: str,
    max_message_bytes: int,
) -> pb.LabelRequest:
    """The request for `source`; None leaves a field to the server's default. Ranges are the server's to judge.

    Raises `OSError` where a path cannot be read, `EmptySource`, `TooLarge` where the message would have more than
    `max_message_bytes`, `BadPolicy` for a number that the message cannot carry, and `TypeError`.
    """
    request = pb.LabelRequest(
        sampling=pb.SamplingPolicy(
            frames=_unsigned("frames", frames), largest_gap=largest_gap, add_non_keyframes=add_non_keyframes
        ),
        models=[models] if isinstance(models, str) else models,
        least_score=least_score,
        returns=pb.ReturnOptions(
            frame_scores=frame_scores, thumbnails=thumbnails, thumbnail_size=_unsigned("thumbnail_size", thumbnail_size)
        ),
        request_id=request_id,
    )
    _put_source(request, source, max_message_bytes)
    size = request.ByteSize()
    if size > max_message_bytes:
        raise TooLarge.over("bytes", size, max_message_bytes)
    return request


def _put_source(request: pb.LabelRequest, source: Source, limit: int) -> None:
    data = _read(source, limit)
    if not data:
        raise EmptySource("the source has no bytes")
    request.data = data


def _read(source: Source, limit: int) -> bytes:
    """The source's bytes; never reads much more than `limit` of them."""
    if isinstance(source, bytes | bytearray | memoryview):
        size = memoryview(source).nbytes
        if size > limit:
            raise TooLarge.over("bytes", size, limit)
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise TooLarge.over("bytes", size, limit)
            return _read_all(file, limit)
    if not callable(getattr(source, "read", None)):
        raise TypeError(f"source is a {type(source).__name__}; a path, bytes or a binary file object is wanted")
    return _read_all(source, limit)


def _read_all(file: Readable, limit: int) -> bytes:
    data = bytearray()
    while chunk := file.read(1024 * 1024):
        if not isinstance(chunk, bytes | bytearray):
            raise TypeError(f"the file object gives {type(chunk).__name__}; it must be open in binary mode")
        data += chunk
        if len(data) > limit:
            raise TooLarge(f"too many bytes: more than the {limit:,} allowed", facts={"what": "bytes", "limit": str(limit)})
    return bytes(data)


def _unsigned(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _UINT32_MAX:
        raise BadPolicy(f"{name} is {value}; 0 (the default) to the server's limit is allowed")
    return value
