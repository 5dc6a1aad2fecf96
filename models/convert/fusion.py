"""Joins elementwise layers of a convolutional network into its convolutions: the same function with fewer passes over memory.

PaddlePaddle's exporter writes a hard swish as four operators and a learnable scale and shift as two. ONNX Runtime runs each as a
pass of its own, and leaves its blocked layout for most of them: a sixth of the text detector's time. All sums are in float64.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class FusedGraph:
    """A model's graph, changed in place by the methods and written back by `write`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._weights = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        for node in model.graph.node:
            if node.op_type == "Constant":
                self._weights[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            else:
                self._nodes.append(node)

    def join_hard_swish(self) -> None:
        """Add 3, Clip to 0 and 6, Mul, Div by 6 become x * HardSigmoid(x; 1/6, 1/2) (Howard et al., 2019, section 5.2)."""
        made = {node.output[0]: node for node in self._nodes}
        uses = self._uses()
        for division in [node for node in self._nodes if node.op_type == "Div" and self._scalar(node.input[1]) == 6]:
            product = made.get(division.input[0])
            if product is None or product.op_type != "Mul":
                continue
            value, clip = product.input[0], made.get(product.input[1])
            if clip is None or clip.op_type != "Clip" or [self._scalar(name) for name in clip.input[1:]] != [0, 6]:
                continue
            shift = made.get(clip.input[0])
            if shift is None or shift.op_type != "Add" or shift.input[0] != value or self._scalar(shift.input[1]) != 3:
                continue
            if any(uses[node.output[0]] != 1 for node in (product, clip, shift)):
                continue
            output = division.output[0]
            gate = helper.make_node("HardSigmoid", [value], [f"{output}.gate"], alpha=1 / 6, beta=0.5)
            self._replace([shift, clip, product, division], [gate, helper.make_node("Mul", [value, gate.output[0]], [output])])

    def fold_affine(self) -> None:
        """Chains of Mul and Add with a scalar go into the one convolution before them, else into all those after them.

        Into those after only where they pad nothing, as padding's zeros are put in behind the shift. Other chains stay.
        """
        for first in list(self._nodes):
            if self._affine(first) is None or not any(first is node for node in self._nodes):
                continue
            value = first.input[0] if self._scalar(first.input[0]) is None else first.input[1]
            chain: list[onnx.NodeProto] = []
            scale, shift = 1.0, 0.0
            users = [first]
            while len(users) == 1 and (affine := self._affine(users[0])) is not None:
                scale, shift = scale * affine[0], shift * affine[0] + affine[1]
                chain.append(users[0])
                users = self._users(users[0].output[0])
            output = chain[-1].output[0]
            before = next((node for node in self._nodes if node.output[0] == value), None)
            if before is not None and before.op_type == "Conv" and self._uses()[value] == 1:
                self._rescale(before, scale, shift, behind=True)
                self._replace(chain, [])
                before.output[0] = output
            elif users and all(self._is_unpadded_convolution(user) and user.input[0] == output for user in users):
                for user in users:
                    self._rescale(user, scale, shift, behind=False)
                    user.input[0] = value
                self._replace(chain, [])

    def write(self) -> None:
        """Writes nodes and the weights that they use back into the model."""
        used = self._uses()
        del self._graph.node[:], self._graph.initializer[:], self._graph.value_info[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(
            numpy_helper.from_array(np.ascontiguousarray(weight), name) for name, weight in self._weights.items() if used[name]
        )

    def _rescale(self, convolution: onnx.NodeProto, scale: float, shift: float, *, behind: bool) -> None:
        """Puts value * scale + shift behind the convolution, or before it."""
        kernel = self._weights[convolution.input[1]].astype(np.float64)
        has_bias = len(convolution.input) > 2
        bias = self._weights[convolution.input[2]].astype(np.float64) if has_bias else np.zeros(len(kernel))
        bias = bias * scale + shift if behind else bias + shift * kernel.sum(axis=(1, 2, 3))
        name = convolution.output[0]
        inputs = [convolution.input[0], self._weigh(f"{name}.weight", kernel * scale), self._weigh(f"{name}.bias", bias)]
        del convolution.input[:]
        convolution.input.extend(inputs)

    def _weigh(self, name: str, value: NDArray[Any]) -> str:
        self._weights[name] = value.astype(np.float32)
        return name

    def _affine(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """Scale and shift of a Mul or Add of a scalar and a value that is none, else None."""
        if node.op_type not in ("Mul", "Add"):
            return None
        scalars = [number for number in map(self._scalar, node.input) if number is not None]
        if len(scalars) != 1:
            return None
        return (scalars[0], 0.0) if node.op_type == "Mul" else (1.0, scalars[0])

    def _is_unpadded_convolution(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Conv":
            return False
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        return not any(attributes.get("pads", ())) and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"

    def _scalar(self, name: str) -> float | None:
        weight = self._weights.get(name)
        return float(weight.item()) if weight is not None and weight.size == 1 else None

    def _uses(self) -> Counter[str]:
        names = [name for node in self._nodes for name in node.input]
        return Counter([*names, *(output.name for output in self._graph.output)])

    def _users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a value; none where it is also an output of the graph."""
        users = [node for node in self._nodes if name in node.input]
        return users if self._uses()[name] == len(users) else []

    def _replace(self, old: list[onnx.NodeProto], new: list[onnx.NodeProto]) -> None:
        """New nodes stand where the last of the old ones stood, so that the order stays topological."""
        gone = {id(node) for node in old[:-1]}
        nodes: list[onnx.NodeProto] = []
        for node in self._nodes:
            if node is old[-1]:
                nodes.extend(new)
            elif id(node) not in gone:
                nodes.append(node)
        self._nodes = nodes
