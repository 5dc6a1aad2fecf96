"""The GPU's backends against ONNX Runtime on the CPU, in the default models."""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.torch_graph import save_program, save_script, torch_module
from models.backends import create_cuda_backend
from models.backends.choice import choose_precision
from models.backends.device import CudaBackend, Precision
from models.backends.onnx import OnnxBackend
from models.backends.onnx_cuda import OnnxCudaBackend
from models.backends.torch_export import TorchBackend
from models.manifest import Manifest
from models.precision import check_precision, spread_pictures
from models.preprocess import Preprocessor, normalise
from models.preprocess_cuda import CudaPreprocessor
from models.repository import ZOO, ModelRepository
from tests.gpu.pictures import make_picture, on_gpu

pytestmark = pytest.mark.gpu

NAMES = ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"]


@dataclasses.dataclass
class Case:
    manifest: Manifest
    path: Path
    tensors: Any  # of the spread pictures
    exact: Any  # outputs of ONNX Runtime on the CPU


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, models_folder: Path, cupy: Any) -> Case:
    return make_case(request.param, models_folder)


def make_case(name: str, models_folder: Path) -> Case:
    model = ModelRepository(models_folder).load(name)
    preprocessor = Preprocessor()
    rendered = [preprocessor.render(picture, model.manifest.inputs.geometry) for picture in spread_pictures(ZOO / name)]
    canvas = rendered[0].rgb.shape[:2]
    manifest = with_canvas(model.manifest, (canvas[0], canvas[1]))
    tensors = np.stack([normalise(each, manifest.inputs.normalisation) for each in rendered])
    cpu = OnnxBackend(manifest, model.path, threads=4)
    cpu.load()
    return Case(manifest, model.path, tensors, cpu.run(tensors))


def with_canvas(manifest: Manifest, canvas: tuple[int, int]) -> Manifest:
    """The manifest with one canvas alone: a test prepares no more than it needs."""
    geometry = dataclasses.replace(manifest.inputs.geometry, canvases=(canvas,))
    return dataclasses.replace(manifest, inputs=dataclasses.replace(manifest.inputs, geometry=geometry))


@pytest.fixture
def closing() -> Iterator[list[CudaBackend]]:
    backends: list[CudaBackend] = []
    yield backends
    for backend in backends:
        backend.close()


def warmed(backend: CudaBackend, closing: list[CudaBackend]) -> CudaBackend:
    closing.append(backend)
    backend.load()
    backend.warm([1])
    return backend


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_outputs_are_the_cpus(case: Case, graphs: bool, closing: list[CudaBackend]) -> None:
    backend = warmed(OnnxCudaBackend(case.manifest, case.path, buckets=(4, 16), graphs=graphs), closing)
    for size in (9, 3, 9, 1):
        check = check_precision(
            case.manifest, {name: values[:size] for name, values in case.exact.items()}, backend.run(case.tensors[:size])
        )
        assert max(check.moves.values()) < 0.01, check
    assert check_precision(case.manifest, case.exact, backend.run(case.tensors)).passed


def test_a_batch_beyond_the_largest_bucket_runs_in_pieces(case: Case, closing: list[CudaBackend]) -> None:
    backend = warmed(OnnxCudaBackend(case.manifest, case.path, buckets=(2, 4)), closing)
    assert check_precision(case.manifest, case.exact, backend.run(case.tensors)).passed


def test_float16_where_the_manifest_allows_it(case: Case, cupy: Any) -> None:
    pictures = spread_pictures(ZOO / case.manifest.name)

    def make(manifest: Manifest, precision: Precision, bucket: int) -> CudaBackend:
        return create_cuda_backend(manifest, case.path, precision=precision, buckets=[bucket])

    precision, check = choose_precision(case.manifest, pictures, make)
    if case.manifest.half_precision:
        assert check is not None
        assert check.passed, check
        assert precision is Precision.FLOAT16
    else:
        assert (precision, check) == (Precision.FLOAT32, None)
        allowed = dataclasses.replace(case.manifest, half_precision=True)
        precision, check = choose_precision(allowed, pictures, make)
        assert check is not None
        assert check.spread
        assert (precision is Precision.FLOAT16) == check.passed


