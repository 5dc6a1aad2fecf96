"""What callers ask for: a mix of classes of calls, read from a TOML file such as those in loadtest/mixes.

[[class]]
name = "phone clips"        # its name in the results
clip = "phone"              # one of loadtest.mix_clips, or a path from the mix's own folder
weight = 8                  # how often it comes, relative to the others; default 1
send = "ranges"             # as the client does (the default), or "whole"
frames = 12                 # pictures wanted; default: the server's
models = ["open-nsfw"]      # default: the server's
timeout = 5.0               # deadline of a call in seconds, or [least, most], evenly between; default 10
cancel = 0.1                # share of its calls that are cancelled; default 0
cancel_after = [0.0, 0.5]   # seconds after sending, evenly between
priority = "interactive"    # default: the server's
metadata = { x-caller = "a" }
expect = ["OK"]             # statuses that are right for it, besides being refused, out of time or cancelled
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import grpc

from keyglance.errors import KeyglanceError
from keyglance.request import PRIORITY_KEY
from loadtest import mix_clips
from loadtest.request_bytes import request_message

MIXES = Path(__file__).parent / "mixes"

_KEYS = (
    *("name", "clip", "weight", "send", "frames", "models", "timeout"),
    *("cancel", "cancel_after", "priority", "metadata", "expect"),
)


class MixError(Exception):
    """A mix that cannot be used; the message says which value and what is allowed."""


@dataclass(frozen=True, slots=True)
class CallClass:
    """One kind of call. `timeout` and `cancel_after` are seconds, least and most; `cancel` and weights are shares."""

    name: str
    request: bytes
    weight: float = 1.0
    timeout: tuple[float, float] = (10.0, 10.0)
    cancel: float = 0.0
    cancel_after: tuple[float, float] = (0.0, 0.0)
    metadata: tuple[tuple[str, str], ...] = ()
    expect: frozenset[str] = frozenset({"OK"})

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("timeout", "cancel_after") and not 0 <= value[0] <= value[1] < float("inf"):
                raise MixError(f"class {self.name!r}: {field.name} is {list(value)}; [least, most] in seconds is wanted")
        if not 0 < self.weight < float("inf"):
            raise MixError(f"class {self.name!r}: weight is {self.weight}; more than 0 is wanted")
        if not 0 <= self.cancel <= 1:
            raise MixError(f"class {self.name!r}: cancel is {self.cancel}; a share from 0 to 1 is wanted")
        if not self.timeout[0]:
            raise MixError(f"class {self.name!r}: timeout is {list(self.timeout)}; more than 0 is wanted")
        if unknown := self.expect - {code.name for code in grpc.StatusCode}:
            raise MixError(f"class {self.name!r}: expect has {', '.join(sorted(unknown))}, which gRPC does not know")


@dataclass(frozen=True, slots=True)
class Mix:
    """All classes of a load, one or more, with different names."""

    classes: tuple[CallClass, ...]

    def __post_init__(self) -> None:
        names = [one.name for one in self.classes]
        if not names or len(set(names)) < len(names):
            raise MixError(f"a mix has one class or more, each with its own name; there are {names}")

    @property
    def shares(self) -> list[float]:
        """How often each class comes; together 1."""
        total = sum(one.weight for one in self.classes)
        return [one.weight / total for one in self.classes]

    @classmethod
    def load(cls, path: Path) -> Mix:
        """Reads the file and makes its requests. Raises `MixError` with the file's name."""
        try:
            table = tomllib.loads(path.read_text())
            if set(table) != {"class"} or not isinstance(table["class"], list):
                raise MixError("a mix is [[class]] tables and nothing else")
            return cls(tuple(_read(one, path.parent) for one in table["class"]))
        except (MixError, OSError, tomllib.TOMLDecodeError, KeyglanceError, ValueError, TypeError) as error:
            raise MixError(f"{path}: {error}") from None

    def describe(self) -> list[dict[str, Any]]:
        """For results: the classes without their requests' bytes."""
        return [
            {
                "name": one.name,
                "share": round(share, 4),
                "request_bytes": len(one.request),
                "timeout": list(one.timeout),
                "cancel": one.cancel,
            }
            for one, share in zip(self.classes, self.shares, strict=True)
        ]


def _read(table: Mapping[str, Any], folder: Path) -> CallClass:
    for key in table:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            raise MixError(f"a class has no {key!r}; {f'did you mean {near[0]}?' if near else 'it has ' + ', '.join(_KEYS)}")
    for key in ("name", "clip"):
        if not isinstance(table.get(key), str):
            raise MixError(f"{key} is {table.get(key)!r}; each class needs its {key}, a string")
    send = table.get("send", "ranges")
    if send not in ("ranges", "whole"):
        raise MixError(f"class {table['name']!r}: send is {send!r}; ranges or whole is allowed")
    request = request_message(
        _clip(table["clip"], folder),
        whole=send == "whole",
        frames=table.get("frames"),
        models=table.get("models", ()),
        priority=table.get("priority", ""),
    )
    return CallClass(
        name=table["name"],
        request=request.SerializeToString(),
        weight=float(table.get("weight", 1)),
        timeout=_span(table.get("timeout", 10.0)),
        cancel=float(table.get("cancel", 0)),
        cancel_after=_span(table.get("cancel_after", 0.0)),
        metadata=(
            *(((PRIORITY_KEY, table["priority"]),) if table.get("priority") else ()),
            *((str(name), str(value)) for name, value in table.get("metadata", {}).items()),
        ),
        expect=frozenset(table.get("expect", ["OK"])),
    )


def _clip(name: str, folder: Path) -> bytes:
    if name in mix_clips.MAKERS:
        return mix_clips.clip(name)
    path = folder / name
    if not path.is_file():
        raise MixError(f"clip is {name!r}; neither a file at {path} nor one of {', '.join(mix_clips.MAKERS)}")
    return path.read_bytes()


def _span(value: float | Sequence[float]) -> tuple[float, float]:
    if isinstance(value, int | float):
        return float(value), float(value)
    least, most = value
    return float(least), float(most)
