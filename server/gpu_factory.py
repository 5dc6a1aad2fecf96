"""Builds the engine on a GPU: memory is planned and checked first, then come arena, decoders and models."""

from __future__ import annotations

import difflib
import functools
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.trace import Tracer

from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.decoder import NvdecFactory, NvdecLimits, arena_slots, capabilities
from decoder_pool.nvdec.gpu import CODECS, Gpu
from decoder_pool.nvdec.software import PooledSoftware
from decoder_pool.nvdec.stdout import StdoutWatch
from decoder_pool.pool import DecoderPool
from decoder_pool.profiler_ranges import ProfilerRanges, no_ranges
from models.backends import create_cuda_backend
from models.backends.choice import choose_precision
from models.backends.device import CudaBackend, Precision
from models.backends.memory import ModelMemory
from models.device_ensemble import DeviceEnsemble
from models.heads import make_head
from models.manifest import Manifest
from models.model_runner import CudaFence, CudaModelRunner, DeviceModel, Fence, ModelRunner
from models.precision import spread_pictures
from models.repository import ModelRepository
from server.config import Config, GpuSection, WarmDecoders
from server.engine_factory import software_pool, warm_counts, warn_of_missing
from server.gpu_engine import GpuEngine
from server.head_process.process import HeadProcess
from server.head_process.shared_results import SharedResults
from server.lifecycle import StartError
from server.memory_budget import CONTEXT, BudgetLine, MemoryBudget, arena_lines, decoder_lines, model_lines
from server.nvtx import ranges_of

#: Of software decoders beside a GPU: processors that they take from the processes that feed it hold up all other calls.
_NICENESS = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A model that is going to be on the GPU. `folder` is the repository's, `path` the weights."""

    manifest: Manifest
    path: Path
    folder: Path
    memory: ModelMemory

    def expected_precision(self, settings: GpuSection) -> Precision:
        """What the memory is planned for; the check at start may find that it has to be float32."""
        return Precision.FLOAT16 if settings.half_precision and self.manifest.half_precision else Precision.FLOAT32

    def lines(self, settings: GpuSection, precision: Precision) -> list[BudgetLine]:
        """Its part of the budget."""
        return model_lines(self.manifest.name, self.memory, settings.batch_buckets, precision)


def gpu_engine(config: Config, tracer: Tracer, gpu: Gpu, device_name: str) -> GpuEngine:
    """The engine on an opened GPU, not started, but its arena is there. Raises `StartError` and `RepositoryError`."""
    settings = config.gpu
    ranges = ranges_of(config)
    models = _models(config)
    decodable = capabilities(gpu)
    warm = warm_decoders(settings.warm, decodable)
    lines = [
        BudgetLine("CUDA context and libraries", CONTEXT),
        *decoder_lines(warm, decodable, limit=settings.decoder_limit, largest_class=settings.size_classes[-1]),
        *arena_lines(settings.size_classes, settings.arena_pictures),
    ]
    for model in models:
        lines += model.lines(settings, model.expected_precision(settings))
    sharers = config.server.sharers
    budget = MemoryBudget(
        lines, memory_info=functools.partial(_memory_info, gpu), fraction=settings.memory_fraction, sharers=sharers
    )
    budget.check()
    _log.info("GPU memory planned:\n%s", budget)
    watch = StdoutWatch()
    try:
        watch.install()
    except (OSError, RuntimeError) as error:
        raise StartError(str(error)) from None
    heads = _head_process([model.manifest for model in models], gpu) if settings.head_process else None
    software = software_pool(config, niceness=_NICENESS)
    factory = NvdecFactory(
        gpu,
        arena=FrameArena(arena_slots(settings.size_classes, settings.arena_pictures), gpu.cupy.empty),
        watch=watch,
        size_classes=settings.size_classes,
        software=PooledSoftware(software, patience=settings.software_wait),
        limits=NvdecLimits(step_seconds=settings.decoder_seconds),
        ranges=ranges,
    )
    return GpuEngine(
        factory=factory,
        pool=DecoderPool(factory=factory, limit=settings.decoder_limit, size_classes=settings.size_classes, warm=warm),
        software=software,
        ensemble=DeviceEnsemble(
            [model.manifest for model in models],
            functools.partial(open_runners, models, settings, gpu, budget, ranges, heads),
            largest_wait=settings.largest_wait,
            queue_limit=settings.queue_limit,
            tracer=tracer,
            ranges=ranges,
        ),
        device_name=device_name,
        decoders_per_call=settings.decoders_per_call,
        busy_decoders=math.ceil(settings.busy_decoders / sharers),
        pci_bus_id=_pci_bus_id(gpu),
        budget=budget,
        heads=heads,
        ended=watch.close,
    )


