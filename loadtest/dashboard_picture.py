"""The dashboard's panels as a picture: `python -m loadtest.dashboard_picture docs/dashboard.svg`.

Starts a server, a Prometheus that reads it (Debian: `apt-get install prometheus`), and callers: more and more of them, some with
files that are no video, some that give up, some that are late, and a decoder process is killed. Then every query of
`deploy/observability`'s dashboard is asked, and its panels are drawn where the dashboard has them; those without data (a GPU's,
where there is none) are left out. `--prometheus HOST:PORT` draws what one that is there already knows of the last minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from keyglance import AsyncClient
from keyglance.errors import KeyglanceError
from loadtest.otlp_sink import OtlpSink
from loadtest.server_process import ServerProcess

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHBOARD = Path(__file__).parent.parent / "deploy" / "observability" / "grafana" / "dashboards" / "keyglance.json"

_WINDOW = "10s"  # of a rate: the dashboard's own would be longer than the run
_POINTS = 150
_MOST_LEGENDS = 6
_LONGEST = 26  # characters of one
_UNITS = {"s": (1.0, "s"), "reqps": (1.0, "/s"), "ops": (1.0, "/s"), "percentunit": (100.0, "%"), "bytes": (2.0**-20, "MiB")}


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel; what there is no value for is NaN."""

    legend: str
    values: list[float]


def ask(address: str, path: str, **parameters: str | float) -> Any:
    """The data that Prometheus' API gives. Raises `OSError` where it does not answer, or not with success."""
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def lines(address: str, panel: Mapping[str, Any], times: Sequence[float]) -> list[Line]:
    """The series of a panel's queries at `times`, which lie evenly."""
    step = times[1] - times[0]
    found = []
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", _WINDOW).replace("$instance", ".*")
        data = ask(address, "query_range", query=query, start=times[0], end=times[-1] + step / 2, step=step)
        for series in data["result"]:
            values = dict.fromkeys(range(len(times)), math.nan)
            for at, value in series["values"]:
                values[round((float(at) - times[0]) / step)] = float(value)
            found.append(
                Line(legend_of(target["legendFormat"], series["metric"]), [values[place] for place in range(len(times))])
            )
    return [line for line in found if any(value == value for value in line.values)]


def legend_of(form: str, labels: Mapping[str, str]) -> str:
    """A legend with the labels that it names; which server it is does not matter, as there is one."""
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", "" if name == "instance" else value)
    return " ".join(re.sub(r"{{\w+}}", "", form).split())


