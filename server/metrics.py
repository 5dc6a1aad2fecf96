"""Every metric of Keyglance: named, described, and recorded here, and nowhere else. `docs/metrics.md` is written from this table.

Names follow OpenTelemetry's semantic conventions where they have one (RPC 1.45: `rpc.server.call.duration`; hardware:
`hw.gpu.*`; process: `process.*`) and begin with `keyglance.` elsewhere. Every label's values come from a closed set (code, the
configuration, installed models, devices): nothing that a caller sends becomes one.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.semconv._incubating.attributes import rpc_attributes as rpc
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanContext

from keyglance.errors import ERRORS
from server.degradation import DegradationReason
from server.engine import Priority
from server.lane import REFUSALS
from server.lane_name import LaneName
from server.tally import CounterTally, HistogramTally, Tallies

_log = logging.getLogger(__name__)

#: Bucket boundaries of `rpc.server.call.duration` in seconds, as the semantic conventions have them.
CALL_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

#: Bucket boundaries in seconds for what happens inside a call, from half a millisecond to the longest calls.
STEP_BOUNDARIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_GAP_BOUNDARIES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)

#: The steps in which a call may have to wait.
WAITING_STEPS = frozenset({"receive", "decode", "infer"})


class Kind(enum.Enum):
    """How a metric is measured; the last three are read from snapshots when somebody collects."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    OBSERVED_COUNTER = "counter, observed"
    OBSERVED_SUM = "up-down counter, observed"
    OBSERVED_GAUGE = "gauge, observed"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric; `labels` says for each label which values it has. `unit` is UCUM's, as OpenTelemetry wants it."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    boundaries: tuple[float, ...] = ()


_STEPS = "receive, index, sample, decode, preprocess, infer, fuse, or engine for work that failed there"
_KIND = "the kind of decoder: cpu, nvdec"
_MODEL = "an installed model"
_OWN_QUEUE = f"{_MODEL} with a queue of its own, which is none on a GPU"
_LANE = "main; software for calls that a GPU leaves to software"
_BY_LANE = {"lane": _LANE}
_DEVICE = {"hw.id": "the GPU's UUID", "hw.name": "the GPU's product name"}
_GPU = {**_DEVICE, "hw.type": "gpu"}
_BY_KIND, _BY_MODEL = {"kind": _KIND}, {"model": _MODEL}

