"""What preprocessing and models take on a GPU, and how near the CPU's they are: `python -m loadtest.gpu_models --models FOLDER`.

Sections, each a JSON file in the results folder: `parity` (pixels against the float64 reference), `preprocess` (one launch a
batch), `networks` (models alone by bucket, precision, with and without CUDA graphs), `overlap` (one stream against several, with
and without preprocessing), `precision` (raw outputs of GPU and CPU on pictures whose scores spread), `torch` (EfficientNet-Lite0
in PyTorch). Times are medians in milliseconds, on the GPU by events unless the name says otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoder_pool.picture import Picture
from keyglance.video import Colour, Orientation
from loadtest import report
from loadtest.torch_graph import save_program, save_script, torch_module
from models.backends.device import BUCKETS, CudaBackend, Precision
from models.backends.onnx import OnnxBackend
from models.backends.onnx_cuda import OnnxCudaBackend
from models.backends.torch_export import TorchBackend
from models.manifest import Manifest
from models.precision import check_precision, spread_pictures
from models.preprocess import Preprocessor, layout, normalise
from models.preprocess_cuda import CudaPreprocessor, Located, locate
from models.repository import ZOO, InstalledModel, ModelRepository
from models.spec import Filter, Fit, Geometry, InputSpec, Layout, Normalisation

NAMES = ("open-nsfw", "efficientnet-lite0", "centerface", "ppocr-text")
_SHIFTS = {"400": (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "rgb": (0, 0)}
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every section is given."""

    cupy: Any
    models: tuple[InstalledModel, ...]

    def uploaded(self, picture: Picture) -> Picture:
        """The picture with its planes on the GPU."""
        return dataclasses.replace(picture, planes=tuple(self.cupy.asarray(plane) for plane in picture.planes))

    @functools.cached_property
    def delay(self) -> Any:
        """A kernel that does nothing for some clock cycles."""
        code = 'extern "C" __global__ void delay(long long cycles) { for (long long t = clock64(); clock64() - t < cycles;) {} }'
        return self.cupy.RawKernel(code, "delay")

    def used_mib(self) -> float:
        """Memory of the device in use, by anybody."""
        free, total = self.cupy.cuda.runtime.memGetInfo()
        return round(float(total - free) / 2**20, 1)

    def median_ms(
        self, stream: Any, work: Callable[[], object], *, times: int = 40, warm: int = 5, hide_host: bool = False
    ) -> float:
        """The median of `work` enqueued on `stream`, by events before and behind it.

        `hide_host` keeps the stream busy meanwhile, so that what the host takes to enqueue does not show.
        """
        for _ in range(warm):
            work()
        stream.synchronize()
        samples: list[float] = []
        for _ in range(times):
            begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            if hide_host:
                with stream:
                    self.delay((1,), (1,), (np.int64(6_000_000),))
            begin.record(stream)
            work()
            end.record(stream)
            end.synchronize()
            samples.append(self.cupy.cuda.get_elapsed_time(begin, end))
        return round(statistics.median(samples), 4)


def wall_ms(work: Callable[[], object], *, times: int = 40, warm: int = 5) -> float:
    """The median of `work` by the clock on the wall."""
    samples: list[float] = []
    for number in range(warm + times):
        begin = time.perf_counter()
        work()
        if number >= warm:
            samples.append(1000 * (time.perf_counter() - begin))
    return round(statistics.median(samples), 4)


def noise(
    width: int, height: int, chroma_format: str = "420", *, seed: int = 0, semi_planar: bool = True, **rest: Any
) -> Picture:
    """A picture of noise over all codes; 4:2:0 semi-planar as NVDEC gives it, unless said otherwise."""
    rng = np.random.default_rng(seed)
    depth = rest.get("bit_depth", 8)
    across, down = _SHIFTS[chroma_format]
    shapes = [(height, width)] + [(-(-height >> down), -(-width >> across))] * (0 if chroma_format == "400" else 2)
    planes: list[Any] = [rng.integers(0, 1 << depth, shape, np.uint16) for shape in shapes]
    planes = [plane << (16 - depth) for plane in planes] if depth > 8 else [plane.astype(np.uint8) for plane in planes]
    if chroma_format == "420" and semi_planar:
        planes = [planes[0], np.stack(planes[1:], axis=-1)]
    return Picture(
        tuple(planes), width, height, chroma_format=chroma_format, chroma_shift=(across, down), msb_aligned=depth > 8, **rest
    )


