from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from keyglance.errors import DeadlineExceeded, ModelFailed, UnknownModel, WorkerLost
from models.backends.fake import FakeBackend, FakeHead, fake_manifest
from models.batcher import Batcher
from models.ensemble import Ensemble, LoadedModel
from models.manifest import LabelSpec, Manifest
from models.preprocess import Rendered
from models.run_slots import RunSlots
from models.spec import ColourOrder, Geometry, InputSpec, Layout, Normalisation, Placement


def rendered(geometry: Geometry, rgb: tuple[float, float, float] = (51, 102, 153)) -> Rendered:
    height, width = geometry.canvases[0]
    pixels = np.broadcast_to(np.asarray(rgb, np.float32), (height, width, 3)).copy()
    return Rendered(pixels, Placement(0, 0, width, height))


def ensemble(*manifests: Manifest, threads: int = 1, fakes: dict[str, dict] | None = None, **settings) -> Ensemble:
    slots = RunSlots(threads)
    models = []
    for manifest in manifests:
        backend = FakeBackend(manifest, **(fakes or {}).get(manifest.name, {}))
        batcher = Batcher(manifest, backend, slots, largest_wait=0.0, **settings)
        models.append(LoadedModel(manifest, backend, FakeHead(manifest), batcher))
    return Ensemble(models, slots)


def pictures(engine: Ensemble, **options) -> dict[Geometry, Rendered]:
    return {geometry: rendered(geometry, **options) for geometry in engine.geometries(engine.names)}


async def until(engine: Ensemble, **totals: int) -> None:
    for _ in range(2000):
        if all(sum(getattr(one, key) for one in engine.snapshot()) == value for key, value in totals.items()):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{engine.snapshot()} never had {totals}")


class TestNames:
    engine = ensemble(
        fake_manifest("a"), fake_manifest("b", default_on=False), fake_manifest("c", canvases=((64, 32), (32, 64))), threads=1
    )

    def test_names_and_manifests_keep_their_order(self):
        assert self.engine.names == ("a", "b", "c")
        assert [manifest.name for manifest in self.engine.manifests] == ["a", "b", "c"]

    def test_none_named_are_those_on_by_default(self):
        assert self.engine.select() == ("a", "c")

    def test_named_ones_come_once_and_in_the_order_of_the_ensemble(self):
        assert self.engine.select(["c", "b", "c"]) == ("b", "c")

    def test_an_unknown_name_lists_the_known(self):
        with pytest.raises(UnknownModel, match="unknown model 'd', known are a, b, c") as raised:
            self.engine.select(["a", "d"])
        assert raised.value.facts == {"model": "d", "known": "a, b, c"}

    def test_equal_geometries_are_named_once(self):
        a, b, c = (manifest.inputs.geometry for manifest in self.engine.manifests)
        assert a == b
        assert self.engine.geometries(["a", "b", "c"]) == (a, c)
        assert self.engine.geometries(["b"]) == (b,)

    def test_two_models_of_one_name_are_refused(self):
        with pytest.raises(ValueError, match="two models of one name: a"):
            ensemble(fake_manifest("a"), fake_manifest("b"), fake_manifest("a"))

    def test_manifests_whose_labels_contradict_one_another_are_refused(self):
        with pytest.raises(ValueError, match="label 'x' has parent"):
            ensemble(fake_manifest("a", [LabelSpec("x", "p")]), fake_manifest("b", [LabelSpec("x", "q")]))


async def test_every_model_gets_the_picture_in_its_own_numbers():
    swapped = Normalisation(ColourOrder.BGR, (104, 117, 123), (0.017, 0.018, 0.019), Layout.NHWC)
    plain = fake_manifest("plain", canvases=((16, 24),))
    other = replace(fake_manifest("other"), inputs=InputSpec("input", plain.inputs.geometry, swapped))
    engine = ensemble(plain, other)
    await engine.start()
    answer = await engine.infer(pictures(engine), engine.names)
    for result in answer.results.values():
        assert result.scores == pytest.approx({"red": 0.2, "green": 0.4, "blue": 0.6}, abs=1e-5)
    assert set(answer.results) == {"plain", "other"}
    assert answer.failed == {}
    assert answer.waited >= 0
    backends = {name: engine._models[name].backend for name in engine.names}
    assert backends["plain"].batches == [(1, 3, 16, 24)]
    assert backends["other"].batches == [(1, 16, 24, 3)]
    await engine.close()


async def test_start_loads_and_warms_and_close_frees_all_on_one_thread():
    engine = ensemble(fake_manifest("a", largest_batch=4, canvases=((8, 8), (8, 16))), fake_manifest("b"))
    await engine.start()
    await engine.infer(pictures(engine), engine.names)
    await engine.close()
    await engine.close()
    backends = [model.backend for model in engine._models.values()]
    calls = [[method for method, _ in backend.calls] for backend in backends]
    assert calls[0] == ["load", "warm", "run", "run", "run", "run", "run", "close"]  # two sizes, two canvases, then the frame
    assert calls[1] == ["load", "warm", "run", "run", "run", "close"]
    assert len({thread for backend in backends for _, thread in backend.calls}) == 1


