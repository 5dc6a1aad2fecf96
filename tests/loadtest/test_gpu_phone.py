import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest import gpu_phone
from loadtest.gpu_decode import leaks, reconfigure
from tests.loadtest.gpu_fakes import OTHER, PHONE, fake_bench, write_clips


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_clips(folder)
    return folder


def test_the_way_from_bytes_to_frames(clips: Path) -> None:
    async def run() -> dict[str, Any]:
        async with fake_bench(clips) as bench:
            told = await gpu_phone.phone(bench, repeats=2, counts=(1, 3), clip=PHONE, other=OTHER)
            snapshot = bench.arena.snapshot()
            assert snapshot.free == snapshot.slots
            announced = {call for call in bench.gpu.codec.calls if call[0] == "announce"}
            assert {("announce", 144, 256), ("announce", 256, 144)} <= announced
            return told

    told = asyncio.run(run())
    assert set(told) == {"1 decoders", "3 decoders", "bytes"}
    for row in (told["1 decoders"], told["3 decoders"]):
        assert set(row) == {"index", "plan", "packets", "lease", "decode", "all", "same"}
        assert all(figures["n"] == 2 for figures in row.values())
        assert row["all"]["median"] >= row["decode"]["median"] > 0
    assert 0 < told["bytes"]["keyframes"] < told["bytes"]["file"]


class SimpleDecoder:
    def __init__(self, source: Any, gpu_id: int) -> None:
        assert gpu_id == 0
        assert isinstance(source, bytes) or Path(source).is_file()
        self.sources = [source]
        self.left = 24

    def get_batch_frames_by_index(self, wanted: list[int]) -> list[int]:
        return wanted

    def get_batch_frames(self, size: int) -> list[int]:
        given, self.left = min(size, self.left), max(0, self.left - size)
        return [0] * given

    def reconfigure_decoder(self, source: str) -> None:
        assert source != self.sources[-1]
        self.sources.append(source)


@pytest.mark.parametrize("breaks", [False, True])
def test_the_librarys_own_decoder_beside_it(clips: Path, breaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if breaks:
        monkeypatch.setattr(SimpleDecoder, "reconfigure_decoder", lambda self, source: 1 / 0)

    async def run() -> dict[str, Any]:
        async with fake_bench(clips) as bench:
            bench.gpu.codec.SimpleDecoder = SimpleDecoder
            return await asyncio.to_thread(lambda: gpu_phone.simple_decoder(bench, repeats=2, clip=PHONE))

    told = asyncio.run(run())
    assert {name: (row.get("n"), row.get("pictures")) for name, row in told.items()} == {
        "SimpleDecoder new, keyframes by index": (2, 12),
        "SimpleDecoder new from bytes in memory, keyframes by index": (2, 12),
        "SimpleDecoder reconfigured, keyframes by index": (None, None) if breaks else (8, 12),
        "SimpleDecoder new, every frame": (2, 24),
    }


def test_reconfigure_and_leaks(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.gpu_decode._REPEATS", 2)
    monkeypatch.setattr("loadtest.gpu_decode._LEASES", 20)

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        async with fake_bench(clips) as bench:
            names = {"h264_1280x720.mp4": OTHER, "h264_640x360.mp4": PHONE, "h264_720x1280.mp4": PHONE, "h264_640x530.mp4": OTHER}
            bench.clips = {name: bench.clips[clip] for name, clip in names.items()}
            monkeypatch.setattr(bench.arena, "lease", _any_size(bench.arena.lease))
            return await asyncio.to_thread(reconfigure, bench), await leaks(bench)

    told, leaked = asyncio.run(run())
    assert {"keyframe alone", "reconfigured, then the keyframe", "new decoder, then the keyframe"} <= told.keys()
    assert leaked["before"] == leaked["after"]
    assert leaked["arena"]["all slots back"]


def _any_size(lease: Any) -> Any:
    async def leased(size: int) -> Any:
        return await lease(min(size, 256 * 144 * 3))

    return leased


def test_frames_are_cut_out_without_spares() -> None:
    samples = SimpleNamespace(position=[4, 0, 10], size=[2, 3, 5])
    runs = [SimpleNamespace(samples=(1,), wanted=(1,), spare=0), SimpleNamespace(samples=(0, 2), wanted=(0,), spare=1)]
    data, units = gpu_phone.cut(bytes(range(20)), SimpleNamespace(samples=samples), runs)
    with data:
        assert bytes(data.view()) == bytes([0, 1, 2, 4, 5])
    assert [(unit.packets[0].sample, unit.packets[0].offset, unit.packets[0].size) for unit in units] == [(1, 0, 3), (0, 3, 2)]
