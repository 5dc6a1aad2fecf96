"""A real server of two fronts and an engine writes a profile of all of them on one clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from keyglance import Client
from loadtest.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.models]


def test_a_profile_of_fronts_and_engine(models_folder: Path, clips_folder: Path, tmp_path: Path):
    profile = tmp_path / "profile.json"
    environment = {
        "KEYGLANCE_MODELS__FOLDER": str(models_folder),
        "KEYGLANCE_MODELS__ENABLED": json.dumps(["open-nsfw"]),
        "KEYGLANCE_SERVER__FRONTS": "2",
        "KEYGLANCE_SERVER__ENGINES": "1",
        "KEYGLANCE_TELEMETRY__PROFILE_FILE": str(profile),
    }
    with (
        ServerProcess(tmp_path, arguments=["--profile", "2"], environment=environment) as server,
        Client(server.address) as client,
    ):
        end = time.monotonic() + 30
        while not profile.exists():
            assert time.monotonic() < end, server.log()
            client.label(str(clips_folder / "bikes.mp4"), frames=2)
    found = json.loads(profile.read_text())
    names = {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    of = {event["name"]: names[event["pid"]] for event in spans}
    assert of["Label"].startswith("front-")
    assert of["infer_batch"] == "engine-0"
    assert {"receive", "index", "sample", "decode", "preprocess", "infer", "fuse"} <= set(of)
    # One clock: the engine's batches lie within the inference of a call that a front tells.
    infer = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "infer"]
    batches = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "infer_batch"]
    within = [any(b - 5e3 <= begin and end <= e + 5e3 for b, e in infer) for begin, end in batches]
    assert sum(within) >= len(within) / 2
