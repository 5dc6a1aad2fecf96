"""Building the engine on a GPU that is not there: what is planned, refused, warmed, and in which precision models run."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace

from decoder_pool.key import DecoderKey
from decoder_pool.nvdec.decoder import capabilities
from models.backends.device import Precision
from models.backends.memory import ModelMemory
from models.repository import ZOO, ModelRepository
from server import gpu_factory
from server.assembly import assemble
from server.config import Config, GpuSection, WarmDecoders
from server.engine_factory import make_engine
from server.gpu_engine import GpuEngine
from server.gpu_factory import gpu_engine, open_runners, warm_decoders
from server.lifecycle import StartError
from server.local_engine import LocalEngine
from server.memory_budget import GIB, MIB, BudgetExceeded, BudgetLine, MemoryBudget
from server.telemetry import Telemetry
from tests.server.gpu_machine import GpuMachine

NAMES = {"open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"}
TRACER = trace.get_tracer("test")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    return GpuMachine(monkeypatch)


def config(models_folder: Path, device: str = "gpu", **gpu: object) -> Config:
    small = {"arena_pictures": [4, 2, 1]} | gpu
    return Config.load(overrides={"models": {"folder": models_folder}, "engine": {"device": device}, "gpu": small})


# The whole engine


@pytest.mark.models
@pytest.mark.parametrize("device", ["auto", "gpu"])
async def test_the_engine_on_a_gpu(
    machine: GpuMachine, models_folder: Path, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    slot = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout")
    before = slot.value
    with caplog.at_level(logging.INFO):
        engine = make_engine(config(models_folder, device), TRACER)
    try:
        assert isinstance(engine, GpuEngine)
        assert slot.value != before  # what the library prints of damaged pictures is heard
        info = engine.info()
        assert info.device == "NVIDIA Fake 0"
        assert {manifest.name for manifest in info.models if manifest.default_on} == NAMES
        hardware, software = info.decoders
        assert (hardware.kind, hardware.limit, hardware.codecs) == ("nvdec", 28, ("h264", "hevc", "vp8", "vp9"))
        assert software.kind == "cpu"
        (table,) = [message for message in caplog.messages if message.startswith("GPU memory planned")]
        assert "  decoders: 16 x h264 8 bit 420 up to 2048x2048" in table
        assert "  centerface: 21 networks" in table
    finally:
        await engine.close()
    assert slot.value == before


@pytest.mark.models
async def test_the_engine_on_the_cpu_says_why(machine: GpuMachine, models_folder: Path) -> None:
    machine.driver = False
    engine = make_engine(config(models_folder, "auto"), TRACER)
    try:
        assert isinstance(engine, LocalEngine)
        assert engine.info().device == "cpu (no GPU: there is no NVIDIA driver on this machine, no libcuda.so.1)"
        assert {manifest.name for manifest in engine.info().models if manifest.default_on} == NAMES - {"ppocr-text"}
    finally:
        await engine.close()


@pytest.mark.models
async def test_a_server_is_assembled_around_either(machine: GpuMachine, models_folder: Path) -> None:
    telemetry = Telemetry.create(version="0.0.test")
    for device in ("gpu", "cpu"):
        parts = assemble(config(models_folder, device), telemetry)
        assert isinstance(parts.engine, GpuEngine if device == "gpu" else LocalEngine)
        for part in (*parts.others, parts.engine):
            await part.close()
    wrong = config(models_folder).model_copy(update={"gpu": GpuSection(warm=(WarmDecoders(codec="h265"),))})
    with pytest.raises(StartError, match=r"gpu\.warm: no GPU decodes the codec 'h265'"):
        assemble(wrong, telemetry)


@pytest.mark.models
def test_a_card_that_is_too_small_is_refused_before_anything_is_taken(machine: GpuMachine, models_folder: Path) -> None:
    machine.memory = (22 * GIB, 24 * GIB)
    machine.cupy.empty = None  # nothing may be allocated
    with pytest.raises(BudgetExceeded) as error:
        gpu_engine(config(models_folder), TRACER, machine.gpu, "x")
    assert "19.80 GiB may be (0.9 of 22.00 GiB free" in str(error.value)
    assert "what can be made smaller: gpu.batch_buckets" in str(error.value)


@pytest.mark.models
async def test_a_smaller_card_does_with_smaller_settings(machine: GpuMachine, models_folder: Path) -> None:
    machine.memory = (22 * GIB, 24 * GIB)
    engine = gpu_engine(config(models_folder, batch_buckets=[8, 16], decoder_limit=26), TRACER, machine.gpu, "x")
    await engine.close()


# Warm decoders


def test_warm_decoders_are_reduced_to_what_the_gpu_decodes(machine: GpuMachine, caplog: pytest.LogCaptureFixture) -> None:
    decodable = capabilities(machine.gpu)
    wanted = (
        WarmDecoders(count=2),
        WarmDecoders(count=3),
        WarmDecoders(codec="hevc", bit_depth=10, size_class=4096),
        WarmDecoders(codec="av1"),
        WarmDecoders(codec="mpeg2video", count=2),
    )
    with caplog.at_level(logging.INFO):
        counts = warm_decoders(wanted, decodable)
    assert counts == {DecoderKey("h264", 8, "420", 2048): 5, DecoderKey("hevc", 10, "420", 4096): 1}
    assert caplog.messages == [
        "gpu.warm: 1 x av1 8 bit 420 2048 left out: this GPU does not decode it, software does",
        "gpu.warm: 2 x mpeg2video 8 bit 420 2048 left out: this GPU does not decode it, software does",
    ]


def test_a_codec_that_no_gpu_decodes_is_a_mistake(machine: GpuMachine) -> None:
    with pytest.raises(StartError, match=r"no GPU decodes the codec 'hevcc'; did you mean 'hevc'\?"):
        warm_decoders([WarmDecoders(codec="hevcc")], capabilities(machine.gpu))
    with pytest.raises(StartError, match="known are av1, h264, hevc"):
        warm_decoders([WarmDecoders(codec="theora")], capabilities(machine.gpu))


# Precision


class FakeBackend:
    """Scores that spread over the scale; float16 moves them by `move`."""

    made: list[FakeBackend]

    def __init__(self, manifest: Any, path: Path, *, precision: Precision, buckets: tuple[int, ...], **options: Any) -> None:
        self.manifest, self.precision, self.buckets, self.options = manifest, precision, buckets, options
        self.closed = False
        FakeBackend.made.append(self)

    move = 0.001

    def load(self) -> None: ...

    def warm(self, sizes: list[int]) -> None:
        assert sizes == list(self.buckets)

    def run(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        scores = np.linspace(0.05, 0.95, len(batch)) + (self.move if self.precision is Precision.FLOAT16 else 0)
        return {"outputs": np.stack([1 - scores, scores], axis=1).astype(np.float32)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[FakeBackend]:
    FakeBackend.made = []
    monkeypatch.setattr(gpu_factory, "create_cuda_backend", FakeBackend)
    return FakeBackend.made


def planned(*names: str) -> list[Any]:
    repository = ModelRepository(Path("nowhere"))
    models = []
    for name in names:
        manifest = repository.entry(name).manifest
        canvases = manifest.inputs.geometry.canvases
        memory = ModelMemory(
            GIB, dict.fromkeys(canvases, 1000), np.dtype(np.float32), dict.fromkeys(canvases, 4), dict.fromkeys(canvases, MIB)
        )
        models.append(gpu_factory._Planned(manifest, Path(f"{name}.onnx"), ZOO / name, memory))
    return models


def budget_of(models: list[Any], settings: GpuSection, free: int) -> MemoryBudget:
    lines = [line for model in models for line in model.lines(settings, model.expected_precision(settings))]
    budget = MemoryBudget(lines, memory_info=lambda: (free, free), fraction=1)
    budget.check()
    return budget


def test_a_model_runs_in_float16_where_its_manifest_and_the_check_allow_it(
    machine: GpuMachine, backends: list[FakeBackend], caplog: pytest.LogCaptureFixture
) -> None:
    settings = GpuSection(batch_buckets=(4, 8), cuda_graphs=False)
    models = planned("open-nsfw", "centerface")
    with caplog.at_level(logging.INFO):
        runners, _ = open_runners(models, settings, machine.gpu, budget_of(models, settings, 100 * GIB))
    assert [runner.manifest.name for runner in runners] == ["open-nsfw", "centerface"]
    assert [runner.buckets for runner in runners] == [(4, 8), (4, 8)]
    *tried, nsfw, face = backends
    assert [(backend.precision, backend.closed) for backend in tried] == [(Precision.FLOAT32, True), (Precision.FLOAT16, True)]
    assert [(backend.precision, backend.closed) for backend in (nsfw, face)] == [
        (Precision.FLOAT16, False),
        (Precision.FLOAT32, False),
    ]
    assert nsfw.options == {"graphs": False, "device_id": 0}
    assert caplog.messages == ["model open-nsfw runs in float16: output 'outputs' moves by up to 0.0010, 0.01 is allowed"]


def test_a_model_that_fails_the_check_runs_in_float32_and_the_budget_knows(
    machine: GpuMachine, backends: list[FakeBackend], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBackend, "move", 0.1)
    settings = GpuSection(batch_buckets=(4, 8))
    models = planned("open-nsfw")
    budget = budget_of(models, settings, 100 * GIB)
    before = budget.planned
    open_runners(models, settings, machine.gpu, budget)
    assert backends[-1].precision is Precision.FLOAT32
    assert budget.planned > before + GIB // 2
    assert len(budget.lines) == 2
    assert "model open-nsfw runs in float32, not in float16: output 'outputs' moves by up to 0.1000" in caplog.text
    with pytest.raises(BudgetExceeded):  # float32 does not fit where float16 did
        open_runners(models, settings, machine.gpu, budget_of(models, settings, before))


def test_float16_can_be_turned_off(machine: GpuMachine, backends: list[FakeBackend]) -> None:
    settings = GpuSection(half_precision=False)
    models = planned("open-nsfw")
    open_runners(models, settings, machine.gpu, budget_of(models, settings, 100 * GIB))
    assert [backend.precision for backend in backends] == [Precision.FLOAT32]


def test_the_budget_is_planned_in_the_precision_that_is_expected() -> None:
    (model,) = planned("open-nsfw")
    half, whole = GpuSection(), GpuSection(half_precision=False)
    assert model.expected_precision(half) is Precision.FLOAT16
    assert model.expected_precision(whole) is Precision.FLOAT32
    other = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, half_precision=False))
    assert other.expected_precision(half) is Precision.FLOAT32
    assert all(isinstance(line, BudgetLine) for line in model.lines(half, Precision.FLOAT16))
