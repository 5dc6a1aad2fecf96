"""Reads a PyTorch checkpoint of the stream format (before PyTorch 1.6) without PyTorch and without running what it says.

The file is five pickles (magic number, protocol version, the writer's type sizes, the tensors by name, the storage keys in order)
followed by each storage as a 64-bit element count and raw little-endian elements (torch/serialization.py, `_legacy_save`).
A pickle can name any callable; here only the handful that a state dictionary needs are known, and none of them is PyTorch's.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DTYPES: Mapping[str, str] = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}


class _Storage:
    """A storage that a tensor points to; its elements come after the pickles."""

    def __init__(self, dtype: np.dtype[Any], size: int) -> None:
        self.dtype = dtype
        self.size = size
        self.elements: NDArray[Any] = np.empty(0, dtype)


class _Tensor:
    """A view of a storage; offset and strides count elements."""

    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object) -> None:
        if not isinstance(storage, _Storage) or len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
            raise pickle.UnpicklingError(f"a tensor of offset {offset}, shape {shape}, strides {strides} is none")
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if math.prod(shape) and last >= storage.size:
            raise pickle.UnpicklingError(f"a tensor of shape {shape} reaches element {last} of a storage of {storage.size}")
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self) -> NDArray[Any]:
        if self.storage.elements.size != self.storage.size:
            raise ValueError(f"a storage of {self.storage.size} elements is missing")
        elements = self.storage.elements[self.offset :]
        strides = tuple(stride * elements.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(elements, self.shape, strides, writeable=False).copy()


class _Unpickler(pickle.Unpickler):
    """Knows ordered dictionaries, tensors and storages, and nothing else."""

    def __init__(self, file: io.BytesIO, storages: dict[str, _Storage]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Callable[..., Any] | np.dtype[Any]:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Tensor
        if module == "torch" and name in _DTYPES:
            return np.dtype(_DTYPES[name])
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a checkpoint of tensors")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _device, size, view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or view is not None or not isinstance(size, int) or size < 0:
            raise pickle.UnpicklingError(f"persistent id {pid!r} is no storage")
        return self._storages.setdefault(key, _Storage(dtype, size))


def read_checkpoint(published: bytes) -> dict[str, NDArray[Any]]:
    """The tensors by name. Raises `ValueError` or `pickle.UnpicklingError` where the bytes are no such checkpoint."""
    file = io.BytesIO(published)
    storages: dict[str, _Storage] = {}

    def unpickle() -> Any:
        return _Unpickler(file, storages).load()

    if unpickle() != _MAGIC or unpickle() != _PROTOCOL or not unpickle().get("little_endian"):
        raise ValueError("not a checkpoint of PyTorch's stream format, little endian")
    tensors, keys = unpickle(), unpickle()
    for key in keys:
        storage = storages[key]
        if int.from_bytes(file.read(8), "little") != storage.size:
            raise ValueError(f"storage {key!r} has another size than its tensors say")
        raw = file.read(storage.size * storage.dtype.itemsize)
        storage.elements = np.frombuffer(raw, storage.dtype, storage.size)
    return {name: tensor.array() for name, tensor in tensors.items() if isinstance(tensor, _Tensor)}
