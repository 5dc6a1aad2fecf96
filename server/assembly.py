"""Puts the parts of a server together as the configuration says. The only place that knows all of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import version

from decoder_pool.containers import Indexer
from decoder_pool.opener import Opener
from models.manifest import Manifest
from models.policy import DEFAULT_POLICY, Policy
from server.config import Config
from server.engine import Engine
from server.engine_factory import make_engine
from server.engine_stats import WorkerStats
from server.lifecycle import Parts, StartError
from server.nvtx import ranges_of
from server.pipeline import Pipeline
from server.readings import worker_readings
from server.servicer import Labeler, limits_of
from server.telemetry import Telemetry


def assemble(config: Config, telemetry: Telemetry) -> Parts:
    """The parts, not started. Raises `RepositoryError`, `PolicyError` or `StartError` for what cannot be used."""
    return assemble_front(config, telemetry, make_engine(config, telemetry.tracer))


def assemble_front(config: Config, telemetry: Telemetry, engine: Engine) -> Parts:
    """The parts above an engine that is there already, not started. Raises as `assemble` does."""
    _check_steps(config, engine.info().models)
    _check_warm(config, {codec for decoders in engine.info().decoders if decoders.kind == "cpu" for codec in decoders.codecs})
    policy = Policy.load(config.models.policy or DEFAULT_POLICY)
    if config.models.policy is not None:  # the built-in one may speak of models that are not loaded here; it then never passes
        policy.check(engine.info().models)
    indexer = Indexer(
        size=config.index.workers or None,
        memory_limit=config.index.memory_limit,
        longest_call=config.index.seconds,
    )
    telemetry.metrics.observe(lambda: worker_readings([WorkerStats("index", indexer.alive, indexer.size, indexer.lost)]))
    source_limits, sampling_limits = limits_of(config)
    pipeline = Pipeline(
        engine=engine,
        opener=Opener(indexer),
        policy=policy,
        source_limits=source_limits,
        sampling_limits=sampling_limits,
        ranges=ranges_of(config),
    )
    return Parts(Labeler(pipeline, engine, config, version("keyglance-server")), engine, (indexer,))


def _check_steps(config: Config, models: Sequence[Manifest]) -> None:
    optional = sorted(model.name for model in models if not model.required)
    for step in config.overload.steps:
        for name in step.leave_out:
            if name not in optional:
                required = any(model.name == name for model in models)
                known = f"known are {', '.join(optional)}" if optional else "there is none"
                why = "is required, so it is never left out" if required else f"is no optional model that is loaded; {known}"
                raise StartError(f"overload.steps: leave_out: {name!r} {why}")


def _check_warm(config: Config, codecs: set[str]) -> None:
    for warm in config.decoders.warm:
        if warm.codec not in codecs:
            near = difflib.get_close_matches(warm.codec, sorted(codecs), n=1)
            raise StartError(
                f"decoders.warm: no decoder for codec {warm.codec!r}" + (f", did you mean {near[0]!r}?" if near else "")
            )
