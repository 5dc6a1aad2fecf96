"""Settings: sources, their order, and what is said about wrong ones."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from server.config import GIB, MIB, Config, ConfigError
from server.main import main


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KEYGLANCE_"):
            monkeypatch.delenv(name)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keyglance.toml"
    path.write_text(text)
    return path


def fails(path: Path | None = None, **sections: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.load(path, overrides=sections)
    return str(caught.value).splitlines()


def test_defaults_are_the_documented_ones():
    config = Config.load()
    assert config.server.listen == "127.0.0.1:50051"
    assert config.server.largest_message == 64 * MIB
    assert config.receive.budget == GIB
    assert config.limits.pixels >= 7680 * 4320
    assert config.sampling.frames == 16
    assert config.sampling.largest_gap == 10
    assert config.engine.device == "auto"
    assert config.gpu.largest_batch == 48


def test_the_order_of_sources(tmp_path, monkeypatch):
    path = write(tmp_path, "[server]\ngrace = 1.0\ndefault_deadline = 1.0\nlisten = 'file:1'\n")
    monkeypatch.setenv("KEYGLANCE_SERVER__DEFAULT_DEADLINE", "2")
    monkeypatch.setenv("KEYGLANCE_SERVER__LISTEN", "environment:1")
    config = Config.load(path, overrides={"server": {"listen": "option:1"}})
    assert config.server.grace == 1.0
    assert config.server.default_deadline == 2.0
    assert config.server.listen == "option:1"


def test_sizes_have_units_and_lists_are_json_in_the_environment(monkeypatch):
    monkeypatch.setenv("KEYGLANCE_LIMITS__BYTES", "2 MiB")
    monkeypatch.setenv("KEYGLANCE_RECEIVE__BUDGET", str(3 * GIB))
    monkeypatch.setenv("KEYGLANCE_MODELS__ENABLED", '["a", "b"]')
    monkeypatch.setenv("KEYGLANCE_MODELS__FOLDER", "")
    config = Config.load()
    assert config.limits.bytes == 2 * MIB
    assert config.receive.budget == 3 * GIB
    assert config.models.enabled == ("a", "b")
    assert config.models.folder is None


def test_unknown_keys_name_the_nearest(tmp_path, monkeypatch):
    path = write(tmp_path, "[server]\nlisen = 'x:1'\n[recieve]\nbudget = 1\n[decoders]\nwarm = [{ codek = 'h264' }]\n")
    lines = fails(path)
    assert len(lines) == 3
    assert any("server.lisen" in line and "did you mean listen?" in line for line in lines)
    assert any("recieve" in line and "did you mean receive?" in line for line in lines)
    assert any("decoders.warm.0.codek" in line and "did you mean codec?" in line for line in lines)
    assert fails(gpu={"warm": [{"cout": 1}]}) == ["unknown setting gpu.warm.0.cout; did you mean count?"]
    monkeypatch.setenv("KEYGLANCE_SERVER__GRASE", "1")
    assert fails() == ["unknown setting KEYGLANCE_SERVER__GRASE in the environment; did you mean KEYGLANCE_SERVER__GRACE?"]


def test_variables_of_other_tools_are_left_alone(monkeypatch):
    monkeypatch.setenv("KEYGLANCE_CORPUS", "somewhere")
    Config.load()


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("server", "grace", -1),
        ("server", "default_deadline", 0),
        ("server", "listen", "nonsense"),
        ("server", "listen", "127.0.0.1:99999"),
        ("server", "listen", ":50051"),
        ("limits", "frames", 0),
        ("limits", "frames", 1025),
        ("sampling", "least_score", 1.5),
        ("sampling", "largest_gap", "inf"),
        ("engine", "device", "nvdec"),
        ("gpu", "index", -1),
        ("gpu", "decoder_limit", 0),
        ("gpu", "memory_fraction", 0),
        ("gpu", "memory_fraction", 1.1),
        ("gpu", "largest_wait", "inf"),
        ("telemetry", "log_level", "loud"),
        ("index", "memory_limit", "1 MiB"),
    ],
)
def test_values_out_of_range_are_named(section, name, value):
    (line,) = fails(**{section: {name: value}})
    assert line.startswith(f"{section}.{name} = {value!r}: ")


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"receive": {"budget": "1 MiB"}}, "receive.budget"),
        ({"sampling": {"frames": 65}}, "limits.frames (64)"),
        ({"server": {"tls_key": "key.pem"}}, "tls_certificate and tls_key go together"),
        ({"server": {"tls_client_ca": "ca.pem"}}, "tls_client_ca needs"),
        ({"decoders": {"size_classes": [2048, 1024]}}, "ascend"),
        ({"decoders": {"limit": 1}}, "exceed the limit of 1"),
        ({"decoders": {"warm": [{"size_class": 77}]}}, "77"),
        ({"gpu": {"size_classes": [4096, 2048, 8192]}}, "ascend"),
        ({"gpu": {"decoder_limit": 20}}, "25 warm decoders exceed the limit of 20"),
        ({"gpu": {"warm": [{"size_class": 77}]}}, "77"),
        ({"gpu": {"arena_pictures": [1, 2]}}, "arena_pictures [1, 2] must have one number for each of size_classes"),
        ({"gpu": {"batch_buckets": [8, 8]}}, "batch_buckets must ascend"),
        ({"gpu": {"batch_buckets": [8, 2048]}}, "to 1024 at most, got [8, 2048]"),
    ],
)
def test_settings_that_do_not_go_together(sections, part):
    (line,) = fails(**sections)
    assert part in line


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot read the configuration" in fails(tmp_path / "none.toml")[0]
    assert "is not TOML" in fails(write(tmp_path, "[server\n"))[0]


def test_what_is_printed_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYGLANCE_MODELS__FOLDER", 'odd "folder"\\')
    monkeypatch.setenv("KEYGLANCE_SERVER__GRACE", "1e-7")
    config = Config.load()
    text = config.annotated()
    monkeypatch.delenv("KEYGLANCE_MODELS__FOLDER")
    monkeypatch.delenv("KEYGLANCE_SERVER__GRACE")
    assert Config.load(write(tmp_path, text)) == config
    assert "(default: 30.0)" in text


def test_every_setting_is_described_and_settable_by_the_environment(monkeypatch):
    values = tomllib.loads(Config.load().annotated())
    for section, info in Config.model_fields.items():
        assert info.annotation is not None
        for name, field in info.annotation.model_fields.items():
            assert field.description, (section, name)
            assert field.description.endswith("."), (section, name)
            assert name in values[section]
    monkeypatch.setenv("keyglance_server__grace", "7")
    assert Config.load().server.grace == 7


def test_the_command_line_prints_settings():
    result = CliRunner().invoke(main, ["--print-config", "--listen", "127.0.0.1:1"])
    assert result.exit_code == 0
    assert tomllib.loads(result.output)["server"]["listen"] == "127.0.0.1:1"


def test_the_command_line_refuses_wrong_settings(tmp_path):
    path = write(tmp_path, "[server]\nlisen = 'x'\n")
    result = CliRunner().invoke(main, ["--config", str(path)])
    assert result.exit_code == 2
    assert result.output == f"error: unknown setting server.lisen in {path}; did you mean listen?\n"


def test_the_command_line_refuses_exporters_that_are_not_there(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert result.output.startswith("error: OTEL_TRACES_EXPORTER is 'zipkin'")
