"""Jobs, answers and errors as the bytes that travel between a front and an engine process, and back.

Protocol buffers (`protos/keyglance/internal/engine.proto`): their parser is bounded, written in C and here already, where JSON
knows no bytes, msgpack would be one more dependency without a schema, and pickle runs whatever it is sent. All that a job has
many of lies in columns. What does not fit together raises `ValueError`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, TraceFlags
from pydantic import TypeAdapter

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import InternalError, KeyglanceError, RangesNeeded
from keyglance.video import Colour, ColourRange, Orientation, StreamConfig
from models.manifest import Manifest
from models.result import FrameResult, LabelNames, LabelScores, Region
from server.degradation import Degradation, DegradationReason
from server.engine import DecoderState, EngineInfo, EngineJob, EngineResult, FrameOutcome, Priority
from server.engine_process import engine_pb2 as pb
from server.timing import StepTiming

T = TypeVar("T")

_INFO = TypeAdapter(EngineInfo)
_DECODERS = TypeAdapter(tuple[DecoderState, ...])
_SPAN_SIZE = 24  # bytes of a trace id and a span id
_REGION_FIELDS = 5  # numbers of one region: score, x, y, width, height


def encode_job(job: EngineJob, trace_context: Mapping[str, str]) -> bytes:
    """A job without its packets, whose descriptor travels beside it, and its caller's W3C `trace_context`."""
    message = pb.Job(
        config=_stream(job.config),
        rotation=job.orientation.degrees_clockwise,
        mirrored=job.orientation.mirrored,
        buffer_size=job.packets.size,
        models=job.models,
        deadline=job.deadline,
        thumbnail_size=job.thumbnail_size,
        priority=job.priority,
        traceparent=trace_context.get("traceparent", ""),
        tracestate=trace_context.get("tracestate", ""),
    )
    units = job.units
    message.unit_packets.extend([len(unit.packets) for unit in units])
    message.unit_wanted.extend([len(unit.wanted) for unit in units])
    message.unit_spare.extend([unit.spare for unit in units])
    message.wanted.extend([sample for unit in units for sample in unit.wanted])
    packets = [packet for unit in units for packet in unit.packets]
    message.packet_sample.extend([packet.sample for packet in packets])
    message.packet_offset.extend([packet.offset for packet in packets])
    message.packet_size.extend([packet.size for packet in packets])
    message.packet_key.extend([packet.key for packet in packets])
    return message.SerializeToString()


def parse_job(body: bytes) -> pb.Job:
    """The message, for `job_of` and `trace_context_of`."""
    return _parsed(pb.Job, body)


def job_of(message: pb.Job, packets: SharedBytes) -> EngineJob:
    """The job, with the packets that came beside it."""
    flat = [
        Packet(sample, offset, size, key)
        for sample, offset, size, key in zip(
            message.packet_sample, message.packet_offset, message.packet_size, message.packet_key, strict=True
        )
    ]
    if any(packet.offset + packet.size > packets.size for packet in flat):
        raise ValueError(f"packets that lie outside of the {packets.size:,} bytes given")
    if not math.isfinite(message.deadline) and message.deadline != math.inf:
        raise ValueError(f"a deadline at {message.deadline}")
    packets_of, wanted_of = _pieces(flat, message.unit_packets), _pieces(tuple(message.wanted), message.unit_wanted)
    return EngineJob(
        config=_config(message.config),
        orientation=Orientation(message.rotation, message.mirrored),
        units=tuple(
            DecodeUnit(tuple(packets), tuple(wanted), spare)
            for packets, wanted, spare in zip(packets_of, wanted_of, message.unit_spare, strict=True)
        ),
        packets=packets,
        models=tuple(message.models),
        deadline=message.deadline,
        thumbnail_size=message.thumbnail_size,
        priority=Priority(message.priority),
    )


def trace_context_of(message: pb.Job) -> dict[str, str]:
    """The caller's W3C trace context, empty where it has none."""
    return {"traceparent": message.traceparent, "tracestate": message.tracestate} if message.traceparent else {}


