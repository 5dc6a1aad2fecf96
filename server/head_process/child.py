"""The head process from inside, started by `HeadProcess`: `python -m server.head_process.child CONTROL FD:SIZE …`.

CONTROL is the descriptor of the connection; then come descriptors of shared memory and its bytes: the models, and the parts.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.heads import Head, make_head
from models.manifest import Manifest
from server.engine_process import codec
from server.head_process import messages
from server.head_process.messages import Output


def serve(connection: Connection, manifests: Sequence[Manifest], parts: Sequence[mmap.mmap]) -> None:
    """Reads batches until the other side is gone."""
    heads: dict[str, Head] = {manifest.name: make_head(manifest) for manifest in manifests}
    names = codec.label_names(manifests)
    connection.send_bytes(messages.READY)
    while True:
        model, outputs, placements = messages.decode_batch(connection.recv_bytes())
        arrays = _arrays(outputs, parts)
        connection.send_bytes(messages.encode_results(model, heads[model].read_batch(arrays, placements), names))


def _arrays(outputs: Mapping[str, Output], parts: Sequence[mmap.mmap]) -> dict[str, NDArray[Any]]:
    return {
        name: np.frombuffer(parts[one.part], one.dtype, int(np.prod(one.shape)), one.offset).reshape(one.shape)
        for name, one in outputs.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Ends with its parent, or when that hangs up."""
    models, *parts = [_mapped(told) for told in arguments[1:]]
    with contextlib.suppress(EOFError, ConnectionError), Connection(int(arguments[0])) as connection:
        serve(connection, messages.decode_manifests(models[:]), parts)


def _mapped(told: str) -> mmap.mmap:
    fd, size = map(int, told.split(":"))
    return mmap.mmap(fd, size, prot=mmap.PROT_READ)


if __name__ == "__main__":
    main(sys.argv[1:])
