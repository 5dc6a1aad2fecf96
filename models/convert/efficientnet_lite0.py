"""EfficientNet-Lite0 from its PyTorch checkpoint to ONNX.

The network is the one of "EfficientNet-Lite" (TensorFlow TPU models): EfficientNet-B0 (Tan and Le, 2019, table 1)
without squeeze-and-excitation, with ReLU6, its stem and head not scaled. The weights were trained in TensorFlow, so convolutions
pad as its SAME does (the odd pixel below and to the right), and batch normalisation's epsilon is 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.convert.graph import serialise
from models.convert.torch_checkpoint import read_checkpoint

_EPSILON = 1e-3
#: (repeats, kernel, stride of the first) of each stage; widths and expansion are read from the weights.
_STAGES = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))


class _Graph:
    """Collects nodes and weights; every method appends a layer to the output of the last."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], source: str) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.last = source

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.last = name
        return name

    def convolution(self, name: str, norm: str, *, stride: int = 1, depthwise: bool = False, activation: bool = True) -> None:
        """Convolution with batch normalisation folded into it in float64, then ReLU6."""
        kernel = self.weights[f"{name}.weight"].astype(np.float64)
        gamma, beta, mean, variance = (
            self.weights[f"{norm}.{part}"].astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gamma / np.sqrt(variance + _EPSILON)
        layer = name.replace("._", ".").lstrip("_")
        self.node(
            "Conv",
            layer,
            self.last,
            self.constant(f"{layer}.weight", kernel * factor[:, None, None, None]),
            self.constant(f"{layer}.bias", beta - mean * factor),
            kernel_shape=kernel.shape[2:],
            strides=[stride, stride],
            group=kernel.shape[0] if depthwise else 1,
            auto_pad="SAME_UPPER",
        )
        if activation:
            self.node("Clip", f"{layer}.relu6", self.last, "zero", "six")


def convert_efficientnet_lite0(published: bytes) -> bytes:
    """`input` [N, 3, 224, 224] RGB, (value - 127) / 128; `logits` [N, 1000]."""
    graph = _Graph(read_checkpoint(published), "input")
    graph.constant("zero", np.array(0.0))
    graph.constant("six", np.array(6.0))
    graph.convolution("_conv_stem", "_bn0", stride=2)
    block = 0
    for repeats, kernel, first_stride in _STAGES:
        for repeat in range(repeats):
            _inverted_bottleneck(graph, f"_blocks.{block}", kernel, first_stride if repeat == 0 else 1, residual=repeat > 0)
            block += 1
    graph.convolution("_conv_head", "_bn1")
    graph.node("GlobalAveragePool", "pool", graph.last)
    graph.node("Flatten", "features", graph.last)
    weight, bias = (graph.constant(f"fc.{part}", graph.weights[f"_fc.{part}"]) for part in ("weight", "bias"))
    graph.node("Gemm", "logits", graph.last, weight, bias, transB=1)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "efficientnet-lite0",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="keyglance",
    )
    return serialise(model)


def _inverted_bottleneck(graph: _Graph, name: str, kernel: int, stride: int, *, residual: bool) -> None:
    shortcut = graph.last
    if f"{name}._expand_conv.weight" in graph.weights:
        graph.convolution(f"{name}._expand_conv", f"{name}._bn0")
    if graph.weights[f"{name}._depthwise_conv.weight"].shape[2:] != (kernel, kernel):
        raise ValueError(f"{name} has another kernel than EfficientNet-Lite0's {kernel}")
    graph.convolution(f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, depthwise=True)
    graph.convolution(f"{name}._project_conv", f"{name}._bn2", activation=False)
    if residual:
        graph.node("Add", f"{name.lstrip('_')}.sum", graph.last, shortcut)
