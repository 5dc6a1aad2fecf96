"""What a model takes on a GPU, told before anything is allocated: tensors exactly, networks by an estimate.

A network of ONNX Runtime's CUDA provider (one for each canvas and batch bucket) has its own weights, an arena for what its nodes
compute and convolutions' workspaces, and does not give back what it took once. What that comes to depends on which algorithms
cuDNN picks, so it is estimated from the graph: a share of all that its nodes write in one run, without what is written over its
own input. The shares are set by `loadtest/results/gpu_networks.json` (H200, onnxruntime-gpu 1.31.1): for the four default models
alone the estimates lie 5 to 24 % above what was measured in float32, 7 % below to 39 % above in float16; for all four together
(`gpu_overlap.json`) 10 % above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from models.backends.device import Precision
from models.backends.onnx_graph import with_input_shape, with_outputs
from models.manifest import Manifest
from models.spec import Layout

Canvas = tuple[int, int]

#: Operators whose result takes the place of their input, or is a constant.
_NO_MEMORY = frozenset(("Constant", "Dropout", "Flatten", "Identity", "Mul", "Relu", "Reshape", "Squeeze", "Unsqueeze"))
#: Bytes that a network's arena holds for each byte that its nodes write.
_SHARE = {Precision.FLOAT32: 0.55, Precision.TF32: 0.55, Precision.FLOAT16: 0.65}
#: Of a network beside that: handles, and workspaces that do not grow with the batch.
_NETWORK = 8 << 20
#: Numbers written for each of the input where there is no graph to ask (PyTorch): what EfficientNet-Lite0, the largest, has.
_WRITTEN = 90


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a model in float32: its weights, and by canvas the outputs of one picture and all that nodes write for it.

    `inputs`: numbers of one picture's input by canvas, each of type `dtype`.
    """

    weights: int
    inputs: Mapping[Canvas, int]
    dtype: np.dtype[Any]
    outputs: Mapping[Canvas, int]
    written: Mapping[Canvas, int]

    @classmethod
    def of(cls, manifest: Manifest, weights: Path) -> ModelMemory:
        """Reads the weights file where it is ONNX."""
        canvases = manifest.inputs.geometry.canvases
        inputs = {canvas: 3 * prod(canvas) for canvas in canvases}
        dtype = np.dtype(manifest.inputs.normalisation.dtype)
        if manifest.backend != "onnx":
            written = {canvas: 4 * _WRITTEN * count for canvas, count in inputs.items()}
            return cls(weights.stat().st_size, inputs, dtype, dict.fromkeys(canvases, 0), written)
        model = with_outputs(onnx.load(weights), manifest.outputs)
        outputs, written = {}, {}
        for canvas in canvases:
            outputs[canvas], written[canvas] = _written(model, manifest, canvas)
        stored = sum(prod(tensor.dims) * _itemsize(tensor.data_type) for tensor in model.graph.initializer)
        return cls(stored, inputs, dtype, outputs, written)

    def tensors(self, buckets: Sequence[int], precision: Precision) -> int:
        """Of the inputs, one a canvas, and of the outputs, one a network (they are float32 in any precision)."""
        itemsize = self.dtype.itemsize // (_part(precision) if self.dtype == np.float32 else 1)
        return max(buckets) * itemsize * sum(self.inputs.values()) + sum(buckets) * sum(self.outputs.values())

    def networks(self, buckets: Sequence[int], precision: Precision) -> int:
        """Of all networks: estimated."""
        part = _part(precision)
        fixed = len(buckets) * len(self.inputs) * (self.weights // part + _NETWORK)
        return fixed + int(sum(buckets) * sum(self.written.values()) / part * _SHARE[precision])


def _written(model: onnx.ModelProto, manifest: Manifest, canvas: Canvas) -> tuple[int, int]:
    """Bytes of the outputs, and of all that nodes write, for one picture."""
    shape = (1, *canvas, 3) if manifest.inputs.normalisation.layout is Layout.NHWC else (1, 3, *canvas)
    graph = shape_inference.infer_shapes(with_input_shape(model, manifest.inputs.name, shape), data_prop=True).graph
    sizes = {value.name: _size(value.type.tensor_type) for value in (*graph.value_info, *graph.output)}
    largest = max(sizes.values(), default=0)  # stands for what shape inference does not find
    written = sum(
        sizes.get(name, 0) or largest for node in graph.node if node.op_type not in _NO_MEMORY for name in node.output if name
    )
    return sum(sizes[value.name] or largest for value in graph.output), written


def _size(tensor: onnx.TypeProto.Tensor) -> int:
    """Bytes; 0 where a dimension is not known."""
    return prod(dimension.dim_value for dimension in tensor.shape.dim) * _itemsize(tensor.elem_type)


def _itemsize(kind: int) -> int:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).itemsize


def _part(precision: Precision) -> int:
    return 2 if precision is Precision.FLOAT16 else 1
