"""CenterFace (Xu et al., 2019): its published graph is declared for one fixed shape although it works at any multiple of 32."""

from __future__ import annotations

import onnx

from models.convert.graph import drop_initializers_from_inputs, name_dimensions, serialise


def convert_centerface(published: bytes) -> bytes:
    """Symbolic dimensions; the landmark output, which nothing reads, goes away.

    `input.1` [N, 3, H, W] RGB 0 to 255; at a quarter of that size `537` heatmap, `538` scale, `539` offset.
    """
    model = onnx.load_from_string(published)
    graph = model.graph
    drop_initializers_from_inputs(graph)
    kept = [output for output in graph.output if output.name != "540"]
    nodes = [node for node in graph.node if node.output[0] != "540"]
    del graph.output[:], graph.node[:]
    graph.output.extend(kept)
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    weights = [weight for weight in graph.initializer if weight.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    small = ("height/4", "width/4")
    name_dimensions(
        graph,
        {
            "input.1": ("batch", 3, "height", "width"),
            "537": ("batch", 1, *small),
            "538": ("batch", 2, *small),
            "539": ("batch", 2, *small),
        },
    )
    return serialise(model)