def label_names(manifests: Iterable[Manifest]) -> dict[str, LabelNames]:
    """Each model's labels by its name, which both ends know and which therefore do not travel with scores."""
    return {manifest.name: LabelNames.of(manifest) for manifest in manifests}


def encode_result(result: EngineResult, names: Mapping[str, LabelNames]) -> bytes:
    """An answer; `names` as `label_names` has them."""
    frames = result.frames
    message = pb.Answer()
    message.sample.extend([frame.sample for frame in frames])
    message.keyframe.extend([frame.keyframe for frame in frames])
    message.stand_in.extend([0 if frame.stand_in is None else frame.stand_in + 1 for frame in frames])
    message.skipped.extend([0 if frame.skipped is None else frame.skipped.value for frame in frames])
    for place, frame in enumerate(frames):
        if frame.detail or frame.thumbnail:
            message.extras.add(frame=place, detail=_text(frame.detail), thumbnail=frame.thumbnail)
    for rows in _rows(frames, names):
        rows.write(message.results.add(), names)
    for timing in result.timings:
        message.timings.add(step=timing.step, begin=timing.begin, end=timing.end, wait=timing.wait, created=timing.created)
    for told in result.degradations:
        message.degradations.add(reason=told.reason.value, count=told.count, detail=_text(told.detail))
    if result.config is not None:
        message.config.CopyFrom(_stream(result.config))
    message.batches = b"".join(each.trace_id.to_bytes(16, "big") + each.span_id.to_bytes(8, "big") for each in result.batches)
    return message.SerializeToString()


def decode_result(body: bytes, names: Mapping[str, LabelNames]) -> EngineResult:
    """The answer. Its scores lie over `body`'s own bytes."""
    message = _parsed(pb.Answer, body)
    count = len(message.sample)
    results: list[dict[str, FrameResult]] = [{} for _ in range(count)]
    for model in message.results:
        for place, result in zip(model.frame, _results(model, names), strict=True):
            results[_within(place, count)][model.model] = result
    extras = {_within(extra.frame, count): extra for extra in message.extras}
    nothing = pb.FrameExtra()
    frames = zip(message.sample, message.keyframe, message.stand_in, message.skipped, results, strict=True)
    return EngineResult(
        frames=tuple(
            FrameOutcome(
                sample=sample,
                keyframe=keyframe,
                stand_in=stand_in - 1 if stand_in else None,
                skipped=DegradationReason(skipped) if skipped else None,
                detail=(extra := extras.get(place, nothing)).detail,
                results=found,
                thumbnail=extra.thumbnail,
            )
            for place, (sample, keyframe, stand_in, skipped, found) in enumerate(frames)
        ),
        timings=tuple(StepTiming(t.step, t.begin, t.end, t.wait, t.created) for t in message.timings),
        degradations=tuple(Degradation(DegradationReason(t.reason), t.count, t.detail) for t in message.degradations),
        config=_config(message.config) if message.HasField("config") else None,
        batches=tuple(_spans(message.batches)),
    )


def _spans(packed: bytes) -> Iterator[SpanContext]:
    if len(packed) % _SPAN_SIZE:
        raise ValueError(f"{len(packed)} bytes of span ids, {_SPAN_SIZE} each")
    for at in range(0, len(packed), _SPAN_SIZE):
        trace_id, span_id = (
            int.from_bytes(packed[begin:end], "big") for begin, end in ((at, at + 16), (at + 16, at + _SPAN_SIZE))
        )
        yield SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def encode_error(error: KeyglanceError) -> bytes:
    """An error of the tree; of a class of its own, as its nearest ancestor there."""
    known = _error_classes()
    kind = next(cls for cls in type(error).__mro__ if known.get(cls.__name__) is cls)
    message = pb.Failure(kind=kind.__name__, message=_text(error.message), retry_after=error.retry_after)
    for key, value in error.facts.items():
        message.facts[_text(key)] = _text(value)
    if isinstance(error, RangesNeeded):
        message.ranges.extend(itertools.chain.from_iterable(error.ranges))
    return message.SerializeToString()


