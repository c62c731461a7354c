"""Run a call as soon as a script has imported a module, whenever and however it does so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """A finder that finds nothing itself. It stays until the module is imported: many packages look the module up with
    `importlib.util.find_spec` long before anything imports it."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def install(self) -> None:
        """Run the call now if the module is already imported, otherwise once it is."""
        if self._module in sys.modules:
            self._call()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that reports when it is done."""
        if fullname != self._module or self not in sys.meta_path:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._tell_after(spec.loader)
                return spec
        return None

    def _tell_after(self, loader: Loader) -> None:
        # Set on this one loader object, so that its type stays the same for everything that inspects it.
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = exec_module  # type: ignore[method-assign]
