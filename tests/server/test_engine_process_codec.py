"""What travels between fronts and engines comes out as it went in; what does not fit together is refused."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from opentelemetry.trace import SpanContext, TraceFlags

from decoder_pool.decoder import DecodeUnit, Packet
from decoder_pool.shared_bytes import SharedBytes
from keyglance import errors
from keyglance.errors import ERRORS, KeyglanceError, RangesNeeded, TooLarge, UnknownModel
from keyglance.video import Colour, ColourRange, Orientation, StreamConfig
from models.manifest import Manifest
from models.repository import ModelRepository
from models.result import FrameResult, LabelNames, LabelScores, Region
from server.degradation import Degradation, DegradationReason
from server.engine import EngineInfo, EngineJob, EngineResult, FrameOutcome, Priority
from server.engine_process import codec
from server.engine_process import engine_pb2 as pb
from server.timing import StepTiming
from tests.server.engine_fakes import MANIFESTS, ScriptedEngine

NAMES = codec.label_names(MANIFESTS)
CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}

numbers = st.integers(0, 2**40)
small = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(0, 1e9)
scores = st.floats(0, 1)
colours = st.builds(
    Colour,
    primaries=st.integers(0, 255),
    transfer=st.integers(0, 255),
    matrix=st.integers(0, 255),
    range=st.sampled_from(ColourRange),
    chroma_location=st.none() | st.integers(0, 5),
)
configs = st.builds(
    StreamConfig,
    codec=texts,
    width=small,
    height=small,
    bit_depth=st.integers(8, 16),
    chroma_format=texts,
    profile=texts,
    extradata=st.binary(max_size=64),
    codec_tag=small,
    bits_per_coded_sample=st.integers(0, 64),
    sample_aspect=st.builds(Fraction, st.integers(0, 2**32), st.integers(1, 2**32)),
    colour=colours,
)
packets = st.builds(Packet, sample=numbers, offset=st.integers(0, 50), size=st.integers(0, 50), key=st.booleans())
units = st.builds(
    DecodeUnit,
    packets=st.lists(packets, max_size=5).map(tuple),
    wanted=st.lists(numbers, max_size=5).map(tuple),
    spare=st.integers(0, 5),
)
jobs = st.fixed_dictionaries(
    {
        "config": configs,
        "orientation": st.builds(Orientation, st.sampled_from([0, 90, 180, 270]), st.booleans()),
        "units": st.lists(units, max_size=4).map(tuple),
        "models": st.lists(texts, max_size=3).map(tuple),
        "deadline": times | st.just(math.inf),
        "thumbnail_size": st.integers(0, 1024),
        "priority": st.sampled_from(Priority),
    }
)
regions = st.builds(Region, label=texts, score=scores, x=scores, y=scores, width=scores, height=scores)


def own_scores(model: str, dtype: type) -> st.SearchStrategy[LabelScores]:
    row = arrays.arrays(dtype, len(NAMES[model]), elements=st.floats(0, 1, width=np.dtype(dtype).itemsize * 8))
    return row.map(lambda array: LabelScores(LabelNames(NAMES[model].names), array))


def results(model: str) -> st.SearchStrategy[FrameResult]:
    other = st.dictionaries(texts, scores, max_size=4)  # a head that gives labels of its own choice
    some = own_scores(model, np.float32) | own_scores(model, np.float64) | own_scores(model, np.float16) | other
    return st.builds(FrameResult, scores=some, regions=st.lists(regions, max_size=3).map(tuple))


frames = st.builds(
    FrameOutcome,
    sample=numbers,
    keyframe=st.booleans(),
    stand_in=st.none() | numbers,
    skipped=st.none() | st.sampled_from(DegradationReason),
    detail=texts,
    results=st.fixed_dictionaries({}, optional={**{model: results(model) for model in NAMES}, "other": st.just(FrameResult())}),
    thumbnail=st.binary(max_size=30),
)
spans = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    is_remote=st.just(True),
    trace_flags=st.just(TraceFlags(TraceFlags.SAMPLED)),
)
answers = st.builds(
    EngineResult,
    frames=st.lists(frames, max_size=6).map(tuple),
    timings=st.lists(st.builds(StepTiming, texts, times, times, times, st.integers(0, 100)), max_size=4).map(tuple),
    degradations=st.lists(st.builds(Degradation, st.sampled_from(DegradationReason), small, texts), max_size=3).map(tuple),
    config=st.none() | configs,
    batches=st.lists(spans, max_size=3).map(tuple),
)


@given(jobs)
def test_jobs(fields):
    with SharedBytes.of([bytes(100)]) as shared:
        job = EngineJob(packets=shared, **fields)
        message = codec.parse_job(codec.encode_job(job, CONTEXT))
        assert codec.job_of(message, shared) == job
        assert message.buffer_size == shared.size
        assert codec.trace_context_of(message) == CONTEXT
        assert codec.trace_context_of(codec.parse_job(codec.encode_job(job, {}))) == {}


@given(answers)
def test_answers(result):
    assert codec.decode_result(codec.encode_result(result, NAMES), NAMES) == result


def test_scores_of_a_model_travel_as_their_bytes_and_share_its_names():
    labels = NAMES["many"]
    rows = np.random.default_rng(1).random((12, len(labels)), np.float32)
    frames = tuple(FrameOutcome(n, True, results={"many": FrameResult(LabelScores(labels, rows[n]))}) for n in range(12))
    result = EngineResult(frames, ())
    body = codec.encode_result(result, NAMES)
    assert len(body) < rows.nbytes + 200
    decoded = codec.decode_result(body, NAMES)
    for frame, row in zip(decoded.frames, rows, strict=True):
        given_back = frame.results["many"].scores
        assert isinstance(given_back, LabelScores)
        assert given_back.labels is labels
        assert given_back.array.dtype == np.float32
        np.testing.assert_array_equal(given_back.array, row)


def test_nothing_of_a_job_or_an_answer_is_forgotten():
    """A field that is added and not encoded would travel as its default, which nobody notices."""
    known = {
        EngineJob: "config orientation units packets models deadline thumbnail_size priority",
        DecodeUnit: "packets wanted spare",
        Packet: "sample offset size key",
        StreamConfig: (
            "codec width height bit_depth chroma_format profile extradata codec_tag bits_per_coded_sample sample_aspect colour"
        ),
        Colour: "primaries transfer matrix range chroma_location",
        Orientation: "degrees_clockwise mirrored",
        EngineResult: "frames timings degradations config batches",
        FrameOutcome: "sample keyframe stand_in skipped detail results thumbnail",
        FrameResult: "scores regions",
        Region: "label score x y width height",
        StepTiming: "step begin end wait created",
        Degradation: "reason count detail",
    }
    for cls, fields in known.items():
        assert [field.name for field in dataclasses.fields(cls)] == fields.split(), f"{cls.__name__} changed: see the codec"


def every_error() -> list[KeyglanceError]:
    classes = {*ERRORS.values(), errors.RequestError, errors.ServiceError, KeyglanceError}
    made = [cls(f"{cls.__name__} ü", facts={"value": "1"}, retry_after=0.5) for cls in classes]
    return [*made, TooLarge.over("bytes", 5, 4), RangesNeeded("more", ranges=[(1, 2), (2**40, 7)])]


@pytest.mark.parametrize("error", every_error(), ids=repr)
def test_errors(error):
    decoded = codec.decode_error(codec.encode_error(error))
    assert type(decoded) is type(error)
    assert (decoded.message, decoded.facts, decoded.retry_after) == (error.message, error.facts, error.retry_after)
    assert getattr(decoded, "ranges", None) == getattr(error, "ranges", None)


def test_an_error_of_a_class_of_its_own_is_its_ancestor_on_the_other_side():
    class Odd(UnknownModel):
        pass

    decoded = codec.decode_error(codec.encode_error(Odd("a \udcff surrogate")))
    assert type(decoded) is UnknownModel
    assert decoded.message == "a ? surrogate"


def test_what_an_engine_is():
    info = ScriptedEngine().info()
    assert codec.decode_info(codec.encode_info(info)) == info
    assert codec.decode_decoders(codec.encode_decoders(info.decoders)) == info.decoders


def test_every_model_that_there_is():
    manifests = tuple(entry.manifest for entry in ModelRepository(None).entries.values())
    assert manifests
    info = EngineInfo("cpu", manifests, ())
    decoded = codec.decode_info(codec.encode_info(info))
    assert decoded == info
    assert all(isinstance(manifest, Manifest) for manifest in decoded.models)


def _job(**fields: object) -> pb.Job:
    valid = pb.Job(unit_packets=[1], unit_wanted=[1], unit_spare=[0], wanted=[0], packet_sample=[0], packet_offset=[0])
    valid.MergeFrom(pb.Job(packet_size=[4], packet_key=[True], config=pb.Stream(range="full")))
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(valid, name)[:] = value
        elif isinstance(value, Message):
            getattr(valid, name).CopyFrom(value)
        else:
            setattr(valid, name, value)
    return valid


@pytest.mark.parametrize(
    "message",
    [
        _job(packet_size=[5]),
        _job(packet_offset=[2**63]),
        _job(packet_key=[]),
        _job(unit_packets=[2]),
        _job(unit_packets=[1, 1], unit_wanted=[1, 0], unit_spare=[0, 0]),
        _job(unit_spare=[]),
        _job(wanted=[]),
        _job(deadline=math.nan),
        _job(priority=9),
        _job(config=pb.Stream(range="nothing")),
    ],
    ids=str,
)
def test_jobs_that_do_not_fit_together(message):
    with SharedBytes.of([b"four"]) as shared:
        assert codec.job_of(_job(), shared).units
        with pytest.raises(ValueError):  # noqa: PT011, each says something else
            codec.job_of(message, shared)


def _answer(**model: object) -> pb.Answer:
    fields = {"model": "few", "own_labels": True, "frame": [0], "scores": np.zeros(2, "<f4").tobytes()} | model
    return pb.Answer(sample=[7], keyframe=[True], stand_in=[0], skipped=[0], results=[pb.ModelResults(**fields)])


@pytest.mark.parametrize(
    "message",
    [
        pb.Answer(sample=[1]),
        _answer(model="nobody"),
        _answer(frame=[1]),
        _answer(frame=[0, 0]),
        _answer(scores=b"123"),
        _answer(scores=b""),
        _answer(regions=[1]),
        _answer(regions=[1], region_label=[0], region_values=np.zeros(5).tobytes()),
        _answer(own_labels=False, labels=["twice", "twice"]),
    ],
    ids=str,
)
def test_answers_that_do_not_fit_together(message):
    assert codec.decode_result(_answer().SerializeToString(), NAMES).frames
    with pytest.raises(ValueError):  # noqa: PT011, each says something else
        codec.decode_result(message.SerializeToString(), NAMES)


@given(st.binary(max_size=200))
def test_bytes_that_are_nothing(body):
    for decode in (
        codec.parse_job,
        lambda body: codec.decode_result(body, NAMES),
        codec.decode_error,
        codec.decode_info,
        codec.decode_decoders,
    ):
        try:
            decode(body)
        except ValueError:
            continue
