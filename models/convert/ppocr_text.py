"""The PP-OCRv4 text detector (Differentiable Binarization, Liao et al., 2020)."""

from __future__ import annotations

import onnx

from models.convert.fusion import FusedGraph
from models.convert.graph import name_dimensions, serialise


def convert_ppocr_text(published: bytes) -> bytes:
    """`x` [N, 3, H, W], sides multiples of 32; `sigmoid_0.tmp_0` [N, 1, H, W] text probability."""
    model = onnx.load_from_string(published)
    name_dimensions(
        model.graph,
        {"x": ("batch", 3, "height", "width"), "sigmoid_0.tmp_0": ("batch", 1, "height", "width")},
    )
    fused = FusedGraph(model)
    fused.join_hard_swish()
    fused.fold_affine()
    fused.write()
    return serialise(model)
