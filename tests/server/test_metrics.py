"""The table of metrics, what is recorded and read, that no caller chooses a label, and the document."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from decoder_pool.containers import Indexer
from decoder_pool.limits import SourceLimits
from decoder_pool.opener import Opener
from keyglance.errors import ERRORS, UnknownModel
from keyglance.sampling import SamplingLimits
from keyglance.v1 import keyglance_pb2 as pb
from loadtest.clips import encode, pan, photograph
from models.backends.fake import fake_manifest
from models.batcher import BatcherSnapshot
from models.device_snapshot import DeviceSnapshot, ModelBatches
from models.manifest import LabelSpec
from models.policy import Policy
from models.result import FrameResult
from server.admission import Admission
from server.config import Config
from server.degradation import DegradationReason
from server.engine import EngineInfo, EngineJob, EngineResult, FrameOutcome, Priority
from server.engine_stats import PRIORITIES, BatchStats, EngineStats, PoolStats, QueueStats, WorkerStats
from server.gpu_readings import GpuReadings
from server.metrics import INSTRUMENTS, Kind, Metrics, Reading
from server.metrics_document import document
from server.pipeline import Pipeline
from server.readings import (
    EngineSource,
    calls_readings,
    engine_readings,
    worker_readings,
)
from server.receive_budget import ReceiveBudget
from server.servicer import Labeler
from server.span_export import SpanExport
from server.tail_sampler import TailSampler
from server.trace_readings import TraceReadings
from tests.server.fake_nvml import FakeNvml

ROOT = Path(__file__).parent.parent.parent
BY_NAME = {each.name: each for each in INSTRUMENTS}
STATS = EngineStats(
    queues=(QueueStats("pictures", 3, 64), QueueStats("infer", 2, 64, "nsfw"), QueueStats("infer", 5, 64, "nsfw", "bulk")),
    batches=(BatchStats("nsfw", 8, 4, 1, {1: 10, 3: 2, 4: 1, 8: 7}),),
    pools=(PoolStats("nvdec", 12, 1, {"idle": 2, "leased": 5}, {"reused": 7, "created": 1}, 3, 2),),
)


def all_points(observed) -> list[tuple[str, dict[str, str], object]]:
    data = observed.reader.collected()
    assert data is not None
    return [
        (metric.name, dict(point.attributes), point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


def value(observed, name: str, **labels: str) -> float:
    (point,) = [
        point for found, attributes, point in all_points(observed) if found == name and labels.items() <= attributes.items()
    ]
    return point.value


def test_the_document_is_that_of_the_table():
    assert (ROOT / "docs" / "metrics.md").read_text() == document(), (
        "run `python -m server.metrics_document > docs/metrics.md` and commit it"
    )


def test_names_and_descriptions():
    assert len(BY_NAME) == len(INSTRUMENTS)
    for each in INSTRUMENTS:
        assert re.fullmatch(r"(keyglance|rpc|hw|process)(\.[a-z_]+)+", each.name)
        assert each.description.endswith(".")
        assert each.unit
        assert bool(each.boundaries) == (each.kind is Kind.HISTOGRAM)
        assert list(each.boundaries) == sorted(set(each.boundaries))


def test_only_this_module_makes_instruments():
    pattern = re.compile(r"\.create_(observable_)?(counter|histogram|gauge|up_down_counter)\(")
    packages = ("server", "models", "decoder_pool")
    found = {path for package in packages for path in (ROOT / package).rglob("*.py") if pattern.search(path.read_text())}
    assert found == {ROOT / "server" / "metrics.py"}


def record_everything(metrics: Metrics) -> None:
    metrics.expect_calls()
    metrics.call(0.2, method="a/b", status="OK")
    metrics.call(0.1, method="a/b", status="UNAVAILABLE", reason="WORKER_LOST", fault=True)
    metrics.step("decode", 0.1, waited=0.05)
    metrics.step("index", 0.1, error="NOT_A_VIDEO")
    metrics.source("ranges", received=10, size=100)
    metrics.answer(verdict="pass", seen=7, skipped=2, largest_gap=3.5, degradations=[DegradationReason.TRUNCATED])
    engine = SimpleNamespace(stats=lambda: replace(STATS, pci_bus_id="0000:4B:00.0"))
    metrics.observe(EngineSource(engine, lambda address: GpuReadings.open(address, FakeNvml())))
    metrics.observe(lambda: calls_readings(Admission(9), ReceiveBudget(1000, queue_limit=7)))
    metrics.observe(lambda: worker_readings([WorkerStats("index", 1, 2, 3)]))
    export = SpanExport(InMemorySpanExporter())
    metrics.observe(TraceReadings(TailSampler(export), export))


def test_every_instrument_is_used_with_its_own_labels(observed, monkeypatch):
    monkeypatch.setattr(Metrics, "FRESH", 0.0)
    record_everything(observed.telemetry.metrics)
    observed.reader.collected()  # what is told between two looks
    points = all_points(observed)
    assert {name for name, _, _ in points} == set(BY_NAME)
    for name in BY_NAME:
        told = {label for found, labels, _ in points if found == name for label in labels}
        assert told == set(BY_NAME[name].labels), name


def test_queues_by_priority():
    assert tuple(priority.name.lower() for priority in Priority) == PRIORITIES
    state = BatcherSnapshot("m", 7, 2, 0, 0, 0, {}, queue_limit=64, priorities={0: 4, 2: 3})
    assert QueueStats.of(state) == (
        QueueStats("infer", 4, 64, "m", "interactive"),
        QueueStats("infer", 0, 64, "m", "normal"),
        QueueStats("infer", 3, 64, "m", "bulk"),
        QueueStats("places", 2, 0, "m"),
    )


def test_a_queue_that_all_models_share_is_told_once():
    models = tuple(ModelBatches(name, 8, failed, {8: 3}) for name, failed in (("a", 0), ("b", 2)))
    state = DeviceSnapshot(7, 64, {0: 4, 2: 3}, 48, models)
    assert QueueStats.of_device(state) == (
        QueueStats("infer", 4, 64, priority="interactive"),
        QueueStats("infer", 0, 64),
        QueueStats("infer", 3, 64, priority="bulk"),
    )
    assert BatchStats.of_device(state) == (BatchStats("a", 48, 8, 0, {8: 3}), BatchStats("b", 48, 8, 2, {8: 3}))


def test_a_proxy_of_an_engine_tells_nothing():
    assert not list(engine_readings(EngineStats()))


def test_what_an_engine_tells(observed):
    observed.telemetry.metrics.observe(lambda: engine_readings(STATS))
    batches = {labels["size"]: point.value for name, labels, point in all_points(observed) if name == "keyglance.batches"}
    assert batches == {"1": 10, "4": 3, "8": 7}
    assert value(observed, "keyglance.batch.frames", model="nsfw") == 10 + 2 * 3 + 4 + 7 * 8
    assert value(observed, "keyglance.batch.limit", model="nsfw") == 8
    assert value(observed, "keyglance.decoders", kind="nvdec", state="leased") == 5
    assert value(observed, "keyglance.decoders", kind="nvdec", state="closing") == 0
    assert value(observed, "keyglance.leases", kind="nvdec", outcome="created") == 1
    assert value(observed, "keyglance.worker.restarts", worker="nvdec") == 2
    assert value(observed, "keyglance.queue.depth", queue="infer", priority="bulk") == 5
    assert value(observed, "keyglance.queue.depth", queue="decode", model="nvdec") == 1
    assert value(observed, "keyglance.queue.limit", queue="infer") == 64


@given(st.dictionaries(st.integers(1, 300), st.integers(1, 1000), min_size=1))
def test_sizes_of_batches_are_powers_of_two_that_lose_none(fill):
    stats = EngineStats(batches=(BatchStats("m", 300, 0, 0, fill),))
    sizes = {int(r.labels["size"]): r.value for r in engine_readings(stats) if r.instrument.name == "keyglance.batches"}
    assert sum(sizes.values()) == sum(fill.values())
    for size, count in sizes.items():
        assert size & (size - 1) == 0
        assert count == sum(number for frames, number in fill.items() if size / 2 < frames <= size)


def test_counters_of_failures_begin_at_0(observed):
    metrics = observed.telemetry.metrics
    metrics.expect_calls()
    assert value(observed, "keyglance.calls.failed", reason="OVERLOADED") == 0
    assert value(observed, "keyglance.degradations", reason="FEWER_FRAMES") == 0
    metrics.call(1.0, method="a/b", status="RESOURCE_EXHAUSTED", reason="OVERLOADED")
    assert value(observed, "keyglance.calls.failed", reason="OVERLOADED") == 1


def test_a_reason_that_is_none_of_ours_is_other(observed):
    observed.telemetry.metrics.call(1.0, method="a/b", status="UNKNOWN", reason="whatever <script>")
    observed.telemetry.metrics.call(1.0, method="a/b", status="UNKNOWN")
    assert value(observed, "keyglance.calls.failed", reason="OTHER") == 2


def test_a_source_that_cannot_be_read_takes_no_other_with_it(observed, caplog):
    def broken() -> Iterator[Reading]:
        raise RuntimeError("no such thing")
        yield

    observed.telemetry.metrics.observe(broken)
    observed.telemetry.metrics.observe(lambda: engine_readings(STATS))
    assert value(observed, "process.memory.usage") > 1e6
    assert value(observed, "keyglance.engine.healthy") == 1
    assert "cannot be read" in caplog.text


def test_one_look_serves_all_instruments(observed):
    looks = []

    def source() -> Iterator[Reading]:
        looks.append(time.monotonic())
        return engine_readings(STATS)

    observed.telemetry.metrics.observe(source)
    all_points(observed)
    assert len(looks) == 1


MARK = "x7Zq-caller"


class MarkedEngine:
    """Answers every job; knows one model."""

    manifest = fake_manifest("model", [LabelSpec("label")])

    def info(self) -> EngineInfo:
        return EngineInfo("fake", (self.manifest,), ())

    async def run(self, job: EngineJob) -> EngineResult:
        if unknown := set(job.models) - {"model"}:
            raise UnknownModel(f"unknown model {unknown}", facts={"model": str(unknown)})
        wanted = [sample for unit in job.units for sample in unit.wanted]
        return EngineResult(tuple(FrameOutcome(n, True, results={"model": FrameResult({"label": 0.7})}) for n in wanted), ())


async def test_nothing_that_a_caller_sends_becomes_a_label(serve, observed):
    clip = encode(pan(photograph("coffee"), 20, 64, 48), keyframe_interval=5)
    engine, indexer = MarkedEngine(), Indexer(size=1)
    pipeline = Pipeline(
        engine=engine,  # type: ignore[arg-type]
        opener=Opener(indexer),
        policy=Policy.load(),
        source_limits=SourceLimits(),
        sampling_limits=SamplingLimits(),
    )
    requests = [
        pb.LabelRequest(data=clip, request_id=MARK),
        pb.LabelRequest(data=clip, models=[MARK]),
        pb.LabelRequest(data=MARK.encode(), request_id=MARK),
        pb.LabelRequest(uri=f"https://{MARK}/{MARK}", request_id=MARK),
        pb.LabelRequest(ranges=pb.ByteRanges(file_size=2**40, ranges=[pb.ByteRange(offset=7, data=MARK.encode())])),
        pb.LabelRequest(request_id=MARK * 100),
        pb.LabelRequest(data=clip, sampling=pb.SamplingPolicy(frames=10**6)),
    ]
    metadata = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("tracestate", f"k={MARK}")]
    metadata += [("x-caller", MARK), ("user-agent", MARK)]
    config = Config()
    statuses = []
    async with indexer, serve(Labeler(pipeline, engine, config, "1")) as rig:  # type: ignore[arg-type]
        for request in requests:
            try:
                await rig.stub.Label(request, metadata=metadata, timeout=20)
                statuses.append("OK")
            except grpc.aio.AioRpcError as error:
                statuses.append(error.code().name)
        for method in (MARK, f"keyglance.v1.ShortVideoLabeler/{MARK}"):
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.channel.unary_unary(f"/{method}")(b"", metadata=metadata)
    points = all_points(observed)
    assert statuses.count("OK") == 1
    assert not {"INTERNAL", "UNKNOWN"} & set(statuses)
    assert sum(point.value for name, _, point in points if name == "keyglance.calls.failed") == len(requests) - 1
    for name, labels, _ in points:
        for label, told in labels.items():
            assert MARK.lower() not in str(told).lower(), (name, label, told)
            assert label in BY_NAME[name].labels, (name, label)
    assert {labels["reason"] for name, labels, _ in points if name == "keyglance.calls.failed"} <= {*ERRORS, "OTHER"}
    assert {labels["source"] for name, labels, _ in points if name == "keyglance.source.received"} <= {"data", "ranges", "uri"}


def test_what_a_gpu_tells():
    nvml = FakeNvml()
    gpu = GpuReadings.open("0000:4B:00.0", nvml)
    assert gpu is not None
    first, second = list(gpu()), list(gpu())
    assert len(second) == len(first) + 2, "activity is told between two looks"
    found = {(r.instrument.name, r.labels.get("hw.gpu.task") or r.labels.get("clock") or ""): r.value for r in second}
    assert found == {
        ("hw.gpu.utilization", "general"): 0.4,
        ("hw.gpu.utilization", "decoder"): 0.75,
        ("hw.gpu.memory.usage", ""): 3,
        ("hw.gpu.memory.limit", ""): 4,
        ("hw.temperature", ""): 55,
        ("hw.power", ""): 350,
        ("keyglance.gpu.clock", "sm"): 1e9,
        ("keyglance.gpu.clock", "memory"): 2e9,
        ("keyglance.gpu.clock", "video"): 3e9,
        ("keyglance.gpu.sm.activity", ""): 0.625,
        ("keyglance.gpu.sm.occupancy", ""): 0.31,
    }
    assert all((r.labels["hw.id"], r.labels["hw.name"]) == ("GPU-1", "H200") for r in second)
    gpu.close()
    assert (nvml.samples, nvml.initialised) == (0, 0)


def test_what_a_gpu_does_not_give_is_left_out():
    gpu = GpuReadings.open("0000:4B:00.0", FakeNvml(lacks=("nvmlDeviceGetPowerUsage", "nvmlGpmQueryDeviceSupport")))
    assert gpu is not None
    for _ in range(2):
        assert {r.instrument.name for r in gpu()} == {
            "hw.gpu.utilization",
            "hw.gpu.memory.usage",
            "hw.gpu.memory.limit",
            "hw.temperature",
            "keyglance.gpu.clock",
        }


def test_activity_that_fails_is_asked_for_no_more(caplog):
    nvml = FakeNvml(lacks=("nvmlGpmSampleGet",))
    gpu = GpuReadings.open("0000:4B:00.0", nvml)
    assert gpu is not None
    for _ in range(3):
        assert "keyglance.gpu.sm.activity" not in {r.instrument.name for r in gpu()}
    assert caplog.text.count("no activity") == 1
    gpu.close()
    assert nvml.samples == 0


def test_no_gpu(caplog):
    assert GpuReadings.open("0000:4B:00.0", FakeNvml(lacks=("nvmlInit",))) is None
    assert "no metrics of the GPU at 0000:4B:00.0" in caplog.text