async def test_a_model_that_cannot_be_loaded_fails_the_start_and_leaves_nothing_behind():
    before = threading.active_count()
    engine = ensemble(fake_manifest("a"), fake_manifest("b"))

    def broken() -> None:
        raise FileNotFoundError("no weights")

    engine._models["b"].backend.load = broken
    with pytest.raises(FileNotFoundError):
        await engine.start()
    assert [method for method, _ in engine._models["a"].backend.calls][-1] == "close"
    assert threading.active_count() == before


async def test_an_optional_model_that_fails_is_left_out_and_told_and_stops_no_other():
    engine = ensemble(fake_manifest("a"), fake_manifest("b", required=True), fakes={"a": {"fail_every": 1}})
    answer = await engine.infer(pictures(engine), engine.names)
    assert set(answer.results) == {"b"}
    assert set(answer.failed) == {"a"}
    assert "RuntimeError" in answer.failed["a"]
    await engine.close()


@pytest.mark.parametrize("fake", [{"fail_every": 1}, {"nan_every": 1}])
async def test_a_required_model_that_fails_fails_the_frame_and_cancels_the_others(fake):
    gate = threading.Event()
    engine = ensemble(
        fake_manifest("a", required=True),
        fake_manifest("b"),
        fake_manifest("c"),
        threads=2,
        fakes={"a": fake, "b": {"gate": gate}},
    )
    with pytest.raises(ModelFailed, match="model 'a'"):
        await engine.infer(pictures(engine), engine.names)
    gate.set()
    await engine.close()
    assert [one.queued + one.in_flight for one in engine.snapshot()] == [0, 0, 0]


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("step", ["normalise", "read"])
async def test_a_fault_before_or_behind_the_model_counts_as_its_failure(required, step):
    engine = ensemble(fake_manifest("a", required=required), fake_manifest("b", canvases=((8, 8),)))
    frames = pictures(engine)
    if step == "read":

        def fault(outputs: object, placement: object) -> None:
            raise IndexError("no such column")

        engine._models["a"].head.read = fault
    else:
        geometry = engine._models["a"].manifest.inputs.geometry
        frames[geometry] = replace(frames[geometry], rgb=np.zeros((8, 8)))
    if required:
        with pytest.raises(ModelFailed, match="model 'a'"):
            await engine.infer(frames, engine.names)
    else:
        answer = await engine.infer(frames, engine.names)
        assert set(answer.results) == {"b"}
        assert set(answer.failed) == {"a"}
    await engine.close()


async def test_a_deadline_is_never_taken_for_an_optional_models_failure():
    gate = threading.Event()
    engine = ensemble(fake_manifest("a"), fakes={"a": {"gate": gate}})
    with pytest.raises(DeadlineExceeded):
        await engine.infer(pictures(engine), engine.names, deadline=time.monotonic() + 0.02)
    gate.set()
    await engine.close()


async def test_cancellation_reaches_every_queue():
    gate = threading.Event()
    engine = ensemble(fake_manifest("a"), fake_manifest("b"), fakes={"a": {"gate": gate}})
    running = asyncio.create_task(engine.infer(pictures(engine), ["a"]))
    await until(engine, in_flight=1)
    waiting = asyncio.create_task(engine.infer(pictures(engine), engine.names))
    await until(engine, queued=2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [one.queued for one in engine.snapshot()] == [0, 0]
    gate.set()
    await running
    await engine.close()


async def test_frames_of_a_call_share_a_batch_by_the_number_expected():
    manifest = fake_manifest("a")
    slots = RunSlots()
    backend = FakeBackend(manifest)
    engine = Ensemble(
        [LoadedModel(manifest, backend, FakeHead(manifest), Batcher(manifest, backend, slots, largest_wait=60))], slots
    )
    expected = engine.expect(5)
    frames = [engine.infer(pictures(engine, rgb=(number, 0, 0)), ["a"], expected=expected) for number in range(5)]
    answers = await asyncio.gather(*frames)
    assert [answer.results["a"].scores["red"] for answer in answers] == pytest.approx([n / 255 for n in range(5)], abs=1e-5)
    assert [shape[0] for shape in backend.batches] == [5]
    await engine.close()


async def test_batching_across_calls_is_switched_for_all_models():
    engine = ensemble(fake_manifest("a"), fake_manifest("b"))
    assert engine.across_calls
    engine.across_calls = False
    assert not engine.across_calls
    assert not any(model.batcher.across_calls for model in engine._models.values())
    await engine.close()


async def test_after_close_frames_are_refused():
    engine = ensemble(fake_manifest("a"))
    await engine.start()
    await engine.close()
    with pytest.raises(WorkerLost, match="closed"):
        await engine.infer(pictures(engine), ["a"])
    assert repr(engine) == "<Ensemble a slots=0/1 closed>"


async def test_an_unknown_model_is_refused_before_anything_runs():
    engine = ensemble(fake_manifest("a"))
    with pytest.raises(UnknownModel):
        await engine.infer(pictures(engine), ["a", "b"])
    assert engine._models["a"].backend.batches == []
    await engine.close()
