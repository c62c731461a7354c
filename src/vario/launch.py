"""Running an unchanged training script under watch: `vario run train.py`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vario.config import Config
from vario.ending import ending
from vario.errors import ConfigError, VarioError
from vario.script import ScriptRaised, execute
from vario.succession import new_group
from vario.switch import is_off

if TYPE_CHECKING:
    from vario.monitor import Monitor


class _AfterImport(MetaPathFinder):
    """Runs a call when a module has been imported, so that the script decides when and how that happens."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._call)
        return spec


class _CallingLoader(Loader):
    """Another loader, and a call after it."""

    def __init__(self, loader: Loader, call: Callable[[], None]) -> None:
        self._loader = loader
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._call()


class Launch:
    """One script under watch: waits for torch, then for models in training, and watches them.

    Models that are trained one after the other, as in cross-validation, get a run each.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.monitors: list[Monitor] = []
        self.group = new_group()
        self.is_needed = True
        self.refusal: VarioError | None = None
        """Why the script's model could not be watched."""
        self.stop: Callable[[], None] = lambda: None

    def wait_for_torch(self) -> None:
        """Look for a model as soon as the script has imported torch."""
        if "torch" in sys.modules:
            self._wait_for_models()
        else:
            sys.meta_path.insert(0, _AfterImport("torch", self._wait_for_models))

    def _wait_for_models(self) -> None:
        from vario.backends.torch.discovery import Search

        self.stop = Search(self._watch, self._is_followed).stop

    def _is_followed(self, optimizer: Any) -> bool:
        return not self.is_needed or (bool(self.monitors) and self.monitors[-1].follows(optimizer))

    def _watch(self, models: dict[str, Any]) -> None:
        from vario.backends.torch.targets import is_watched
        from vario.monitor import Monitor

        if any(is_watched(model) for model in models.values()):
            self.is_needed = False  # the script watches by itself
            return
        config = self.config
        if self.monitors:
            # Closed before the next one, so that a model the script is done with can leave the memory.
            self.monitors[-1].close()
            if config.name is not None:
                config = replace(config, name=f"{config.name}-{len(self.monitors) + 1}")
        try:
            self.monitors.append(Monitor(models.get("", models), None, config, group=self.group))
        except VarioError as error:
            self.refusal = error
            raise


def run_script(target: str, arguments: Sequence[str], config: Config, is_module: bool = False) -> int:
    """Run a script or module as `python` would, watched; what it raises, `ScriptRaised` carries on."""
    if not is_module and not Path(target).is_file():
        raise ConfigError(f"run: there is no script '{target}'. A module is run with -m: vario run -m {target}")
    if is_module and _is_missing(target):
        raise ConfigError(f"run: there is no module '{target}'. A script is run without -m: vario run {target}")
    launch = Launch(config)
    if not is_off(config.enabled):
        launch.wait_for_torch()
    raised = execute(target, arguments, is_module)
    _finish(launch, *ending(raised))
    if raised is None:
        return 0
    if launch.refusal is not None and raised is launch.refusal:
        raise launch.refusal
    raise ScriptRaised(raised)


def _is_missing(module: str) -> bool:
    sys.path.insert(0, "")
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True
    finally:
        sys.path.pop(0)


def _finish(launch: Launch, state: str, error: str | None) -> None:
    launch.stop()
    if not launch.monitors and state == "finished" and launch.is_needed and not is_off(launch.config.enabled):
        sys.stderr.write("vario: no training step was seen, so nothing was recorded\n")
    for monitor in launch.monitors:
        monitor.close(state, error)
        if not monitor.is_leading:
            continue
        if monitor.path is None:
            sys.stderr.write("vario: nothing was written; `ranks` and `sinks` say so\n")
        else:
            sys.stderr.write(
                f"vario: recorded up to step {monitor.step_number - 1} in {monitor.path}. "
                f"Look at it: vario report {monitor.path}\n"
            )
