"""An ONNX graph as a PyTorch module: the operators of the default models, in float32.

Made for comparisons (one network in several runtimes) and for gradients (pictures that get a wanted score). Nothing of PyTorch is
imported by this module: `torch_module` takes it as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

Operation = Callable[[Any, Mapping[str, Any], list[Any]], Any]


def torch_module(torch: Any, path: Path, outputs: Sequence[str]) -> Any:
    """The graph as an `nn.Module` in evaluation mode: a tensor in, the named outputs out (a tensor where one, else a tuple).

    Raises ValueError for an operator, or a use of one, that is not known here.
    """
    model = onnx.load(path)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        raise ValueError(f"{path.name} has the inputs {', '.join(inputs)}: one is needed")
    steps = [
        (_operation(node), _attributes(node), [name or None for name in node.input], node.output[0]) for node in model.graph.node
    ]
    # What tells shapes has to be known when the module is traced: integers stay Python's.
    constants = {name: value.tolist() for name, value in weights.items() if value.dtype.kind == "i"}
    sizes = {name for step in steps if step[0] is _resize for name in step[2][1:] if name is not None}
    constants |= {name: weights[name].tolist() for name in sizes}
    attribute_of = {name: f"weight_{place}" for place, name in enumerate(weights) if name not in constants}

    class Graph(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, attribute in attribute_of.items():
                self.register_buffer(attribute, torch.from_numpy(weights[name].copy()))

        def forward(self, x: Any) -> Any:
            values: dict[str | None, Any] = {None: None, inputs[0]: x}
            values.update(constants)
            for name, attribute in attribute_of.items():
                values[name] = getattr(self, attribute)
            for operation, attributes, names, result in steps:
                values[result] = operation(torch, attributes, [values[name] for name in names])
            results = tuple(values[name] for name in outputs)
            return results[0] if len(results) == 1 else results

    return Graph().eval()


def save_program(torch: Any, module: Any, example: Any, path: Path) -> None:
    """Writes the module as an exported program that takes any batch size."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    with torch.no_grad():
        torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: batch},)), str(path))


def save_script(torch: Any, module: Any, example: Any, path: Path) -> None:
    """Writes the module as traced TorchScript, its convolutions in full float32: a trace keeps the choice of its making."""
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        with torch.no_grad():
            torch.jit.trace(module, example).save(str(path))
    finally:
        convolutions.fp32_precision = before


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _operation(node: onnx.NodeProto) -> Operation:
    if node.op_type not in _OPERATIONS or len(node.output) != 1:
        raise ValueError(f"operator {node.op_type} is not known here, only {', '.join(_OPERATIONS)}")
    return _OPERATIONS[node.op_type]


def _padded(torch: Any, x: Any, attributes: Mapping[str, Any], kernel: Sequence[int], value: float = 0.0) -> Any:
    """`x` with the padding that a window operator asks for around it."""
    strides = attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        pads = [0, 0, 0, 0]
        for axis in (0, 1):
            length = int(x.shape[2 + axis])
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            total = max((-(-length // strides[axis]) - 1) * strides[axis] + reach - length, 0)
            less, more = total // 2, total - total // 2
            pads[axis], pads[2 + axis] = (less, more) if auto == b"SAME_UPPER" else (more, less)
    else:
        pads = list(attributes.get("pads", [0, 0, 0, 0]))
    top, left, bottom, right = pads
    return torch.nn.functional.pad(x, (left, right, top, bottom), value=value) if any(pads) else x


def _conv(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    x, weight, *bias = inputs
    return torch.nn.functional.conv2d(
        _padded(torch, x, attributes, [int(side) for side in weight.shape[2:]]),
        weight,
        bias[0] if bias else None,
        stride=tuple(attributes.get("strides", [1, 1])),
        dilation=tuple(attributes.get("dilations", [1, 1])),
        groups=attributes.get("group", 1),
    )


def _conv_transpose(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    x, weight, *bias = inputs
    if any(attributes.get("pads", [])) or attributes.get("output_padding") or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ValueError("ConvTranspose with padding is not known here")
    return torch.nn.functional.conv_transpose2d(
        x, weight, bias[0] if bias else None, stride=tuple(attributes["strides"]), groups=attributes.get("group", 1)
    )


def _batch_normalisation(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    x, scale, bias, mean, variance = inputs
    return torch.nn.functional.batch_norm(x, mean, variance, scale, bias, training=False, eps=attributes.get("epsilon", 1e-5))


def _max_pool(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    kernel = attributes["kernel_shape"]
    padded = _padded(torch, inputs[0], attributes, kernel, value=float("-inf"))
    return torch.nn.functional.max_pool2d(padded, tuple(kernel), tuple(attributes.get("strides", [1, 1])))


def _average_pool(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    if any(attributes.get("pads", [])) or attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ValueError("AveragePool with padding is not known here")
    return torch.nn.functional.avg_pool2d(inputs[0], tuple(attributes["kernel_shape"]), tuple(attributes.get("strides", [1, 1])))


def _resize(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    x, scales = inputs[0], inputs[2]
    if attributes.get("mode", b"nearest") != b"nearest" or scales[:2] != [1.0, 1.0] or any(s != int(s) for s in scales):
        raise ValueError(f"Resize by {scales}, mode {attributes.get('mode')!r} is not known here, only nearest by whole numbers")
    return x.repeat_interleave(int(scales[2]), dim=2).repeat_interleave(int(scales[3]), dim=3)


def _gemm(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    a, b, *c = inputs
    if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise ValueError("Gemm with transA, alpha or beta is not known here")
    return torch.nn.functional.linear(a, b if attributes.get("transB") else b.t(), c[0] if c else None)


def _hard_sigmoid(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    return torch.clamp(inputs[0] * attributes.get("alpha", 0.2) + attributes.get("beta", 0.5), 0.0, 1.0)


def _reshape(torch: Any, attributes: Mapping[str, Any], inputs: list[Any]) -> Any:
    x, shape = inputs
    return x.reshape([x.shape[place] if length == 0 else length for place, length in enumerate(shape)])


_OPERATIONS: Mapping[str, Operation] = {
    "Add": lambda torch, attributes, inputs: inputs[0] + inputs[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalisation,
    "Clip": lambda torch, attributes, inputs: torch.maximum(torch.minimum(inputs[0], inputs[2]), inputs[1]),
    "Concat": lambda torch, attributes, inputs: torch.cat(inputs, dim=attributes["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Flatten": lambda torch, attributes, inputs: inputs[0].flatten(attributes.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda torch, attributes, inputs: inputs[0].mean(dim=(2, 3), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "MatMul": lambda torch, attributes, inputs: inputs[0] @ inputs[1],
    "MaxPool": _max_pool,
    "Mul": lambda torch, attributes, inputs: inputs[0] * inputs[1],
    "Relu": lambda torch, attributes, inputs: torch.relu(inputs[0]),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": lambda torch, attributes, inputs: torch.sigmoid(inputs[0]),
    "Softmax": lambda torch, attributes, inputs: torch.softmax(inputs[0], dim=attributes.get("axis", -1)),
    "Transpose": lambda torch, attributes, inputs: inputs[0].permute(attributes["perm"]),
}
