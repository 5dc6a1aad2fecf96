"""The precision in which a model runs on a GPU: float16 where its manifest allows it and the check at start agrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from decoder_pool.picture import Picture
from models.backend import Backend, Outputs
from models.backends.device import Precision
from models.manifest import Manifest
from models.precision import PrecisionCheck, check_precision
from models.preprocess import Preprocessor, normalise

#: Makes a backend, not loaded yet, for this manifest and precision, whose one batch bucket is the third argument.
MakeBackend = Callable[[Manifest, Precision, int], Backend]


def choose_precision(
    manifest: Manifest, pictures: Sequence[Picture], make: MakeBackend
) -> tuple[Precision, PrecisionCheck | None]:
    """The precision, and the check that was made: none where the manifest does not allow float16.

    `pictures` are the model's own (`models.precision.spread_pictures`), all of one canvas. Without any the check fails. To be
    called on the thread that infers, before anything else uses the device.
    """
    if not manifest.half_precision:
        return Precision.FLOAT32, None
    if not pictures:
        return Precision.FLOAT32, PrecisionCheck(dict.fromkeys(manifest.outputs, float("inf")), (), float("inf"))
    preprocessor = Preprocessor()
    frames = [preprocessor.render(picture, manifest.inputs.geometry) for picture in pictures]
    height, width = frames[0].rgb.shape[:2]
    geometry = dataclasses.replace(manifest.inputs.geometry, canvases=((height, width),))
    single = dataclasses.replace(manifest, inputs=dataclasses.replace(manifest.inputs, geometry=geometry))
    batch = np.stack([normalise(frame, manifest.inputs.normalisation) for frame in frames])

    def outputs(precision: Precision) -> Outputs:
        backend = make(single, precision, len(pictures))
        try:
            backend.load()
            backend.warm([len(pictures)])
            return backend.run(batch)
        finally:
            backend.close()

    check = check_precision(manifest, outputs(Precision.FLOAT32), outputs(Precision.FLOAT16))
    return (Precision.FLOAT16 if check.passed else Precision.FLOAT32), check
