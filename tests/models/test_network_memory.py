"""What models are said to take on a GPU, against what was measured there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.backends.device import Precision
from models.backends.memory import ModelMemory
from models.manifest import Manifest
from models.repository import ModelRepository
from models.spec import Fit, Geometry, InputSpec, Layout, Normalisation

RESULTS = Path(__file__).parent.parent.parent / "loadtest" / "results"
MIB = 1 << 20


def manifest(canvases: tuple[tuple[int, int], ...], *, backend: str = "onnx", **normalisation: object) -> Manifest:
    inputs = InputSpec("x", Geometry(canvases, Fit.STRETCH), Normalisation(**normalisation))  # type: ignore[arg-type]
    return Manifest(
        name="m",
        version="1",
        digest="",
        licence="MIT",
        source="",
        backend=backend,
        head="classification",
        inputs=inputs,
        outputs=("y",),
        labels=(),
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A convolution to 4 channels, an activation in its place, and the mean over the picture; an output nobody asks for."""
    kernel = numpy_helper.from_array(np.zeros((4, 3, 1, 1), np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["y"]),
            helper.make_node("Sigmoid", ["r"], ["z"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")],
        [kernel],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def test_it_is_counted_by_picture_and_canvas(weights: Path) -> None:
    memory = ModelMemory.of(manifest(((8, 16), (4, 4))), weights)
    assert memory.weights == 4 * 3 * 4
    assert memory.inputs == {(8, 16): 3 * 8 * 16, (4, 4): 3 * 4 * 4}
    assert memory.outputs == {(8, 16): 16, (4, 4): 16}
    assert memory.written == {(8, 16): 4 * (4 * 8 * 16 * 2 + 4), (4, 4): 4 * (4 * 4 * 4 * 2 + 4)}


def test_tensors_are_one_input_a_canvas_and_one_output_a_network(weights: Path) -> None:
    memory = ModelMemory.of(manifest(((8, 16), (4, 4))), weights)
    pixels = 3 * (8 * 16 + 4 * 4)
    assert memory.tensors((2, 8), Precision.FLOAT32) == 8 * pixels * 4 + (2 + 8) * (16 + 16)
    assert memory.tensors((2, 8), Precision.FLOAT16) == 8 * pixels * 2 + (2 + 8) * (16 + 16)
    whole_numbers = ModelMemory.of(manifest(((8, 16), (4, 4)), dtype="uint8"), weights)
    assert whole_numbers.tensors((8,), Precision.FLOAT16) == 8 * pixels + 8 * (16 + 16)


def test_networks_grow_with_batches_canvases_and_precision(weights: Path) -> None:
    one = ModelMemory.of(manifest(((512, 512),)), weights)
    two = ModelMemory.of(manifest(((512, 512), (512, 512))), weights)
    assert two.networks((8,), Precision.FLOAT32) == one.networks((8,), Precision.FLOAT32)  # the same canvas twice is one
    more = ModelMemory.of(manifest(((512, 512), (256, 512))), weights)
    assert more.networks((8,), Precision.FLOAT32) > one.networks((8,), Precision.FLOAT32)
    assert one.networks((8, 16), Precision.FLOAT32) > one.networks((16,), Precision.FLOAT32)
    assert one.networks((8,), Precision.FLOAT16) < one.networks((8,), Precision.FLOAT32)


def test_channels_may_come_last(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 3, 1, 2])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "H", "W", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    memory = ModelMemory.of(manifest(((8, 16),), layout=Layout.NHWC), tmp_path / "m.onnx")
    assert memory.outputs == {(8, 16): 4 * 3 * 8 * 16}


def test_a_program_of_pytorch_is_told_from_its_file_and_input(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(bytes(1000))
    memory = ModelMemory.of(manifest(((8, 16),), backend="torch"), path)
    assert memory.weights == 1000
    assert memory.written[8, 16] > 4 * memory.inputs[8, 16]


@pytest.mark.models
def test_the_estimates_are_near_what_was_measured(models_folder: Path) -> None:
    repository = ModelRepository(models_folder)
    networks = json.loads((RESULTS / "gpu_networks.json").read_text())["networks"]
    compared = 0
    sums = {
        "estimated": 0.0,
        "measured": json.loads((RESULTS / "gpu_overlap.json").read_text())["overlap"]["float32"]["memory_mib"],
    }
    for title, figures in networks.items():
        what, precision, _ = title.split(", ")
        name, size = what.split()
        if len(buckets := [int(key) for key in figures if key.isdigit()]) < 2 or "unfused" in precision:
            continue
        model = repository.load(name)
        height, width = (int(side) for side in size.split("x"))
        geometry = dataclasses.replace(model.manifest.inputs.geometry, canvases=((height, width),))
        single = dataclasses.replace(model.manifest, inputs=dataclasses.replace(model.manifest.inputs, geometry=geometry))
        memory, kind = ModelMemory.of(single, model.path), Precision(precision.split()[0])
        estimated = (memory.tensors(buckets, kind) + memory.networks(buckets, kind)) / MIB
        assert 0.9 <= estimated / figures["memory_mib"] <= 1.3, title
        compared += 1
        if title.endswith("float32, graph"):
            sums["estimated"] += estimated
    assert compared >= 12
    assert 1 <= sums["estimated"] / sums["measured"] <= 1.2
