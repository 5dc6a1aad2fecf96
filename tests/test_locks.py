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
LOCKS = ("server.lock", "dev.lock")


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


def test_development_has_the_server_s_versions() -> None:
    server, dev = pinned("server.lock"), pinned("dev.lock")
    assert {name: dev.get(name) for name in server} == server


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    server, dev = pinned("server.lock"), pinned("dev.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    client = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())
    wanted = [
        (server, text)
        for part in (project, client)
        for text in part["project"]["dependencies"] + part["build-system"]["requires"]
    ]
    wanted += [(dev, text) for text in project["dependency-groups"]["dev"]]
    for lock, text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == "keyglance":
            continue
        assert name in lock, f"{text} is in no lock: run `make lock`"
        (version,) = lock[name]
        assert requirement.specifier.contains(version, prereleases=True), f"{text} is locked at {version}: run `make lock`"


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
