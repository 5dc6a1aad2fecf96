"""Thresholds for ghz, which has none: `python -m loadtest.gate RESULT.json THRESHOLDS.toml`.

Reads what `ghz --format json` wrote and ends with exit code 1, with one line for each threshold that does not hold: its
name, the value, the limit. Exit code 2: one of the files cannot be used. All keys of the thresholds:

    ok = 100          # calls answered with OK, at least
    rps = 20.0        # calls a second, at least
    p50_ms = 40       # latency of that percentile, at most; p10, p25, p50, p75, p90, p95 and p99, which ghz tells
    average_ms = 50   # mean latency, at most
    slowest_ms = 900  # largest latency, at most

    [errors]          # share of all calls that may end so, 0 to 1
    total = 0.01      # with any status but OK
    Unavailable = 0.0 # with this one, as ghz writes it
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpc import StatusCode

EXIT_BROKEN, EXIT_USAGE = 1, 2

_PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
_AT_LEAST = ("ok", "rps")
_MILLISECONDS = (*(f"p{percentile}_ms" for percentile in _PERCENTILES), "average_ms", "slowest_ms")
#: ghz writes statuses as Go does: `ResourceExhausted`; `Canceled` is the one that Go spells otherwise than gRPC's own list.
_STATUSES = frozenset(
    {code.name.title().replace("_", "") for code in StatusCode if code is not StatusCode.OK} - {"Cancelled"} | {"Canceled"}
)


class GateError(Exception):
    """A file that cannot be used; the message says which value and what is allowed."""


def read_thresholds(path: Path) -> dict[str, Any]:
    """The thresholds of a TOML file, checked. Raises `GateError`."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise GateError(f"{path}: {error}") from None
    errors = values.get("errors", {})
    if not isinstance(errors, dict):
        raise GateError(f"{path}: errors is {errors!r}; a table of shares is wanted")
    _check(path, {name: value for name, value in values.items() if name != "errors"}, (*_AT_LEAST, *_MILLISECONDS))
    _check(path, errors, ("total", *sorted(_STATUSES)))
    if not values or values == {"errors": {}}:
        raise GateError(f"{path}: no threshold in it, so it would hold always")
    for name, share in errors.items():
        if share > 1:
            raise GateError(f"{path}: errors.{name} is {share}; a share from 0 to 1 is allowed")
    return values


def broken(figures: Mapping[str, Any], thresholds: Mapping[str, Any]) -> list[str]:
    """One line for each of `thresholds` that ghz's `figures` do not keep."""
    return list(_broken(figures, thresholds))


def _broken(figures: Mapping[str, Any], thresholds: Mapping[str, Any]) -> Iterator[str]:
    codes: Mapping[str, int] = figures.get("statusCodeDistribution") or {}
    calls = sum(codes.values())
    measured = {"ok": codes.get("OK", 0), "rps": figures.get("rps", 0.0), **_latencies(figures)}
    for name, limit in thresholds.items():
        if name in _AT_LEAST and measured[name] < limit:
            yield f"{name}: {measured[name]:g}, at least {limit:g} wanted"
        elif name in _MILLISECONDS and name not in measured:
            yield f"{name}: no call was answered, at most {limit:g} allowed"
        elif name in _MILLISECONDS and measured[name] > limit:
            yield f"{name}: {measured[name]:.1f}, at most {limit:g} allowed"
    for name, limit in thresholds.get("errors", {}).items():
        count = calls - codes.get("OK", 0) if name == "total" else codes.get(name, 0)
        share = count / calls if calls else 0.0
        if share > limit:
            yield f"errors.{name}: {share:.4f} ({count} of {calls} calls), at most {limit:g} allowed"


def _latencies(figures: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by threshold; nothing where ghz had no answered call to measure."""
    distribution = figures.get("latencyDistribution") or ()
    if not distribution:
        return {}
    named = {f"p{item['percentage']}_ms": item["latency"] for item in distribution}
    named |= {f"{name}_ms": figures[name] for name in ("average", "slowest")}
    return {name: nanoseconds / 1e6 for name, nanoseconds in named.items()}


def _check(path: Path, values: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name, value in values.items():
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
            raise GateError(f"{path}: there is no threshold {name!r}; {hint}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise GateError(f"{path}: {name} is {value!r}; a number of 0 or more is wanted")


def read_figures(path: Path) -> dict[str, Any]:
    """What ghz wrote. Raises `GateError` where it is something else."""
    try:
        figures = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise GateError(f"{path}: {error}") from None
    if not isinstance(figures, dict) or "statusCodeDistribution" not in figures:
        raise GateError(f"{path}: not what `ghz --format json` writes: it has no statusCodeDistribution")
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    description, _, keys = (__doc__ or "").partition("All keys of the thresholds:")
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.gate",
        description=description,
        epilog="All keys of the thresholds:" + re.sub("%", "%%", keys),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", type=Path, help="what `ghz --format json` wrote")
    parser.add_argument("thresholds", type=Path, help="a TOML file")
    options = parser.parse_args(arguments)
    try:
        found = broken(read_figures(options.result), read_thresholds(options.thresholds))
    except GateError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    for line in found:
        print(f"broken: {line}")
    return EXIT_BROKEN if found else 0


if __name__ == "__main__":
    sys.exit(main())
