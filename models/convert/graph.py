"""Small rewrites of ONNX graphs that converters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx


def drop_initializers_from_inputs(graph: onnx.GraphProto) -> None:
    """Weights listed as inputs (ONNX IR below 4) could be overridden at run time, which keeps the runtime from folding them."""
    weights = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)


def name_dimensions(graph: onnx.GraphProto, dimensions: Mapping[str, Sequence[int | str]]) -> None:
    """Declares the shapes of inputs and outputs by name, numbers as fixed and words as symbolic dimensions.

    Shapes of values between, which were declared for the old ones, go away: the runtime infers them.
    """
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        shape = dimensions[value.name]
        declared = value.type.tensor_type.shape.dim
        if len(declared) != len(shape):
            raise ValueError(f"{value.name} has {len(declared)} dimensions, {len(shape)} expected")
        for dimension, size in zip(declared, shape, strict=True):
            dimension.Clear()
            if isinstance(size, str):
                dimension.dim_param = size
            else:
                dimension.dim_value = size


def serialise(model: onnx.ModelProto) -> bytes:
    """The model's bytes, checked."""
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)