def _head_process(manifests: Sequence[Manifest], gpu: Gpu) -> HeadProcess:
    """Not started: it sees the memory that there is then."""
    runtime = gpu.cupy.cuda.runtime

    def unpin(address: int) -> None:
        try:
            with gpu.cupy.cuda.Device(gpu.device):
                runtime.hostUnregister(address)
        except Exception as error:  # a lost GPU
            _log.warning("memory for results stays pinned: %s: %s", type(error).__name__, error)

    return HeadProcess(manifests, SharedResults(lambda address, size: runtime.hostRegister(address, size, 0), unpin))


def _models(config: Config) -> list[_Planned]:
    repository = ModelRepository(config.models.folder)
    models = []
    for model in repository.load_all(config.models.enabled):
        memory = ModelMemory.of(model.manifest, model.path)
        folder = repository.entry(model.manifest.name).folder
        models.append(_Planned(model.manifest.on_gpu(), model.path, folder, memory))
    warn_of_missing(repository, [model.manifest for model in models], config, gpu=True)
    return models


def _pci_bus_id(gpu: Gpu) -> str:
    """Where it is on the host (`0000:4B:00.0`), whatever CUDA_VISIBLE_DEVICES numbers it; empty where CUDA does not say."""
    try:
        return str(gpu.cupy.cuda.runtime.deviceGetPCIBusId(gpu.device))
    except Exception:  # drivers and bindings raise whatever they like; only metrics want it
        return ""


def warm_decoders(warm: Sequence[WarmDecoders], decodable: Collection[tuple[str, int, str]]) -> dict[DecoderKey, int]:
    """The warm decoders that this GPU can have; the log names the others. Raises `StartError` for codecs that no GPU decodes."""
    kept = []
    for entry in warm:
        if entry.codec not in CODECS:
            near = difflib.get_close_matches(entry.codec, sorted(CODECS), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(CODECS))}"
            raise StartError(f"gpu.warm: no GPU decodes the codec {entry.codec!r}; {hint}")
        if (entry.codec, entry.bit_depth, entry.chroma_format) in decodable:
            kept.append(entry)
        else:
            what = f"{entry.count} x {entry.codec} {entry.bit_depth} bit {entry.chroma_format} {entry.size_class}"
            _log.info("gpu.warm: %s left out: this GPU does not decode it, software does", what)
    return warm_counts(kept)


def open_runners(
    models: Sequence[_Planned],
    settings: GpuSection,
    gpu: Gpu,
    budget: MemoryBudget,
    ranges: ProfilerRanges = no_ranges,
    heads: HeadProcess | None = None,
) -> tuple[Sequence[ModelRunner], Fence]:
    """The models' runners, not open yet, in the precision that each was found to bear. To be called on the thread that infers.

    Raises `BudgetExceeded` where float32 is needed and does not fit.
    """
    gpu.cupy.cuda.Device(gpu.device).use()
    runners: list[ModelRunner] = []
    for model in models:

        def backend(manifest: Manifest, precision: Precision, *buckets: int, path: Path = model.path) -> CudaBackend:
            return create_cuda_backend(
                manifest, path, precision=precision, buckets=buckets, graphs=settings.cuda_graphs, device_id=gpu.device
            )

        expected = model.expected_precision(settings)
        precision = expected
        if expected is not Precision.FLOAT32:
            precision, check = choose_precision(model.manifest, spread_pictures(model.folder), backend)
            if precision is expected:
                _log.info("model %s runs in %s: %s", model.manifest.name, precision, check)
            else:
                _log.warning("model %s runs in %s, not in %s: %s", model.manifest.name, precision, expected, check)
                for line in model.lines(settings, precision):
                    budget.put(line)
                budget.check()
        made = backend(model.manifest, precision, *settings.batch_buckets)
        if heads is not None:
            made.pinned = functools.partial(_pinned, gpu, heads)
        head = make_head(model.manifest) if heads is None else heads.head(model.manifest)
        runners.append(CudaModelRunner(DeviceModel(model.manifest, made, head), ranges=ranges))
    return runners, CudaFence()


def _pinned(gpu: Gpu, heads: HeadProcess, size: int) -> Any:
    """Memory for results that the head process sees, or where that cannot be pinned such as only this process sees."""
    try:
        return heads.memory.allocate(size)
    except Exception as error:  # CUDA's bindings raise whatever they like
        why = f"{type(error).__name__}: {error}"
        _log.warning("results are read in this process, memory shared with another cannot be pinned: %s", why)
        return gpu.cupy.cuda.alloc_pinned_memory(size)


def _memory_info(gpu: Gpu) -> tuple[int, int]:
    with gpu.cupy.cuda.Device(gpu.device):
        free, total = gpu.cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)
