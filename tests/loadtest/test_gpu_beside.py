import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decoder_pool.nvdec.gpu import STREAM_PRIORITY, Gpu
from loadtest import gpu_beside
from loadtest.figures.gpu import _decoding_beside
from loadtest.figures.results import Results
from loadtest.gpu_alone import keyframes_of
from loadtest.gpu_setup import Setup, jobs_of
from tests.decoder_pool.fake_gpu import FakeStream, fake_gpu
from tests.loadtest.gpu_fakes import PHONE, write_clips
from tests.models.fake_runners import FakeRunner, runner_manifest


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    await asyncio.to_thread(write_clips, tmp_path)
    monkeypatch.setattr("loadtest.gpu_setup.PHONE", PHONE)
    return tmp_path


def usual_streams_too(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets the fake make decoders on any stream; the streams that they have."""
    streams: list[int] = []
    create = gpu.codec.CreateDecoder

    def any_stream(**options: Any) -> Any:
        streams.append(options["cudastream"])
        return create(**options | {"cudastream": FakeStream.AHEAD})

    monkeypatch.setattr(gpu.codec, "CreateDecoder", any_stream)
    return streams


async def test_decoding_alone_and_beside_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake_gpu()
    streams = usual_streams_too(gpu, monkeypatch)
    runners = [FakeRunner(runner_manifest(name), seconds=0.001) for name in ("a", "b")]

    @contextlib.contextmanager
    def opened(setup: Setup, buckets: Any, size: tuple[int, int], *, half: bool) -> Iterator[list[FakeRunner]]:
        yield runners

    monkeypatch.setattr(gpu_beside, "runners_for", opened)
    monkeypatch.setattr(Gpu, "open", classmethod(lambda cls, device: gpu))

    async def in_thread(work: Any) -> Any:
        return await asyncio.to_thread(work)

    told = await gpu_beside.beside(Setup(folder, folder, folder, effort=0.1), in_thread)
    for priority in gpu_beside.PRIORITIES:
        idle, busy = (told[priority][when] for when in (gpu_beside.IDLE, gpu_beside.BUSY))
        assert idle["n"] > gpu_beside.DECODERS < busy["n"]
        assert 0 < idle["p50_ms"] <= idle["p99_ms"]
        assert "models, pictures/s" not in idle
        assert busy["models, pictures/s"] > 0
    usual, ahead = streams[: gpu_beside.DECODERS], streams[gpu_beside.DECODERS :]
    assert FakeStream.AHEAD not in usual
    assert set(ahead) == {FakeStream.AHEAD}
    assert [runner.held for runner in runners] == [0, 0]
    lines = _decoding_beside(told, Results(folder))
    assert sum(line.startswith(("| usual priority, ", "| decoders' priority, ")) for line in lines) == 4


async def test_decoders_end_where_what_runs_beside_them_fails(folder: Path) -> None:
    gpu = fake_gpu()
    (job,) = await jobs_of((folder / PHONE).read_bytes(), 1)
    keyframes = keyframes_of(job, gpu, (1280,))
    job.packets.close()

    def fails() -> float:
        raise ValueError("the models are lost")

    with pytest.raises(ValueError, match="the models are lost"):
        await asyncio.to_thread(gpu_beside.decoding, gpu, keyframes, STREAM_PRIORITY, {"beside": fails})