def smooth(width: int, height: int, seed: int) -> Picture:
    """NV12 with soft shapes: what a network may see without being driven to its limits."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 210, (3, 12, 12)).astype(np.float64)
    planes = []
    for values, (rows, columns) in zip(
        coarse, [(height, width), (height // 2, width // 2), (height // 2, width // 2)], strict=True
    ):
        y, x = (np.linspace(0, 11, length) for length in (rows, columns))
        lines = np.stack([np.interp(x, np.arange(12), row) for row in values])
        planes.append(np.stack([np.interp(y, np.arange(12), column) for column in lines.T], axis=1).astype(np.uint8))
    return Picture((planes[0], np.stack(planes[1:], axis=-1)), width, height)


# Pixels


def _every_kind() -> dict[str, list[Picture]]:
    turned = [Orientation(degrees, mirrored) for degrees in (0, 90, 180, 270) for mirrored in (False, True)]
    return {
        "NV12 by size": [
            noise(*size, seed=n)
            for n, size in enumerate(
                [(1280, 720), (1920, 1080), (640, 360), (641, 359), (3840, 2160), (176, 144), (64, 48), (16, 8)]
            )
        ],
        "NV12 by orientation": [
            noise(*((360 + n, 640) if each.swaps_sides else (640 + n, 360)), seed=n, orientation=each)
            for n, each in enumerate(turned)
        ],
        "NV12 by matrix and siting": [
            noise(320, 180, seed=n, colour=Colour(matrix=matrix, chroma_location=n % 6))
            for n, matrix in enumerate([1, 4, 5, 6, 7, 8, 9, 12])
        ],
        "P010": [noise(1280, 720, seed=n, bit_depth=10, colour=Colour(9, 14, 9)) for n in range(2)],
        "P010 PQ": [noise(640, 360, seed=n, bit_depth=10, colour=Colour(9, 16, 9)) for n in range(2)],
        "P010 HLG": [noise(640, 360, seed=n, bit_depth=10, colour=Colour(9, 18, 9)) for n in range(2)],
        "4:4:4": [noise(640, 362, "444", seed=n, bit_depth=8 + 2 * n) for n in range(2)],
        "grey": [noise(640, 360, "400", seed=1)],
        "planar 4:2:0, 4:2:2, RGB": [noise(640, 360, "420", semi_planar=False), noise(640, 360, "422"), noise(640, 360, "rgb")],
    }


def parity(bench: Bench, figures: Figures) -> None:
    """The largest distance of any pixel from the float64 reference, 0 to 255, all kinds of pictures in one launch."""
    reference = importlib.import_module("tests.models.reference")
    inputs = {model.manifest.name: model.manifest.inputs for model in bench.models}
    inputs["bicubic stretch"] = InputSpec("x", Geometry(((200, 300),), Fit.STRETCH, Filter.BICUBIC), Normalisation())
    inputs["box letterbox"] = InputSpec("x", Geometry(((123, 217),), Fit.LETTERBOX, Filter.BOX), Normalisation())
    kinds = [(kind, picture) for kind, pictures in _every_kind().items() for picture in pictures]
    figures |= {"allowed": 1.0, "pictures": len(kinds), "largest": 0.0, "by input": {}}
    for name, spec in inputs.items():
        scale = np.array(spec.normalisation.scale)
        channels_last = spec.normalisation.layout is Layout.NHWC
        found: dict[str, dict[str, float]] = {}
        for dtype in ("float32", "float16"):
            preprocessor = CudaPreprocessor(spec, largest_batch=len(kinds), dtype=dtype)
            stream = bench.cupy.cuda.Stream(non_blocking=True)
            by_canvas: dict[tuple[int, int], list[tuple[str, Picture]]] = {}
            for kind, picture in kinds:
                placed = layout(spec.geometry, *picture.shown_size)
                by_canvas.setdefault((placed.canvas_height, placed.canvas_width), []).append((kind, picture))
            for canvas, members in by_canvas.items():
                frame = (*canvas, 3) if channels_last else (3, *canvas)
                tensor = bench.cupy.full((len(members), *frame), np.nan, dtype)
                uploaded = [bench.uploaded(picture) for _, picture in members]
                bench.cupy.cuda.Device().synchronize()
                preprocessor.render(uploaded, tensor, stream)
                stream.synchronize()
                for (kind, picture), values in zip(members, tensor.get().astype(np.float64), strict=True):
                    expected = reference.normalise(reference.render(picture, spec.geometry), spec.normalisation)
                    error = float((np.abs(values - expected) / (scale if channels_last else scale[:, None, None])).max())
                    kinds_found = found.setdefault(dtype, {})
                    # not max(): a NaN has to show
                    kinds_found[kind] = error if not error <= kinds_found.get(kind, 0.0) else kinds_found[kind]
                    figures["largest"] = error if not error <= figures["largest"] else figures["largest"]
        figures["by input"][name] = {dtype: {k: round(v, 5) for k, v in kinds_.items()} for dtype, kinds_ in found.items()}


def preprocess(bench: Bench, figures: Figures) -> None:
    """One launch by model, batch and kind of picture: on the GPU, and the Python that makes it."""
    figures["note"] = "gpu_ms: copy of descriptions and launch; host_ms: enqueuing, pictures located before; locate_ms: that"
    sources: dict[str, Callable[[int], Picture]] = {
        "720p NV12": lambda n: noise(1280, 720, seed=n),
        "720p NV12 turned 90": lambda n: noise(1280, 720, seed=n, orientation=Orientation(90)),
        "1080p NV12": lambda n: noise(1920, 1080, seed=n),
        "2160p NV12": lambda n: noise(3840, 2160, seed=n),
        "1080p P010 PQ": lambda n: noise(1920, 1080, seed=n, bit_depth=10, colour=Colour(9, 16, 9)),
    }
    for kind, make in sources.items():
        distinct = [bench.uploaded(make(n)) for n in range(2)]
        copies = 64 if kind == "720p NV12" else 16
        # Every picture has memory of its own, so that no cache holds the batch.
        pictures = [
            dataclasses.replace(distinct[n % 2], planes=tuple(plane.copy() for plane in distinct[n % 2].planes))
            for n in range(copies)
        ]
        bench.cupy.cuda.Device().synchronize()
        for model in bench.models:
            for dtype in ("float32", "float16"):
                preprocessor = CudaPreprocessor(model.manifest.inputs, largest_batch=64, dtype=dtype)
                canvas = preprocessor.canvas(pictures[0])
                nhwc = model.manifest.inputs.normalisation.layout is Layout.NHWC
                tensor = bench.cupy.empty((64, *((*canvas, 3) if nhwc else (3, *canvas))), dtype)
                stream = bench.cupy.cuda.Stream(non_blocking=True)
                bench.cupy.cuda.Device().synchronize()
                for size in [size for size in BUCKETS if size <= copies]:
                    batch = _located(pictures[:size])
                    name = f"{kind}, {model.manifest.name} {canvas[0]}x{canvas[1]} {dtype}"

                    def enqueue(
                        preprocessor: CudaPreprocessor = preprocessor,
                        batch: Any = batch,
                        tensor: Any = tensor,
                        stream: Any = stream,
                    ) -> None:
                        preprocessor.render(batch, tensor, stream)

                    figures.setdefault(name, {})[size] = {
                        "gpu_ms": bench.median_ms(stream, enqueue, hide_host=True),
                        "host_ms": _host_ms(enqueue, stream),
                        "locate_ms": wall_ms(functools.partial(_located, pictures[:size])),
                    }
                    stream.synchronize()


def _located(pictures: Sequence[Picture]) -> list[Located]:
    return [locate(picture) for picture in pictures]


def _host_ms(enqueue: Callable[[], object], stream: Any) -> float:
    """What the calling thread is busy for, with the GPU idle at the start of each."""
    samples: list[float] = []
    for _ in range(25):
        begin = time.perf_counter()
        enqueue()
        samples.append(1000 * (time.perf_counter() - begin))
        stream.synchronize()
    return round(statistics.median(samples), 4)


# Networks


def one_canvas(manifest: Manifest, canvas: tuple[int, int]) -> Manifest:
    """The manifest with this canvas alone."""
    geometry = dataclasses.replace(manifest.inputs.geometry, canvases=(canvas,))
    return dataclasses.replace(manifest, inputs=dataclasses.replace(manifest.inputs, geometry=geometry))


def _warm(backend: CudaBackend) -> CudaBackend:
    backend.load()
    backend.warm([1])
    return backend


def _network_ms(bench: Bench, backend: CudaBackend, size: int) -> float:
    network = backend._networks[backend.manifest.inputs.geometry.canvases[0], size]
    return bench.median_ms(backend.stream, network.enqueue, times=25, warm=3)


def _filled(backend: CudaBackend, size: int) -> None:
    """Values as a network sees them, not zeros, on which a GPU may be faster."""
    canvas = backend.manifest.inputs.geometry.canvases[0]
    tensor = backend.input(canvas, size)
    spec = backend.manifest.inputs
    one: npt.NDArray[Any] = normalise(Preprocessor().render(smooth(1280, 720, 1), spec.geometry), spec.normalisation)
    tensor.set(np.broadcast_to(one, tensor.shape).astype(tensor.dtype), stream=backend.stream)
    backend.stream.synchronize()


def networks(bench: Bench, figures: Figures) -> None:
    """Each model alone, without preprocessing and copies of results: median ms by bucket."""
    plain: Mapping[str, Any] = {}
    nchw = {"provider_options": {"prefer_nhwc": "0"}}
    searches = {name: {"provider_options": {"cudnn_conv_algo_search": name.upper()}} for name in ("heuristic", "exhaustive")}
    variants: list[tuple[str, Precision, bool, Mapping[str, Any], tuple[int, ...]]] = [
        ("float32, graph", Precision.FLOAT32, True, plain, BUCKETS),
        ("tf32, graph", Precision.TF32, True, plain, BUCKETS),
        ("float16, graph", Precision.FLOAT16, True, plain, BUCKETS),
        ("float16, no graph", Precision.FLOAT16, False, plain, BUCKETS),
        ("float32, no graph", Precision.FLOAT32, False, plain, (8, 64)),
        ("float16 NCHW, graph", Precision.FLOAT16, True, nchw, (8, 64)),
        ("float32, heuristic search, graph", Precision.FLOAT32, True, searches["heuristic"], (8, 64)),
        ("float16, exhaustive search, graph", Precision.FLOAT16, True, searches["exhaustive"], (8, 64)),
    ]
    for model in bench.models:
        manifest = one_canvas(model.manifest, model.manifest.inputs.geometry.canvases[0])
        for label, precision, graphs, options, buckets in variants:
            key = f"{manifest.name} {'x'.join(map(str, manifest.inputs.geometry.canvases[0]))}, {label}"
            before = bench.used_mib()
            begin = time.perf_counter()
            try:
                backend = OnnxCudaBackend(manifest, model.path, buckets=buckets, precision=precision, graphs=graphs, **options)
                _warm(backend)
                seconds = round(time.perf_counter() - begin, 2)
                memory = round(bench.used_mib() - before, 1)
                _filled(backend, buckets[-1])
                figures[key] = {size: _network_ms(bench, backend, size) for size in buckets}
                figures[key] |= {"start_s": seconds, "memory_mib": memory}
                backend.close()
            except Exception as error:  # a variant that cannot be made is a result too
                figures[key] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(key, figures[key], flush=True)


def overlap(bench: Bench, figures: Figures) -> None:
    """All models on one batch of 720p pictures: one behind the other against streams of their own."""
    figures["unit"] = "median wall ms, the host waits for everything"
    pictures = [locate(bench.uploaded(smooth(1280, 720, n))) for n in range(8)]
    chosen = {
        "float32": dict.fromkeys(NAMES, Precision.FLOAT32),
        "float16 where the manifest allows it": {
            model.manifest.name: Precision.FLOAT16 if model.manifest.half_precision else Precision.FLOAT32
            for model in bench.models
        },
    }
    for label, precisions in chosen.items():
        backends, preprocessors = [], []
        before = bench.used_mib()
        for model in bench.models:
            manifest = one_canvas(model.manifest, model.manifest.inputs.geometry.canvases[0])
            backend = _warm(OnnxCudaBackend(manifest, model.path, precision=precisions[manifest.name]))
            backends.append(backend)
            preprocessors.append(CudaPreprocessor(manifest.inputs, largest_batch=64, dtype=backend.dtype.name))
        figures[label] = {"memory_mib": round(bench.used_mib() - before, 1)}
        for count, group in (("four models", slice(0, 4)), ("three models (no text)", slice(0, 3))):
            members = list(zip(backends[group], preprocessors[group], strict=True))
            for size in (4, *BUCKETS):
                batch = [pictures[n % len(pictures)] for n in range(size)]
                found = figures[label].setdefault(count, {}).setdefault(size, {})
                for what, given in (("networks", None), ("pictures to results", batch)):
                    for streams in ("one stream", "a stream each"):
                        work = functools.partial(_all, bench, members, size, given, serial=streams == "one stream")
                        found[f"{what}, {streams}"] = wall_ms(work)
            print(label, count, figures[label][count], flush=True)
        for backend in backends:
            backend.close()


def _all(
    bench: Bench,
    members: Sequence[tuple[CudaBackend, CudaPreprocessor]],
    size: int,
    batch: Sequence[Located] | None,
    *,
    serial: bool,
) -> None:
    launched = []
    previous: Any = None
    for backend, preprocessor in members:
        canvas = backend.manifest.inputs.geometry.canvases[0]
        if serial and previous is not None:
            backend.stream.wait_event(previous)
        if batch is None:
            backend._networks[canvas, backend._bucket(size)].enqueue()
        else:
            preprocessor.render(batch, backend.input(canvas, size), backend.stream)
            launched.append(backend.launch(canvas, size))
        previous = bench.cupy.cuda.Event(disable_timing=True)
        previous.record(backend.stream)
    for each in launched:
        each.outputs()
        each.release()
    for backend, _ in members:
        backend.stream.synchronize()


# Against the CPU


def precision(bench: Bench, figures: Figures) -> None:
    """Raw outputs against ONNX Runtime on the CPU in float32, on the spread pictures; `passed` is `models.precision`'s word."""
    for model in bench.models:
        pictures = spread_pictures(ZOO / model.manifest.name)
        tensors, canvas = _tensors(model.manifest, pictures)
        manifest = one_canvas(model.manifest, canvas)
        cpu = OnnxBackend(manifest, model.path, threads=8)
        cpu.load()
        exact = cpu.run(tensors)
        for each in Precision:
            backend = OnnxCudaBackend(manifest, model.path, buckets=(16,), precision=each)
            _warm(backend)
            for origin, outputs in (
                ("tensors of the CPU", backend.run(tensors)),
                ("pictures on the GPU", _through_gpu(bench, backend, manifest, pictures)),
            ):
                check = check_precision(manifest, exact, outputs)
                key = f"{manifest.name}, {each}, {origin}"
                figures[key] = {
                    "moves": {name: round(move, 6) for name, move in check.moves.items()},
                    "score_move": round(check.score_move, 6),
                    "scores": [round(score, 4) for score in check.scores],
                    "passed": check.passed,
                }
                print(key, figures[key], flush=True)
            backend.close()
        zeros = {name: np.zeros_like(values) for name, values in exact.items()}
        figures[f"{manifest.name}, says 0 to everything"] = {"passed": check_precision(manifest, zeros, zeros).passed}