CALL_DURATION = Instrument(
    "rpc.server.call.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of incoming calls, from the first byte of the request's headers to the answer.",
    {
        rpc.RPC_SYSTEM_NAME: "grpc",
        rpc.RPC_METHOD: "full name of a method of this service",
        rpc.RPC_RESPONSE_STATUS_CODE: "gRPC's name of the status",
        ERROR_TYPE: "the status, where it is the server's fault",
    },
    CALL_BOUNDARIES,
)
CALLS_FAILED = Instrument(
    "keyglance.calls.failed",
    Kind.COUNTER,
    "{call}",
    "Calls that got no answer: refused, failed or cancelled.",
    {"reason": "google.rpc.ErrorInfo's reason; OTHER for a status without one"},
)
CALLS_ACTIVE = Instrument("keyglance.calls.active", Kind.OBSERVED_SUM, "{call}", "Calls that are being answered or wait.")
CALLS_LIMIT = Instrument("keyglance.calls.limit", Kind.OBSERVED_SUM, "{call}", "Calls at which further ones are refused.")
CALLS_REFUSED = Instrument(
    "keyglance.calls.refused",
    Kind.COUNTER,
    "{call}",
    "Calls that were refused because there are too many, or because they could not have been in time.",
    {
        "lane": _LANE,
        "refused": "calls (too many in flight), room (too many wait), evicted (for more urgent ones, or callers with fewer), "
        "deadline (it would pass while they wait), too_short (for such calls at any time)",
        "priority": "interactive, normal, bulk",
    },
)
CALLS_SERVING = Instrument(
    "keyglance.calls.serving", Kind.OBSERVED_SUM, "{call}", "Calls that are worked on: they have a place.", _BY_LANE
)
CALLS_PLACES = Instrument(
    "keyglance.calls.places",
    Kind.OBSERVED_SUM,
    "{call}",
    "Calls that are worked on at once at the most; follows what is measured.",
    _BY_LANE,
)
LOAD = Instrument(
    "keyglance.load",
    Kind.OBSERVED_GAUGE,
    "1",
    "How near a lane is to refusing calls: 0 while none wait, 1 when it does.",
    _BY_LANE,
)
LOAD_STEP = Instrument("keyglance.load.step", Kind.OBSERVED_GAUGE, "{step}", "Which of overload.steps is in effect, 0 for none.")
RECEIVE_RESERVED = Instrument(
    "keyglance.receive.reserved", Kind.OBSERVED_SUM, "By", "Bytes of the receive budget that requests in flight hold."
)
RECEIVE_LIMIT = Instrument("keyglance.receive.limit", Kind.OBSERVED_SUM, "By", "The receive budget.")
SOURCE_RECEIVED = Instrument(
    "keyglance.source.received",
    Kind.COUNTER,
    "By",
    "Bytes of videos that came with calls; beside keyglance.source.size it tells what sending only the ranges that matter saves.",
    {"source": "data, ranges, uri"},
)
SOURCE_SIZE = Instrument(
    "keyglance.source.size", Kind.COUNTER, "By", "Sizes of the video files of those calls.", {"source": "data, ranges, uri"}
)
STEP_DURATION = Instrument(
    "keyglance.step.duration",
    Kind.HISTOGRAM,
    "s",
    "Wall time of one step of a call, waits included.",
    {"step": _STEPS, ERROR_TYPE: "reason or exception that ended the step, where one did"},
    STEP_BOUNDARIES,
)
STEP_WAIT = Instrument(
    "keyglance.step.wait",
    Kind.HISTOGRAM,
    "s",
    "Time that a step waited: for the receive budget and the call's turn, for a decoder, for a batch.",
    {"step": "receive, decode, infer", "priority": "interactive, normal, bulk"},
    STEP_BOUNDARIES,
)
FRAMES = Instrument(
    "keyglance.frames",
    Kind.COUNTER,
    "{frame}",
    "Pictures of answered calls.",
    {"outcome": "seen, or skipped: wanted and not to be had"},
)
COVERAGE_GAP = Instrument(
    "keyglance.coverage.gap",
    Kind.HISTOGRAM,
    "s",
    "Largest time of a video in which no picture was looked at.",
    boundaries=_GAP_BOUNDARIES,
)
VERDICTS = Instrument("keyglance.verdicts", Kind.COUNTER, "{call}", "Answers by verdict.", {"verdict": "pass, review, block"})
DEGRADATIONS = Instrument(
    "keyglance.degradations",
    Kind.COUNTER,
    "{call}",
    "Answers that are less than a full one; one answer may count for several reasons.",
    {"reason": "DegradationReason of the API"},
)
QUEUE_DEPTH = Instrument(
    "keyglance.queue.depth",
    Kind.OBSERVED_SUM,
    "{item}",
    "Calls that wait to be received, for their turn, for a decoder; pictures for scores, for a batch, for a place in that queue.",
    {
        "queue": "receive, turn, decode, pictures, infer, places",
        "model": f"{_OWN_QUEUE}, for infer and places; the kind of decoder, for decode; the lane, for turn; else empty",
        "priority": "interactive, normal, bulk",
    },
)
QUEUE_LIMIT = Instrument(
    "keyglance.queue.limit",
    Kind.OBSERVED_SUM,
    "{item}",
    "Places of the queues that are bounded.",
    {
        "queue": "receive, turn, pictures, infer",
        "model": f"{_OWN_QUEUE}, for infer; the lane, for turn; else empty",
    },
)
BATCHES = Instrument(
    "keyglance.batches",
    Kind.OBSERVED_COUNTER,
    "{batch}",
    "Batches that were run, by size.",
    {"model": _MODEL, "size": "1, 2, 4, 8, …: the power of two in which the batch's frames fit"},
)
BATCH_FRAMES = Instrument("keyglance.batch.frames", Kind.OBSERVED_COUNTER, "{frame}", "Frames in those batches.", _BY_MODEL)
BATCH_LIMIT = Instrument("keyglance.batch.limit", Kind.OBSERVED_GAUGE, "{frame}", "Frames of a full batch.", _BY_MODEL)
BATCHES_FAILED = Instrument("keyglance.batches.failed", Kind.OBSERVED_COUNTER, "{batch}", "Batches that failed.", _BY_MODEL)
DECODERS = Instrument(
    "keyglance.decoders",
    Kind.OBSERVED_SUM,
    "{decoder}",
    "Decoders that exist.",
    {"kind": _KIND, "state": "starting, idle, leased, settling, closing"},
)
DECODERS_LIMIT = Instrument("keyglance.decoders.limit", Kind.OBSERVED_SUM, "{decoder}", "Most decoders at once.", _BY_KIND)
LEASES = Instrument(
    "keyglance.leases",
    Kind.OBSERVED_COUNTER,
    "{lease}",
    "Decoders lent to calls, by how they were had; after the warm-up hardly any should be created.",
    {"kind": _KIND, "outcome": "reused, reconfigured, rekeyed, created"},
)
DECODERS_EVICTED = Instrument(
    "keyglance.decoders.evicted",
    Kind.OBSERVED_COUNTER,
    "{decoder}",
    "Idle decoders closed to make room for another key.",
    _BY_KIND,
)
ENGINE_HEALTHY = Instrument(
    "keyglance.engine.healthy", Kind.OBSERVED_GAUGE, "{engine}", "1 while the engine can serve, 0 once it is lost."
)
_WORKER_KINDS = "index (reads containers), front, engine, mps (of `server.mps`), heads (of `gpu.head_process`)"
WORKERS = Instrument(
    "keyglance.workers",
    Kind.OBSERVED_SUM,
    "{process}",
    "Worker processes that live.",
    {"worker": _WORKER_KINDS},
)
WORKERS_WANTED = Instrument(
    "keyglance.workers.wanted",
    Kind.OBSERVED_SUM,
    "{process}",
    "Worker processes that there should be.",
    {"worker": _WORKER_KINDS},
)
WORKER_RESTARTS = Instrument(
    "keyglance.worker.restarts",
    Kind.OBSERVED_COUNTER,
    "{process}",
    "Workers that died, hung or were ended for breaking a limit, and were replaced.",
    {"worker": f"{_WORKER_KINDS}, or the kind of decoder"},
)
PROCESS_CPU = Instrument("process.cpu.time", Kind.OBSERVED_COUNTER, "s", "Processor time that this process has used.")
PROCESS_MEMORY = Instrument("process.memory.usage", Kind.OBSERVED_SUM, "By", "Resident memory of this process.")
TRACES_KEPT = Instrument(
    "keyglance.traces.kept",
    Kind.OBSERVED_COUNTER,
    "{trace}",
    "Calls whose traces are sent, where traces are sent at all.",
    {"reason": "sampled (by the caller's flag or by ratio), failed, refused, degraded, slow"},
)
SPANS_EXPORTED = Instrument(
    "keyglance.spans.exported", Kind.OBSERVED_COUNTER, "{span}", "Spans that the collector of traces has taken."
)
SPANS_DROPPED = Instrument(
    "keyglance.spans.dropped",
    Kind.OBSERVED_COUNTER,
    "{span}",
    "Spans of traces to be sent that were lost.",
    {
        "reason": "queue (too many wait to be sent), export (the collector did not take them), "
        "held (too many to wait for their calls' ends)"
    },
)
GPU_UTILIZATION = Instrument(
    "hw.gpu.utilization",
    Kind.OBSERVED_GAUGE,
    "1",
    "Part of the time in which the GPU did something at all; it says little of how much (see keyglance.gpu.sm.activity).",
    {**_DEVICE, "hw.gpu.task": "general, decoder"},
)
GPU_MEMORY = Instrument("hw.gpu.memory.usage", Kind.OBSERVED_SUM, "By", "GPU memory in use, by all processes.", _DEVICE)
GPU_MEMORY_LIMIT = Instrument("hw.gpu.memory.limit", Kind.OBSERVED_SUM, "By", "GPU memory that there is.", _DEVICE)
GPU_TEMPERATURE = Instrument("hw.temperature", Kind.OBSERVED_GAUGE, "Cel", "Temperature of the GPU.", _GPU)
GPU_POWER = Instrument("hw.power", Kind.OBSERVED_GAUGE, "W", "Electric power that the GPU takes.", _GPU)
GPU_CLOCK = Instrument(
    "keyglance.gpu.clock", Kind.OBSERVED_GAUGE, "Hz", "Clock rates of the GPU.", {**_DEVICE, "clock": "sm, memory, video"}
)
GPU_SM_ACTIVITY = Instrument(
    "keyglance.gpu.sm.activity",
    Kind.OBSERVED_GAUGE,
    "1",
    "Part of the streaming multiprocessors that were busy since the last look (NVML GPM; Hopper and later).",
    _DEVICE,
)
GPU_SM_OCCUPANCY = Instrument(
    "keyglance.gpu.sm.occupancy",
    Kind.OBSERVED_GAUGE,
    "1",
    "Warps that were active since the last look, of those that fit (NVML GPM; Hopper and later).",
    _DEVICE,
)

