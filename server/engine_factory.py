"""Builds the in-process engine that a configuration asks for: decoder pool, models, preprocessing."""

from __future__ import annotations

import logging
import os

from opentelemetry.trace import Tracer

from decoder_pool.cpu import CpuFactory, CpuLimits
from decoder_pool.key import DecoderKey
from decoder_pool.pool import DecoderPool
from models.backends import create_backend
from models.batcher import Batcher
from models.ensemble import Ensemble, LoadedModel
from models.heads import make_head
from models.preprocess import Preprocessor
from models.repository import InstalledModel, ModelRepository
from models.run_slots import RunSlots
from server.config import Config
from server.local_engine import LocalEngine

_log = logging.getLogger(__name__)

#: Pictures between decoding and their scores: a few batches of each model, well under 4 MB each.
_FRAMES_IN_FLIGHT = 64


def local_engine(config: Config, tracer: Tracer) -> LocalEngine:
    """The engine for this process, not started. Raises `models.repository.RepositoryError` for models that cannot be used."""
    cores = os.cpu_count() or 1
    repository = ModelRepository(config.models.folder)
    installed = repository.load_all(config.models.enabled)
    loaded = {model.manifest.name for model in installed}
    for name, entry in repository.entries.items():
        if entry.manifest.default_on and name not in loaded and not config.models.enabled:
            _log.warning("model %s is on by default and not installed: python -m models.install --only %s", name, name)
    slots = RunSlots(config.inference.threads or cores)
    return LocalEngine(
        pool=_pool(config),
        ensemble=Ensemble([_loaded(model, slots, config, tracer) for model in installed], slots, work_threads=cores),
        preprocessor=Preprocessor(),
        render_threads=cores,
        frames_in_flight=_FRAMES_IN_FLIGHT,
    )


def _pool(config: Config) -> DecoderPool:
    decoders = config.decoders
    warm: dict[DecoderKey, int] = {}
    for entry in decoders.warm:
        key = DecoderKey(entry.codec, entry.bit_depth, entry.chroma_format, entry.size_class)
        warm[key] = warm.get(key, 0) + entry.count
    limits = CpuLimits(pixels=config.limits.pixels, unit_seconds=decoders.seconds, memory=decoders.memory_limit)
    factory = CpuFactory(limits=limits, threads=decoders.threads)
    return DecoderPool(factory=factory, limit=decoders.most, size_classes=decoders.size_classes, warm=warm)


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
