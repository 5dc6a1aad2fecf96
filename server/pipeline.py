"""The way of a call: receive, index, sample, decode, preprocess, infer, fuse — the one place that puts the steps in order."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from opentelemetry.util.types import AttributeValue

from decoder_pool.limits import SourceLimits
from decoder_pool.opener import Opener
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from decoder_pool.units import units
from keyglance.errors import CorruptVideo, Encrypted
from keyglance.sampling import Coverage, PlannedFrame, SamplingLimits, SamplingPlan, SamplingPolicy, coverage
from keyglance.video import SampleFlag, Samples, StreamConfig, VideoIndex
from models.fusion import FrameScores, Fusion, VideoLabel
from models.manifest import Manifest
from models.policy import Judgement, Policy
from server.degradation import Degradation, DegradationReason, merge
from server.engine import Engine, EngineJob, EngineResult, FrameOutcome, Priority
from server.lane_name import LaneName
from server.overload import Place
from server.quality import FULL, Quality, told
from server.sources import Given, Ranges, Source, Uri, WholeBytes, receive
from server.steps import Steps
from server.timing import StepTiming

#: A gap counts as kept up to this much over the policy's: times are rounded to a track's ticks.
_GAP_TOLERANCE = 1e-3

#: Digests of preprocessing are kept for the models that answered last: to make one takes longer than to fuse.
_DIGESTS_KEPT = 64

_SOURCE_KINDS: dict[type[Given], str] = {WholeBytes: "data", Ranges: "ranges", Uri: "uri"}


@dataclass(frozen=True, slots=True)
class LabelCall:
    """One request, checked. `deadline` is on `time.monotonic()`'s clock, `thumbnail_size` in pixels (0: none).

    `quality` is what the load leaves of what was asked for; `place` is where the call is worked on, None where nobody counts.
    """

    sampling: SamplingPolicy
    models: tuple[str, ...]
    least_score: float
    frame_scores: bool
    thumbnail_size: int
    deadline: float
    priority: Priority = Priority.NORMAL
    quality: Quality = FULL
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A picture that was planned, or the one that stood in for it, with what became of it. `time` is in seconds."""

    sample: int
    time: float
    outside_edit: bool
    outcome: FrameOutcome

    @classmethod
    def of(cls, planned: PlannedFrame, outcome: FrameOutcome, samples: Samples) -> LookedAt:
        """The evidence is where the picture that was looked at is, not where the wanted one would have been."""
        if (seen := outcome.stand_in) is None:
            return cls(planned.sample, planned.time, planned.outside_edit, outcome)
        outside = bool(samples.flags[seen] & SampleFlag.OUTSIDE_EDIT)
        return cls(seen, float(samples.time[seen]), outside, outcome)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What an answer was made with: SHA-256 digests, hexadecimal."""

    policy_digest: str
    sampling_digest: str
    preprocessing_digest: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one call. `config` is the stream as the bitstream has it."""

    labels: tuple[VideoLabel, ...]
    judgement: Judgement
    frames: tuple[LookedAt, ...]
    index: VideoIndex
    config: StreamConfig
    models: tuple[Manifest, ...]
    coverage: Coverage
    degradations: tuple[Degradation, ...]
    provenance: Provenance
    frame_scores: bool  # whether they were asked for


@dataclass(frozen=True, slots=True)
class Sampled:
    """What is to be looked at: the index, the plan, and the packets of the plan, which the owner closes.

    `spares` are samples that the plan has in reserve and whose bytes did not come. `lowered` is what the load took from the plan.
    """

    index: VideoIndex
    plan: SamplingPlan
    job: EngineJob = field(repr=False)
    spares: frozenset[int]
    lowered: tuple[Degradation, ...] = ()


