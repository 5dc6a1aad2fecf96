"""Builds the in-process engine that a configuration asks for: on a CPU or on a GPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from opentelemetry.trace import Tracer

from decoder_pool.cpu import CpuFactory, CpuLimits
from decoder_pool.key import DecoderKey
from decoder_pool.pool import DecoderPool
from models.backends import create_backend
from models.batcher import Batcher
from models.ensemble import Ensemble, LoadedModel
from models.heads import make_head
from models.manifest import Manifest
from models.preprocess import Preprocessor
from models.repository import InstalledModel, ModelRepository
from models.run_slots import RunSlots
from server.config import Config, WarmDecoders
from server.device import choose
from server.engine import Engine
from server.local_engine import LocalEngine

_log = logging.getLogger(__name__)

#: Pictures between decoding and their scores: a few batches of each model, well under 4 MB each.
_FRAMES_IN_FLIGHT = 64


def make_engine(config: Config, tracer: Tracer) -> Engine:
    """The engine for this process on the device that `engine.device` asks for, not started.

    Raises `server.lifecycle.StartError` where a GPU is asked for that cannot be used, or whose memory does not suffice, and
    `models.repository.RepositoryError` for models that cannot be used.
    """
    device = choose(config)
    if device.gpu is None:
        return local_engine(config, tracer, device=device.name)
    from server.gpu_factory import gpu_engine  # what it imports is of no use without a GPU

    return gpu_engine(config, tracer, device.gpu, device.name)


def local_engine(config: Config, tracer: Tracer, *, device: str = "cpu") -> LocalEngine:
    """The engine on the CPU, not started. Raises `models.repository.RepositoryError` for models that cannot be used."""
    cores = os.cpu_count() or 1
    repository = ModelRepository(config.models.folder)
    installed = repository.load_all(config.models.enabled)
    warn_of_missing(repository, [model.manifest for model in installed], config)
    slots = RunSlots(config.inference.threads or cores)
    return LocalEngine(
        pool=software_pool(config),
        ensemble=Ensemble([_loaded(model, slots, config, tracer) for model in installed], slots, work_threads=cores),
        preprocessor=Preprocessor(),
        render_threads=cores,
        frames_in_flight=_FRAMES_IN_FLIGHT,
        device=device,
    )


def warn_of_missing(repository: ModelRepository, loaded: Sequence[Manifest], config: Config, *, gpu: bool = False) -> None:
    """Logs which models would be on by default, were they installed."""
    names = {manifest.name for manifest in loaded}
    for name, entry in repository.entries.items():
        manifest = entry.manifest.on_gpu() if gpu else entry.manifest
        if manifest.default_on and name not in names and not config.models.enabled:
            _log.warning("model %s is on by default and not installed: python -m models.install --only %s", name, name)


def warm_counts(warm: Sequence[WarmDecoders]) -> dict[DecoderKey, int]:
    """How many decoders of which key are to be there before the first call."""
    counts: dict[DecoderKey, int] = {}
    for entry in warm:
        key = DecoderKey(entry.codec, entry.bit_depth, entry.chroma_format, entry.size_class)
        counts[key] = counts.get(key, 0) + entry.count
    return counts


def software_pool(config: Config, *, niceness: int = 0) -> DecoderPool:
    """The pool of software decoders; `niceness` (0 to 19) is by how much they stand back behind other processes."""
    decoders = config.decoders
    limits = CpuLimits(pixels=config.limits.pixels, unit_seconds=decoders.seconds, memory=decoders.memory_limit)
    factory = CpuFactory(limits=limits, threads=decoders.threads, niceness=niceness)
    return DecoderPool(factory=factory, limit=decoders.most, size_classes=decoders.size_classes, warm=warm_counts(decoders.warm))


def _loaded(model: InstalledModel, slots: RunSlots, config: Config, tracer: Tracer) -> LoadedModel:
    settings = config.inference
    backend = create_backend(model.manifest, model.path, threads=settings.intra_op_threads)
    batcher = Batcher(
        model.manifest,
        backend,
        slots,
        largest_batch=settings.largest_batch,
        largest_wait=settings.largest_wait,
        queue_limit=settings.queue_limit,
        tracer=tracer,
    )
    return LoadedModel(model.manifest, backend, make_head(model.manifest), batcher)
