"""The check that stands before float16, and the pictures that it is made on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoder_pool.picture import Picture
from models.backends import create_cuda_backend
from models.backends.choice import choose_precision
from models.backends.device import Precision
from models.backends.fake import fake_manifest
from models.backends.onnx import OnnxBackend
from models.backends.torch_export import TorchBackend
from models.manifest import LabelSpec, Manifest
from models.precision import check_precision, rgb_picture, scores, spread_pictures
from models.preprocess import Preprocessor, normalise
from models.repository import ZOO, ModelRepository

MANIFEST = fake_manifest(labels=[LabelSpec("it", classes=(1,))], outputs=("scores", "boxes"))
SPREAD = np.linspace(0.1, 0.9, 9)


def outputs(values: Any, move: float = 0.0, box_move: float = 0.0) -> dict[str, Any]:
    values = np.asarray(values, np.float32)
    return {"scores": np.stack([1 - values, values + move], axis=1), "boxes": np.full((len(values), 4), 3 + box_move)}


def test_what_moves_little_passes() -> None:
    check = check_precision(MANIFEST, outputs(SPREAD), outputs(SPREAD, 0.009, -0.005))
    assert check.passed
    assert check.moves == pytest.approx({"scores": 0.009, "boxes": 0.005}, abs=1e-5)
    assert check.score_move == pytest.approx(0.009, abs=1e-5)


@pytest.mark.parametrize("moves", [(0.02, 0.0), (0.0, -0.02), (float("nan"), 0.0)], ids=str)
def test_any_output_that_moves_fails(moves: tuple[float, float]) -> None:
    check = check_precision(MANIFEST, outputs(SPREAD), outputs(SPREAD, *moves))
    assert not check.passed
    assert "moves by up to" in str(check)


@pytest.mark.parametrize(
    "values",
    [np.zeros(9), np.ones(9), np.full(9, 0.5), np.linspace(0.3, 0.9, 9), [0.1, 0.9], [0.1, 0.2, 0.3, 0.8, 0.9]],
    ids=str,
)
def test_scores_that_do_not_spread_prove_nothing(values: Any) -> None:
    check = check_precision(MANIFEST, outputs(values), outputs(values))
    assert not check.passed
    assert "do not spread" in str(check)


def test_scores_of_logits_and_of_maps() -> None:
    logits = dataclasses.replace(MANIFEST, options={"softmax": 1.0}, outputs=("scores",))
    assert scores(logits, {"scores": np.array([[0.0, 0.0], [0.0, np.log(3)]])}) == pytest.approx([0.5, 0.75])
    maps = fake_manifest(labels=[LabelSpec("face")], outputs=("map",))
    assert scores(maps, {"map": np.arange(8.0).reshape(2, 1, 2, 2) / 8}) == pytest.approx([3 / 8, 7 / 8])


class Scripted:
    """A backend that answers what it is told."""

    device = "none"

    def __init__(self, answer: Any, log: list[str]) -> None:
        self.answer = answer
        self.log = log

    def load(self) -> None:
        self.log.append("load")

    def warm(self, batch_sizes: Sequence[int]) -> None:
        self.log.append(f"warm {list(batch_sizes)}")

    def run(self, batch: Any) -> Any:
        self.log.append(f"run {batch.shape}")
        return self.answer

    def close(self) -> None:
        self.log.append("close")


PICTURES = [rgb_picture(np.full((8, 8, 3), 20 * number, np.uint8)) for number in range(9)]


@pytest.mark.parametrize(
    ("move", "pictures", "allowed", "expected"),
    [
        (0.001, PICTURES, True, Precision.FLOAT16),
        (0.05, PICTURES, True, Precision.FLOAT32),
        (0.001, [], True, Precision.FLOAT32),
        (0.001, PICTURES, False, Precision.FLOAT32),
    ],
    ids=["passes", "moves", "no pictures", "not allowed"],
)
def test_the_choice(move: float, pictures: list[Picture], allowed: bool, expected: Precision) -> None:
    log: list[str] = []

    def make(manifest: Manifest, precision: Precision, bucket: int) -> Scripted:
        assert bucket == len(pictures)
        assert len(manifest.inputs.geometry.canvases) == 1
        return Scripted(outputs(SPREAD, move if precision is Precision.FLOAT16 else 0.0), log)

    manifest = dataclasses.replace(MANIFEST, half_precision=allowed)
    precision, check = choose_precision(manifest, pictures, make)
    assert precision is expected
    assert (check is None) == (not allowed)
    assert log == (["load", "warm [9]", "run (9, 3, 32, 32)", "close"] * 2 if allowed and pictures else [])


def test_an_unknown_backend_does_not_run_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'fake' does not run on a GPU"):
        create_cuda_backend(MANIFEST, tmp_path)
    with pytest.raises(ValueError, match="torch or script"):
        TorchBackend(MANIFEST, tmp_path)


@pytest.mark.models
@pytest.mark.parametrize("name", ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"])
def test_every_default_model_has_pictures_that_spread(name: str, models_folder: Path) -> None:
    repository = ModelRepository(models_folder)
    if not repository.is_installed(name):
        pytest.skip(f"{name} is not installed")
    model = repository.load(name)
    preprocessor = Preprocessor()
    backend = OnnxBackend(model.manifest, model.path)
    backend.load()
    spec = model.manifest.inputs
    tensors = [
        normalise(preprocessor.render(picture, spec.geometry), spec.normalisation) for picture in spread_pictures(ZOO / name)
    ]
    found = [backend.run(tensor[None]) for tensor in tensors]
    together = {output: np.concatenate([each[output] for each in found]) for output in model.manifest.outputs}
    check = check_precision(model.manifest, together, together)
    assert check.passed, check
