"""The figures of README and docs are those of the results; commands, links and results that the pages name exist."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadtest import report
from loadtest.figures import load
from loadtest.figures.pages import PAGES, PageError, blocks, filled
from loadtest.figures.results import Results, counted, listed, number, wrapped
from loadtest.figures.section import Hardware, commit

ROOT = Path(__file__).parent.parent
NAMES = sorted(path.stem for path in report.RESULTS.glob("*.json"))
DOCUMENTS = (*PAGES, "clients/python/README.md")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("readme_figures")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages and the results, to be changed."""
    for page in PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(report.RESULTS, tmp_path / "results")
    return tmp_path


def change(checkout: Path, name: str, *keys: str, to: Any) -> None:
    path = checkout / "results" / f"{name}.json"
    told = found = json.loads(path.read_text())
    for key in keys[:-1]:
        found = found[key]
    found[keys[-1]] = to
    path.write_text(json.dumps(told))


def test_pages_are_as_the_results_have_it(script: Any) -> None:
    assert script.main(["--check"]) == 0, "run `python scripts/readme_figures.py` and commit the pages"


def test_another_figure_fails_the_check_until_it_is_written(script: Any, checkout: Path, capsys: pytest.CaptureFixture) -> None:
    given = ["--root", str(checkout), "--results", str(checkout / "results")]
    assert script.main([*given, "--check"]) == 0
    change(checkout, "cpu", "clips", "made-1280x720.mp4", "one", "call", "median_ms", to=7654.3)
    before = {page: (checkout / page).read_text() for page in PAGES}
    assert script.main([*given, "--check"]) == 1
    said = capsys.readouterr().err
    assert {page for page in PAGES if page in said} == set(PAGES)
    assert {page: (checkout / page).read_text() for page in PAGES} == before
    assert script.main(given) == 0
    assert "7,654 ms" in (checkout / "README.md").read_text()
    assert "7.65 s" in (checkout / "CONTRIBUTING.md").read_text()
    assert script.main([*given, "--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_result_leaves_its_lines_out(checkout: Path, name: str) -> None:
    (checkout / "results" / f"{name}.json").unlink()
    for text in blocks(Results(checkout / "results")).values():
        assert f"[{name}.json]" not in text
        assert "None" not in text


def test_without_any_result_nothing_is_told(tmp_path: Path) -> None:
    made = blocks(Results(tmp_path))
    assert {made[name] for name in ("headline", "cpu", "gpu", "cpu-sections", "gpu-sections", "load-sections")} == {""}
    assert not any(re.search(r"\d", text) for text in made.values())


def test_a_part_that_failed_is_not_told(checkout: Path) -> None:
    change(checkout, "gpu_engine", "ended", to="RuntimeError: gone")
    assert "[gpu_engine.json]" not in blocks(Results(checkout / "results"))["gpu-sections"]


def test_a_missed_goal_is_told_with_by_how_much_and_a_met_one_is_not_missed(checkout: Path) -> None:
    change(checkout, "cpu", "clips", "made-1280x720.mp4", "one", "call", "of_bare", to=1.4)
    change(checkout, "index", "layouts", "moov last", "reader", "median_ms", to=3.5)
    made = blocks(Results(checkout / "results"))
    assert "1.40, **missed** by 0.25" in made["cpu"].replace("\n", " ")
    assert "**missed** by 2.50 ms" in made["cpu-sections"]
    goals = json.loads((checkout / "results" / "gpu.json").read_text())["goals"]
    for goal in goals:
        goal |= {"met": True, "value": 0.5}
    change(checkout, "gpu", "goals", to=goals)
    (checkout / "results" / "saturation_gpu.json").unlink()
    assert "missed**" not in blocks(Results(checkout / "results"))["gpu"]


def test_every_missed_goal_of_the_gpu_stands_in_the_readme() -> None:
    told = Results().get("gpu")
    if told is None:
        pytest.skip("no results of a GPU")
    missed = [line for line in told["goals"] if line["met"] is False]
    load = Results().get("saturation_gpu")
    missed += [line for line in (load["goals"] if load else ()) if not line["holds"]]
    assert (ROOT / "README.md").read_text().count("**missed**") >= len(missed)


def test_what_limits_is_told_only_where_the_figures_bear_it_out(checkout: Path) -> None:
    for busy, python_limits in ((20.0, True), (98.0, False)):
        for model in ("efficientnet-lite0", "open-nsfw"):
            for device in ("gpu_percent", "decoder_percent"):
                change(checkout, "gpu_one_model", "one_model", model, "16 in flight", "utilisation", device, to=busy)
        change(
            checkout,
            "gpu_throughput",
            "throughput",
            "16 in flight",
            "utilisation",
            to={"gpu_percent": busy, "decoder_percent": 9.0},
        )
        told = blocks(Results(checkout / "results"))["gpu-sections"].replace("\n", " ")
        assert ("interpreter lock goes from thread" in told) is python_limits
        assert ("The models are the limit:" in told) is not python_limits


def test_baselines_are_told_when_they_are_there(checkout: Path) -> None:
    about = json.loads((checkout / "results" / "cpu.json").read_text())["environment"]
    one = {"calls_per_s": 1.0, "latency_ms": {"p50": 5.0, "p99": 9.0}, "labels": [], "same_labels": True}
    ways = {"keyglance": one | {"ours_to_it": 1.0}, "c": one | {"ours_to_it": 2.5}, "d, OpenCV": one | {"ours_to_it": 0.8}}
    kept = {"environment": about, "callers": 8, "cores": 2, "clips": {"a.mp4": ways}, "behind": ["a.mp4: d, OpenCV"]}
    (checkout / "results" / "baselines.json").write_text(json.dumps(kept))
    made = blocks(Results(checkout / "results"))
    assert "2.50 to 2.50 times OpenCV" in made["cpu"].replace("\n", " ")
    assert "**behind** a.mp4: d, OpenCV" in made["cpu"].replace("\n", " ")
    assert "[baselines.json]" in made["load-sections"]
    row = {"16": {"calls_per_s": 9.0, "latency_ms": {"p50": 5.0, "p99": 9.0}}}
    kept = {"environment": about, "gpu": {"gpu": "G"}, "pictures": 12, "ways": {"a": row, "keyglance": row}}
    (checkout / "results" / "baselines_gpu.json").write_text(json.dumps(kept | {"ours_to_theirs": {"a": {"16": 3.25}}}))
    made = blocks(Results(checkout / "results"))
    assert "3.25 to 3.25 times a" in made["gpu"].replace("\n", " ")
    assert "[baselines_gpu.json]" in made["load-sections"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("<!-- figures:one -->", "without its counterpart"),
        ("<!-- /figures -->", "without its counterpart"),
        ("<!-- figures:one -->\n<!-- figures:one -->\n<!-- /figures -->", "before the next mark"),
        ("<!-- figures:two -->\n<!-- /figures -->", "not known; there are one"),
    ],
)
def test_wrong_marks_are_errors(text: str, wrong: str) -> None:
    with pytest.raises(PageError, match=wrong):
        filled(text, {"one": "1"}, "page.md")


def test_a_block_has_lines_of_its_own_and_a_figure_in_a_sentence_has_not() -> None:
    text = "a\n<!-- figures:one -->\nold\n<!-- /figures -->\nb <!-- figures:one -->old<!-- /figures --> c"
    new = "a\n<!-- figures:one -->\n1\n<!-- /figures -->\nb <!-- figures:one -->1<!-- /figures --> c"
    assert filled(text, {"one": "1"}, "page.md") == new == filled(new, {"one": "1"}, "page.md")


def test_words() -> None:
    assert [number(value) for value in (0, 0.0013, 0.0848, 1.284, 30.17, 1632.4)] == [
        "0",
        "0.0013",
        "0.08",
        "1.28",
        "30.2",
        "1,632",
    ]
    assert [counted(count, "front") for count in (1, 2)] == ["1 front", "2 fronts"]
    assert [listed(words.split()) for words in ("a", "a b", "a b c")] == ["a", "a and b", "a, b and c"]
    assert [commit(name) for name in ("abc", "abc-dirty", None)] == [
        "commit abc",
        "commit abc with changes",
        "commit not recorded",
    ]
    long = "word " * 60
    assert max(map(len, wrapped([long]))) <= 127
    assert wrapped([f"| {long}|", f"## {long}"]) == [f"| {long}|", f"## {long}"]


def test_hardware_is_the_gpu_that_was_measured_and_no_host_is_named() -> None:
    environment = {"cpu": "Intel(R) Xeon(R) Processor", "cores": 16, "memory_gib": 125.9}
    on_gpu = Hardware.of({"environment": environment, "server": {"device": "NVIDIA H200"}})
    assert on_gpu == Hardware.of({"environment": environment, "gpu": {"gpu": "NVIDIA H200"}})
    assert str(on_gpu) == "one NVIDIA H200, 16 cores of an Intel Xeon"
    assert str(Hardware.of({"environment": environment, "server": {"device": "cpu"}})) == "16 cores of an Intel Xeon"
    systems = {json.loads(path.read_text()).get("environment", {}).get("system") for path in report.RESULTS.glob("*.json")}
    made = "\n".join(blocks(Results()).values())
    assert not any(system in made for system in systems if system)
    assert not re.search(r"(?<![\w.)>])/(?:home|root|work|tmp|mnt)\b", made)


# The commands and links of the pages.


def code(page: str) -> str:
    """All that is set as code in a page, without its comments."""
    text = (ROOT / page).read_text()
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join(re.sub(r"\s#.*", "", line) for each in (*fenced, *inline) for line in each.splitlines())


@pytest.mark.parametrize("page", DOCUMENTS)
def test_commands_exist(page: str) -> None:
    found = code(page)
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b", found)) <= targets
    for module in re.findall(r"python -m ([\w.]+)", found):
        assert module in ("pytest", "pip") or importlib.util.find_spec(module), module
    for script in re.findall(r"\b((?:scripts|deploy)/[\w/]+\.(?:py|sh))", found):
        assert (ROOT / script).is_file(), script
    for setting in re.findall(r"--set (\S+)=", found):
        section, _, name = setting.partition(".")
        assert f" {name}: " in (ROOT / "server" / "config.py").read_text(), f"{section}.{name}"
    programs = {
        program
        for project in ("pyproject.toml", "clients/python/pyproject.toml")
        for program in tomllib.loads((ROOT / project).read_text())["project"]["scripts"]
    }
    assert set(re.findall(r"\.venv/bin/([\w-]+)", found)) <= programs | {"python"}


@pytest.mark.parametrize("page", DOCUMENTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        if anchor:
            lines = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]
            assert anchor in {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}, target


def test_every_tracked_result_is_named_in_the_performance_page_or_known_not_to_be() -> None:
    # Earlier runs of single parts that later ones have in another form, and the GPU tests' own table.
    elsewhere = {"gpu_decode", "gpu_networks", "gpu_preprocess"}
    page = (ROOT / "docs" / "performance.md").read_text()
    assert {name for name in NAMES if f"[{name}.json]" not in page} <= elsewhere


@pytest.mark.parametrize(
    ("device", "gpu", "settings", "told"),
    [
        ("cpu (no GPU: CuPy is not installed, there is no module cupy)", None, ["server.fronts=2"], "2 fronts"),
        ("NVIDIA H200", "NVIDIA H200", [], ""),
        ("NVIDIA H200", "NVIDIA H200", ["server.fronts=3"], "3 fronts"),
        ("NVIDIA H200", "NVIDIA H200", ["server.fronts=3", "server.engines_per_gpu=2"], "3 fronts and 2 engines on a GPU"),
        ("NVIDIA H200, NVIDIA H200", "NVIDIA H200", ["server.fronts=6"], "6 fronts and 1 engine on each of 2 GPUs"),
        (
            "NVIDIA H200",
            "NVIDIA H200",
            ["server.fronts=3", "server.engines_per_gpu=2", "server.mps=true"],
            "3 fronts and 2 engines on a GPU with MPS",
        ),
        ("NVIDIA H200", "NVIDIA H200", ["server.fronts=3", "server.mps=true"], "3 fronts"),
    ],
)
def test_what_a_server_was_made_of(device: str, gpu: str | None, settings: list[str], told: str) -> None:
    figures = json.loads((report.RESULTS / "saturation_gpu.json").read_text())
    figures["server"]["device"], figures["generator"]["settings"] = device, settings
    if gpu is None:
        del figures["gpu"]
    assert load._fronts(figures) == told
