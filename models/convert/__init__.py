"""Weights as published, to the ONNX graphs that are served: pure functions from bytes to bytes, the same bytes on every machine.

A converter rewrites the graph only in ways that keep its outputs (up to rounding): symbolic dimensions, constants folded,
layers joined. It runs none of the code that the weights were published with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.convert.centerface import convert_centerface
from models.convert.efficientnet_lite0 import convert_efficientnet_lite0
from models.convert.ppocr_text import convert_ppocr_text


class ConversionError(ValueError):
    """The published file is not what the converter knows."""


def _copy(published: bytes) -> bytes:
    return published


#: The converters by the name that a `model.toml` uses.
CONVERTERS: Mapping[str, Callable[[bytes], bytes]] = {
    "copy": _copy,
    "centerface": convert_centerface,
    "efficientnet-lite0": convert_efficientnet_lite0,
    "ppocr-text": convert_ppocr_text,
}


def convert(name: str, published: bytes) -> bytes:
    """The ONNX model made by converter `name` from the published file.

    Raises `ConversionError` where the converter is unknown or does not know the file.
    """
    converter = CONVERTERS.get(name)
    if converter is None:
        raise ConversionError(f"unknown converter {name!r}, known are {', '.join(sorted(CONVERTERS))}")
    try:
        return converter(published)
    except ConversionError:
        raise
    except Exception as error:  # a parser met bytes that it does not know: which exception depends on the bytes
        raise ConversionError(f"converter {name!r} does not know this file: {error}") from error
