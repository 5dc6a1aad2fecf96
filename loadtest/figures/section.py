"""One measurement as a section of a page, and the machines that measurements were made on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.figures.results import Figures, prose

_CUDA = {"cuda_runtime": "CUDA runtime", "cuda_driver": "driver for CUDA"}


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is the file's, `told` its whole content, `lines` are Markdown. `source` stands in place of the usual last line."""

    title: str
    name: str
    told: Figures
    lines: Sequence[str]
    source: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Hardware:
    """What a measurement depends on most; `gpu` is empty without one."""

    gpu: str
    cpu: str
    cores: int
    memory_gib: float

    @classmethod
    def of(cls, told: Figures) -> Hardware:
        """Of a result, by its environment; the GPU's name is in its `gpu`, or told by the server that was measured."""
        about = told["environment"]
        gpu = told.get("gpu", {}).get("gpu", "")
        device = told.get("server", {}).get("device", "cpu").partition(" (")[0]
        return cls(gpu or ("" if device == "cpu" else device), _plain(about["cpu"]), about["cores"], about["memory_gib"])

    def __str__(self) -> str:
        return self.named()

    def named(self, gpus: int = 1) -> str:
        """In words, where so many of its GPUs were used."""
        cores = f"{self.cores} cores of an {self.cpu}"
        return f"{'one' if gpus == 1 else gpus} {self.gpu}, {cores}" if self.gpu else cores


class Machines:
    """Letters for the machines of some sections, those without a GPU first."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self._versions: dict[Hardware, dict[str, set[str]]] = {}
        for section in sections:
            if section.source is None:
                known = self._versions.setdefault(Hardware.of(section.told), {})
                for name, version in versions(section.told).items():
                    known.setdefault(name, set()).add(version)
        self._letters = {each: chr(ord("A") + place) for place, each in enumerate(sorted(self._versions))}

    def table(self) -> list[str]:
        """What each letter stands for."""
        rows = []
        for each, letter in self._letters.items():
            known = (f"{name} {' / '.join(sorted(found))}" for name, found in self._versions[each].items())
            rows.append((letter, each, f"{each.memory_gib:.0f} GiB", ", ".join(known)))
        return prose(("machine", "what", "memory", "versions"), rows)

    def source(self, section: Section) -> str:
        """The command, the file, the date, the commit and the machine, on one line."""
        if section.source is not None:
            return section.source
        command = " ".join(section.told["environment"]["command"])
        letter = self._letters[Hardware.of(section.told)]
        return f"`{command}`, {link(section.name)}, {made(section.told)}, machine {letter}."

    def render(self, sections: Iterable[Section]) -> list[str]:
        """The sections one after the other."""
        lines: list[str] = []
        for section in sections:
            lines += ["", f"### {section.title}", "", *section.lines, "", self.source(section)]
        return lines[1:]


def link(name: str, folder: str = "../loadtest/results") -> str:
    """A link to a result."""
    return f"[{name}.json]({folder}/{name}.json)"


def made(told: Figures) -> str:
    """Date and commit."""
    return f"{told['environment']['date'][:10]}, {commit(told.get('measured_commit') or told['environment']['commit'])}"


def commit(name: str | None) -> str:
    """In words: -dirty is a tree with changes, None a copy without Git."""
    if name is None:
        return "commit not recorded"
    plain = name.removesuffix("-dirty")
    return f"commit {plain}" if plain == name else f"commit {plain} with changes"


def versions(told: Figures) -> Mapping[str, str]:
    """Name to version of what was used; of two ONNX Runtimes the one that ran."""
    about, gpu = told["environment"], told.get("gpu", {})
    left_out = {"keyglance", "keyglance-server", *(("onnxruntime",) if Hardware.of(told).gpu else ())}
    packages: dict[str, Any] = {"Python": about["python"], **about["packages"]}
    found = {name: str(version) for name, version in packages.items() if version and name not in left_out}
    for name, version in gpu.items():
        if name in _CUDA:
            found[_CUDA[name]] = f"{version // 1000}.{version % 1000 // 10}"
        elif name not in ("gpu", "memory_gib", "onnxruntime"):
            found[name] = str(version)
    return found


def _plain(cpu: str) -> str:
    return cpu.replace("(R)", "").replace("(TM)", "").removesuffix(" Processor").strip()
