"""Parts found by their presence: a module in the part's folder, or another package's entry point."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from vario.errors import ConfigError
from vario.text import unknown

Part = TypeVar("Part")


@dataclass(frozen=True)
class Found(Generic[Part]):
    """One registered part and where it came from."""

    name: str
    part: Part
    origin: str


class Registry(Generic[Part]):
    """All parts of one kind, by name.

    `accepts` names a module-level object that is such a part, or answers None for anything else. Folders are read
    on first use, so that importing vario imports none of them.
    """

    def __init__(self, kind: str, package: str, accepts: Callable[[object], str | None]) -> None:
        self.kind = kind
        self.package = package
        self._accepts = accepts
        self._found: dict[str, Found[Part]] | None = None

    @property
    def group(self) -> str:
        """The entry point group through which other packages add such parts."""
        return self.package

    def _load(self) -> dict[str, Found[Part]]:
        if self._found is None:
            self._found = {}
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__, self.package + "."):
                for part in vars(importlib.import_module(module.name)).values():
                    if getattr(part, "module", getattr(part, "__module__", None)) == module.name:
                        self._take(part, module.name)
            # importlib.metadata costs as much to import as the rest of the core, so it waits until it is needed.
            from importlib.metadata import entry_points

            for entry in entry_points(group=self.group):
                self._take(entry.load(), entry.value)
        return self._found

    def _take(self, part: Part, origin: str) -> None:
        assert self._found is not None
        name = self._accepts(part)
        if name is not None:
            self._found[name] = Found(name, part, origin)

    def get(self, name: str, key: str = "") -> Part:
        """The part of that name, or a ConfigError that suggests the nearest one."""
        found = self._load().get(name)
        if found is None:
            raise ConfigError(unknown(key or self.kind, name, self._load()))
        return found.part

    def names(self) -> list[str]:
        """Names of all parts, sorted."""
        return sorted(self._load())

    def __iter__(self) -> Iterator[Found[Part]]:
        return iter(sorted(self._load().values(), key=lambda found: found.name))

    def __contains__(self, name: str) -> bool:
        return name in self._load()
