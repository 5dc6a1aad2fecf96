"""ONNX graphs made ready for a GPU: fixed shapes, and float16 weights and activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Inputs that stay float32 whatever the others are (ONNX operator schemas: Resize's roi, scales).
_FLOAT_INPUTS = {"Resize": (1, 2), "Upsample": (1,)}

#: Operators that compute in float32: a softmax for its sums, a batch normalisation for its variances, which may be huge.
KEPT = ("Softmax", "BatchNormalization")


def with_input_shape(model: onnx.ModelProto, name: str, shape: Sequence[int]) -> onnx.ModelProto:
    """A copy whose input has exactly this shape. Declared shapes of everything else are dropped: they follow from it."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name == name:
            dimensions = value.type.tensor_type.shape.dim
            if len(dimensions) != len(shape):
                raise ValueError(f"input {name!r} has {len(dimensions)} dimensions, shape {tuple(shape)} has {len(shape)}")
            for dimension, length in zip(dimensions, shape, strict=True):
                dimension.Clear()
                dimension.dim_value = length
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()
    return fixed


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy that has only these outputs."""
    pruned = onnx.ModelProto()
    pruned.CopyFrom(model)
    wanted = [value for value in model.graph.output if value.name in names]
    del pruned.graph.output[:]
    pruned.graph.output.extend(wanted)
    return pruned


def to_half(model: onnx.ModelProto, *, keep: Sequence[str] = KEPT) -> onnx.ModelProto:
    """A copy that computes in float16: weights, activations and inputs; outputs are float32 as before.

    Operators whose type or first output is named in `keep` compute in float32, with casts around them. Raises ValueError for
    weights beyond float16's range, and for subgraphs and functions, which this conversion does not know.
    """

    def kept(node: onnx.NodeProto) -> bool:
        return node.op_type in keep or node.output[0] in keep

    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    if half.functions or any(
        attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        for node in graph.node
        for attribute in node.attribute
    ):
        raise ValueError("a graph with functions or subgraphs is not converted to float16")
    floats = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    stay = {
        node.input[place]
        for node in graph.node
        for place in (range(len(node.input)) if kept(node) else _FLOAT_INPUTS.get(node.op_type, ()))
        if place < len(node.input)
    }
    shared = stay & {name for node in graph.node if not kept(node) for name in _half_inputs(node)} & set(floats)
    for name, tensor in floats.items():
        if name in shared:  # one copy of each type
            tensor = graph.initializer.add(name=f"{name}/half")
            tensor.CopyFrom(_half_tensor(floats[name]))
            tensor.name = f"{name}/half"
        elif name not in stay:
            tensor.CopyFrom(_half_tensor(tensor))
    for value in graph.input:  # old graphs list their weights among the inputs
        if value.type.tensor_type.elem_type == TensorProto.FLOAT and not (value.name in floats and value.name in stay):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.value_info[:]

    outputs = {value.name for value in graph.output if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    nodes: list[onnx.NodeProto] = []
    for node in tuple(graph.node):
        if kept(node):
            nodes += _kept(node, outputs, floats)
            continue
        for place, name in enumerate(node.input):
            if name in outputs or (name in shared and place not in _FLOAT_INPUTS.get(node.op_type, ())):
                node.input[place] = f"{name}/half"
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(_half_tensor(attribute.t))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in outputs:
                node.output[place] = f"{name}/half"
                nodes.append(_cast(f"{name}/half", name, TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    return half


def _half_inputs(node: onnx.NodeProto) -> list[str]:
    skipped = _FLOAT_INPUTS.get(node.op_type, ())
    return [name for place, name in enumerate(node.input) if name and place not in skipped]


def _half_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    values = numpy_helper.to_array(tensor)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > float(np.finfo(np.float16).max):
        raise ValueError(f"tensor {tensor.name!r} has a value of {largest:g}, beyond float16's range")
    return numpy_helper.from_array(values.astype(np.float16), tensor.name)


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast {target}", to=to)


def _kept(node: onnx.NodeProto, outputs: set[str], weights: dict[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    """A node in float32 between casts."""
    nodes: list[onnx.NodeProto] = []
    for place, name in enumerate(node.input):
        if name and name not in weights:
            wide = f"{name}/for {node.output[0]}"
            nodes.append(_cast(f"{name}/half" if name in outputs else name, wide, TensorProto.FLOAT))
            node.input[place] = wide
    nodes.append(node)
    for place, name in enumerate(node.output):
        narrow = f"{name}/half" if name in outputs else name
        if name not in outputs:
            node.output[place] = f"{name}/float"
        nodes.append(_cast(node.output[place], narrow, TensorProto.FLOAT16))
    return nodes
