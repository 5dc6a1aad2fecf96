"""The gRPC service: checks requests, translates protobuf to the pipeline's values and back. Nothing else happens here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from decoder_pool.limits import SourceLimits
from keyglance.errors import BadPolicy, EmptySource
from keyglance.sampling import SamplingLimits, SamplingPolicy
from keyglance.v1 import keyglance_pb2 as pb
from keyglance.v1 import keyglance_pb2_grpc
from keyglance.video import SampleFlag
from models.fusion import VideoLabel
from models.manifest import Manifest
from server.call import Call, current_call
from server.config import Config
from server.degradation import Degradation
from server.engine import Engine
from server.pipeline import Answer, LabelCall, LookedAt, Pipeline
from server.quality import FULL
from server.sources import Given, Part, Ranges, Uri, WholeBytes
from server.timing import StepTiming

_HDR_TRANSFERS = (16, 18)  # PQ and HLG, ITU-T H.273 table 3
_THUMBNAIL_SIZES = (32, 1024)
_REQUEST_ID_LENGTH = 128
_DEFAULT_THUMBNAIL_SIZE = 256


class Labeler(keyglance_pb2_grpc.ShortVideoLabelerServicer):
    """`keyglance.v1.ShortVideoLabeler` over a pipeline and its engine."""

    def __init__(self, pipeline: Pipeline, engine: Engine, config: Config, version: str) -> None:
        self._pipeline = pipeline
        self._engine = engine
        self._config = config
        self._version = version

    async def Label(self, request: pb.LabelRequest, context: Any) -> pb.LabelResponse:
        """Labels one video."""
        call = current_call()
        checked = self._checked(request, call)
        source = _source(request)
        del request  # only the pipeline holds the video's bytes from here on, and lets go of them when they are copied
        work = self._pipeline.label(source, checked, call.steps)
        del source
        answer = await work
        call.facts["verdict"] = answer.judgement.verdict.name.lower()
        call.facts["frames"] = answer.coverage.frames
        if answer.degradations:
            call.facts["degradations"] = ",".join(item.reason.name for item in answer.degradations)
        call.steps.metrics.answer(
            verdict=answer.judgement.verdict.name.lower(),
            seen=answer.coverage.frames,
            skipped=sum(frame.outcome.skipped is not None for frame in answer.frames),
            largest_gap=answer.coverage.largest_gap,
            degradations=[item.reason for item in answer.degradations],
            span=call.steps.exemplar,
        )
        return _response(answer, call, self._version)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:
        """What this server is."""
        info = self._engine.info()
        limits = self._config.limits
        return pb.GetServerInfoResponse(
            version=self._version,
            models=[_model(manifest, labels=True) for manifest in info.models],
            limits=pb.Limits(
                bytes=limits.bytes,
                pixels=limits.pixels,
                seconds=limits.seconds,
                samples=limits.samples,
                frames=limits.frames,
                default_deadline=self._config.server.default_deadline,
            ),
            decoders=[
                pb.DecoderInfo(kind=state.kind, decoders=state.decoders, limit=state.limit, codecs=state.codecs)
                for state in info.decoders
            ],
            device=info.device,
        )

    def _checked(self, request: pb.LabelRequest, call: Call) -> LabelCall:
        """The request as the pipeline takes it; raises `BadPolicy` or `EmptySource` for what is out of range."""
        if len(request.request_id) > _REQUEST_ID_LENGTH:
            raise BadPolicy(f"request_id has {len(request.request_id)} characters, at most {_REQUEST_ID_LENGTH} allowed")
        if request.request_id:
            call.facts["request_id"] = request.request_id
        defaults = self._config.sampling
        if request.priority not in pb.Priority.values():
            raise BadPolicy(f"priority is {request.priority}, allowed are {', '.join(pb.Priority.keys())}")
        least = request.least_score if request.HasField("least_score") else defaults.least_score
        if not 0 <= least <= 1:
            raise BadPolicy(f"least_score is {least:g}, allowed are 0 to 1")
        return LabelCall(
            sampling=self._sampling(request.sampling),
            models=tuple(request.models),
            least_score=least,
            frame_scores=request.returns.frame_scores,
            thumbnail_size=_thumbnail_size(request.returns),
            deadline=call.deadline.at,
            priority=call.urgency.priority,
            quality=FULL if call.place is None else call.place.quality,
            place=call.place,
        )

    def _sampling(self, asked: pb.SamplingPolicy) -> SamplingPolicy:
        defaults, most = self._config.sampling, self._config.limits.frames
        gap = asked.largest_gap if asked.HasField("largest_gap") else defaults.largest_gap
        if asked.frames > most:
            raise BadPolicy(f"sampling.frames is {asked.frames}, allowed are 1 to {most}")
        if not (gap > 0 and math.isfinite(gap)):
            raise BadPolicy(f"sampling.largest_gap is {gap:g} s, it must be more than 0 and finite")
        add = asked.add_non_keyframes if asked.HasField("add_non_keyframes") else defaults.add_non_keyframes
        return SamplingPolicy(frames=asked.frames or defaults.frames, largest_gap=gap, add_non_keyframes=add)


def limits_of(config: Config) -> tuple[SourceLimits, SamplingLimits]:
    """The configured limits as indexing and sampling take them."""
    limits = config.limits
    return (
        SourceLimits(bytes=limits.bytes, pixels=limits.pixels, seconds=limits.seconds, samples=limits.samples),
        SamplingLimits(frames=limits.frames, decoded_samples=limits.decoded_samples),
    )


def _source(request: pb.LabelRequest) -> Given:
    match request.WhichOneof("source"):
        case "data":
            return WholeBytes(request.data)
        case "ranges":
            ranges = request.ranges
            return Ranges(ranges.file_size, tuple(Part(part.offset, part.data) for part in ranges.ranges))
        case "uri":
            return Uri(request.uri)
        case _:
            raise EmptySource("the request has no source; set data, ranges or uri")


def _thumbnail_size(returns: pb.ReturnOptions) -> int:
    if not returns.thumbnails:
        return 0
    size = returns.thumbnail_size or _DEFAULT_THUMBNAIL_SIZE
    least, most = _THUMBNAIL_SIZES
    if not least <= size <= most:
        raise BadPolicy(f"returns.thumbnail_size is {size}, allowed are {least} to {most} pixels")
    return size


def _response(answer: Answer, call: Call, version: str) -> pb.LabelResponse:
    provenance = answer.provenance
    return pb.LabelResponse(
        labels=[_label(label) for label in answer.labels],
        verdict=f"VERDICT_{answer.judgement.verdict.name}",
        verdict_reasons=answer.judgement.reasons,
        frames=[_frame(frame, answer.frame_scores) for frame in answer.frames],
        video=_video(answer),
        models=[_model(manifest, labels=False) for manifest in answer.models],
        coverage=pb.Coverage(
            frames=answer.coverage.frames,
            largest_gap=answer.coverage.largest_gap,
            largest_gap_start=answer.coverage.largest_gap_start,
        ),
        degradations=[_degradation(item) for item in answer.degradations],
        timings=_timings(call.steps.timings, call.steps.begin),
        provenance=pb.Provenance(
            server_version=version,
            policy_digest=provenance.policy_digest,
            sampling_digest=provenance.sampling_digest,
            preprocessing_digest=provenance.preprocessing_digest,
        ),
        trace_id=call.trace_id,
        request_id=str(call.facts.get("request_id", "")),
    )


def _label(label: VideoLabel) -> pb.Label:
    return pb.Label(
        name=label.name,
        parent=label.parent,
        score=label.score,
        threshold=label.threshold,
        passed=label.passed,
        segments=[pb.Segment(start=s.start, end=s.end, peak=s.peak, score=s.score) for s in label.segments],
        sources=[pb.ModelScore(model=source.model, score=source.score) for source in label.sources],
    )


def _frame(frame: LookedAt, with_scores: bool) -> pb.Frame:
    outcome = frame.outcome
    message = pb.Frame(
        time=frame.time,
        index=frame.sample,
        keyframe=outcome.keyframe,
        outside_edit=frame.outside_edit,
        skipped=pb.DEGRADATION_REASON_UNSPECIFIED if outcome.skipped is None else outcome.skipped.value,  # type: ignore[arg-type]
        thumbnail=outcome.thumbnail,
    )
    if with_scores:
        for model, result in outcome.results.items():
            for label, score in sorted(result.scores.items(), key=lambda item: -item[1]):
                message.scores.add(label=label, model=model, score=score)  # twice as quick as copying one in
            for region in result.regions:
                message.regions.add(
                    label=region.label,
                    model=model,
                    score=region.score,
                    x=region.x,
                    y=region.y,
                    width=region.width,
                    height=region.height,
                )
    return message


def _video(answer: Answer) -> pb.Video:
    index, config = answer.index, answer.config
    return pb.Video(
        container=index.container,
        codec=config.codec,
        profile=config.profile,
        width=config.width,
        height=config.height,
        bit_depth=config.bit_depth,
        chroma_format=config.chroma_format,
        rotation=index.orientation.degrees_clockwise,
        mirrored=index.orientation.mirrored,
        duration=index.duration,
        samples=len(index.samples),
        keyframes=int(index.samples.having(SampleFlag.KEY).sum()),
        size=index.size_bytes,
        hdr=config.colour.transfer in _HDR_TRANSFERS,
    )


def _model(manifest: Manifest, *, labels: bool) -> pb.Model:
    return pb.Model(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        required=manifest.required,
        default_on=manifest.default_on,
        licence=manifest.licence,
        labels=[
            pb.LabelInfo(name=label.name, parent=label.parent, threshold=label.threshold, description=label.description)
            for label in manifest.labels
        ]
        if labels
        else [],
    )


def _degradation(item: Degradation) -> pb.Degradation:
    return pb.Degradation(reason=item.reason.value, count=item.count, detail=item.detail)  # type: ignore[arg-type]


def _timings(timings: Sequence[StepTiming], begin: float) -> list[pb.StepTiming]:
    """The steps in milliseconds from the call's begin, and `total`."""
    end = max((timing.end for timing in timings), default=begin)
    total = StepTiming("total", begin, end, sum(t.wait for t in timings), sum(t.created for t in timings))
    return [
        pb.StepTiming(
            step=timing.step,
            start_ms=(timing.begin - begin) * 1e3,
            wall_ms=(timing.end - timing.begin) * 1e3,
            wait_ms=timing.wait * 1e3,
            created=timing.created,
        )
        for timing in (*timings, total)
    ]
