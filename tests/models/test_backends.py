from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from keyglance.errors import ModelFailed
from models.backend import canvas_shapes, check_outputs, warm_up
from models.backends import create_backend
from models.backends.fake import FakeBackend, FakeHead, fake_manifest, mean_colours
from models.backends.onnx import OnnxBackend
from models.manifest import LabelSpec, Manifest
from models.spec import ColourOrder, Layout, Normalisation, Placement

MANIFEST = fake_manifest("small", canvases=((8, 8), (8, 16)), backend="onnx", outputs=("scores",))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A convolution, the mean over the picture, a softmax; and a second output that no manifest asks for."""
    kernel = np.random.default_rng(3).normal(size=(3, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["input", "kernel"], ["maps"], pads=[1, 1, 1, 1]),
            helper.make_node("GlobalAveragePool", ["maps"], ["means"]),
            helper.make_node("Flatten", ["means"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
        ],
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("scores", "logits")],
        [onnx.numpy_helper.from_array(kernel, "kernel")],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


class TestOnnx:
    @pytest.fixture
    def backend(self, weights: Path) -> OnnxBackend:
        backend = OnnxBackend(MANIFEST, weights, threads=2)
        backend.load()
        return backend

    def test_a_frame_has_the_same_outputs_alone_and_in_a_batch(self, backend):
        batch = np.random.default_rng(0).normal(size=(5, 3, 8, 16)).astype(np.float32)
        together = backend.run(batch)["scores"]
        assert together.shape == (5, 3)
        assert together.sum(axis=1) == pytest.approx(1, abs=1e-5)
        for row in range(5):
            np.testing.assert_allclose(backend.run(batch[row : row + 1])["scores"][0], together[row], atol=1e-6)

    def test_only_the_manifests_outputs_are_computed(self, backend):
        assert set(backend.run(np.zeros((1, 3, 8, 8), np.float32))) == {"scores"}

    def test_it_warms_and_runs_on_several_threads(self, backend):
        backend.warm((1, 4))
        batch = np.ones((4, 3, 8, 8), np.float32)
        with ThreadPoolExecutor(3) as threads:
            results = [result["scores"] for result in threads.map(lambda _: backend.run(batch), range(12))]
        assert all(np.array_equal(result, results[0]) for result in results)

    def test_it_says_what_it_is(self, backend):
        assert backend.device == "cpu"
        assert repr(backend) == "<OnnxBackend small threads=2 loaded>"
        backend.close()
        backend.close()
        assert repr(backend) == "<OnnxBackend small threads=2 not loaded>"
        with pytest.raises(RuntimeError, match="'small' is not loaded"):
            backend.run(np.zeros((1, 3, 8, 8), np.float32))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda m: replace(m, outputs=("score",)), "names output 'score', small.onnx has 'scores', 'logits'"),
            (
                lambda m: replace(m, inputs=replace(m.inputs, name="pixels")),
                "the manifest names input 'pixels', small.onnx has 'input'",
            ),
        ],
    )
    def test_a_graph_that_is_not_the_manifests_is_refused(self, weights, change: Callable[[Manifest], Manifest], message):
        with pytest.raises(ValueError, match=message):
            OnnxBackend(change(MANIFEST), weights).load()

    def test_weights_that_are_not_there_are_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"model 'small': no weights at .*none.onnx"):
            OnnxBackend(MANIFEST, tmp_path / "none.onnx").load()

    def test_no_threads_are_refused(self, weights):
        with pytest.raises(ValueError, match="0 threads"):
            OnnxBackend(MANIFEST, weights, threads=0)


class TestFake:
    @pytest.mark.parametrize("order", list(ColourOrder))
    @pytest.mark.parametrize("layout", list(Layout))
    def test_scores_are_mean_colours_whatever_the_normalisation(self, order, layout):
        normalisation = Normalisation(order, (10.0, 20.0, 30.0), (0.5, 0.25, 2.0), layout)
        rgb = np.array([51.0, 102.0, 153.0], np.float32)
        channels = (rgb if order is ColourOrder.RGB else rgb[::-1]) - np.asarray(normalisation.mean, np.float32)
        pixels = np.broadcast_to(channels * np.asarray(normalisation.scale, np.float32), (2, 4, 6, 3))
        batch = pixels.transpose(0, 3, 1, 2) if layout is Layout.NCHW else pixels
        np.testing.assert_allclose(mean_colours(batch, normalisation), np.tile(rgb / 255, (2, 1)), atol=1e-6)

    def test_labels_take_the_channels_in_turn(self):
        manifest = fake_manifest(labels=[LabelSpec(name) for name in "abcde"])
        batch = np.zeros((1, 3, 4, 4), np.float32)
        batch[:, 1] = 1.0
        outputs = FakeBackend(manifest).run(batch)
        result = FakeHead(manifest).read({name: values[0] for name, values in outputs.items()}, Placement(0, 0, 4, 4))
        assert result.scores == {"a": 0, "b": 1, "c": 0, "d": 0, "e": 1}

    def test_failures_come_when_they_are_asked_for_and_not_while_warming(self):
        backend = FakeBackend(fake_manifest(), fail_every=3, nan_every=2)
        backend.warm((1, 2, 3, 4))
        batch = np.zeros((1, 3, 4, 4), np.float32)
        assert np.isfinite(backend.run(batch)["scores"]).all()
        assert np.isnan(backend.run(batch)["scores"]).any()
        with pytest.raises(RuntimeError, match="batch 3 fails"):
            backend.run(batch)
        assert backend.batches == [(1, 3, 4, 4)] * 3

    def test_a_gate_holds_it(self):
        gate = threading.Event()
        backend = FakeBackend(fake_manifest(), gate=gate)
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(backend.run, np.zeros((1, 3, 4, 4), np.float32))
            assert not running.done()
            gate.set()
            assert running.result(timeout=10)


def test_canvases_become_shapes_in_the_layout_of_the_tensor():
    assert canvas_shapes(MANIFEST) == ((3, 8, 8), (3, 8, 16))
    channels_last = replace(MANIFEST, inputs=replace(MANIFEST.inputs, normalisation=Normalisation(layout=Layout.NHWC)))
    assert canvas_shapes(channels_last) == ((8, 8, 3), (8, 16, 3))


def test_warming_runs_every_canvas_at_every_size_and_finds_what_is_wrong():
    backend = FakeBackend(MANIFEST)
    warm_up(backend, MANIFEST, (1, 4, 1))
    assert backend.batches == [(4, 3, 8, 8), (4, 3, 8, 16), (1, 3, 8, 8), (1, 3, 8, 16)]
    with pytest.raises(ModelFailed, match="not finite"):
        warm_up(FakeBackend(MANIFEST, nan_every=1), MANIFEST, (1,))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value):
    values = np.zeros((2, 3), np.float32)
    check_outputs(MANIFEST, {"scores": values}, 2)
    values[1, 2] = value
    with pytest.raises(ModelFailed, match="'small': output 'scores' has 1 of 6 values that are not finite"):
        check_outputs(MANIFEST, {"scores": values}, 2)


def test_backends_are_made_by_the_manifests_name(weights):
    assert isinstance(create_backend(MANIFEST, weights, threads=1), OnnxBackend)
    assert isinstance(create_backend(fake_manifest(), weights), FakeBackend)
    with pytest.raises(ValueError, match="unknown backend 'tensorflow', known are onnx, fake"):
        create_backend(replace(MANIFEST, backend="tensorflow"), weights)