def draw(dashboard: Mapping[str, Any], found: Mapping[int, Sequence[Line]], seconds: Sequence[float], path: Path) -> None:
    """Writes the picture; `found` has the lines of each panel by its id, at `seconds` since the begin."""
    import matplotlib  # not at the top: only this needs it
    from matplotlib.figure import Figure

    shown = [panel for panel in dashboard["panels"] if found.get(panel["id"])]
    tops = sorted({panel["gridPos"]["y"] for panel in shown})
    settings: Any = {
        "svg.hashsalt": "keyglance",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(17, 2.6 * len(tops)))
        high = 1 / len(tops)
        for panel in shown:
            place = panel["gridPos"]
            bottom = 1 - (tops.index(place["y"]) + 1) * high
            axes = figure.add_axes(
                (place["x"] / 24 + 0.028, bottom + 0.24 * high, place["w"] / 24 - 0.042, 0.60 * high), facecolor="#fbfbfb"
            )
            _draw(axes, panel, found[panel["id"]], seconds)
        figure.savefig(path, dpi=90, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axes: Axes, panel: Mapping[str, Any], found: Sequence[Line], seconds: Sequence[float]) -> None:
    import matplotlib

    defaults = panel["fieldConfig"]["defaults"]
    factor, unit = _UNITS.get(defaults["unit"], (1.0, ""))
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    largest = sorted(found, key=lambda line: -max((value for value in line.values if value == value), default=0.0))
    base = [0.0] * len(seconds)
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    for number, line in enumerate(largest):
        colour = colours[(2 * number + number // 10) % 20]
        if number and not any(value > 0 for value in line.values):
            break  # they are sorted: nothing of these happened
        legend = line.legend[:_LONGEST] if number < _MOST_LEGENDS and line.legend else None
        values = [value * factor for value in line.values]
        if stacked:
            top = [under + (value if value == value else 0.0) for under, value in zip(base, values, strict=True)]
            axes.fill_between(seconds, base, top, color=colour, alpha=0.55, linewidth=0, label=legend)
            base = top
        else:
            axes.plot(seconds, values, color=colour, linewidth=1.2, label=legend)
    axes.set_title(f"{panel['title']}{', ' + unit if unit else ''}", fontsize=8.5, loc="left")
    axes.set_xlim(seconds[0], seconds[-1])
    axes.set_ylim(bottom=0)
    if "max" in defaults:
        axes.set_ylim(top=defaults["max"] * factor * 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6.5, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(-0.02, -0.1), columnspacing=1)


@contextlib.contextmanager
def prometheus(target: str, folder: Path) -> Iterator[str]:
    """One that reads `target` every second; gives its address."""
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("Prometheus is not installed (Debian: apt-get install prometheus)")
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "keyglance", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            with contextlib.suppress(OSError):
                if ask(address, "query", query="up")["result"]:
                    break
            time.sleep(0.25)
        yield address
    finally:
        process.terminate()
        process.wait()


async def load(server: ServerProcess, clip: bytes, seconds: float, most: int) -> None:
    """Callers join one after the other for half of the time; from then on something goes wrong now and then."""
    begin = time.monotonic()
    chance = random.Random(1)

    async def one(client: AsyncClient) -> None:
        late = time.monotonic() - begin > seconds / 2
        what = chance.random() if late else 1.0
        data = b"no video " * 100 if what < 0.1 else clip
        task = asyncio.ensure_future(
            client.label(data, timeout=0.2 if 0.1 < what < 0.2 else 30, frames=chance.choice((4, 8, 16)))
        )
        if 0.2 < what < 0.3:
            await asyncio.sleep(0.1)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and isinstance(error := task.exception(), KeyglanceError) and error.retry_after:
            await asyncio.sleep(error.retry_after)

    async def caller(client: AsyncClient, number: int) -> None:
        await asyncio.sleep(number / most * seconds / 2)
        while time.monotonic() - begin < seconds:
            await one(client)

    async def killer() -> None:
        await asyncio.sleep(seconds * 0.75)
        for process in psutil.Process(server.pid).children(recursive=True):
            if "decoder_pool.cpu_worker" in " ".join(process.cmdline()):
                process.kill()
                return

    async with AsyncClient(server.address, retries=0) as client:
        await asyncio.gather(killer(), *(caller(client, number) for number in range(most)))


def recorded(address: str, seconds: float) -> tuple[dict[str, Any], dict[int, list[Line]], list[float]]:
    """The dashboard, its panels' lines over the last seconds, and the times since their begin."""
    dashboard = json.loads(DASHBOARD.read_text())
    step = max(1.0, seconds / _POINTS)
    end = time.time()
    times = [end - seconds + step * number for number in range(int(seconds / step) + 1)]
    found = {panel["id"]: lines(address, panel, times) for panel in dashboard["panels"] if "targets" in panel}
    return dashboard, found, [at - times[0] for at in times]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.dashboard_picture", description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path, nargs="+", help=".svg and .png files")
    parser.add_argument("--clip", type=Path, default=Path(".cache/clips/bikes.mp4"), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the run, or of the past (default: %(default)g)")
    parser.add_argument("--callers", type=int, default=12, help="at the most (default: %(default)s)")
    parser.add_argument("--prometheus", metavar="HOST:PORT", help="one that is there already")
    options = parser.parse_args(arguments)
    if options.prometheus:
        made = recorded(options.prometheus, options.seconds)
    else:
        settings = {"KEYGLANCE_TELEMETRY__PROMETHEUS": "127.0.0.1:0", "KEYGLANCE_SERVER__CONCURRENT_CALLS": "64"}
        with (
            tempfile.TemporaryDirectory() as scratch,
            OtlpSink(keep=False) as sink,
            ServerProcess(Path(scratch), environment={**settings, **sink.environment()}) as server,
        ):
            where = re.search(r"metrics on (127\.0\.0\.1:\d+)", server.errors.read_text() + server.output.read_text())
            if where is None:
                raise SystemExit(f"the server does not say where its metrics are\n{server.log()}")
            with prometheus(where[1], Path(scratch)) as address:
                asyncio.run(load(server, options.clip.read_bytes(), options.seconds, options.callers))
                time.sleep(3)
                made = recorded(address, options.seconds + 5)
    for picture in options.pictures:
        draw(*made, picture)


if __name__ == "__main__":
    main()