INSTRUMENTS: tuple[Instrument, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Instrument))


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of an observed instrument."""

    instrument: Instrument
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


#: Gives readings when somebody collects; called on the collecting thread, so it must be safe to call on any.
Source = Callable[[], Iterable[Reading]]


class Metrics:
    """One process's instruments. Recording is thread-safe; observed instruments read the sources given to `observe`.

    Without `recorded`, because nobody reads, nothing is. `span` of what is recorded is the call's, where it is to be an exemplar.
    """

    #: Seconds for which one look at the sources serves all instruments: a collection is one moment, not forty.
    FRESH = 0.2

    def __init__(self, meter: Meter, tallies: Tallies, *, recorded: bool = True) -> None:
        self._recorded = recorded
        self._sources: list[Source] = []
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._readings: dict[str, list[Observation]] = {}
        self._histograms: dict[str, HistogramTally] = {}
        self._counters: dict[str, CounterTally] = {}
        for each in INSTRUMENTS:
            self._create(meter, tallies, each)
        self._call_duration, self._coverage_gap = self._histograms[CALL_DURATION.name], self._histograms[COVERAGE_GAP.name]
        self._step_duration, self._step_wait = self._histograms[STEP_DURATION.name], self._histograms[STEP_WAIT.name]

    def expect_calls(self) -> None:
        """Counters of what seldom happens begin at 0, so that the first one is an increase for whoever watches."""
        for reason in (*ERRORS, "OTHER"):
            self._counters[CALLS_FAILED.name].add(0, reason)
        for refused in REFUSALS:
            for priority in Priority:
                for lane in LaneName:
                    self.refused(lane, refused, priority, count=0)
        for degradation in DegradationReason:
            self._counters[DEGRADATIONS.name].add(0, degradation.name)

    def call(
        self,
        seconds: float,
        *,
        method: str,
        status: str,
        reason: str = "",
        fault: bool = False,
        span: SpanContext | None = None,
    ) -> None:
        """A call of one of the service's own methods ended with gRPC's name of the `status`; `fault`: it was the server's."""
        if not self._recorded:
            return
        self._call_duration.record(seconds, "grpc", method, status, status if fault else None, span=span)
        if status != "OK":
            self._counters[CALLS_FAILED.name].add(1, reason if reason in ERRORS else "OTHER")

    def refused(self, lane: str, reason: str, priority: Priority, *, count: int = 1) -> None:
        """A call was refused, for one of `server.lane.REFUSALS`."""
        if self._recorded:
            self._counters[CALLS_REFUSED.name].add(count, str(lane), reason, priority.name.lower())

    def step(
        self,
        step: str,
        seconds: float,
        *,
        waited: float = 0.0,
        priority: str = "normal",
        error: str | None = None,
        span: SpanContext | None = None,
    ) -> None:
        """One step of a call ended; `error` is what ended it early."""
        if not self._recorded:
            return
        self._step_duration.record(seconds, step, error, span=span)
        if step in WAITING_STEPS:
            self._step_wait.record(waited, step, priority, span=span)

    def source(self, kind: str, *, received: int, size: int) -> None:
        """A call brought `received` bytes of a video file of `size` bytes."""
        if self._recorded:
            self._counters[SOURCE_RECEIVED.name].add(received, kind)
            self._counters[SOURCE_SIZE.name].add(size, kind)

    def answer(
        self,
        *,
        verdict: str,
        seen: int,
        skipped: int,
        largest_gap: float,
        degradations: Iterable[DegradationReason],
        span: SpanContext | None = None,
    ) -> None:
        """A call was answered."""
        if not self._recorded:
            return
        self._counters[VERDICTS.name].add(1, verdict)
        self._counters[FRAMES.name].add(seen, "seen")
        self._counters[FRAMES.name].add(skipped, "skipped")
        self._coverage_gap.record(largest_gap, span=span)
        for reason in degradations:
            self._counters[DEGRADATIONS.name].add(1, reason.name)

    def observe(self, source: Source) -> None:
        """Reads `source` whenever somebody collects, for as long as this process lives."""
        with self._lock:
            self._sources.append(source)
            self._looked = float("-inf")

    def _create(self, meter: Meter, tallies: Tallies, each: Instrument) -> None:
        about = {"unit": each.unit, "description": each.description}

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return self._look().get(each.name, ())

        match each.kind:
            case Kind.HISTOGRAM:
                self._histograms[each.name] = tallies.histogram(each.name, **about, labels=each.labels, bounds=each.boundaries)
            case Kind.COUNTER:
                self._counters[each.name] = tally = tallies.counter(each.labels)
                meter.create_observable_counter(each.name, [tally.observe], **about)
            case Kind.OBSERVED_COUNTER:
                meter.create_observable_counter(each.name, [observe], **about)
            case Kind.OBSERVED_SUM:
                meter.create_observable_up_down_counter(each.name, [observe], **about)
            case Kind.OBSERVED_GAUGE:
                meter.create_observable_gauge(each.name, [observe], **about)

    def _look(self) -> Mapping[str, list[Observation]]:
        with self._lock:
            if time.monotonic() - self._looked > self.FRESH:
                found: defaultdict[str, list[Observation]] = defaultdict(list)
                for source in self._sources:
                    try:
                        for reading in source():
                            found[reading.instrument.name].append(Observation(reading.value, dict(reading.labels)))
                    except Exception:  # the other sources are still worth reading
                        _log.exception("a source of metrics cannot be read")
                self._readings, self._looked = found, time.monotonic()
            return self._readings
