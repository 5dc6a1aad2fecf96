"""`check_install.py cpu|gpu|gpu-torch`: whether an environment has what the server needs, as far as no GPU is needed to tell.

Where an image is built there is no GPU and no driver. What can be wrong nevertheless is found here: both distributions of ONNX
Runtime, a library that no package brings, CUDA headers that CuPy does not find, a kernel that does not compile. What the driver
brings (`DRIVER`) stays open. Run by `scripts/install.sh` in the environment itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from models.preprocess_cuda import source
from models.repository import ModelRepository

FORMS = ("cpu", "gpu", "gpu-torch")
#: Libraries of NVIDIA's driver; in a container its toolkit brings them, the last two with the capability `video`.
DRIVER = frozenset({"libcuda.so.1", "libnvidia-encode.so.1", "libnvcuvid.so.1"})
#: Optional parts of packages, with needs of their own, that the server does not use.
UNUSED = frozenset({"libonnxruntime_providers_tensorrt.so"})
#: Turing, the oldest that CUDA 13 knows, and Hopper.
ARCHITECTURES = ("sm_75", "sm_90")


def version_of(distribution: str) -> str | None:
    """The installed version, None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def runtime_problems(form: str) -> Iterator[str]:
    """Whether there is one ONNX Runtime, the form's."""
    wanted, foreign = ("onnxruntime", "onnxruntime-gpu") if form == "cpu" else ("onnxruntime-gpu", "onnxruntime")
    if version_of(wanted) is None:
        yield f"{wanted} is not installed"
    if version_of(foreign) is not None:
        yield f"{foreign} is installed: its files and those of {wanted} are the same, one writes over the other"
    runtime = importlib.import_module("onnxruntime")
    provider = "CPUExecutionProvider" if form == "cpu" else "CUDAExecutionProvider"
    providers = runtime.get_available_providers()
    if provider not in providers:
        yield f"onnxruntime {runtime.__version__} has no {provider}, only {', '.join(providers)}"


def folder_of(module: str) -> Path | None:
    """The folder of a package, which is not imported; None where it is not there."""
    spec = importlib.util.find_spec(module)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def library_problems() -> Iterator[str]:
    """Whether each library that the GPU server loads finds all those that it needs, but for the driver's."""
    nvidia = importlib.util.find_spec("nvidia")
    roots = list(nvidia.submodule_search_locations or ()) if nvidia else []
    folders = [str(folder) for root in roots for folder in Path(root).glob("*/lib")]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(folders)}
    for module in ("onnxruntime", "PyNvVideoCodec"):  # CuPy takes its own out of the packages when they are first used
        if (folder := folder_of(module)) is None:
            yield f"{module} is not installed"
            continue
        for library in sorted(folder.rglob("*.so")):
            if library.name in UNUSED:
                continue
            told = subprocess.run(["ldd", library], env=environment, capture_output=True, text=True, check=False).stdout
            missing = {line.split()[0] for line in told.splitlines() if line.endswith("=> not found")} - DRIVER
            if missing:
                yield f"{module}: {library.name} needs {', '.join(sorted(missing))}, which is not there"


def kernel_problems() -> Iterator[str]:
    """Whether CuPy finds NVRTC and CUDA's headers, and NVRTC compiles what the models in the zoo need."""
    if folder_of("cupy") is None:
        yield "cupy is not installed"
        return
    cuda: Any = importlib.import_module("cupy.cuda")
    nvrtc, root = cuda.nvrtc, cuda.get_cuda_path()
    if root is None or not Path(root, "include", "cuda_fp16.h").is_file():
        yield f"CuPy finds no headers of CUDA (its folder: {root})"
        return
    for name, entry in ModelRepository(Path()).entries.items():
        for canvas in entry.manifest.inputs.geometry.canvases:
            for dtype in ("float32", "float16"):
                for architecture in ARCHITECTURES:
                    options = ("--std=c++17", f"-I{root}/include", f"-arch={architecture}")
                    program = nvrtc.createProgram(source(entry.manifest.inputs, canvas, dtype), "preprocess.cu", (), ())
                    try:
                        nvrtc.compileProgram(program, options)
                    except nvrtc.NVRTCError:
                        yield f"{name}: its {dtype} kernel for {architecture}: {nvrtc.getProgramLog(program)}"
                    finally:
                        nvrtc.destroyProgram(program)


def torch_problems() -> Iterator[str]:
    """Whether PyTorch is one for CUDA 13, as all other libraries are."""
    torch = importlib.import_module("torch")
    if not str(torch.version.cuda).startswith("13."):
        yield f"torch {torch.__version__} is for CUDA {torch.version.cuda}, 13 is needed"


def problems(form: str) -> Iterator[str]:
    """One line for each thing that is wrong."""
    for distribution in ("keyglance", "keyglance-server", "av"):
        if version_of(distribution) is None:
            yield f"{distribution} is not installed"
    yield from runtime_problems(form)
    if form != "cpu":
        yield from library_problems()
        yield from kernel_problems()
    if form == "gpu-torch":
        yield from torch_problems()


def main(arguments: list[str]) -> int:
    """Prints what is wrong; 0 where nothing is."""
    if len(arguments) != 1 or arguments[0] not in FORMS:
        print(f"usage: check_install.py {'|'.join(FORMS)}", file=sys.stderr)
        return 2
    (form,) = arguments
    found = list(problems(form))
    for problem in found:
        print(f"check_install.py: {problem}", file=sys.stderr)
    if not found:
        print(f"{sys.prefix}: everything that the form {form} needs is there" + ("" if form == "cpu" else ", but for the driver"))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
