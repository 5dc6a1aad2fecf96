"""The installer, with a small wheel made here and no network."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from models import install as installer
from models.install import InstallError, asks_for_consent, download_command, fetch_wheel, install, main, select, take_out
from models.repository import ZOO, ModelRepository, WheelSource

MEMBER = "tiny_weights/tiny.onnx"
WEIGHTS = b"weights of a model that is never run"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    """A folder with one wheel whose package would break a test that imported or ran it."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/__init__.py", "raise SystemExit('the wheel was imported')")
        wheel.writestr(MEMBER, WEIGHTS)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such-dependency\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def offline(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installer's client finds the wheel house and nothing else: its own configuration says so."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheelhouse))
    return wheelhouse


def source(wheelhouse: Path, **changes: str) -> WheelSource:
    wheel = next(wheelhouse.glob("*.whl"))
    values = {"name": "tiny-weights", "version": "1.0", "sha256": sha256(wheel.read_bytes()), "member": MEMBER, **changes}
    return WheelSource(**values)


def write_model(
    zoo: Path, wheel: WheelSource, *, name: str = "tiny", digest: str = sha256(WEIGHTS), head: str = "", licence: str = "MIT"
) -> None:
    (zoo / name).mkdir(parents=True)
    (zoo / name / "model.toml").write_text(
        f"""
name = "{name}"
version = "1.0"
licence = "{licence}"
source = "a test"
head = "classification"
outputs = ["y"]
{head}
[weights]
file = "tiny.onnx"
sha256 = "{digest}"
[weights.wheel]
name = "{wheel.name}"
version = "{wheel.version}"
sha256 = "{wheel.sha256}"
member = "{wheel.member}"
convert = "{wheel.convert}"
[input]
name = "x"
geometry = {{ canvases = [[8, 8]], fit = "stretch" }}
normalisation = {{}}
[[labels]]
name = "thing"
classes = [0]
"""
    )


@pytest.fixture
def zoo(tmp_path: Path, wheelhouse: Path) -> Path:
    folder = tmp_path / "zoo"
    write_model(folder, source(wheelhouse))
    return folder


def use_zoo(monkeypatch: pytest.MonkeyPatch, zoo: Path) -> None:
    monkeypatch.setattr(installer, "ModelRepository", lambda folder: ModelRepository(folder, [zoo]))


def test_fetch_uses_the_clients_own_configuration(offline: Path, tmp_path: Path) -> None:
    target = tmp_path / "fetched"
    target.mkdir()
    wheel = fetch_wheel(source(offline), target)
    assert take_out(wheel, source(offline)) == WEIGHTS


def test_a_wheel_that_is_not_there_is_one_line(offline: Path, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"could not fetch the wheel tiny-weights==9\.9: .*No matching distribution") as error:
        fetch_wheel(source(offline, version="9.9"), tmp_path)
    assert "\n" not in str(error.value)


def test_an_index_that_cannot_be_reached_is_told(tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InstallError, match=r"tiny-weights==9\.9: the package index cannot be reached"):
        fetch_wheel(source(offline, version="9.9"), tmp_path)


def test_without_pip_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    with pytest.raises(InstallError, match=r"no pip in .* and no uv on PATH"):
        download_command()


def test_without_pip_the_command_says_it_once(
    zoo: Path, wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(zoo, source(wheelhouse), name="another")
    use_zoo(monkeypatch, zoo)
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    done = CliRunner().invoke(main, ["--folder", str(tmp_path / "models")])
    assert done.exit_code == 1
    assert done.output.count("no pip in") == 1
    assert "0 of 2 models installed" in done.output


def test_without_pip_uv_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installer.shutil, "which", lambda name: f"/somewhere/{name}")
    assert download_command()[:4] == ["/somewhere/uv", "tool", "run", "--from"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "not the wheel that was reviewed"),
        ({"member": "tiny_weights/other.onnx"}, "has no file tiny_weights/other.onnx"),
    ],
)
def test_a_wheel_that_is_another_is_refused(wheelhouse: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InstallError, match=message):
        take_out(next(wheelhouse.glob("*.whl")), source(wheelhouse, **changes))


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny_weights-1.0-py3-none-any.whl"
    wheel.write_bytes(b"no zip")
    with pytest.raises(InstallError, match="no wheel that can be read"):
        take_out(wheel, WheelSource(name="tiny-weights", version="1.0", sha256=sha256(b"no zip"), member=MEMBER))


def test_install_puts_the_file_in_place_and_leaves_nothing_else(zoo: Path, wheelhouse: Path, tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "models", [zoo])
    wheel = next(wheelhouse.glob("*.whl"))
    path = install(repository, repository.entry("tiny"), fetch=lambda source, folder: wheel)
    assert path.read_bytes() == WEIGHTS
    assert [file.name for file in path.parent.iterdir()] == ["tiny.onnx"]
    assert repository.load("tiny").path == path