def decode_error(body: bytes) -> KeyglanceError:
    """The error, of the same class, not raised."""
    message = _parsed(pb.Failure, body)
    kind = _error_classes().get(message.kind, InternalError)
    facts, retry_after = dict(message.facts), message.retry_after if message.HasField("retry_after") else None
    if issubclass(kind, RangesNeeded):
        numbers = list(message.ranges)
        ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
        return kind(message.message, ranges=ranges, facts=facts, retry_after=retry_after)
    return kind(message.message, facts=facts, retry_after=retry_after)


def encode_info(info: EngineInfo) -> bytes:
    """What an engine is, as JSON: once a connection, so it need not be fast."""
    return _INFO.dump_json(info)


def decode_info(body: bytes) -> EngineInfo:
    """What an engine is."""
    return _INFO.validate_json(body)


def encode_decoders(decoders: Sequence[DecoderState]) -> bytes:
    """How an engine's decoders stand, as JSON."""
    return _DECODERS.dump_json(tuple(decoders))


def decode_decoders(body: bytes) -> tuple[DecoderState, ...]:
    """How an engine's decoders stand."""
    return _DECODERS.validate_json(body)


def _parsed(kind: type[T], body: bytes) -> T:
    try:
        return kind.FromString(body)  # type: ignore[attr-defined, no-any-return]
    except DecodeError as error:
        raise ValueError(f"{len(body):,} bytes that are no {kind.__name__}: {error}") from None


def _text(text: str) -> str:
    """UTF-8 has no lone surrogates; names of files may."""
    return text.encode(errors="replace").decode()


def _stream(config: StreamConfig) -> pb.Stream:
    colour, aspect = config.colour, config.sample_aspect
    return pb.Stream(
        codec=config.codec,
        width=config.width,
        height=config.height,
        bit_depth=config.bit_depth,
        chroma_format=config.chroma_format,
        profile=_text(config.profile),
        extradata=config.extradata,
        codec_tag=config.codec_tag,
        bits_per_coded_sample=config.bits_per_coded_sample,
        aspect_numerator=aspect.numerator,
        aspect_denominator=aspect.denominator,
        primaries=colour.primaries,
        transfer=colour.transfer,
        matrix=colour.matrix,
        range=colour.range.value,
        chroma_location=colour.chroma_location,
    )


def _config(stream: pb.Stream) -> StreamConfig:
    return StreamConfig(
        codec=stream.codec,
        width=stream.width,
        height=stream.height,
        bit_depth=stream.bit_depth,
        chroma_format=stream.chroma_format,
        profile=stream.profile,
        extradata=stream.extradata,
        codec_tag=stream.codec_tag,
        bits_per_coded_sample=stream.bits_per_coded_sample,
        sample_aspect=Fraction(stream.aspect_numerator, stream.aspect_denominator or 1),
        colour=Colour(
            primaries=stream.primaries,
            transfer=stream.transfer,
            matrix=stream.matrix,
            range=ColourRange(stream.range),
            chroma_location=stream.chroma_location if stream.HasField("chroma_location") else None,
        ),
    )