def test_pictures_to_scores_without_leaving_the_gpu(cupy: Any, models_folder: Path, closing: list[CudaBackend]) -> None:
    case = make_case("open-nsfw", models_folder)
    rng = np.random.default_rng(0)
    batch = [make_picture(rng, 1280, 720, semi_planar=True), *spread_pictures(ZOO / "open-nsfw")]
    cpu = OnnxBackend(case.manifest, case.path)
    cpu.load()
    preprocessor = Preprocessor()
    geometry, normalisation = case.manifest.inputs.geometry, case.manifest.inputs.normalisation
    exact = cpu.run(np.stack([normalise(preprocessor.render(picture, geometry), normalisation) for picture in batch]))

    backend = warmed(OnnxCudaBackend(case.manifest, case.path, buckets=(8, 16)), closing)
    on_device = CudaPreprocessor(case.manifest.inputs, largest_batch=16)
    uploaded = [on_gpu(cupy, picture) for picture in batch]
    cupy.cuda.Device().synchronize()
    canvas = on_device.canvas(uploaded[0])
    on_device.render(uploaded, backend.input(canvas, len(batch)), backend.stream)
    launched = backend.launch(canvas, len(batch))
    assert check_precision(case.manifest, exact, launched.outputs()).moves["outputs"] < 0.01
    launched.release()


def test_results_are_held_until_released(models_folder: Path, cupy: Any, closing: list[CudaBackend]) -> None:
    case = make_case("open-nsfw", models_folder)
    backend = warmed(OnnxCudaBackend(case.manifest, case.path, buckets=(8,), results=2), closing)
    canvas = case.manifest.inputs.geometry.canvases[0]
    backend.run(case.tensors[:8])
    first = backend.launch(canvas, 8)
    second = backend.launch(canvas, 8)
    with pytest.raises(RuntimeError, match="2 batches are held"):
        backend.launch(canvas, 8)
    thread = threading.Thread(target=first.release)  # heads read on other threads
    thread.start()
    thread.join()
    third = backend.launch(canvas, 8)
    np.testing.assert_array_equal(second.outputs()["outputs"], third.outputs()["outputs"])
    with pytest.raises(RuntimeError, match="released"):
        first.outputs()
    with pytest.raises(ValueError, match="1 to 8"):
        backend.launch(canvas, 9)


def test_a_file_that_is_not_the_manifests_is_refused(models_folder: Path, cupy: Any, closing: list[CudaBackend]) -> None:
    case = make_case("open-nsfw", models_folder)
    other = dataclasses.replace(case.manifest, outputs=("absent",))
    backend = OnnxCudaBackend(other, case.path)
    closing.append(backend)
    with pytest.raises(ValueError, match="absent"):
        backend.load()


@pytest.fixture(scope="module")
def torch_files(models_folder: Path, cupy: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """EfficientNet-Lite0 as an exported program and as TorchScript."""
    torch = importlib.import_module("torch")
    case = make_case("efficientnet-lite0", models_folder)
    module = torch_module(torch, case.path, case.manifest.outputs)
    example = torch.from_numpy(case.tensors[:2].copy())
    folder = tmp_path_factory.mktemp("torch")
    save_program(torch, module, example, folder / "program.pt2")
    save_script(torch, module, example, folder / "script.pt")
    return {"torch": folder / "program.pt2", "script": folder / "script.pt"}


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
@pytest.mark.parametrize("form", ["torch", "script"])
def test_pytorch_gives_the_same(
    form: str, graphs: bool, torch_files: dict[str, Path], models_folder: Path, closing: list[CudaBackend]
) -> None:
    case = make_case("efficientnet-lite0", models_folder)
    manifest = dataclasses.replace(case.manifest, backend=form)
    backend = warmed(TorchBackend(manifest, torch_files[form], buckets=(4, 16), graphs=graphs), closing)
    for _ in range(2):
        assert check_precision(manifest, case.exact, backend.run(case.tensors)).passed
    network = backend._networks[manifest.inputs.geometry.canvases[0], 16]
    assert network._input.data_ptr() == backend.input(manifest.inputs.geometry.canvases[0], 16).data.ptr
