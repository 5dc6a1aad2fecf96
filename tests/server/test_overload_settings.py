"""Settings of overload, what of an engine decides the lane, and what is told of both."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from keyglance.video import StreamConfig
from models.backends.fake import fake_manifest
from models.manifest import LabelSpec
from server.admission import Admission
from server.assembly import assemble_front
from server.config import Config, ConfigError, OverloadSection
from server.engine import DecoderState, EngineInfo, HardwareFormat, Priority
from server.engine_process.codec import decode_info, encode_info
from server.engine_process.engine_group import EngineGroup
from server.lane_name import LaneName
from server.lifecycle import StartError
from server.overload import Overload
from server.readings import calls_readings
from server.receive_budget import ReceiveBudget
from server.telemetry import Telemetry

HARDWARE = (HardwareFormat("h264", 8, "420", 4096, 4096), HardwareFormat("hevc", 10, "420", 8192, 8192))
MODELS = (fake_manifest("must", [LabelSpec("a")], required=True), fake_manifest("may", [LabelSpec("b")]))
INFO = EngineInfo("fake", MODELS, (DecoderState("cpu", 1, 8, ("h264",)),), HARDWARE)


def load(**overload: Any) -> Config:
    return Config.load(overrides={"overload": overload, "decoders": {"warm": []}})


def test_by_default_nothing_is_degraded_and_callers_are_one() -> None:
    settings = Config.load().overload
    assert settings.steps == ()
    assert settings.caller_key == ""


def test_steps_can_be_printed_and_read_again(tmp_path: Any) -> None:
    steps = [{"load": 0.5, "frames": 8}, {"load": 0.8, "frames": 4, "leave_out": ["may"]}]
    config = load(steps=steps)
    path = tmp_path / "keyglance.toml"
    path.write_text(config.annotated())
    assert Config.load(path).overload == config.overload
    assert tomllib.loads(config.annotated())["overload"]["steps"][1] == {"load": 0.8, "frames": 4, "leave_out": ["may"]}


def test_steps_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYGLANCE_OVERLOAD__STEPS", '[{"load": 0.7, "frames": 8}]')
    (step,) = Config.load().overload.steps
    assert (step.load, step.frames, step.leave_out) == (0.7, 8, ())


@pytest.mark.parametrize(
    ("overload", "message"),
    [
        ({"steps": [{"load": 0.0}]}, "greater than 0"),
        ({"steps": [{"load": 1.5}]}, "less than or equal to 1"),
        ({"steps": [{"load": 0.5, "frames": 1}]}, "2 or more pictures"),
        ({"steps": [{"load": 0.5, "framse": 8}]}, "did you mean frames"),
        ({"steps": [{"load": 0.8}, {"load": 0.5}]}, "must ascend by load, got 0.5 after 0.8"),
        ({"steps": [{"load": 0.5, "frames": 4}, {"load": 0.8, "frames": 8}]}, "looks at more pictures"),
        ({"steps": [{"load": 0.5, "frames": 4}, {"load": 0.8}]}, "looks at more pictures"),
        ({"steps": [{"load": 0.5, "leave_out": ["may"]}, {"load": 0.8}]}, "has models again: may"),
        ({"least_calls": 9, "most_calls": 8}, r"least_calls \(9\) is more than most_calls \(8\)"),
        ({"headroom": 1.0}, "greater than 1"),
        ({"caller_key": "X Caller"}, "caller_key"),
    ],
)
def test_settings_that_make_no_sense(overload: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**overload)


@pytest.mark.parametrize(
    ("name", "message"), [("must", "'must' is required"), ("mya", "'mya' is no optional model that is loaded; known are may")]
)
def test_models_that_cannot_be_left_out(name: str, message: str) -> None:
    class Engine:
        def info(self) -> EngineInfo:
            return INFO

    config = load(steps=[{"load": 0.5, "leave_out": [name]}])
    with pytest.raises(StartError, match=message):
        assemble_front(config, Telemetry.create(version="0"), Engine())  # type: ignore[arg-type]


def test_what_is_left_to_software() -> None:
    def stream(codec: str = "h264", width: int = 64, height: int = 64, depth: int = 8) -> StreamConfig:
        return StreamConfig(codec, width, height, bit_depth=depth, chroma_format="420")

    assert not INFO.is_left_to_software(stream())
    assert not INFO.is_left_to_software(stream("hevc", 8192, 4320, 10))
    for other in (stream("av1"), stream(width=4112), stream(depth=10), stream("hevc")):
        assert INFO.is_left_to_software(other)
        assert not EngineInfo("cpu", (), ()).is_left_to_software(other), "where all is software there is no lane beside it"


def test_fronts_know_what_the_hardware_of_their_engines_decodes() -> None:
    assert decode_info(encode_info(INFO)) == INFO
    group = EngineGroup(2)
    for engine in group.engines:
        engine._learn(INFO)
    assert group.info().hardware == HARDWARE


def test_the_room_never_reaches_the_limit_on_all_calls() -> None:
    for calls, waiting in ((256, 224), (64, 44), (16, 0), (1, 0)):
        assert Overload(calls=calls).lanes[LaneName.MAIN].longest_room == waiting
    assert Overload(OverloadSection(waiting=5)).lanes[LaneName.MAIN].longest_room == 5


@pytest.mark.parametrize(
    ("engine", "least", "first", "room"),
    [
        ({}, 4, 16, 4),
        ({"on_gpu": True}, 20, 20, 5),
        ({"on_gpu": True, "engines": 2}, 20, 32, 5),
        ({"on_gpu": True, "devices": 2, "engines": 4}, 40, 64, 10),
        ({"on_gpu": True, "engines": 2, "side_by_side": True}, 28, 32, 7),
        ({"on_gpu": True, "devices": 2, "engines": 2, "side_by_side": True}, 40, 40, 10),  # none shares one
        ({"side_by_side": True}, 4, 16, 4),
    ],
)
def test_places_at_the_least_and_at_first(engine: dict[str, Any], least: int, first: int, room: int) -> None:
    lane = Overload(**engine).lanes[LaneName.MAIN]
    limit = lane.limit
    assert (limit.least, limit.value) == (least, first)
    lane.overrun(Priority.NORMAL)  # strained: the room is short
    while limit.value > least:
        for _ in range(64):
            limit.observe(1.0, 0.01, short=True)
    assert lane.room(Priority.NORMAL) == max(room, least // 4)
    given = Overload(OverloadSection(least_calls=3, most_calls=3), **engine).lanes[LaneName.MAIN].limit
    assert given.value == given.most == 3 * engine.get("devices", 1)
    assert given.least == min(3 * engine.get("engines", 1), given.most)


def test_what_is_told_of_lanes() -> None:
    told: list[tuple[str, str, Priority]] = []
    overload = Overload(refused=lambda *refusal: told.append(refusal))
    assert overload.too_many(Priority.BULK, 9).retry_after == 1.0
    assert told == [(LaneName.MAIN, "calls", Priority.BULK)]
    readings = list(calls_readings(Admission(9, overload), ReceiveBudget(1000, queue_limit=7)))
    by_name: dict[str, list[Any]] = {}
    for reading in readings:
        by_name.setdefault(reading.instrument.name, []).append((dict(reading.labels), reading.value))
    assert by_name["keyglance.load"] == [({"lane": "main"}, 1.0), ({"lane": "software"}, 0.0)]
    assert by_name["keyglance.calls.places"] == [({"lane": "main"}, 16), ({"lane": "software"}, 4)]
    assert by_name["keyglance.load.step"] == [({}, 0)]
    depths = [labels for labels, _ in by_name["keyglance.queue.depth"] if labels["queue"] == "turn"]
    assert len(depths) == 6
    assert {labels["priority"] for labels in depths} == {"interactive", "normal", "bulk"}
