"""Running a call as soon as a script has imported a module, whenever and however it does that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """A finder that finds nothing by itself. It stays until the module is imported: many packages only look it up,
    with `importlib.util.find_spec`, long before anybody imports it."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def install(self) -> None:
        """Run the call now if the module is there already, else once it is."""
        if self._module in sys.modules:
            self._call()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that tells of its work."""
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
        # An attribute of this one loader, so that it stays what it is for everybody who looks at it.
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = exec_module  # type: ignore[method-assign]
