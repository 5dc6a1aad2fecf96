"""What tests on a GPU share; they skip, saying why, where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.engines import CLIPS, made


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy with a usable device."""
    module = pytest.importorskip("cupy", reason="no CuPy")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    if count < 1:
        pytest.skip("no GPU")
    return module


@pytest.fixture(scope="session")
def clips() -> dict[str, bytes]:
    """Clips of three keyframes by name."""
    return {name: made(**options) for name, options in CLIPS.items()}
