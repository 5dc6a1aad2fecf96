"""A real Prometheus on the loopback interface, with the configuration of deploy/observability in a hurry."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "observability"
PROMETHEUS = shutil.which("prometheus")
WHY_NOT = "Prometheus is not installed (Debian: apt-get install prometheus)"

#: What stands for every time window of the rules, seconds: a test cannot wait for minutes.
WINDOW = 12


class Prometheus:
    """Reads `targets` every `interval` seconds and waits as long for them. Windows of rules are `WINDOW` seconds, and alerts fire
    after one; all else is as deployed.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]], *, interval: int = 1) -> None:
        self._folder = folder
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": f"{interval}s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job.pop("file_sd_configs", None)
            job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        rules = (FOLDER / "alerts.yml").read_text()
        rules = re.sub(r"\[\d+m\]", f"[{WINDOW}s]", rules)
        (folder / "alerts.yml").write_text(re.sub(r"\bfor: \w+", "for: 1s", rules))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        assert PROMETHEUS is not None
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.address}",
                    "--enable-feature=exemplar-storage",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self.eventually(self._is_ready, "Prometheus is ready", seconds=30)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data that Prometheus' API gives."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode(errors='replace')}") from None
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Each series with its value now."""
        return [(each["metric"], float(each["value"][1])) for each in self.get("query", query=expression)["result"]]

    def value(self, expression: str) -> float:
        """The value of the one series there is; 0 for none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else 0.0

    def firing(self) -> set[str]:
        """The alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def eventually(self, check: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
        """Waits until `check` holds."""
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                log = (self._folder / "prometheus.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"not within {seconds:g} s: {what}\n{log}")
            time.sleep(0.25)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2):
                return True
        except OSError:
            return False
