"""Run an unchanged training script and watch its models: `vario run train.py`."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vario.backends.frameworks import FRAMEWORKS
from vario.config import Config
from vario.core.errors import ConfigError, TrainingStop, UnsupportedRelease, VarioError
from vario.core.process.ending import FINISHED, ending
from vario.core.process.script import ScriptRaised, execute
from vario.core.process.switch import is_off
from vario.training.after_import import AfterImport
from vario.training.children import at_end_of_child, follow_spawned, is_child
from vario.training.leaving import close_all
from vario.training.succession import new_group

if TYPE_CHECKING:
    from vario.backends.protocols.framework import ModelSearch, SearchedFramework
    from vario.backends.protocols.losses import BackwardLoss
    from vario.training.monitor import Monitor

log = logging.getLogger("vario")


class Launch:
    """One watched script: waits for its framework, then for models in training, and watches them.

    Models that are trained one after another, as in cross-validation, get a run each.
    """

    def __init__(self, config: Config, group: str | None = None) -> None:
        """`group`: the group of the process that started this one."""
        self.config = config
        self.monitors: list[Monitor] = []
        self._watching: list[Monitor] = []
        """The latest Monitor, and those whose models are trained by other threads."""
        self.group = group or new_group()
        self.is_needed = True
        self.refusal: VarioError | None = None
        """A wrong option, or one that asks for it, which ends the script before it trains."""
        self.problem: str | None = None
        """Why the script's model could not be watched; it trains anyway."""
        self._began = time.time()
        self._is_fork = False
        self._searches: list[ModelSearch] = []
        self._follow_no_more: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Start looking for models once the script has imported a framework, here and in the processes it starts."""
        self._follow_no_more = follow_spawned(self.config, self.group)
        os.register_at_fork(after_in_child=self._forked)
        for framework in _searched():
            AfterImport(framework.imported_as, partial(self._look_for_models, framework)).install()

    def stop(self) -> None:
        """Stop looking for models."""
        self._follow_no_more()
        for search in self._searches:
            search.stop()
        self.is_needed = False

    def close(self, error: BaseException | None) -> None:
        """End the runs of a script that raised this exception (or None), and print where they are."""
        close_all(error)
        for monitor in self.monitors:
            if not monitor.is_leading:
                continue
            if monitor.path is None:
                sys.stderr.write("vario: nothing was written, as set by `ranks` and `sinks`\n")
            else:
                sys.stderr.write(
                    f"vario: recorded up to step {monitor.step_number - 1} in {monitor.path}. "
                    f"Show it with: vario report {monitor.path}\n"
                )

    def why_nothing(self) -> str | None:
        """Return why no run was made and what to do, in one sentence; None if there is no need to say it."""
        if self.monitors or not self.is_needed or self._children_recorded():
            return None
        if self.problem is not None:
            return self.problem
        if self._searches:
            return self._searches[0].why_nothing()
        names = " or ".join(framework.imported_as for framework in _searched())
        return (
            f"the script never imported {names}. If it starts training with a command such as torchrun or "
            "accelerate, put `-m vario run` before the training script in that command"
        )

    def _children_recorded(self) -> bool:
        """Whether a process that the script started has made a run: the latest run began after the script."""
        folder = Path(self.config.local_directory)
        try:
            return any(run.stat().st_mtime >= self._began for run in folder.iterdir())
        except OSError:
            return False

    def _look_for_models(self, framework: type[SearchedFramework]) -> None:
        watch = partial(self._watch, framework)
        try:
            self._searches.append(framework.search(watch, self._is_followed, lambda: bool(self.monitors)))
        except UnsupportedRelease as error:
            self.problem = str(error)  # printed at the end; the script runs as it would without vario

    def _is_followed(self, optimizer: Any) -> bool:
        return not self.is_needed or any(monitor.follows(optimizer) for monitor in self._watching)

    def _watch(
        self, framework: type[SearchedFramework], models: Mapping[str, Any], step: int, losses: Sequence[BackwardLoss]
    ) -> None:
        """Watch models that have had this many updates. Only a wrong option may end the script."""
        try:
            self._begin_run(framework, models, step, losses)
        except (ConfigError, TrainingStop) as error:
            self.refusal = error
            raise
        except Exception as error:
            if self.config.strict:
                raise
            self.problem = str(error) if isinstance(error, VarioError) else f"{type(error).__name__}: {error}"
            log.warning("the model cannot be watched and trains without vario: %s", self.problem)

    def _begin_run(
        self, framework: type[SearchedFramework], models: Mapping[str, Any], step: int, losses: Sequence[BackwardLoss]
    ) -> None:
        from vario.training.monitor import Monitor

        busy = [earlier for earlier in self._watching if earlier.is_busy_elsewhere]
        for earlier in self._watching:
            # Closed before the next one starts, so that a model the script no longer uses can be freed.
            if earlier not in busy:
                earlier.close()
        self._watching = busy
        if any(framework.is_watched(model) for model in models.values()):
            self.is_needed = False  # the script calls vario.watch itself
            return
        config = self.config
        if config.name is not None:
            config = replace(config, name=config.name + self._suffix(framework))
        monitor = Monitor(models.get("", models), None, config, group=self.group)
        if losses:
            monitor.begin_with(losses, is_over=step > 0)
        elif step and config.first_step is None:
            monitor.number_next_step(step)
        if is_child() and not self.monitors:
            at_end_of_child(self._child_ended)
        self.monitors.append(monitor)
        self._watching.append(monitor)

    def _suffix(self, framework: type[SearchedFramework]) -> str:
        """Return what distinguishes the name of a run from others of the same script; ranks of one job share it."""
        is_worker = (is_child() or self._is_fork) and framework.world_size() == 1
        return (f"-{os.getpid()}" if is_worker else "") + (f"-{len(self.monitors) + 1}" if self.monitors else "")

    def _forked(self) -> None:
        """Start over in a process that the script forked: the runs of its parent are not its own."""
        self._is_fork = True
        if self.is_needed and self._searches:
            self.monitors, self._watching = [], []
            for search in self._searches:
                search.begin()

    def _child_ended(self, error: BaseException | None) -> None:
        self.stop()
        self.close(error)


def _searched() -> list[type[SearchedFramework]]:
    """Return the frameworks whose models can be found in a script."""
    return [cast("type[SearchedFramework]", found.part) for found in FRAMEWORKS if hasattr(found.part, "search")]


def watch_child(config: Config, group: str) -> None:
    """Watch what this process trains; a watched script started it."""
    Launch(config, group).begin()


def run_script(target: str, arguments: Sequence[str], config: Config, is_module: bool = False) -> int:
    """Run a script or module as `python` would, and watch it; its exceptions come as `ScriptRaised`."""
    if not is_module and not Path(target).is_file():
        raise ConfigError(f"run: there is no script '{target}'. To run a module, use -m: vario run -m {target}")
    if is_module and _is_missing(target):
        raise ConfigError(f"run: there is no module '{target}'. To run a script, omit -m: vario run {target}")
    launch = Launch(config)
    if not is_off(config.enabled):
        launch.begin()
    raised = execute(target, arguments, is_module)
    _finish(launch, raised)
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


def _finish(launch: Launch, error: BaseException | None) -> None:
    if ending(error)[0] == FINISHED and not is_off(launch.config.enabled) and (why := launch.why_nothing()) is not None:
        sys.stderr.write(f"vario: nothing was recorded: {why}\n")
    launch.stop()
    launch.close(error)
