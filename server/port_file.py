"""The file that tells others at which address a server listens."""

from __future__ import annotations

import os
from pathlib import Path

from server.start_error import StartError


def write(path: Path | None, address: str) -> None:
    """Writes the address, if there is a file to write it to. Raises `StartError` where that cannot be done."""
    if path is None:
        return
    try:
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(address + "\n", encoding="utf-8")
        scratch.replace(path)  # whoever waits for the file finds it whole
    except OSError as error:
        raise StartError(f"cannot write the port file {path}: {error.strerror or error}") from None


def remove(path: Path | None) -> None:
    """Removes the file, if there is one."""
    if path is not None:
        path.unlink(missing_ok=True)
