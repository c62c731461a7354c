"""Finds parts: modules in or below the part's folder, and other packages' entry points."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from vario.core.errors import ConfigError
from vario.core.text import reason, unknown

Part = TypeVar("Part")

log = logging.getLogger("vario")


@dataclass(frozen=True)
class Found(Generic[Part]):
    """One registered part and where it came from."""

    name: str
    part: Part
    origin: str


@dataclass(frozen=True)
class Broken:
    """An entry point of another package that cannot be used, and why."""

    name: str
    origin: str
    error: str


class Registry(Generic[Part]):
    """All parts of one kind, by name.

    `accepts` returns the name of a module-level object that is such a part, or None for anything else. Folders are read
    on first use, so importing vario imports none of them.
    """

    def __init__(self, kind: str, package: str, accepts: Callable[[object], str | None]) -> None:
        self.kind = kind
        self.package = package
        self._accepts = accepts
        self._found: dict[str, Found[Part]] | None = None
        self._filling: dict[str, Found[Part]] = {}
        self._lock = threading.RLock()
        self._broken: list[Broken] = []

    @property
    def group(self) -> str:
        """The entry point group through which other packages add such parts."""
        return self.package

    def _load(self) -> dict[str, Found[Part]]:
        if self._found is not None:
            return self._found
        with self._lock:  # several threads may start watching at once; none may see a half-filled table
            if self._found is None and not self._filling:
                self._fill()
                self._found = self._filling
            return self._filling  # incomplete for a plug-in that asks while it is loaded

    def _fill(self) -> None:
        package = importlib.import_module(self.package)
        for module in pkgutil.walk_packages(package.__path__, self.package + "."):
            for part in vars(importlib.import_module(module.name)).values():
                if getattr(part, "module", getattr(part, "__module__", None)) == module.name:
                    self._take(part, module.name)
        self._load_plugins()

    def _load_plugins(self) -> None:
        # importlib.metadata takes as long to import as the rest of the core, so import it only when needed.
        from importlib.metadata import entry_points

        try:
            entries = list(entry_points(group=self.group))
        except Exception as error:  # noqa: BLE001 - damaged metadata of some package must not stop a training
            self._leave_out("entry points", self.group, error)
            return
        for entry in entries:
            try:
                if not self._take(entry.load(), entry.value):
                    raise TypeError("not such a part")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code: whatever it raises
                self._leave_out(entry.name, entry.value, error)

    def _leave_out(self, name: str, origin: str, error: BaseException) -> None:
        self._broken.append(Broken(name, origin, reason(error)))
        log.warning("%s: the plug-in '%s' (%s) was not loaded. %s", self.kind, name, origin, reason(error))

    def _take(self, part: Part, origin: str) -> bool:
        name = self._accepts(part)
        if name is not None:
            self._filling[name] = Found(name, part, origin)
        return name is not None

    def get(self, name: str, key: str = "") -> Part:
        """Return the part of that name, or raise ConfigError with the closest name."""
        found = self._load().get(name)
        if found is None:
            raise ConfigError(self.refusal(name, key))
        return found.part

    def refusal(self, name: str, key: str = "", known: Iterable[str] | None = None) -> str:
        """Return why there is no part of that name: its plug-in was not loaded, or it is unknown."""
        found = self._load() if known is None else known
        for broken in self._broken:
            if broken.name == name:
                return (
                    f"{key or self.kind}: '{name}' is a plug-in ({broken.origin}) that was not loaded. {broken.error}"
                )
        return unknown(key or self.kind, name, found)

    def names(self) -> list[str]:
        """Return the names of all parts, sorted."""
        return sorted(self._load())

    @property
    def broken(self) -> list[Broken]:
        """Plug-ins that were not loaded."""
        self._load()
        return list(self._broken)

    def __iter__(self) -> Iterator[Found[Part]]:
        return iter(sorted(self._load().values(), key=lambda found: found.name))

    def __contains__(self, name: str) -> bool:
        return name in self._load()
