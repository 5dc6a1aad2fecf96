"""The default models, installed, on pictures with known answers, through the real preprocessing and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from skimage import data

from decoder_pool.picture import Picture
from models.heads import Head, make_head
from models.preprocess import Preprocessor, normalise
from models.repository import InstalledModel, ModelRepository
from models.result import FrameResult, Region

pytestmark = pytest.mark.models

PHOTOGRAPHS: Mapping[str, Callable[[], NDArray[np.uint8]]] = {
    "astronaut": data.astronaut,
    "camera": data.camera,
    "cat": data.chelsea,
    "coffee": data.coffee,
    "coins": data.coins,
    "rocket": data.rocket,
}


class Runner:
    """One installed model with its session and head."""

    def __init__(self, model: InstalledModel) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.manifest = model.manifest
        self.session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
        self.head: Head = make_head(model.manifest)
        self.preprocessor = Preprocessor()

    def outputs(self, picture: Image.Image) -> tuple[dict[str, NDArray[Any]], Any]:
        width, height = picture.size
        red, green, blue = np.moveaxis(np.asarray(picture.convert("RGB")), 2, 0)
        planes = Picture((green, blue, red), width, height, chroma_format="rgb", chroma_shift=(0, 0))
        rendered = self.preprocessor.render(planes, self.manifest.inputs.geometry)
        tensor = normalise(rendered, self.manifest.inputs.normalisation)
        values = self.session.run(list(self.manifest.outputs), {self.manifest.inputs.name: tensor[None]})
        return {name: value[0] for name, value in zip(self.manifest.outputs, values, strict=True)}, rendered.placement

    def __call__(self, picture: Image.Image | NDArray[np.uint8]) -> FrameResult:
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        return self.head.read(*self.outputs(image))


@pytest.fixture(scope="module")
def runners(models_folder: Path) -> Callable[[str], Runner]:
    repository = ModelRepository(models_folder)
    made: dict[str, Runner] = {}

    def runner(name: str) -> Runner:
        if name not in made:
            if not repository.is_installed(name):
                pytest.skip(f"model {name} is not installed in {models_folder}")
            made[name] = Runner(repository.load(name))
        return made[name]

    return runner


Runners = Callable[[str], Runner]


@pytest.mark.parametrize("name", ["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"])
def test_the_graph_is_what_the_manifest_says(runners: Runners, name: str) -> None:
    runner = runners(name)
    manifest = runner.manifest
    assert [value.name for value in runner.session.get_inputs()] == [manifest.inputs.name]
    assert set(manifest.outputs) <= {value.name for value in runner.session.get_outputs()}
    height, width = manifest.inputs.geometry.canvases[-1]
    shape = (3, height, width) if manifest.inputs.normalisation.layout == "nchw" else (height, width, 3)
    for batch in (1, 3):
        values = runner.session.run(None, {manifest.inputs.name: np.zeros((batch, *shape), np.float32)})
        assert {len(value) for value in values} == {batch}


def test_a_batch_gives_what_its_pictures_give_alone(runners: Runners) -> None:
    for name in ("open-nsfw", "efficientnet-lite0"):
        runner = runners(name)
        pictures = [Image.fromarray(take()).convert("RGB") for take in (data.coffee, data.astronaut, data.chelsea)]
        (output,) = runner.manifest.outputs
        geometry, normalisation = runner.manifest.inputs.geometry, runner.manifest.inputs.normalisation
        tensors = []
        for picture in pictures:
            red, green, blue = np.moveaxis(np.asarray(picture), 2, 0)
            planes = Picture((green, blue, red), *picture.size, chroma_format="rgb", chroma_shift=(0, 0))
            tensors.append(normalise(runner.preprocessor.render(planes, geometry), normalisation))
        (together,) = runner.session.run([output], {runner.manifest.inputs.name: np.stack(tensors)})
        alone = np.stack([runner.outputs(picture)[0][output] for picture in pictures])
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_harmless_photographs_are_not_nsfw(runners: Runners, name: str) -> None:
    # Known value: at most 0.015, rounded to three places.
    assert runners("open-nsfw")(PHOTOGRAPHS[name]()).scores["nsfw"] < 0.0155


def test_coffee_is_espresso(runners: Runners) -> None:
    scores = runners("efficientnet-lite0")(data.coffee()).scores
    assert max(scores, key=scores.__getitem__) == "espresso"
    assert scores["espresso"] >= 0.9  # known value: 0.95


def test_a_cat_is_a_cat_and_no_weapon(runners: Runners) -> None:
    scores = runners("efficientnet-lite0")(data.chelsea()).scores
    assert scores["tiger cat"] + scores["Egyptian cat"] + scores["tabby"] > 0.8
    for proxy in ("weapon-like object", "military", "alcohol-like object", "drug-related object", "revealing clothing"):
        assert scores[proxy] < 0.01


def test_the_astronaut_has_one_face_in_the_right_place(runners: Runners) -> None:
    result = runners("centerface")(data.astronaut())
    (face,) = result.regions
    assert result.scores["face"] == face.score > 0.8
    # Her face lies about from (178, 65) to (275, 180) of 512 x 512 pixels.
    assert overlap(face, Region("face", 1, 178 / 512, 65 / 512, 97 / 512, 115 / 512)) > 0.6


def overlap(one: Region, other: Region) -> float:
    """Intersection over union."""
    width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    common = max(0.0, width) * max(0.0, height)
    return common / (one.width * one.height + other.width * other.height - common)


@pytest.mark.parametrize("size", [(1280, 720), (720, 1280), (720, 720)], ids=["landscape", "portrait", "square"])
@pytest.mark.parametrize("background", ["gravel", "rocket", "coffee"])
@pytest.mark.parametrize("place", [(0.33, 0.33), (0.53, 0.52), (0.05, 0.08)])
def test_a_face_of_a_twentieth_of_the_height_is_found(
    runners: Runners, size: tuple[int, int], background: str, place: tuple[float, float]
) -> None:
    width, height = size
    picture = Image.fromarray(getattr(data, background)()).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    side = round(0.05 * height / (115 / 512))
    at = (round(place[0] * width), round(place[1] * height))
    picture.paste(Image.fromarray(data.astronaut()).resize((side, side), Image.Resampling.LANCZOS), at)
    result = runners("centerface")(picture)
    x, y = (at[0] + 178 / 512 * side) / width, (at[1] + 65 / 512 * side) / height
    expected = Region("face", 1, x, y, 97 / 512 * side / width, 115 / 512 * side / height)
    assert [round(overlap(face, expected), 1) for face in result.regions if overlap(face, expected) > 0.4]
    assert result.scores["face"] >= runners("centerface").manifest.labels[0].threshold
    assert len(result.regions) == 1


@pytest.mark.parametrize("name", ["chelsea", "coffee", "rocket", "coins", "gravel", "brick", "grass", "moon", "page"])
def test_where_there_is_no_face_none_is_found(runners: Runners, name: str) -> None:
    result = runners("centerface")(getattr(data, name)())
    assert result.regions == ()
    assert result.scores["face"] < runners("centerface").manifest.labels[0].threshold


def test_a_page_is_text(runners: Runners) -> None:
    result = runners("ppocr-text")(data.page())
    assert result.scores["text on screen"] > 0.9
    assert len(result.regions) >= 5  # its lines
    assert sum(region.width * region.height for region in result.regions) > 0.3


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "coffee", "rocket", "coins", "gravel", "brick", "grass", "moon"])
def test_where_there_is_no_text_none_is_found(runners: Runners, name: str) -> None:
    result = runners("ppocr-text")(getattr(data, name)())
    assert result.scores["text on screen"] == 0
    assert result.regions == ()


@pytest.mark.parametrize("size", [(1280, 720), (720, 1280)], ids=["landscape", "portrait"])
def test_a_caption_is_text_where_it_is(runners: Runners, size: tuple[int, int]) -> None:
    width, height = size
    picture = Image.fromarray(data.rocket()).resize(size, Image.Resampling.BICUBIC)
    font = ImageFont.load_default(0.06 * min(size))
    where = (width / 2, height * 0.9)
    draw = ImageDraw.Draw(picture)
    words = "Breaking news: nothing"
    draw.text(where, words, font=font, fill="white", stroke_width=3, stroke_fill="black", anchor="mm")
    result = runners("ppocr-text")(picture)
    left, top, right, bottom = draw.textbbox(where, words, font=font, stroke_width=3, anchor="mm")
    found = result.regions
    assert result.scores["text on screen"] > 0.3
    assert min(region.x for region in found) == pytest.approx(left / width, abs=0.03)
    assert max(region.x + region.width for region in found) == pytest.approx(right / width, abs=0.03)
    assert min(region.y for region in found) == pytest.approx(top / height, abs=0.03)
    assert max(region.y + region.height for region in found) == pytest.approx(bottom / height, abs=0.03)
