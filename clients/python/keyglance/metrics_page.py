"""A server's metrics, as its Prometheus port tells them: read once, and what happened between two looks."""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

#: Where a server's metrics usually are.
DEFAULT_ADDRESS = "127.0.0.1:9464"

_MOST_BYTES = 32 << 20

Labels = frozenset[tuple[str, str]]


class NoMetrics(Exception):
    """Nobody gives Keyglance's metrics at an address; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Look:
    """All samples at one moment, by name and labels; `at` is on `time.monotonic()`'s clock."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parsed(cls, page: str, at: float) -> Look:
        """A page in Prometheus' text format. Raises `ValueError`."""
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
        return cls(at, samples)

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Each series of a name with its labels."""
        return [(dict(labels), value) for labels, value in self.samples.get(name, {}).items()]

    def sums(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """The sum over all series that agree in the labels `by`."""
        return _sums(self.samples.get(name, {}), by)

    def total(self, name: str) -> float:
        """The sum over all series."""
        return sum(self.samples.get(name, {}).values())


def look(address: str, *, timeout: float = 5.0) -> Look:
    """Reads the page at HOST:PORT. Raises `NoMetrics`."""
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        raise NoMetrics(f"{address!r} is no HOST:PORT")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain; version=0.0.4"})
        response = connection.getresponse()
        page = response.read(_MOST_BYTES)
    except OSError as error:
        raise NoMetrics(f"no metrics at {address}: {error.strerror or error}") from None
    except http.client.HTTPException:
        raise NoMetrics(f"no metrics at {address}: what answers there does not speak HTTP") from None
    finally:
        connection.close()
    if response.status != 200:
        raise NoMetrics(f"no metrics at {address}: it answers with status {response.status}")
    try:
        found = Look.parsed(page.decode(), time.monotonic())
    except ValueError:
        raise NoMetrics(f"no metrics at {address}: what it answers is no page of metrics") from None
    if not any(name.startswith("keyglance_") for name in found.samples):
        raise NoMetrics(f"what answers at {address} is no Keyglance server")
    return found


@dataclass(frozen=True, slots=True)
class Between:
    """What happened between two looks. A counter that fell began anew, as its process did: it has counted its value since."""

    before: Look
    now: Look

    @property
    def seconds(self) -> float:
        """The time between them."""
        return max(1e-9, self.now.at - self.before.at)

    def rates(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """Counts a second, summed over all series that agree in the labels `by`."""
        return {key: count / self.seconds for key, count in _sums(self._more(name), by).items()}

    def rate(self, name: str) -> float:
        """Counts a second of all series."""
        return sum(self._more(name).values()) / self.seconds

    def means(self, histogram: str, *by: str) -> dict[tuple[str, ...], float]:
        """The mean of what a histogram has got meanwhile; keys without anything are left out."""
        counts = _sums(self._more(f"{histogram}_count"), by)
        sums = _sums(self._more(f"{histogram}_sum"), by)
        return {key: sums.get(key, 0.0) / count for key, count in counts.items() if count > 0}

    def quantiles(self, share: float, histogram: str, *by: str, **only: str) -> dict[tuple[str, ...], float]:
        """A quantile of what a histogram has got meanwhile, linear within a bucket, as Prometheus has it."""
        buckets: dict[tuple[str, ...], dict[float, float]] = {}
        for labels, count in self._more(f"{histogram}_bucket").items():
            told = dict(labels)
            if all(told.get(label) == value for label, value in only.items()):
                key = tuple(told.get(label, "") for label in by)
                bound = float(told.get("le", "nan"))
                buckets.setdefault(key, {})[bound] = buckets.get(key, {}).get(bound, 0.0) + count
        found = {key: _quantile(share, sorted(counts.items())) for key, counts in buckets.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _more(self, name: str) -> dict[Labels, float]:
        before = self.before.samples.get(name, {})
        more = {}
        for labels, value in self.now.samples.get(name, {}).items():
            had = before.get(labels, 0.0)
            more[labels] = value - had if value >= had else value
        return more


def _sums(series: Mapping[Labels, float], by: Iterable[str]) -> dict[tuple[str, ...], float]:
    wanted = tuple(by)
    found: dict[tuple[str, ...], float] = {}
    for labels, value in series.items():
        told = dict(labels)
        key = tuple(told.get(label, "") for label in wanted)
        found[key] = found.get(key, 0.0) + value
    return found


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float | None:
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * ((rank - below) / (count - below) if count > below else 1.0)
        low, below = bound, count
    return low
