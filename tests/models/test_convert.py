"""Converters: graphs that keep their function, and a checkpoint reader that runs nothing."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.convert import ConversionError, convert
from models.convert.fusion import FusedGraph
from models.convert.graph import drop_initializers_from_inputs, name_dimensions
from models.convert.torch_checkpoint import read_checkpoint

# --- checkpoints


class _Stored:
    """Pickled as PyTorch pickles a storage: by a persistent id."""

    def __init__(self, key: str, values: NDArray[Any], kind: str = "FloatStorage") -> None:
        self.key, self.values, self.kind = key, values, kind


class _Global:
    """Pickled as a name: `module.name` need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Call:
    """Pickled as a call of a name."""

    def __init__(self, function: _Global, *arguments: object) -> None:
        self.function, self.arguments = function, arguments


class _Pickler(pickle._Pickler):  # type: ignore[name-defined]  # the Python one: its `save` can be overridden
    def save(self, obj: object, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Global):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, _Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        elif isinstance(obj, _Stored):
            self.save(("storage", _Global("torch", obj.kind), obj.key, "cpu", obj.values.size, None))
            self.write(pickle.BINPERSID)
        else:
            super().save(obj, save_persistent_id)


def tensor(storage: _Stored, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Call:
    return _Call(_Global("torch._utils", "_rebuild_tensor_v2"), storage, offset, shape, strides, False, OrderedDict())


def checkpoint(tensors: object, storages: list[_Stored], *, magic: int = 0x1950A86A20F9469CFC6C) -> bytes:
    file = io.BytesIO()
    for part in (magic, 1001, {"little_endian": True}, tensors, [storage.key for storage in storages]):
        _Pickler(file, 2).dump(part)
    for storage in storages:
        file.write(storage.values.size.to_bytes(8, "little") + storage.values.tobytes())
    return file.getvalue()


def test_tensors_are_views_of_their_storages() -> None:
    floats = _Stored("0", np.arange(6, dtype="<f4"))
    longs = _Stored("1", np.array([42], "<i8"), "LongStorage")
    tensors = OrderedDict(a=tensor(floats, 0, (2, 3), (3, 1)), b=tensor(floats, 1, (2, 2), (1, 3)), n=tensor(longs, 0, (), ()))
    read = read_checkpoint(checkpoint(tensors, [floats, longs]))
    assert read["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["b"].tolist() == [[1, 4], [2, 5]]
    assert read["n"].dtype == np.int64
    assert read["n"] == 42
    assert list(read) == ["a", "b", "n"]


def test_a_tensor_outside_its_storage_is_refused() -> None:
    floats = _Stored("0", np.arange(6, dtype="<f4"))
    with pytest.raises(pickle.UnpicklingError, match="reaches element 8 of a storage of 6"):
        read_checkpoint(checkpoint({"a": tensor(floats, 0, (3, 3), (3, 1))}, [floats]))
    with pytest.raises(pickle.UnpicklingError, match="is none"):
        read_checkpoint(checkpoint({"a": tensor(floats, 5, (3,), (-1,))}, [floats]))


def test_a_tensor_whose_storage_never_comes_is_refused() -> None:
    floats = _Stored("0", np.arange(6, dtype="<f4"))
    with pytest.raises(ValueError, match="a storage of 6 elements is missing"):
        read_checkpoint(checkpoint({"a": tensor(floats, 0, (6,), (1,))}, []))


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.load", "collections.Counter", "numpy.load"])
def test_nothing_else_is_known(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    evil = _Call(_Global(module, attribute), "exit 1")
    with pytest.raises(pickle.UnpicklingError, match=f"{name} is not part of a checkpoint"):
        read_checkpoint(checkpoint({"a": evil}, []))


def test_another_file_is_refused() -> None:
    for data in (b"", b"PK\x03\x04", checkpoint({}, [], magic=1), os.urandom(64)):
        with pytest.raises(ConversionError, match="converter 'efficientnet-lite0' does not know this file"):
            convert("efficientnet-lite0", data)


def test_a_checkpoint_that_is_cut_off_is_refused() -> None:
    floats = _Stored("0", np.arange(600, dtype="<f4"))
    whole = checkpoint({"a": tensor(floats, 0, (600,), (1,))}, [floats])
    for length in range(0, len(whole) - 1, 97):
        with pytest.raises((ValueError, EOFError, pickle.UnpicklingError, IndexError)):
            read_checkpoint(whole[:length])


# --- graphs


def run(model: onnx.ModelProto, value: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": value})[0])


def network(seed: int, *, pads: int, tapped: bool) -> onnx.ModelProto:
    """Convolution, scale and shift, hard swish in four operators, scale and shift, convolution: as PaddlePaddle exports it."""
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, value: Any) -> str:
        tensor = numpy_helper.from_array(np.asarray(value, np.float32), name)
        nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def node(kind: str, output: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    first = node("Conv", "c1", "x", constant("w1", random.normal(size=(4, 3, 3, 3))), pads=[1, 1, 1, 1])
    scaled = node("Add", "a1", node("Mul", "m1", constant("s1", [random.normal()]), first), constant("t1", [random.normal()]))
    clipped = node(
        "Clip", "clip", node("Add", "plus", scaled, constant("three", 3.0)), constant("zero", 0.0), constant("six", 6.0)
    )
    swish = node("Div", "swish", node("Mul", "product", scaled, clipped), constant("six2", 6.0))
    again = node("Add", "a2", node("Mul", "m2", constant("s2", [random.normal()]), swish), constant("t2", [random.normal()]))
    size = 3 if pads else 1
    weight, bias = constant("w2", random.normal(size=(2, 4, size, size))), constant("b2", random.normal(size=2))
    last = node("Conv", "c2", again, weight, bias, pads=[pads] * 4)
    if tapped:  # a second reader that is no convolution
        last = node(
            "Add",
            "sum",
            last,
            node("GlobalAveragePool", "pool", node("Conv", "c3", again, constant("w3", random.normal(size=(2, 4, 1, 1))))),
        )
    node("Sigmoid", "y", last)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [1, 3, 8, 8])], [info("y", TensorProto.FLOAT, [1, 2, None, None])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.sampled_from([0, 1]), st.booleans())
def test_joined_layers_compute_the_same(seed: int, pads: int, tapped: bool) -> None:
    model = network(seed, pads=pads, tapped=tapped)
    value = np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32)
    expected = run(model, value)
    fused = FusedGraph(model)
    fused.join_hard_swish()
    fused.fold_affine()
    fused.write()
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(run(model, value), expected, atol=2e-5)
    kinds = [node.op_type for node in model.graph.node]
    assert "Div" not in kinds
    assert kinds.count("HardSigmoid") == 1
    # The first chain goes into its convolution; the second goes into those behind it unless one of them pads.
    assert kinds.count("Mul") - 1 == (1 if pads else 0)


def test_a_clip_of_other_bounds_is_no_hard_swish() -> None:
    model = network(1, pads=0, tapped=False)
    bound = next(node for node in model.graph.node if node.output[0] == "six")
    bound.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(5.0).reshape(()), "six"))
    fused = FusedGraph(model)
    fused.join_hard_swish()
    fused.write()
    assert "HardSigmoid" not in [node.op_type for node in model.graph.node]


def test_dimensions_get_names() -> None:
    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [10, 3, 32, 32]), info("w", TensorProto.FLOAT, [1, 3, 1, 1])],
        [info("y", TensorProto.FLOAT, [10, 1, 32, 32])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    drop_initializers_from_inputs(model.graph)
    name_dimensions(model.graph, {"x": ("n", 3, "h", "w"), "y": ("n", 1, "h", "w")})
    assert [value.name for value in model.graph.input] == ["x"]
    assert run(model, np.ones((2, 3, 5, 7), np.float32)).shape == (2, 1, 5, 7)
    with pytest.raises(ValueError, match="x has 4 dimensions, 2 expected"):
        name_dimensions(model.graph, {"x": ("n", 3), "y": ("n", 1)})


def test_an_unknown_converter_lists_those_that_are_known() -> None:
    with pytest.raises(
        ConversionError, match="unknown converter 'x', known are centerface, copy, efficientnet-lite0, ppocr-text"
    ):
        convert("x", b"")
