"""Pictures that make a model answer all along its scale: `python -m loadtest.spread_pictures --models FOLDER --out FOLDER`.

For each model nine RGB pictures of 64x64 are found by gradient descent on the network in PyTorch, so that its score (see
`models.precision.scores`) is 0.1, 0.2, … 0.9. The way from picture to tensor is the preprocessing's own, as a linear map. What
is stored is rounded to whole numbers; the scores printed are the network's on that. Needs PyTorch, better with a GPU.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
from numpy.typing import NDArray

from loadtest.torch_graph import torch_module
from models.backends.onnx import OnnxBackend
from models.manifest import Manifest
from models.precision import FILE, rgb_picture, scores
from models.preprocess import Preprocessor, layout, normalise, spans
from models.repository import ModelRepository
from models.resample import operator
from models.spec import ColourOrder, Layout

SIDE = 64
TARGETS = tuple(round(0.1 * step, 1) for step in range(1, 10))
_ATTEMPTS = 60
_CLASSES = (504, 413, 967, 281, 340, 817, 292, 949, 611)  # wanted of a model with many classes, one a picture


def find(torch: Any, manifest: Manifest, weights: Path, *, device: str, steps: int, seed: int) -> tuple[NDArray[np.uint8], Any]:
    """The pictures (n, 64, 64, 3) and their scores."""
    module = torch_module(torch, weights, manifest.outputs).to(device)
    start = np.random.default_rng(seed).uniform(90, 165, (len(TARGETS), 3, SIDE, SIDE)).astype(np.float32)
    pixels = torch.nn.Parameter(torch.from_numpy(start).to(device))
    targets = torch.tensor(TARGETS, device=device)
    optimiser = torch.optim.Adam([pixels], lr=2.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 3.0 * (1.0 - step / steps) + 0.05
        optimiser.zero_grad()
        loss = (_answers(torch, manifest, module(_tensor(torch, manifest, pixels, device))) - _logit(torch, targets)).square()
        loss.sum().backward()
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0.0, 255.0)
    with torch.no_grad():
        rounded = pixels.round()
        result = module(_tensor(torch, manifest, rounded, device))
    first = result if isinstance(result, torch.Tensor) else result[0]
    found = scores(manifest, {manifest.outputs[0]: first.cpu().numpy()})
    return rounded.permute(0, 2, 3, 1).to(torch.uint8).cpu().numpy(), found


def _logit(torch: Any, probability: Any) -> Any:
    clipped = probability.clamp(1e-6, 1 - 1e-6)
    return torch.log(clipped) - torch.log1p(-clipped)


def _answers(torch: Any, manifest: Manifest, result: Any) -> Any:
    """The logit of each picture's score, differentiable; of many classes the one that the picture is to show."""
    first = result if isinstance(result, torch.Tensor) else result[0]
    classes = sorted({number for label in manifest.labels for number in label.classes})
    if not classes:
        return _logit(torch, first.flatten(1).amax(dim=1))
    probabilities = torch.softmax(first, dim=1) if manifest.options.get("softmax") else first
    if len(classes) == 1:
        return _logit(torch, probabilities[:, classes[0]])
    wanted = torch.tensor(_CLASSES, device=first.device)
    return _logit(torch, probabilities.gather(1, wanted[:, None])[:, 0])


