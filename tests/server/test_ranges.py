"""Byte ranges against whole files: the engine gets the same work, and what is missing is asked for once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from decoder_pool.containers import Indexer
from decoder_pool.decoder import DecodeUnit
from decoder_pool.limits import SourceLimits
from decoder_pool.opener import Opener
from decoder_pool.shared_bytes import SharedBytes
from keyglance.errors import KeyglanceError, RangesNeeded
from keyglance.mp4 import BytesSource
from keyglance.sampling import SamplingLimits, SamplingPolicy
from keyglance.selection import select
from keyglance.video import StreamConfig
from loadtest.clips import encode, pan, photograph
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from models.policy import Policy
from models.result import FrameResult
from server.deadline import Deadline
from server.degradation import DegradationReason
from server.engine import EngineInfo, EngineJob, EngineResult, FrameOutcome
from server.pipeline import Answer, LabelCall, Pipeline
from server.sources import Given, Part, Ranges, WholeBytes
from server.telemetry import Telemetry
from tests.corpus import rows

MANIFEST = fake_manifest("model", [LabelSpec("label")])
POLICY = SamplingPolicy()
Payloads = list[tuple[tuple[int, ...], dict[int, bytes]]]


class RecordingEngine:
    """Answers every job, and keeps what decoders would be fed: by unit the wanted samples, and the payloads."""

    def __init__(self, gives: Callable[[DecodeUnit], bool] = lambda unit: True) -> None:
        self.gives = gives
        self.fed: Payloads = []
        self.config: StreamConfig | None = None

    def info(self) -> EngineInfo:
        return EngineInfo("recording", (MANIFEST,), ())

    async def run(self, job: EngineJob) -> EngineResult:
        self.config = job.config
        self.fed = [
            (unit.wanted, {packet.sample: job.packets.read(packet.offset, packet.size) for packet in unit.packets})
            for unit in job.units
        ]
        frames = [self._outcome(unit, sample) for unit in job.units for sample in unit.wanted]
        return EngineResult(tuple(frames), ())

    def _outcome(self, unit: DecodeUnit, sample: int) -> FrameOutcome:
        if not self.gives(unit):
            return FrameOutcome(sample, True, skipped=DegradationReason.FRAME_UNDECODABLE)
        return FrameOutcome(sample, True, results={"model": FrameResult({"label": 0.7})})


async def answer(given: Given, engine: RecordingEngine, policy: SamplingPolicy = POLICY) -> Answer:
    indexer = Indexer(size=1)  # not started: nothing here may need it
    pipeline = Pipeline(
        engine=engine,  # type: ignore[arg-type]
        opener=Opener(indexer),
        policy=Policy.load(),
        source_limits=SourceLimits(),
        sampling_limits=SamplingLimits(),
    )
    telemetry = Telemetry.create(version="1")
    call = LabelCall(policy, (), 0.1, False, 0, time.monotonic() + 20)
    try:
        return await pipeline.label(given, call, telemetry.steps(Deadline.after(20)))
    finally:
        telemetry.shutdown()


def selected(data: bytes, policy: SamplingPolicy = POLICY) -> Ranges:
    chosen = select(BytesSource(data), policy)
    assert chosen is not None
    return Ranges(len(data), tuple(Part(offset, data[offset : offset + size]) for offset, size in chosen))


def clip(*, muxing: Mapping[str, str] | None = None, **fields: Any) -> bytes:
    pictures = pan(photograph("coffee"), 150, 320, 240)
    return encode(pictures, keyframe_interval=30, options={"crf": "6"}, muxing=muxing, **fields)


LAYOUTS = {
    "moov last": None,
    "moov first": {"moov_size": "20000"},  # room kept in front; faststart would need to read the file again
    "fragmented": {"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    "fragmented by time": {"movflags": "empty_moov", "frag_duration": "500000"},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def data(request: pytest.FixtureRequest) -> bytes:
    return clip(muxing=LAYOUTS[request.param])


def without_spares(fed: Payloads) -> Payloads:
    """Each unit up to its last wanted sample: what it needs if all goes well."""
    return [(wanted, {n: data for n, data in packets.items() if n <= max(wanted)}) for wanted, packets in fed]


async def test_ranges_give_the_engine_the_same_work_with_a_part_of_the_bytes(data: bytes) -> None:
    whole, ranged = RecordingEngine(), RecordingEngine()
    first = await answer(WholeBytes(data), whole)
    chosen = selected(data)
    second = await answer(chosen, ranged)
    assert without_spares(ranged.fed) == without_spares(whole.fed)
    assert len(ranged.fed) == 5
    assert ranged.config == whole.config
    assert (second.labels, second.coverage, second.degradations) == (first.labels, first.coverage, first.degradations)
    assert sum(len(part.data) for part in chosen.parts) < len(data) / 2


async def test_a_whole_file_goes_while_the_engine_works_and_ranges_are_not_copied(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[set[type]] = []
    make = SharedBytes.held

    def held(parts: Sequence[bytes | memoryview], name: str) -> SharedBytes:
        kept.append({type(part) for part in parts})
        return make(parts, name)

    monkeypatch.setattr(SharedBytes, "held", held)
    await answer(WholeBytes(data), RecordingEngine())
    await answer(selected(data), RecordingEngine())
    assert kept == [{bytes}, {memoryview}]


async def test_the_gap_is_kept_by_ranges_too(data: bytes) -> None:
    policy = SamplingPolicy(frames=2, largest_gap=0.5)
    whole, ranged = RecordingEngine(), RecordingEngine()
    first = await answer(WholeBytes(data), whole, policy)
    second = await answer(selected(data, policy), ranged, policy)
    assert without_spares(ranged.fed) == without_spares(whole.fed)
    assert second.coverage == first.coverage
    assert second.coverage.largest_gap <= 0.5 + 1e-3


def completed(data: bytes, had: Ranges, needed: RangesNeeded) -> Ranges:
    more = tuple(Part(offset, data[offset : offset + size]) for offset, size in needed.ranges)
    return Ranges(had.file_size, had.parts + more)


@pytest.mark.parametrize("lost", range(6))
async def test_what_is_missing_is_asked_for_once(data: bytes, lost: int) -> None:
    chosen = selected(data)
    kept = Ranges(len(data), tuple(part for n, part in enumerate(chosen.parts) if n != lost))
    if len(kept.parts) == len(chosen.parts):
        pytest.skip(f"only {len(chosen.parts)} ranges")
    with pytest.raises(RangesNeeded) as needed:
        await answer(kept, RecordingEngine())
    whole = RecordingEngine()
    await answer(WholeBytes(data), whole)
    ranged = RecordingEngine()
    await answer(completed(data, kept, needed.value), ranged)
    assert without_spares(ranged.fed) == without_spares(whole.fed)


async def test_spare_samples_are_asked_for_only_where_a_picture_did_not_appear(data: bytes) -> None:
    def reluctant(unit: DecodeUnit) -> bool:
        return unit.wanted[0] != 60 or len(unit.packets) > 2

    chosen = selected(data)
    with pytest.raises(RangesNeeded) as needed:
        await answer(chosen, RecordingEngine(reluctant))
    engine = RecordingEngine(reluctant)
    again = await answer(completed(data, chosen, needed.value), engine)
    assert all(frame.outcome.skipped is None for frame in again.frames)
    assert [len(packets) > 1 for wanted, packets in engine.fed] == [wanted == (60,) for wanted, _ in engine.fed]


async def test_a_picture_that_does_not_appear_with_all_bytes_is_told_not_asked_for(data: bytes) -> None:
    told = await answer(WholeBytes(data), RecordingEngine(lambda unit: unit.wanted[0] != 60))
    assert [frame.sample for frame in told.frames if frame.outcome.skipped] == [60]


@pytest.mark.parametrize("lie", ["size", "shifted", "noise in the index", "noise in the samples", "another file's samples"])
async def test_a_lying_caller_gets_an_error_or_the_honest_answer_to_what_it_sent(data: bytes, lie: str) -> None:
    chosen = selected(data)
    match lie:
        case "size":
            given = Ranges(len(data) + 1000, chosen.parts)
        case "shifted":
            given = Ranges(len(data), tuple(Part(max(0, part.offset - 1), part.data) for part in chosen.parts))
        case "noise in the index":
            index = max(
                range(len(chosen.parts)), key=lambda n: b"stbl" in chosen.parts[n].data or b"trun" in chosen.parts[n].data
            )
            noisy = [Part(p.offset, bytes(len(p.data)) if n == index else p.data) for n, p in enumerate(chosen.parts)]
            given = Ranges(len(data), tuple(noisy))
        case "noise in the samples":
            last = chosen.parts[-1]
            given = Ranges(len(data), (*chosen.parts[:-1], Part(last.offset, bytes(len(last.data)))))
        case _:
            other = clip(b_frames=2)
            size = min(len(other), len(data))
            given = Ranges(size, tuple(Part(p.offset, other[p.offset : p.offset + len(p.data)]) for p in chosen.parts
                                       if p.offset + len(p.data) <= size))  # fmt: skip
    engine = RecordingEngine()
    reason = await outcome(given, engine)
    assert reason in {"", "RANGES_NEEDED", "NOT_A_VIDEO", "CORRUPT_VIDEO", "BAD_POLICY", "NO_VIDEO_STREAM"}
    sent = [part.data for part in given.parts]
    assert all(any(payload in part for part in sent) for _, packets in engine.fed for payload in packets.values())


async def outcome(given: Given, engine: RecordingEngine) -> str:
    """The reason of the error, or nothing."""
    try:
        await answer(given, engine)
    except KeyglanceError as error:
        return error.reason
    return ""


def test_nothing_is_selected_where_it_would_save_nothing() -> None:
    all_keyframes = encode(pan(photograph("coffee"), 20, 320, 240), keyframe_interval=1)
    assert select(BytesSource(all_keyframes), SamplingPolicy(frames=64)) is None
    assert select(BytesSource(b"no video"), POLICY) is None
    assert select(BytesSource(b""), POLICY) is None


@pytest.mark.corpus
def test_ranges_give_the_same_work_over_the_corpus(corpus: Path) -> None:
    """Every file whose ranges can be selected; the others travel whole anyway."""
    compared = 0
    for row in rows():
        content = (corpus / row.file).read_bytes()
        chosen = select(BytesSource(content), POLICY)
        if chosen is None:
            continue
        given = Ranges(len(content), tuple(Part(offset, content[offset : offset + size]) for offset, size in chosen))
        whole, ranged = RecordingEngine(), RecordingEngine()
        first = asyncio.run(answer(WholeBytes(content), whole))
        second = asyncio.run(answer(given, ranged))
        assert without_spares(ranged.fed) == without_spares(whole.fed), row.file
        assert (second.degradations, second.coverage) == (first.degradations, first.coverage), row.file
        compared += 1
    assert compared > 40