def _tensors(manifest: Manifest, pictures: Sequence[Picture]) -> tuple[npt.NDArray[Any], tuple[int, int]]:
    preprocessor = Preprocessor()
    rendered = [preprocessor.render(picture, manifest.inputs.geometry) for picture in pictures]
    height, width = rendered[0].rgb.shape[:2]
    return np.stack([normalise(each, manifest.inputs.normalisation) for each in rendered]), (height, width)


def _through_gpu(bench: Bench, backend: CudaBackend, manifest: Manifest, pictures: Sequence[Picture]) -> Mapping[str, Any]:
    preprocessor = CudaPreprocessor(manifest.inputs, largest_batch=16, dtype=backend.dtype.name)
    uploaded = [bench.uploaded(picture) for picture in pictures]
    bench.cupy.cuda.Device().synchronize()
    canvas = manifest.inputs.geometry.canvases[0]
    preprocessor.render(uploaded, backend.input(canvas, len(uploaded)), backend.stream)
    launched = backend.launch(canvas, len(uploaded))
    outputs = {name: values.copy() for name, values in launched.outputs().items()}
    launched.release()
    return outputs


def pytorch(bench: Bench, figures: Figures) -> None:
    """EfficientNet-Lite0 as an exported program and as TorchScript: against the CPU, and in time."""
    torch = importlib.import_module("torch")
    model = next(model for model in bench.models if model.manifest.name == "efficientnet-lite0")
    tensors, _ = _tensors(model.manifest, spread_pictures(ZOO / model.manifest.name))
    cpu = OnnxBackend(model.manifest, model.path, threads=8)
    cpu.load()
    exact = cpu.run(tensors)
    module = torch_module(torch, model.path, model.manifest.outputs)
    example = torch.from_numpy(tensors[:2].copy())
    figures["torch"] = torch.__version__
    with tempfile.TemporaryDirectory() as folder:
        files = {"torch": Path(folder) / "program.pt2", "script": Path(folder) / "script.pt"}
        save_program(torch, module, example, files["torch"])
        save_script(torch, module, example, files["script"])
        for form, path in files.items():
            manifest = dataclasses.replace(model.manifest, backend=form)
            for each in (Precision.FLOAT32, Precision.TF32, Precision.FLOAT16):
                for graphs in (False, True):
                    key = f"{form}, {each}, {'graph' if graphs else 'no graph'}"
                    try:
                        backend = TorchBackend(manifest, path, precision=each, graphs=graphs)
                        _warm(backend)
                        check = check_precision(manifest, exact, backend.run(tensors))
                        _filled(backend, BUCKETS[-1])
                        canvas = manifest.inputs.geometry.canvases[0]
                        network: Any = backend._networks[canvas, BUCKETS[-1]]
                        figures[key] = {
                            "ms": {size: _network_ms(bench, backend, size) for size in BUCKETS},
                            "moves": {name: round(move, 6) for name, move in check.moves.items()},
                            "score_move": round(check.score_move, 6),
                            "input_shared": network._input.data_ptr() == backend.input(canvas, BUCKETS[-1]).data.ptr,
                        }
                        backend.close()
                    except Exception as error:
                        figures[key] = {"error": f"{type(error).__name__}: {error}"[:500]}
                    print(key, figures[key], flush=True)


