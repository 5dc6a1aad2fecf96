"""The `Engine` interface: packets and a plan go in, scores come back. The pipeline knows nothing else of decoders and models."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry.trace import SpanContext

from decoder_pool.decoder import DecodeUnit
from decoder_pool.shared_bytes import SharedBytes
from keyglance.video import Orientation, StreamConfig
from models.manifest import Manifest
from models.result import FrameResult
from server.degradation import Degradation, DegradationReason
from server.engine_stats import EngineStats
from server.timing import StepTiming


class Priority(enum.IntEnum):
    """How urgent a call is beside others: in every queue the lower goes first, then the earlier deadline."""

    INTERACTIVE = 0
    NORMAL = 1
    BULK = 2


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One call's work. Cancelling the task that awaits `Engine.run` cancels it everywhere.

    `packets` holds the payloads to which the units' packets point. `deadline` is on `time.monotonic()`'s clock.
    `thumbnail_size` is the longer side in pixels, 0 for none.
    """

    config: StreamConfig
    orientation: Orientation
    units: tuple[DecodeUnit, ...]
    packets: SharedBytes
    models: tuple[str, ...]
    deadline: float
    thumbnail_size: int = 0
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """What became of one wanted sample; `results` by model name, empty where `skipped` says why it was not looked at.

    `stand_in`: the sample that was looked at in its place, where the wanted one gave no picture of its own.
    """

    sample: int
    keyframe: bool
    stand_in: int | None = None
    skipped: DegradationReason | None = None
    detail: str = ""
    results: Mapping[str, FrameResult] = field(default_factory=dict)
    thumbnail: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The answer to a job: one outcome for each wanted sample, in any order, and what the engine has to say of itself.

    `config` is the stream as the decoder found it, None where nothing was decoded. `batches` are the spans of the batches
    in which its pictures were.
    """

    frames: tuple[FrameOutcome, ...]
    timings: tuple[StepTiming, ...]
    degradations: tuple[Degradation, ...] = ()
    config: StreamConfig | None = None
    batches: tuple[SpanContext, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderState:
    """One kind of decoder as it stands."""

    kind: str
    decoders: int
    limit: int
    codecs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HardwareFormat:
    """What hardware decodes, up to this size in pixels."""

    codec: str
    bit_depth: int
    chroma_format: str
    width: int
    height: int

    def fits(self, config: StreamConfig) -> bool:
        """Whether a stream is of this format, by what its container says."""
        mine = (self.codec, self.bit_depth, self.chroma_format)
        return mine == (config.codec, config.bit_depth, config.chroma_format) and (
            config.width <= self.width and config.height <= self.height
        )


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is: the device's name, its models, its decoders, and what its hardware decodes, where it has such.

    `devices`: how many of them work side by side; `device` then names each.
    """

    device: str
    models: tuple[Manifest, ...]
    decoders: tuple[DecoderState, ...]
    hardware: tuple[HardwareFormat, ...] = ()
    devices: int = 1

    def is_left_to_software(self, config: StreamConfig) -> bool:
        """Whether software decodes a stream beside hardware that decodes others. False where there is no such hardware."""
        return bool(self.hardware) and not any(format.fits(config) for format in self.hardware)


class Engine(Protocol):
    """Decode, preprocess and infer, for any number of calls at once."""

    async def start(self) -> None:
        """Makes everything that a usual call needs; the engine is ready when it returns."""
        ...

    async def run(self, job: EngineJob) -> EngineResult:
        """Does one job. Raises the errors of `keyglance.errors`; never for single pictures that cannot be decoded."""
        ...

    def info(self) -> EngineInfo:
        """What it is and has."""
        ...

    def stats(self) -> EngineStats:
        """How it stands, for the metrics; called from any thread, so it takes no turn of the event loop."""
        ...

    @property
    def healthy(self) -> bool:
        """False once it cannot serve any more (a lost GPU)."""
        ...

    async def close(self) -> None:
        """Ends every worker. Jobs in flight fail with WORKER_LOST."""
        ...
