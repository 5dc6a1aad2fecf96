"""The models that an ensemble has, by name, and which of them a request means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyglance.errors import UnknownModel
from models.fusion import parents_of
from models.manifest import Manifest


class ModelSet:
    """Raises `ValueError` for two models of one name, and for manifests whose labels contradict one another."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = {manifest.name: manifest for manifest in manifests}
        if len(self._manifests) != len(manifests):
            names = [manifest.name for manifest in manifests]
            raise ValueError(f"two models of one name: {', '.join(sorted({name for name in names if names.count(name) > 1}))}")
        parents_of(self.manifests)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order given."""
        return tuple(self._manifests)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """In the order given."""
        return tuple(self._manifests.values())

    def __getitem__(self, name: str) -> Manifest:
        """One by its name. Raises `UnknownModel`."""
        if name not in self._manifests:
            known = ", ".join(sorted(self._manifests))
            raise UnknownModel(f"unknown model {name!r}, known are {known}", facts={"model": name, "known": known})
        return self._manifests[name]

    def select(self, names: Iterable[str] = ()) -> tuple[str, ...]:
        """The models that a request means by `names`, each once, in the set's order; none: those on by default.

        Raises `UnknownModel`.
        """
        wanted = dict.fromkeys(names)
        for name in wanted:
            self[name]
        if not wanted:
            return tuple(manifest.name for manifest in self.manifests if manifest.default_on)
        return tuple(name for name in self.names if name in wanted)
