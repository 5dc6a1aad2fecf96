"""Manifests, and where weights are found."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from models.manifest import FrameFusion
from models.repository import (
    LABELS,
    ZOO,
    DigestError,
    ManifestError,
    ModelRepository,
    NotInstalledError,
    RepositoryError,
    models_folder,
    read_model,
)
from models.spec import ColourOrder, Filter, Fit, Layout

GOOD = """
name = "mine"
version = "2"
licence = "MIT"
source = "my own training"
head = "classification"
outputs = ["y"]
weights = { file = "mine.onnx", sha256 = "HASH" }
[input]
name = "x"
geometry = { canvases = [[224, 224]], fit = "crop", short_side = 256 }
normalisation = { order = "bgr", mean = [1.0, 2.0, 3.0], layout = "nhwc" }
[[labels]]
name = "thing"
classes = [1]
"""


def model(folder: Path, text: str = GOOD, weights: bytes = b"weights") -> Path:
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "model.toml").write_text(text.replace("HASH", hashlib.sha256(weights).hexdigest()))
    return folder / "mine"


def test_a_manifest_is_read_whole(tmp_path: Path) -> None:
    manifest = read_model(model(tmp_path)).manifest
    assert (manifest.name, manifest.version, manifest.licence, manifest.head) == ("mine", "2", "MIT", "classification")
    geometry, normalisation = manifest.inputs.geometry, manifest.inputs.normalisation
    assert geometry.canvases == ((224, 224),)
    assert (geometry.fit, geometry.filter, geometry.short_side) == (Fit.CROP, Filter.BILINEAR, 256)
    assert (normalisation.order, normalisation.layout, normalisation.mean) == (ColourOrder.BGR, Layout.NHWC, (1.0, 2.0, 3.0))
    assert normalisation.scale == (1.0, 1.0, 1.0)
    assert manifest.frame_fusion is FrameFusion.MAX
    assert manifest.labels[0].classes == (1,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('licence = "MIT"', "", "licence: Field required"),
        ('licence = "MIT"', 'license = "MIT"', "Field required|Extra inputs"),
        ('version = "2"', 'version = "2"\nsurprise = 1', "surprise: Extra inputs are not permitted"),
        ("short_side = 256", "short_sid = 256", "short_sid"),
        ("short_side = 256", "short_side = 100", "short_side 100 with fit 'crop', 224 to 4096 allowed"),
        ('fit = "crop"', 'fit = "letterbox"', "short_side 256 with fit 'letterbox', 0 to 0 allowed"),
        ('fit = "crop"', 'fit = "squeeze"', "fit"),
        ("canvases = [[224, 224]]", "canvases = []", "are not sizes of 1 to 4096 pixels"),
        (
            'head = "classification"',
            'head = "magic"',
            "head 'magic' is unknown, known are centerface, classification, text_map, yolo",
        ),
        ('head = "classification"', 'head = "classification"\nrequired = true\ndefault_on = false', "cannot be off by default"),
        (
            'head = "classification"',
            'head = "classification"\nrequired = true\ndefault_on_gpu = false',
            "cannot be off by default",
        ),
        ('"HASH"', '"abc"', "weights.sha256"),
        ('"mine.onnx"', '"../../etc/passwd"', "weights.file"),
        ("classes = [1]", "threshold = 1.5", "labels.0.threshold"),
        ('name = "thing"', 'name = "thing"\nmembers = ["no such"]', r"members \['no such'\]"),
        ("[[labels]]", '[[labels]]\nname = "thing"\nclasses = [0]\n[[labels]]', "label 'thing' is there twice"),
        (
            'outputs = ["y"]',
            'outputs = ["y"]\noptions = { soft_max = 1 }',
            r"options \['soft_max'\] of model 'mine' are unknown.*has softmax",
        ),
        ("classes = [1]", "", "label without classes"),
        ("outputs =", "outputs", "Expected '='"),
    ],
)
def test_a_wrong_manifest_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    folder = model(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ManifestError, match=message) as error:
        read_model(folder)
    assert str(folder / "model.toml") in str(error.value)


def test_weights_beside_their_manifest(tmp_path: Path) -> None:
    folder = model(tmp_path / "zoo")
    (folder / "mine.onnx").write_bytes(b"weights")
    repository = ModelRepository(tmp_path / "models", [tmp_path / "zoo"])
    assert repository.load("mine").path == folder / "mine.onnx"
    assert [installed.manifest.name for installed in repository.load_all()] == ["mine"]


def test_a_model_that_is_off_is_on_where_it_was_named(tmp_path: Path) -> None:
    folder = model(tmp_path, GOOD.replace('version = "2"', 'version = "2"\ndefault_on = false\ndefault_on_gpu = false'))
    (folder / "mine.onnx").write_bytes(b"weights")
    repository = ModelRepository(tmp_path / "models", [tmp_path])
    for gpu in (False, True):
        found = [repository.load_all(names)[0].manifest for names in ([], ["mine"])]
        assert [(manifest.on_gpu() if gpu else manifest).default_on for manifest in found] == [False, True]


@pytest.mark.parametrize(("told", "cpu", "gpu"), [("", True, True), ("default_on = false", False, False)])
def test_what_is_on_by_default_holds_on_a_gpu_too_unless_it_says_otherwise(
    tmp_path: Path, told: str, cpu: bool, gpu: bool
) -> None:
    manifest = read_model(model(tmp_path, GOOD.replace('version = "2"', f'version = "2"\n{told}'))).manifest
    assert (manifest.default_on, manifest.on_gpu().default_on) == (cpu, gpu)
    other = f"{told}\ndefault_on_gpu = {str(not gpu).lower()}"
    manifest = read_model(model(tmp_path / "other", GOOD.replace('version = "2"', f'version = "2"\n{other}'))).manifest
    assert (manifest.default_on, manifest.on_gpu().default_on) == (cpu, not gpu)


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "zoo")
    (folder / "mine.onnx").write_bytes(b"other weights")
    with pytest.raises(DigestError, match="its manifest says"):
        ModelRepository(tmp_path / "models", [tmp_path / "zoo"]).load("mine")


def test_what_is_required_must_be_there(tmp_path: Path) -> None:
    model(tmp_path / "optional")
    model(tmp_path / "required", GOOD.replace('version = "2"', 'version = "2"\nrequired = true'))
    assert ModelRepository(tmp_path, [tmp_path / "optional"]).load_all() == ()
    with pytest.raises(NotInstalledError, match=r"python -m models\.install --only mine"):
        ModelRepository(tmp_path, [tmp_path / "required"]).load_all()
    with pytest.raises(NotInstalledError):
        ModelRepository(tmp_path, [tmp_path / "optional"]).load_all(["mine"])


def test_an_unknown_name_lists_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"unknown model 'yours', known are .*open-nsfw"):
        ModelRepository(tmp_path).load("yours")


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    model(tmp_path / "one")
    model(tmp_path / "two")
    with pytest.raises(ManifestError, match="model 'mine' is already defined by"):
        ModelRepository(tmp_path, [tmp_path / "one", tmp_path / "two"])


def test_where_weights_lie(tmp_path: Path) -> None:
    assert models_folder({"KEYGLANCE_MODELS__FOLDER": str(tmp_path)}) == tmp_path
    assert models_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "keyglance" / "models"
    assert models_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "keyglance" / "models"
    assert models_folder({}) == Path.home() / ".cache" / "keyglance" / "models"


def test_the_class_names_are_those_of_imagenet() -> None:
    rows = tomllib.loads((LABELS / "imagenet.toml").read_text("utf-8"))["classes"]
    names = [row[1] for row in rows]
    assert len(names) == len(set(names)) == 1000
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)  # ILSVRC orders its classes by synset
    known = {
        413: "assault rifle",
        445: "bikini",
        652: "military uniform",
        720: "pill bottle",
        967: "espresso",
        999: "toilet tissue",
    }
    assert {number: names[number] for number in known} == known


def test_the_zoo_says_what_it_is() -> None:
    repository = ModelRepository(Path("nowhere"), [ZOO])
    manifests = {name: entry.manifest for name, entry in repository.entries.items()}
    assert [name for name, manifest in manifests.items() if manifest.required] == ["open-nsfw"]
    assert not any("GPL" in manifest.licence for manifest in manifests.values() if manifest.on_gpu().default_on)
    on = {"centerface", "efficientnet-lite0", "open-nsfw"}
    assert {name for name, manifest in manifests.items() if manifest.default_on} == on
    assert {name for name, manifest in manifests.items() if manifest.on_gpu().default_on} == on | {"ppocr-text"}
    assert manifests["open-nsfw"].inputs.geometry == manifests["efficientnet-lite0"].inputs.geometry  # one resampling for both


def test_proxies_are_the_parents_of_their_members() -> None:
    labels = {label.name: label for label in ModelRepository(Path("nowhere")).entry("efficientnet-lite0").manifest.labels}
    proxies = ["weapon-like object", "military", "alcohol-like object", "drug-related object", "revealing clothing"]
    for name in proxies:
        assert "Proxy" in labels[name].description
        members = [label for label in labels.values() if label.parent == name]
        assert sorted(member.classes[0] for member in members) == sorted(labels[name].classes)
    assert labels["revolver"].parent == "weapon-like object"
    assert len(labels) == 1000 + len(proxies)
