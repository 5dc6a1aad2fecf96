"""The Dockerfile as text: its stages, what they run, and what of the build context they copy. Needs no container engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """`name` in capitals; `text` is all behind it, its lines joined."""

    name: str
    text: str

    @property
    def options(self) -> dict[str, str]:
        """The options in front: `--from=source` is {"from": "source"}."""
        return dict(re.findall(r"--([a-z-]+)=(\S+)", re.match(r"(?:--\S+\s+)*", self.text).group()))  # type: ignore[union-attr]

    @property
    def words(self) -> list[str]:
        """What follows the options: the list of the JSON form, else the words of the shell form."""
        rest = re.sub(r"^(?:--\S+\s+)*", "", self.text)
        return list(json.loads(rest)) if rest.startswith("[") else shlex.split(rest)


@dataclass
class Stage:
    """`parent` is a stage's name or an image."""

    name: str
    parent: str
    instructions: list[Instruction] = field(default_factory=list)


class Dockerfile:
    """The stages in their order."""

    def __init__(self, path: Path) -> None:
        self.stages: dict[str, Stage] = {}
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
        stage = None
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            name, text = re.fullmatch(r"([A-Z]+)\s+(.+)", line).groups()  # type: ignore[union-attr]
            if name == "FROM":
                parent, _, own = text.split()
                stage = self.stages[own] = Stage(own, parent)
            else:
                assert stage is not None, f"{name} stands before the first FROM"
                stage.instructions.append(Instruction(name, text))

    def instructions(self, target: str) -> Iterator[Instruction]:
        """All of a target, those of the stages it stands on first."""
        stage = self.stages[target]
        if stage.parent in self.stages:
            yield from self.instructions(stage.parent)
        yield from stage.instructions

    def last(self, target: str, name: str) -> Instruction:
        """The instruction that counts where one overrides those before it."""
        return [each for each in self.instructions(target) if each.name == name][-1]

    def environment(self, target: str) -> dict[str, str]:
        """What ENV sets in a target."""
        return dict(pair.split("=", 1) for each in self.instructions(target) if each.name == "ENV" for pair in each.words)

    def copied(self, target: str) -> Iterator[tuple[str, str]]:
        """(source in the build context, destination under /src) of each COPY of a target, stages copied from among them."""
        for each in self.instructions(target):
            if each.name != "COPY":
                continue
            if "from" in each.options:
                assert each.words == ["/src", "/src"]
                yield from self.copied(each.options["from"])
                continue
            *sources, destination = each.words
            for source in sources:
                yield source, destination + Path(source).name if destination.endswith("/") else destination


class Ignored:
    """A .dockerignore: the last pattern that fits a path, or a folder that it lies in, decides."""

    def __init__(self, path: Path) -> None:
        self.rules = [
            (not line.startswith("!"), self._compiled(line.lstrip("!")))
            for line in path.read_text().splitlines()
            if line and not line.startswith("#")
        ]

    @staticmethod
    def _compiled(pattern: str) -> re.Pattern[str]:
        parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
        text = re.sub(r"\*\*/|\*\*|\*|[^*]+", lambda match: parts.get(match[0]) or re.escape(match[0]), pattern)
        return re.compile(f"{text}(?:/.*)?")

    def __contains__(self, name: str) -> bool:
        return next((ignored for ignored, pattern in reversed(self.rules) if pattern.fullmatch(name)), False)


def build_context(root: Path, target: str, destination: Path) -> None:
    """Lays out under `destination` what /src holds when `target` is built from the working tree at `root`."""
    ignored = Ignored(root / ".dockerignore")
    for source, place in Dockerfile(root / "Dockerfile").copied(target):
        found = [root / source] if (root / source).is_file() else sorted((root / source).rglob("*"))
        for path in found:
            name = path.relative_to(root).as_posix()
            if path.is_file() and name not in ignored:
                to = destination / place / path.relative_to(root / source)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)
