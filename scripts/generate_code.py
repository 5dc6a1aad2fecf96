"""Generates the protobuf and gRPC code from protos/ into clients/python (or elsewhere)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTO = Path("protos/keyglance/v1/keyglance.proto")


def generate(output: Path) -> None:
    """Writes keyglance/v1/*.py and *.pyi below `output`, which must exist."""
    plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parts[0]}"]
    command += [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    command += [f"--plugin=protoc-gen-mypy_grpc={plugin}", str(PROTO)]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "clients" / "python", help="folder that gets keyglance/v1")
    generate(parser.parse_args().output.resolve())