class Pipeline:
    """Labels one video a call; holds nothing of a call between calls."""

    def __init__(
        self,
        *,
        engine: Engine,
        opener: Opener,
        policy: Policy,
        source_limits: SourceLimits,
        sampling_limits: SamplingLimits,
        ranges: ProfilerRanges = no_ranges,
    ) -> None:
        self._ranges = ranges
        self._engine = engine
        self._opener = opener
        self._policy = policy
        self._source_limits = source_limits
        self._sampling_limits = sampling_limits
        self._info = engine.info()
        self._manifests = {manifest.name: manifest for manifest in self._info.models}
        self._fusion = Fusion(self._manifests.values())
        self._preprocessing_digest = functools.lru_cache(_DIGESTS_KEPT)(
            lambda *models: _digest([asdict(self._manifests[name].inputs) for name in models])
        )

    async def label(self, given: Given, call: LabelCall, steps: Steps) -> Answer:
        """Answers a call about what was `given`, which is let go of early. Raises the errors of `keyglance.errors`."""
        source = receive(given, most_bytes=self._source_limits.bytes)  # the step's time is that of the wire
        steps.metrics.source(_SOURCE_KINDS[type(given)], received=source.held, size=source.size)
        del given
        sampled = await self._index_and_sample(source, call, steps)
        partial = source if sampled.spares else None  # else all that the call may need is copied, and the file's bytes go
        del source
        result = await self._run(sampled.job, call.place, steps)
        if partial is not None and (lacking := _lost_for_want_of_bytes(sampled, result)):
            raise partial.needs(partial.missing(lacking))
        with steps.step("fuse") as step, self._ranges("fuse"):
            answer = self._fuse(call, sampled, result)
            step.set("labels", len(answer.labels))
            step.set("verdict", answer.judgement.verdict.name.lower())
        return answer

    async def _run(self, job: EngineJob, place: Place | None, steps: Steps) -> EngineResult:
        """The engine's work; its steps in the trace, or where it failed the time that went into it, with the reason."""
        begin = time.monotonic()
        try:
            with job.packets:
                if place is not None and self._info.is_left_to_software(job.config):
                    await place.enter(LaneName.SOFTWARE)
                    turn = time.monotonic()
                    steps.add(StepTiming("decode", begin, turn, turn - begin))
                result = await self._engine.run(job)
        except BaseException as error:
            steps.add(StepTiming("engine", begin, time.monotonic()), error=error)
            raise
        if place is not None:
            place.answered(*_worked(result.timings))
        _tell_steps(steps, result)
        return result

    async def _index_and_sample(self, source: Source, call: LabelCall, steps: Steps) -> Sampled:
        """Index and plan, and the wanted packets out of the container; whatever read it is free again afterwards."""
        with steps.step("index") as step:
            opened = await self._opener.open(source, self._source_limits, call.deadline)
            step.set("source.bytes", source.size)
            step.set("source.held", source.held)
            step.set("container", opened.index.container)
            step.set("codec", opened.index.config.codec)
            step.set("samples", len(opened.index.samples))
        async with opened:
            with steps.step("sample") as step:
                full = await opened.plan(call.sampling, self._sampling_limits)
                if not full.frames:
                    raise _nothing_to_see(opened.index)
                chosen = call.quality.plan(full, call.sampling.largest_gap)
                wanted = [sample for run in chosen.runs for sample in run.samples]
                spare = {sample for run in chosen.runs for sample in run.samples[len(run.samples) - run.spare :]}
                packets, listed = await opened.packets(wanted, spare)
                step.set("frames", len(chosen.frames))
                step.set("packets", len(listed))
                step.set("packets.bytes", packets.size)
                index = opened.index
        models, left_out = call.quality.models(call.models, self._info.models)
        job = EngineJob(
            config=index.config,
            orientation=index.orientation,
            units=units(chosen, listed),
            packets=packets,
            models=models,
            priority=call.priority,
            deadline=call.deadline,
            thumbnail_size=call.thumbnail_size,
        )
        spares = frozenset(wanted) - {packet.sample for packet in listed}
        return Sampled(index, chosen, job, spares, tuple(told(full, chosen, left_out)))

    def _fuse(self, call: LabelCall, sampled: Sampled, result: EngineResult) -> Answer:
        outcomes = {outcome.sample: outcome for outcome in result.frames}
        samples = sampled.index.samples
        looked = [LookedAt.of(f, outcomes[f.sample], samples) for f in sampled.plan.frames if f.sample in outcomes]
        frames = tuple(sorted(looked, key=lambda frame: frame.time))
        seen = [frame for frame in frames if frame.outcome.skipped is None]
        if not seen:
            first = next((frame.outcome.detail for frame in frames if frame.outcome.detail), "the decoder gave no picture")
            raise CorruptVideo(f"none of {len(frames)} pictures could be decoded: {first}", facts={"frames": str(len(frames))})
        covered = coverage(sampled.index, [frame.time for frame in seen])
        degradations = merge(
            [*sampled.lowered, *_degradations(sampled.index, frames, covered, call.sampling), *result.degradations]
        )
        models = tuple(self._manifests[name] for name in dict.fromkeys(n for frame in seen for n in frame.outcome.results))
        labels = self._fusion.fuse(
            [FrameScores(frame.time, frame.outside_edit, frame.outcome.results) for frame in seen], least_score=call.least_score
        )
        return Answer(
            labels=labels.shown,
            judgement=self._policy.judge(labels, degradations, covered),
            frames=frames,
            index=sampled.index,
            config=result.config or sampled.index.config,
            models=models,
            coverage=covered,
            degradations=degradations,
            provenance=Provenance(
                policy_digest=self._policy.digest,
                sampling_digest=_digest([asdict(call.sampling), asdict(self._sampling_limits), *call.quality.sampling]),
                preprocessing_digest=self._preprocessing_digest(*(manifest.name for manifest in models)),
            ),
            frame_scores=call.frame_scores,
        )


