"""The pipeline over scripted parts: the order of steps, what is told, and whose time the evidence has."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from decoder_pool.decoder import Packet
from decoder_pool.limits import SourceLimits
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import CorruptVideo, Encrypted, ModelFailed, WorkerLost
from keyglance.sampling import SamplingLimits, SamplingPlan, SamplingPolicy, plan
from keyglance.video import SampleFlag, Samples, StreamConfig, VideoIndex
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from models.policy import Policy, Verdict
from models.result import FrameResult
from server.deadline import Deadline
from server.degradation import Degradation, DegradationReason
from server.engine import EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.exposition import CollectingReader
from server.pipeline import Answer, LabelCall, Pipeline
from server.sources import WholeBytes
from server.telemetry import Telemetry
from server.timing import StepTiming

MANIFEST = fake_manifest("model", [LabelSpec("nsfw")])
ALL_KEYS = SampleFlag.KEY


def video(flags: Sequence[SampleFlag], *, fps: float = 1.0, **fields: Any) -> VideoIndex:
    count = len(flags)
    samples = Samples(
        position=np.arange(count, dtype=np.int64),
        size=np.ones(count, np.int64),
        time=np.arange(count) / fps,
        duration=np.full(count, 1 / fps),
        flags=np.array([int(flag) for flag in flags], np.uint8),
    )
    return VideoIndex("mov", 1000, StreamConfig("h264", 64, 48), samples, duration=count / fps, **fields)


class ScriptedIndexed:
    def __init__(self, index: VideoIndex) -> None:
        self.index = index
        self.closed = False

    async def plan(self, policy: SamplingPolicy, limits: SamplingLimits) -> SamplingPlan:
        return plan(self.index, policy, limits)

    async def packets(self, samples: Sequence[int], spare: object = ()) -> tuple[SharedBytes, tuple[Packet, ...]]:
        return SharedBytes.of([bytes(len(samples))]), tuple(Packet(s, n, 1, True) for n, s in enumerate(samples))

    async def __aenter__(self) -> ScriptedIndexed:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


class ScriptedOpener:
    def __init__(self, index: VideoIndex) -> None:
        self.opened = ScriptedIndexed(index)

    async def open(self, source: object, limits: SourceLimits, deadline: float) -> ScriptedIndexed:
        return self.opened


class ScriptedEngine:
    """Gives `scores` (0 where there is none); `fates` are outcomes by sample instead."""

    def __init__(self, scores: Mapping[int, float] | None = None, fates: Mapping[int, FrameOutcome] | None = None) -> None:
        self.scores, self.fates = dict(scores or {}), dict(fates or {})
        self.degradations: tuple[Degradation, ...] = ()
        self.jobs: list[EngineJob] = []

    def info(self) -> EngineInfo:
        return EngineInfo("scripted", (MANIFEST,), ())

    async def run(self, job: EngineJob) -> EngineResult:
        self.jobs.append(job)
        assert job.packets.fd >= 0
        wanted = [sample for unit in job.units for sample in unit.wanted]
        now = time.monotonic()
        frames = tuple(self.fates.get(n) or outcome(n, self.scores.get(n, 0.0)) for n in wanted)
        return EngineResult(frames, (StepTiming("decode", now, now),), self.degradations)


def outcome(sample: int, score: float, **fields: Any) -> FrameOutcome:
    return FrameOutcome(sample, True, results={"model": FrameResult({"nsfw": score})}, **fields)


def lost(sample: int, reason: DegradationReason = DegradationReason.FRAME_DAMAGED) -> FrameOutcome:
    return FrameOutcome(sample, True, skipped=reason, detail="concealing 5 errors")


async def label(index: VideoIndex, engine: ScriptedEngine, spans: InMemorySpanExporter | None = None, **policy: Any) -> Answer:
    spans = spans or InMemorySpanExporter()
    telemetry = Telemetry.create(version="1", span_processors=[SimpleSpanProcessor(spans)], metric_readers=[CollectingReader()])
    indexer = ScriptedOpener(index)
    pipeline = Pipeline(
        engine=engine,  # type: ignore[arg-type]
        opener=indexer,  # type: ignore[arg-type]
        policy=Policy.load(),
        source_limits=SourceLimits(),
        sampling_limits=SamplingLimits(),
    )
    call = LabelCall(SamplingPolicy(**policy), (), 0.1, True, 0, time.monotonic() + 10)
    try:
        with telemetry.tracer.start_as_current_span("call"):
            answer = await pipeline.label(WholeBytes(b"video"), call, telemetry.steps(Deadline.after(10)))
    finally:
        assert indexer.opened.closed
        assert all(job.packets.fd == -1 for job in engine.jobs)
        telemetry.shutdown()
    told = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert list(told) == ["index", "sample", "decode", "fuse", "call"]
    skipped = [frame for frame in answer.frames if frame.outcome.skipped]
    assert told["decode"]["keyglance.pictures"] == answer.coverage.frames
    assert told["decode"]["keyglance.skipped"] == len(skipped)
    assert told["sample"]["keyglance.frames"] == len(answer.frames)
    return answer


def reasons(answer: Answer) -> set[str]:
    return {item.reason.name for item in answer.degradations}


async def test_a_clean_video_has_labels_at_their_times_and_no_degradation() -> None:
    answer = await label(video([ALL_KEYS] * 8), ScriptedEngine({5: 0.97}))
    assert reasons(answer) == set()
    assert [(one.name, one.passed, one.segments[0].peak) for one in answer.labels] == [("nsfw", True, 5.0)]
    assert answer.judgement.verdict is Verdict.BLOCK
    assert answer.coverage.frames == 8


async def test_a_lost_picture_is_told_and_its_gap_counted() -> None:
    engine = ScriptedEngine(fates={4: lost(4)})
    answer = await label(video([ALL_KEYS] * 8), engine, largest_gap=1.5)
    assert reasons(answer) == {"FRAME_DAMAGED", "GAP_EXCEEDED"}
    assert answer.coverage.largest_gap == pytest.approx(2.0)
    assert answer.judgement.verdict is Verdict.REVIEW


async def test_a_stand_in_is_evidence_at_its_own_time() -> None:
    flags = [ALL_KEYS, *[SampleFlag.NONE] * 3, SampleFlag.OUTSIDE_EDIT]
    engine = ScriptedEngine(fates={0: outcome(0, 0.97, stand_in=3)})
    answer = await label(video(flags), engine, frames=1)
    frame = next(frame for frame in answer.frames if frame.outcome.stand_in == 3)
    assert (frame.sample, frame.time, frame.outside_edit) == (3, 3.0, False)
    assert answer.labels[0].segments[0].peak == 3.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"other_video_tracks": 2}, "TRACK_NOT_SEEN"),
        ({"truncated": True}, "TRUNCATED"),
        ({"notes": ("times were guessed",)}, "CONTAINER_LIES"),
    ],
)
async def test_what_the_index_leaves_open_is_told(fields: dict[str, Any], reason: str) -> None:
    assert reasons(await label(video([ALL_KEYS] * 3, **fields), ScriptedEngine())) == {reason}


async def test_encrypted_pictures_are_told_and_never_looked_at() -> None:
    engine = ScriptedEngine()
    answer = await label(video([ALL_KEYS, ALL_KEYS, ALL_KEYS | SampleFlag.ENCRYPTED]), engine)
    assert "PARTLY_ENCRYPTED" in reasons(answer)
    assert all(frame.sample != 2 for frame in answer.frames)


async def test_degradations_of_the_engine_are_in_the_answer() -> None:
    engine = ScriptedEngine()
    engine.degradations = (Degradation(DegradationReason.MODEL_LEFT_OUT, 1, "other: broken"),)
    assert reasons(await label(video([ALL_KEYS]), engine)) == {"MODEL_LEFT_OUT"}


async def test_nothing_but_encrypted_pictures_is_refused_before_decoding() -> None:
    engine = ScriptedEngine()
    with pytest.raises(Encrypted):
        await label(video([ALL_KEYS | SampleFlag.ENCRYPTED] * 3), engine)
    assert engine.jobs == []


async def test_no_picture_at_all_is_an_error_with_the_decoders_words() -> None:
    with pytest.raises(CorruptVideo, match=r"none of 3 pictures.*concealing"):
        await label(video([ALL_KEYS] * 3), ScriptedEngine(fates={n: lost(n) for n in range(3)}))


@pytest.mark.parametrize(
    ("error", "kind"), [(WorkerLost("a decoder was lost"), "WORKER_LOST"), (ModelFailed("not finite"), "MODEL_FAILED")]
)
async def test_a_call_that_fails_in_the_engine_says_so_in_its_trace(error: Exception, kind: str) -> None:
    class Failing(ScriptedEngine):
        async def run(self, job: EngineJob) -> EngineResult:
            self.jobs.append(job)
            raise error

    spans = InMemorySpanExporter()
    with pytest.raises(type(error)):
        await label(video([ALL_KEYS]), Failing(), spans)
    *_, last, _ = spans.get_finished_spans()
    assert (last.name, last.status.status_code, (last.attributes or {})["error.type"]) == ("engine", StatusCode.ERROR, kind)
