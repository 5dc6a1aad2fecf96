"""Graphs with fixed shapes and in float16, run by ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.backends.onnx_graph import to_half, with_input_shape, with_outputs


def graph(nodes: Sequence[Any], weights: dict[str, Any], outputs: Sequence[str]) -> onnx.ModelProto:
    shape = ["batch", 3, "height", "width"]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None, None, None]) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )


@pytest.fixture
def network() -> onnx.ModelProto:
    """Two outputs, of which one feeds the rest; a resize; a weight that a softmax and a product share."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["first"]),
        helper.make_node("Resize", ["first", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("Mul", ["r", "shared"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"], axis=1),
        helper.make_node("Add", ["s", "shared"], ["second"]),
    ]
    weights = {
        "w": rng.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32),
        "b": rng.normal(0, 0.1, 4).astype(np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "shared": np.array([0.5], np.float32),
    }
    return graph(nodes, weights, ["first", "second"])


def run(model: onnx.ModelProto, x: Any) -> dict[str, Any]:
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


def picture(seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (2, 3, 8, 6)).astype(np.float32)


@pytest.mark.parametrize(
    "keep", [(), ("Softmax",), ("Softmax", "Add"), ("Conv",), ("a", "first"), ("Mul",), ("Resize",)], ids=str
)
def test_float16_is_near_and_gives_float32(network: onnx.ModelProto, keep: tuple[str, ...]) -> None:
    exact = run(network, picture())
    half = to_half(network, keep=keep)
    found = run(half, picture().astype(np.float16))
    assert half.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    for name, values in exact.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], values, atol=4e-3)
        assert (found[name] != values).any()  # it did compute in less


def test_the_graph_given_stays_as_it_is(network: onnx.ModelProto) -> None:
    before = network.SerializeToString()
    to_half(network)
    with_input_shape(network, "x", (2, 3, 8, 6))
    with_outputs(network, ["second"])
    assert network.SerializeToString() == before


def test_weights_beyond_float16_are_refused_unless_they_stay_float32() -> None:
    names = ["scale", "shift", "mean", "variance"]
    weights = dict(zip(names, np.array([[1e4] * 3, [0] * 3, [0] * 3, [1e8] * 3], np.float32), strict=True))
    model = graph([helper.make_node("BatchNormalization", ["x", *names], ["y"])], weights, ["y"])
    with pytest.raises(ValueError, match=r"variance.*1e\+08"):
        to_half(model, keep=())
    np.testing.assert_allclose(run(to_half(model), picture().astype(np.float16))["y"], picture(), atol=4e-3)


def test_a_fixed_shape_fixes_all_others(network: onnx.ModelProto) -> None:
    session = ort.InferenceSession(
        with_input_shape(network, "x", (2, 3, 8, 6)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert {value.name: value.shape for value in session.get_outputs()} == {"first": [2, 4, 8, 6], "second": [2, 4, 16, 12]}
    with pytest.raises(ValueError, match="4 dimensions"):
        with_input_shape(network, "x", (2, 3, 8))


def test_outputs_are_pruned(network: onnx.ModelProto) -> None:
    assert list(run(with_outputs(network, ["second"]), picture())) == ["second"]