class _Rows:
    """One model's results of several frames, whose scores have the same labels and one type."""

    def __init__(self, model: str, labels: LabelNames | tuple[str, ...], wide: bool) -> None:
        self.model = model
        self.labels = labels
        self.wide = wide
        self.places: list[int] = []
        self.scores: list[NDArray[Any]] = []
        self.regions: list[tuple[Region, ...]] = []

    def write(self, message: pb.ModelResults, names: Mapping[str, LabelNames]) -> None:
        message.model = self.model
        message.frame.extend(self.places)
        message.wide = self.wide
        message.scores = np.concatenate(self.scores).astype("<f8" if self.wide else "<f4", copy=False).tobytes()
        if self.labels == names.get(self.model):
            message.own_labels = True
        else:
            message.labels.extend(self.labels.names if isinstance(self.labels, LabelNames) else self.labels)
        if not any(self.regions):
            return
        flat = [region for regions in self.regions for region in regions]
        labels = {label: place for place, label in enumerate(dict.fromkeys(region.label for region in flat))}
        message.regions.extend([len(regions) for regions in self.regions])
        message.region_label.extend([labels[region.label] for region in flat])
        message.region_labels.extend(labels)
        message.region_values = np.array([(r.score, r.x, r.y, r.width, r.height) for r in flat], "<f8").tobytes()


def _rows(frames: Sequence[FrameOutcome], names: Mapping[str, LabelNames]) -> Iterable[_Rows]:
    """Results put together, in the order in which each kind comes first."""
    found: dict[tuple[str, object, bool], _Rows] = {}
    for place, frame in enumerate(frames):
        for model, result in frame.results.items():
            scores = result.scores
            labels: LabelNames | tuple[str, ...]
            if isinstance(scores, LabelScores):
                labels, array = scores.labels, scores.array
                wide = array.dtype.itemsize > np.dtype(np.float32).itemsize
            else:
                labels, wide = tuple(scores), True
                array = np.fromiter(scores.values(), np.float64, len(labels))
            # By identity: a model's scores share one object, and comparing a thousand names each time costs more than all else.
            key = (model, id(labels) if isinstance(labels, LabelNames) else labels, wide)
            rows = found.get(key)
            if rows is None:
                rows = found[key] = _Rows(model, labels, wide)
            rows.places.append(place)
            rows.scores.append(array)
            rows.regions.append(result.regions)
    return found.values()


def _results(message: pb.ModelResults, names: Mapping[str, LabelNames]) -> Iterator[FrameResult]:
    """The results of a model's frames, in their order."""
    if message.own_labels and message.model not in names:
        raise ValueError(f"scores of a model {message.model!r} that is not known")
    labels = names[message.model] if message.own_labels else LabelNames(message.labels)
    count = len(message.frame)
    array = np.frombuffer(message.scores, "<f8" if message.wide else "<f4")
    if array.size != count * len(labels):
        raise ValueError(f"{array.size} scores of {message.model!r} for {count} frames of {len(labels)} labels")
    regions: Iterable[Sequence[Region]] = itertools.repeat((), count)
    if message.regions:
        numbers = np.frombuffer(message.region_values, "<f8").reshape(-1, _REGION_FIELDS).tolist()
        flat = [
            Region(message.region_labels[_within(label, len(message.region_labels))], *values)
            for label, values in zip(message.region_label, numbers, strict=True)
        ]
        regions = _pieces(flat, message.regions)
    for row, found in zip(array.reshape(count, len(labels)), regions, strict=True):
        yield FrameResult(LabelScores(labels, row), tuple(found))


def _within(place: int, count: int) -> int:
    if place >= count:
        raise ValueError(f"number {place} of {count}")
    return place


def _pieces(flat: Sequence[T], lengths: Sequence[int]) -> list[Sequence[T]]:
    """`flat` cut into pieces of these lengths, which must use all of it up."""
    ends = list(itertools.accumulate(lengths, initial=0))
    if ends[-1] != len(flat):
        raise ValueError(f"{len(flat)} entries where {ends[-1]} were announced")
    return [flat[begin:end] for begin, end in itertools.pairwise(ends)]


def _error_classes() -> dict[str, type[KeyglanceError]]:
    """All classes of the tree that `keyglance.errors` itself defines, by name."""
    found: dict[str, type[KeyglanceError]] = {}
    waiting: list[type[KeyglanceError]] = [KeyglanceError]
    while waiting:
        cls = waiting.pop()
        if cls.__module__ == KeyglanceError.__module__:
            found[cls.__name__] = cls
            waiting.extend(cls.__subclasses__())
    return found
