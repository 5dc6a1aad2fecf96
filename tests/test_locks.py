"""The locks are whole, agree with each other, and no tracked file names a registry or one machine's folders."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = ("server.lock", "dev.lock", "baseline.lock", "gpu.lock", "gpu-torch.lock", "gpu-dev.lock")
#: A lock, and one that has all of it at the same versions; ONNX Runtime apart where a GPU comes in.
CONTAINED = (
    ("server.lock", "dev.lock"),
    ("server.lock", "baseline.lock"),
    ("server.lock", "gpu.lock"),
    ("gpu.lock", "gpu-torch.lock"),
    ("gpu-torch.lock", "gpu-dev.lock"),
    ("dev.lock", "gpu-dev.lock"),
)


def pinned(lock: str) -> dict[str, set[str]]:
    """Name to versions; checks on the way that each entry has a hash."""
    entries: dict[str, set[str]] = {}
    text = (ROOT / "requirements" / lock).read_text().replace("\\\n", "")
    for line in text.splitlines():
        requirement, *hashes = line.split("--hash=")
        assert hashes, f"{lock}: no hash in {line!r}"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", item) for item in hashes)
        parsed = Requirement(requirement.strip())
        (version,) = parsed.specifier
        assert version.operator == "==", line
        entries.setdefault(canonicalize_name(parsed.name), set()).add(version.version)
    return entries


@pytest.mark.parametrize("lock", LOCKS)
def test_each_package_is_pinned_once_with_hashes(lock: str) -> None:
    entries = pinned(lock)
    assert len(entries) > 20
    assert all(len(versions) == 1 for versions in entries.values())


@pytest.mark.parametrize(("smaller", "larger"), CONTAINED)
def test_what_two_locks_have_in_common_has_one_version(smaller: str, larger: str) -> None:
    few, many = pinned(smaller), pinned(larger)
    if larger.startswith("gpu") and not smaller.startswith("gpu"):
        del few["onnxruntime"]
    assert {name: many.get(name) for name in few} == few


@pytest.mark.parametrize("lock", LOCKS)
def test_one_onnx_runtime_the_device_s(lock: str) -> None:
    runtimes = {name: versions for name, versions in pinned(lock).items() if name.startswith("onnxruntime")}
    assert list(runtimes) == ["onnxruntime-gpu" if lock.startswith("gpu") else "onnxruntime"]
    assert runtimes.popitem()[1] == pinned("server.lock")["onnxruntime"], "CPU and GPU are to compute the same"


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.startswith("gpu")])
def test_one_cuda_the_thirteenth(lock: str) -> None:
    entries = pinned(lock)
    nvidia = {name: versions for name, versions in entries.items() if name.startswith("nvidia-")}
    assert {"nvidia-cublas", "nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cufft"} <= set(nvidia)
    assert not [name for name in entries if name.endswith(("-cu11", "-cu12", "cuda11x", "cuda12x"))]
    (runtime,) = nvidia["nvidia-cuda-runtime"]
    # CUDA's minor versions do not look back: a driver for 13.0 may not load what NVRTC 13.2 wrote as PTX.
    assert runtime.startswith("13.0.")
    assert [version.rpartition(".")[0] for version in nvidia["nvidia-cuda-nvrtc"]] == ["13.0"]


def test_pytorch_is_no_part_of_the_server_on_a_gpu() -> None:
    assert "torch" not in pinned("gpu.lock")
    assert "torch" in pinned("gpu-torch.lock")


def wanted() -> list[tuple[str, str]]:
    """(lock, requirement) of all that the projects say they need, build systems, extras and development among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    client = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())
    of_all = [text for part in (project, client) for text in part["project"]["dependencies"] + part["build-system"]["requires"]]
    extras = project["project"]["optional-dependencies"]
    assert set(extras) == {"cpu", "gpu", "torch"}
    needed = {
        "server.lock": of_all + extras["cpu"],
        "gpu.lock": of_all + extras["gpu"],
        "gpu-torch.lock": of_all + extras["gpu"] + extras["torch"],
        "dev.lock": project["dependency-groups"]["dev"],
        "gpu-dev.lock": project["dependency-groups"]["dev"],
    }
    return [(lock, text) for lock, texts in needed.items() for text in texts]


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    for lock, text in wanted():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == "keyglance":
            continue
        versions = pinned(lock).get(name)
        assert versions, f"{text} is not in {lock}: run `make lock`"
        (version,) = versions
        assert requirement.specifier.contains(version, prereleases=True), f"{text} is {version} in {lock}: run `make lock`"


def test_nothing_needs_an_onnx_runtime_without_being_asked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert not [text for text in project["project"]["dependencies"] if text.startswith("onnxruntime")]


def test_npm_s_lock_has_digests_and_no_addresses() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    installed = {name: entry for name, entry in packages.items() if name}
    assert installed
    assert all(entry["integrity"].startswith("sha512-") and "resolved" not in entry for entry in installed.values())


def test_no_tracked_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a Git checkout")
    # Written in pieces, so that this file is not its own finding.
    hosts = [
        r"pypi\." + "org",
        "pythonhosted" + r"\.",
        r"registry\." + "npmjs",
        r"proxy\." + "golang",
        "crates" + r"\.io",
        "index" + "-url ?=",
    ]
    folders = [r"(?<![\w.])/" + folder + "/" for folder in ("work", "home", "root", "Users")]
    forbidden = re.compile("|".join(hosts + folders))
    found = []
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes().decode("utf-8", "ignore")
            found += [f"{name}: {match.group()}" for match in forbidden.finditer(text)]
    assert not found