def _worked(timings: Sequence[StepTiming]) -> tuple[float, float]:
    """Seconds in which the engine worked for a call, and those between its first step and its last."""
    whole = max(timing.end for timing in timings) - min(timing.begin for timing in timings) if timings else 0.0
    return max(0.0, whole - sum(timing.wait for timing in timings)), whole


def _tell_steps(steps: Steps, result: EngineResult) -> None:
    """The engine's steps as the call's own, each with its facts."""
    seen = [frame for frame in result.frames if frame.skipped is None]
    models = sorted({name for frame in seen for name in frame.results})
    facts: dict[str, dict[str, AttributeValue]] = {
        "decode": {"pictures": len(seen), "skipped": len(result.frames) - len(seen)},
        "preprocess": {"pictures": len(seen)},
        "infer": {"pictures": len(seen), "models": models},
    }
    for timing in result.timings:
        steps.add(timing, facts.get(timing.step), links=result.batches if timing.step == "infer" else ())


def _degradations(index: VideoIndex, frames: Sequence[LookedAt], covered: Coverage, policy: SamplingPolicy) -> list[Degradation]:
    """Everything that the index and the pictures leave to be told."""
    told = [Degradation(f.outcome.skipped, 1, f"at {f.time:.3f} s: {f.outcome.detail}") for f in frames if f.outcome.skipped]
    if covered.largest_gap > policy.largest_gap + _GAP_TOLERANCE:
        told.append(
            Degradation(
                DegradationReason.GAP_EXCEEDED,
                1,
                f"{covered.largest_gap:.2f} s from {covered.largest_gap_start:.2f} s on were not looked at, "
                f"{policy.largest_gap:g} s allowed",
            )
        )
    if index.other_video_tracks:
        told.append(
            Degradation(
                DegradationReason.TRACK_NOT_SEEN,
                index.other_video_tracks,
                f"only track {index.track} was looked at, {index.other_video_tracks} more have pictures",
            )
        )
    if index.truncated:
        told.append(Degradation(DegradationReason.TRUNCATED, 1, f"the file ends or breaks after {len(index.samples)} pictures"))
    if encrypted := int(index.samples.having(SampleFlag.ENCRYPTED).sum()):
        told.append(
            Degradation(
                DegradationReason.PARTLY_ENCRYPTED, encrypted, f"{encrypted} of {len(index.samples)} pictures are encrypted"
            )
        )
    if index.notes:
        told.append(Degradation(DegradationReason.CONTAINER_LIES, len(index.notes), "; ".join(index.notes)))
    return told


def _lost_for_want_of_bytes(sampled: Sampled, result: EngineResult) -> list[tuple[int, int]]:
    """Where the spare samples lie, as (offset, size), of runs with a picture that did not appear and might with them."""
    lost = {frame.sample for frame in result.frames if frame.skipped is not None}
    samples = sampled.index.samples
    return [
        (int(samples.position[number]), int(samples.size[number]))
        for run in sampled.plan.runs
        if not lost.isdisjoint(run.wanted)
        for number in run.samples
        if number in sampled.spares
    ]


def _nothing_to_see(index: VideoIndex) -> CorruptVideo | Encrypted:
    if index.samples.having(SampleFlag.ENCRYPTED).any():
        return Encrypted(f"no picture of {len(index.samples)} can be decoded without the encrypted ones")
    return CorruptVideo(f"the video has {len(index.samples)} stored pictures, none of which can be looked at")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
