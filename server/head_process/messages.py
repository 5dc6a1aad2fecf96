"""What the engine and its head process say to each other.

The process, which knows the models from its start, says `READY`. Then for each batch of one model: where its outputs lie, as
JSON; the answer is an `Answer` of `server.engine_process.codec`, each frame with the result of that model, or with the reason
why there is none in its `detail`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from models.manifest import Manifest
from models.result import FrameResult, LabelNames
from models.spec import Placement
from server.engine import EngineResult, FrameOutcome
from server.engine_process import codec

READY = b"ready"

_MANIFESTS = TypeAdapter(tuple[Manifest, ...])


@dataclass(frozen=True, slots=True)
class Output:
    """One array: the number of its part of the shared memory, the offset there in bytes, shape and numpy's name of the type."""

    part: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


def encode_manifests(manifests: Sequence[Manifest]) -> bytes:
    """The models."""
    return _MANIFESTS.dump_json(tuple(manifests))


def decode_manifests(body: bytes) -> tuple[Manifest, ...]:
    """The models; ValueError for anything else."""
    return _MANIFESTS.validate_json(body)


def encode_batch(model: str, outputs: Mapping[str, Output], placements: Sequence[Placement]) -> bytes:
    """A batch of one model."""
    told: dict[str, Any] = {
        "model": model,
        "outputs": {name: (one.part, one.offset, one.shape, one.dtype) for name, one in outputs.items()},
        "placements": [(one.left, one.top, one.width, one.height) for one in placements],
    }
    return json.dumps(told, separators=(",", ":")).encode()


def decode_batch(body: bytes) -> tuple[str, dict[str, Output], list[Placement]]:
    """The batch."""
    told = json.loads(body)
    outputs = {name: Output(part, offset, tuple(shape), dtype) for name, (part, offset, shape, dtype) in told["outputs"].items()}
    return told["model"], outputs, [Placement(*one) for one in told["placements"]]


def encode_results(model: str, results: Sequence[FrameResult | ValueError], names: Mapping[str, LabelNames]) -> bytes:
    """What a head found; `names` as `codec.label_names` has them."""
    frames = tuple(
        FrameOutcome(place, True, results={model: result})
        if isinstance(result, FrameResult)
        else FrameOutcome(place, True, detail=str(result))
        for place, result in enumerate(results)
    )
    return codec.encode_result(EngineResult(frames, ()), names)


def decode_results(model: str, body: bytes, names: Mapping[str, LabelNames]) -> list[FrameResult | ValueError]:
    """The same; ValueError for what is no such answer."""
    frames = codec.decode_result(body, names).frames
    return [frame.results[model] if model in frame.results else ValueError(frame.detail) for frame in frames]
