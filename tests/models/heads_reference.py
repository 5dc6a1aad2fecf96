"""The heads once more, one picture at a time and as plainly as can be: what the batched ones are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from models.manifest import Manifest
from models.result import FrameResult, Region
from models.spec import Placement

Array = NDArray[Any]
STRIDE = 4  # of CenterFace's maps


def classification(manifest: Manifest, outputs: dict[str, Array], placement: Placement) -> FrameResult:
    values = outputs[manifest.outputs[0]].astype(np.float64)
    if manifest.options["softmax"]:
        values = np.exp(values - values.max())
        values /= values.sum()
    scores = {label.name: sum(values[number] for number in label.classes) for label in manifest.labels}
    return FrameResult({name: min(1.0, max(0.0, float(score))) for name, score in scores.items()})


def centerface(manifest: Manifest, outputs: dict[str, Array], placement: Placement) -> FrameResult:
    heat, scale, offset = (outputs[name].astype(np.float64) for name in manifest.outputs)
    (label,) = manifest.labels
    score, boxes, scores = 0.0, [], []
    for row, column in np.ndindex(*heat.shape[1:]):
        y, x = (row + 0.5) * STRIDE, (column + 0.5) * STRIDE
        if not inside(x, y, placement):
            continue
        score = max(score, float(heat[0, row, column]))
        if outputs[manifest.outputs[0]][0, row, column] >= np.float32(manifest.options["box_threshold"]):
            height, width = np.exp(np.minimum(scale[:, row, column], 20.0)) * STRIDE
            y, x = y + offset[0, row, column] * STRIDE, x + offset[1, row, column] * STRIDE
            boxes.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
            scores.append(float(heat[0, row, column]))
    regions = best_boxes(label.name, boxes, scores, placement, manifest.options["overlap"])
    return FrameResult({label.name: min(1.0, score)}, regions)


def yolo(manifest: Manifest, outputs: dict[str, Array], placement: Placement) -> FrameResult:
    values = outputs[manifest.outputs[0]].astype(np.float64)
    shown = [values[:, column] for column in range(values.shape[1]) if inside(*values[:2, column], placement)]
    found: dict[str, float] = {}
    regions: tuple[Region, ...] = ()
    for label in manifest.labels:
        best = [max(column[4 + number] for number in label.classes) for column in shown]
        found[label.name] = min(1.0, max([0.0, *best]))
        chosen = [place for place, score in enumerate(best) if score >= np.float32(manifest.options["box_threshold"])]
        boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in (shown[place][:4] for place in chosen)]
        regions += best_boxes(label.name, boxes, [best[place] for place in chosen], placement, manifest.options["overlap"])
    return FrameResult(found, regions)


def text_map(manifest: Manifest, outputs: dict[str, Array], placement: Placement) -> FrameResult:
    options = manifest.options
    (label,) = manifest.labels
    (probability,) = outputs[manifest.outputs[0]]
    left, top, width, height = (
        side / options["stride"] for side in (placement.left, placement.top, placement.width, placement.height)
    )
    shown = np.zeros(probability.shape, bool)
    shown[max(0, round(top)) : max(0, round(top + height)), max(0, round(left)) : max(0, round(left + width))] = True
    labelled, _ = ndimage.label((probability >= options["threshold"]) & shown)
    texts = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labelled), 1):
        pixels = int((labelled == number).sum())
        mean = float(probability[labelled == number].mean(dtype=np.float64))
        if pixels >= options["least_pixels"] and mean >= options["box_threshold"]:
            margin = pixels * options["grow"] / (2 * (rows.stop - rows.start + columns.stop - columns.start))
            x0, x1 = ((edge - left) / width for edge in (columns.start - margin, columns.stop + margin))
            y0, y1 = ((edge - top) / height for edge in (rows.start - margin, rows.stop + margin))
            x0, x1, y0, y1 = (min(1.0, max(0.0, edge)) for edge in (x0, x1, y0, y1))
            texts.append((pixels, Region(label.name, min(1.0, mean), x0, y0, x1 - x0, y1 - y0)))
    coverage = sum(pixels for pixels, _ in texts) / max(1, int(shown.sum()))
    texts.sort(key=lambda text: -text[0])
    regions = tuple(region for _, region in texts[: int(options["most_regions"])])
    return FrameResult({label.name: coverage / (coverage + options["half_coverage"])}, regions)


def inside(x: float, y: float, placement: Placement) -> bool:
    return placement.left <= x < placement.left + placement.width and placement.top <= y < placement.top + placement.height


def best_boxes(
    label: str, boxes: Sequence[tuple[float, ...]], scores: Sequence[float], placement: Placement, overlap: float
) -> tuple[Region, ...]:
    """Greedy non-maximum suppression over boxes (left, top, right, bottom) in canvas pixels, cut to the picture."""
    kept: list[tuple[float, ...]] = []
    regions = []
    for place in sorted(range(len(boxes)), key=lambda place: -scores[place]):
        x0, x1 = (min(1.0, max(0.0, (boxes[place][side] - placement.left) / placement.width)) for side in (0, 2))
        y0, y1 = (min(1.0, max(0.0, (boxes[place][side] - placement.top) / placement.height)) for side in (1, 3))
        if x1 > x0 and y1 > y0 and all(common_share((x0, y0, x1, y1), other) <= overlap for other in kept):
            kept.append((x0, y0, x1, y1))
            regions.append(Region(label, min(1.0, scores[place]), x0, y0, x1 - x0, y1 - y0))
    return tuple(regions)


def common_share(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide, high = (min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1))
    common = max(0.0, wide) * max(0.0, high)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return common / (area - common)