SECTIONS: Mapping[str, Callable[[Bench, Figures], None]] = {
    "parity": parity,
    "preprocess": preprocess,
    "networks": networks,
    "overlap": overlap,
    "precision": precision,
    "torch": pytorch,
}


def gpu_facts(cupy: Any) -> Figures:
    """The device and the versions of what drives it."""
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    name = properties["name"]
    return {
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "memory_gib": round(properties["totalGlobalMem"] / 2**30, 1),
        "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "onnxruntime": importlib.import_module("onnxruntime").__version__,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the sections asked for; a section that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="where the weights lie")
    parser.add_argument("--commit", default=report.commit(), help="what is measured, where this is no Git checkout")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    options = parser.parse_args(arguments)
    bench = Bench(importlib.import_module("cupy"), ModelRepository(options.models).load_all(NAMES))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # what was measured until then is written
    failed: list[str] = []
    for section in options.sections:
        begin = time.perf_counter()
        figures: Figures = {}
        ended = "not at its end"
        try:
            SECTIONS[section](bench, figures)
            ended = "complete"
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            failed.append(f"{section}: {ended}")
        finally:
            facts = {"measured_commit": options.commit, "gpu": gpu_facts(bench.cupy), "ended": ended}
            facts["seconds"] = round(time.perf_counter() - begin, 1)
            path = report.write(f"gpu_{section}", {**facts, section: figures}, directory=options.out)
            print(f"{section}: {facts['seconds']} s, {path.name}: {ended}", flush=True)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
