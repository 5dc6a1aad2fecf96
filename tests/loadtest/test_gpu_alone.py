import asyncio
from pathlib import Path
from typing import Any

import pytest

from decoder_pool.nvdec.arena import FrameArena
from decoder_pool.nvdec.gpu import Gpu
from decoder_pool.nvdec.stdout import StdoutWatch
from loadtest import gpu_alone
from loadtest.gpu_setup import Setup, jobs_of
from server.engine import EngineJob
from tests.decoder_pool.fake_gpu import fake_gpu
from tests.loadtest.gpu_fakes import PHONE, write_clips
from tests.models.fake_runners import FakeRunner, grey, runner_manifest


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> EngineJob:
    folder = tmp_path_factory.mktemp("clips")
    write_clips(folder)
    return asyncio.run(jobs_of((folder / PHONE).read_bytes(), 1))[0]


def runners() -> list[FakeRunner]:
    return [FakeRunner(runner_manifest(name), seconds=0.001) for name in ("a", "b")]


@pytest.mark.parametrize("with_pictures", [False, True])
def test_models_flat_out_and_batch_by_batch(with_pictures: bool) -> None:
    from models.preprocess_cuda import locate

    made = runners()
    pictures = [locate(grey(level)) for level in range(8)] if with_pictures else None
    assert gpu_alone.batch_ms(made, 4, pictures, 3) >= 1
    assert gpu_alone.flat_out(made, 8, pictures, 0.1) > 0
    assert [runner.held for runner in made] == [0, 0]
    sizes = {len(batch) for runner in made for batch in runner.batches}
    assert sizes == ({4, 8} if with_pictures else set())


def setup(folder: Path) -> Setup:
    return Setup(folder, folder, folder, effort=0.1)


def test_decoders_flat_out(job: EngineJob, tmp_path: Path) -> None:
    gpu = fake_gpu()
    told = gpu_alone.decoders_alone(setup(tmp_path), gpu, job, (1280, 4096), counts=(1, 3))
    assert set(told["decode"]) == set(told["decode and copy"]) == {"1", "3"}
    assert told["pictures/s"] == max(*told["decode"].values(), *told["decode and copy"].values()) > 0
    assert told["bytes of a keyframe"] > 0
    assert len(gpu.codec.decoders) == 4


def test_a_decoder_that_breaks_is_told_and_nobody_waits_for_ever(job: EngineJob) -> None:
    library: Any = (gpu := fake_gpu()).codec
    keyframes = gpu_alone.keyframes_of(job, gpu, (1280,))
    arena = FrameArena({keyframes.feeds[0].surface.size: 2}, gpu.cupy.empty)
    watch = StdoutWatch()
    watch.install()
    try:
        drivers = gpu_alone.Drivers(gpu, keyframes, watch, arena, 2)
        library.decoders[0].left = 3
        with pytest.raises(RuntimeError, match="cuvidDecodePicture"):
            drivers.rate(gpu_alone.decode_and_copy, 0.2)
        with pytest.raises(RuntimeError, match="cuvidDecodePicture"):
            drivers.close()
    finally:
        watch.close()
    assert arena.snapshot().free == arena.snapshot().slots


def test_a_decoder_that_does_not_start_is_told(job: EngineJob) -> None:
    gpu = fake_gpu()
    gpu.codec.lost = True
    keyframes = gpu_alone.keyframes_of(job, gpu, (1280,))
    arena = FrameArena({keyframes.feeds[0].surface.size: 2}, gpu.cupy.empty)
    with pytest.raises(RuntimeError, match="cuvidDecodePicture"):
        gpu_alone.Drivers(gpu, keyframes, StdoutWatch(), arena, 2)


async def test_both_ceilings(job: EngineJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = asyncio.to_thread(write_clips, tmp_path)
    await write
    monkeypatch.setattr("loadtest.gpu_setup.PHONE", PHONE)
    monkeypatch.setattr(Gpu, "open", classmethod(lambda cls, device: "gpu"))
    monkeypatch.setattr(gpu_alone, "decoders_alone", lambda setup, gpu, job, classes: {"gpu": gpu, "classes": classes})
    monkeypatch.setattr(gpu_alone, "models_alone", lambda setup: {"device": setup.device})

    async def in_thread(work: Any) -> Any:
        return work()

    told = await gpu_alone.alone(Setup(tmp_path, tmp_path, tmp_path), in_thread)
    assert told == {"decoders": {"gpu": "gpu", "classes": (2048, 4096, 8192)}, "models": {"device": "gpu"}}