def mended(manifest: Manifest, weights: Path, pictures: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The pictures with those that missed their target replaced, and the scores of all, by ONNX Runtime on the CPU.

    A miss is replaced by a blend of two pictures, one that scores higher and a flat or blurred one that scores lower; for a text
    detector by drawn text, its contrast the blend.
    """
    backend = OnnxBackend(manifest, weights, threads=2)
    backend.load()
    preprocessor = Preprocessor()

    def score(rgb: NDArray[np.uint8]) -> float:
        rendered = preprocessor.render(rgb_picture(rgb), manifest.inputs.geometry)
        return float(scores(manifest, backend.run(normalise(rendered, manifest.inputs.normalisation)[None]))[0])

    found = np.array([score(rgb) for rgb in pictures])
    missed = [place for place, target in enumerate(TARGETS) if abs(found[place] - target) >= 0.03]
    candidates: list[tuple[float, NDArray[np.uint8]]] = []
    for place in missed:
        low, high = _ends(manifest, pictures[place], place)
        below, above = 0.0, 1.0
        for _ in range(12):
            middle = (below + above) / 2
            rgb = np.rint(low + middle * (high - low)).clip(0, 255).astype(np.uint8)
            candidates.append((score(rgb), rgb))
            if candidates[-1][0] < TARGETS[place]:
                below = middle
            else:
                above = middle
        # Whole numbers are coarse where the blend is faint: a little noise gives values between.
        rng = np.random.default_rng(place)
        for _ in range(_ATTEMPTS):
            noise = rng.normal(0, rng.uniform(0, 3), low.shape)
            rgb = np.rint(low + above * rng.uniform(0.8, 1.6) * (high - low) + noise).clip(0, 255).astype(np.uint8)
            candidates.append((score(rgb), rgb))
    result = pictures.copy()
    for place in missed:
        found[place], result[place] = min(candidates, key=lambda one: abs(one[0] - TARGETS[place]))
    return result, found


def _ends(manifest: Manifest, picture: NDArray[np.uint8], place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    flat = np.full((SIDE, SIDE, 3), 128.0)
    if manifest.head != "text_map":
        return flat, picture.astype(np.float64)
    drawn = PIL.Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    text = ("BREAKING\nNEWS\n{}", "SALE {}\nTODAY\nONLY", "Page {}\nof the\nbook")[place % 3].format(place + 11)
    PIL.ImageDraw.Draw(drawn).text((2, 4 + 3 * place), text, fill=(250, 240 - 20 * place, 230))
    return flat, np.asarray(drawn, np.float64)


def _tensor(torch: Any, manifest: Manifest, pixels: Any, device: str) -> Any:
    """The network's input for RGB pixels (n, 3, 64, 64), as the preprocessing makes it."""
    geometry, normalisation = manifest.inputs.geometry, manifest.inputs.normalisation
    picture = rgb_picture(np.zeros((SIDE, SIDE, 3), np.uint8))
    placed = layout(geometry, SIDE, SIDE)
    across, down = spans(placed, SIDE, SIDE, picture.orientation)
    maps: list[Any] = []
    for span in (down, across):
        one = operator(span, geometry.filter, samples=SIDE)
        dense = np.zeros((one.outputs, SIDE), np.float32)
        dense[:, one.reach] = one.weights.toarray()
        maps.append(torch.from_numpy(dense).to(device))
    canvas = (maps[0] @ pixels @ maps[1].T).clamp(0.0, 255.0)
    if tuple(canvas.shape[2:]) != (placed.canvas_height, placed.canvas_width):
        raise ValueError(f"model {manifest.name!r}: a square picture does not fill its canvas")
    if normalisation.order is ColourOrder.BGR:
        canvas = canvas.flip(1)
    mean = torch.tensor(normalisation.mean, device=device)[:, None, None]
    scale = torch.tensor(normalisation.scale, device=device)[:, None, None]
    values = (canvas - mean) * scale
    return values if normalisation.layout is Layout.NCHW else values.permute(0, 2, 3, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Finds and stores the pictures of every installed default model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="where the weights lie")
    parser.add_argument("--out", type=Path, required=True, help="gets a folder for each model")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=["open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text"])
    options = parser.parse_args(arguments)
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for model in ModelRepository(options.models).load_all(options.only):
        pictures, found = find(torch, model.manifest, model.path, device=device, steps=options.steps, seed=0)
        pictures, found = mended(model.manifest, model.path, pictures)
        folder = options.out / model.manifest.name
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / FILE, pictures=pictures)
        print(model.manifest.name, "scores", np.round(found, 3).tolist(), flush=True)


if __name__ == "__main__":
    main()
