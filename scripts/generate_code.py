"""Generates the protobuf and gRPC code from protos/: the API's into clients/python, the inner protocol's into server."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTOS = Path("protos")
API = Path("keyglance/v1/keyglance.proto")
INNER = Path("keyglance/internal/engine.proto")


def generate(output: Path) -> None:
    """Writes the API's code, keyglance/v1/*.py and *.pyi, below `output`, which must exist."""
    plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
    _protoc(API, output, ("python", "pyi", "grpc_python", "mypy_grpc"), f"--plugin=protoc-gen-mypy_grpc={plugin}")


def generate_inner(output: Path) -> None:
    """Writes the code of what fronts and engines say to each other, engine_pb2.py and engine_pb2.pyi, into `output`."""
    with tempfile.TemporaryDirectory() as scratch:
        _protoc(INNER, Path(scratch), ("python", "pyi"))
        for path in (Path(scratch) / INNER.parent).iterdir():  # it imports nothing, so it may lie anywhere
            (output / path.name).write_bytes(path.read_bytes())


def _protoc(source: Path, output: Path, kinds: tuple[str, ...], *arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *arguments]
    command += [f"--{kind}_out={output}" for kind in kinds]
    subprocess.run([*command, str(PROTOS / source)], cwd=ROOT, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "clients" / "python", help="folder that gets keyglance/v1")
    parser.add_argument("--inner", type=Path, default=ROOT / "server" / "engine_process", help="folder that gets engine_pb2")
    arguments = parser.parse_args()
    generate(arguments.output.resolve())
    generate_inner(arguments.inner.resolve())