def test_a_result_with_another_digest_is_not_put_in_place(tmp_path: Path, wheelhouse: Path) -> None:
    zoo = tmp_path / "zoo"
    write_model(zoo, source(wheelhouse), digest="1" * 64)
    repository = ModelRepository(tmp_path / "models", [zoo])
    with pytest.raises(InstallError, match=f"came out with SHA-256 {sha256(WEIGHTS)}"):
        install(repository, repository.entry("tiny"), fetch=lambda source, folder: next(wheelhouse.glob("*.whl")))
    assert not repository.path("tiny").exists()


@pytest.mark.parametrize("converter", ["centerface", "efficientnet-lite0", "ppocr-text", "no-such"])
def test_a_file_that_the_converter_does_not_know_is_refused(tmp_path: Path, wheelhouse: Path, converter: str) -> None:
    zoo = tmp_path / "zoo"
    write_model(zoo, source(wheelhouse, convert=converter))
    repository = ModelRepository(tmp_path / "models", [zoo])
    with pytest.raises(InstallError, match=f"tiny: .*converter {converter!r}"):
        install(repository, repository.entry("tiny"), fetch=lambda source, folder: next(wheelhouse.glob("*.whl")))


def test_the_command_installs_once(offline: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_zoo(monkeypatch, zoo)
    arguments = ["--folder", str(tmp_path / "models")]
    first = CliRunner().invoke(main, arguments)
    assert (first.exit_code, "1 of 1 models installed" in first.output) == (0, True), first.output

    def no_fetch(source: WheelSource, folder: Path) -> Path:
        raise AssertionError("fetched again")

    monkeypatch.setattr(installer, "fetch_wheel", no_fetch)
    assert CliRunner().invoke(main, arguments).exit_code == 0
    listing = CliRunner().invoke(main, [*arguments, "--list"])
    assert listing.exit_code == 0
    assert "tiny" in listing.output
    assert "yes" in listing.output


def test_a_file_that_was_changed_is_installed_again(
    offline: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_zoo(monkeypatch, zoo)
    folder = tmp_path / "models"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "tiny.onnx").write_bytes(b"changed")
    assert "another file" in CliRunner().invoke(main, ["--folder", str(folder), "--list"]).output
    assert CliRunner().invoke(main, ["--folder", str(folder)]).exit_code == 0
    assert (folder / "tiny" / "tiny.onnx").read_bytes() == WEIGHTS


def test_one_failure_does_not_keep_the_others(
    offline: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheelhouse: Path
) -> None:
    write_model(zoo, source(wheelhouse, version="9.9"), name="absent")
    use_zoo(monkeypatch, zoo)
    done = CliRunner().invoke(main, ["--folder", str(tmp_path / "models")])
    assert done.exit_code == 1
    assert "error: could not fetch the wheel tiny-weights==9.9" in done.output
    assert "1 of 2 models installed" in done.output
    assert (tmp_path / "models" / "tiny" / "tiny.onnx").is_file()


def test_models_under_a_copyleft_licence_are_taken_only_by_name(zoo: Path, wheelhouse: Path, tmp_path: Path) -> None:
    write_model(zoo, source(wheelhouse), name="off", head="default_on = false")
    write_model(zoo, source(wheelhouse), name="copyleft", licence="AGPL-3.0-only")
    repository = ModelRepository(tmp_path / "models", [zoo])
    assert [entry.manifest.name for entry in select(repository, ())] == ["off", "tiny"]
    assert [entry.manifest.name for entry in select(repository, ("copyleft", "copyleft"))] == ["copyleft"]


def test_the_licences_duties_are_said(offline: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(zoo, source(offline), name="copyleft", licence="AGPL-3.0-only")
    use_zoo(monkeypatch, zoo)
    done = CliRunner().invoke(main, ["--folder", str(tmp_path / "models"), "--only", "copyleft"])
    assert done.exit_code == 0, done.output
    assert "note: copyleft is under AGPL-3.0-only" in done.output
    assert "1 of 1 models installed" in done.output


@pytest.mark.parametrize(("licence", "asks"), [("MIT", False), ("Apache-2.0 AND BSD-2-Clause", False), ("AGPL-3.0-only", True)])
def test_copyleft_models_are_the_users_own_choice(licence: str, asks: bool) -> None:
    assert asks_for_consent(licence) is asks


def test_an_unknown_name_is_one_line() -> None:
    done = CliRunner().invoke(main, ["--only", "no-such"])
    assert done.exit_code == 1
    assert done.output.strip().startswith("error: unknown model 'no-such', known are ")
    assert len(done.output.strip().splitlines()) == 1


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "models.install", "--list", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ZOO.parent.parent)
    assert done.returncode == 0, done.stderr
    assert "open-nsfw" in done.stdout
