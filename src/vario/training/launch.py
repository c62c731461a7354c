"""Running an unchanged training script under watch: `vario run train.py`."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.config import Config
from vario.core.ending import FINISHED, ending
from vario.core.errors import ConfigError, UnsupportedRelease, VarioError
from vario.core.script import ScriptRaised, execute
from vario.core.switch import is_off
from vario.training.after_import import AfterImport
from vario.training.children import at_end_of_child, follow_spawned, is_child
from vario.training.leaving import close_all
from vario.training.succession import new_group

if TYPE_CHECKING:
    from vario.backends.losses import BackwardLoss
    from vario.backends.torch.loop.discovery import Search
    from vario.training.monitor import Monitor

log = logging.getLogger("vario")


class Launch:
    """One script under watch: waits for torch, then for models in training, and watches them.

    Models that are trained one after the other, as in cross-validation, get a run each.
    """

    def __init__(self, config: Config, group: str | None = None) -> None:
        """`group`: of the process that started this one."""
        self.config = config
        self.monitors: list[Monitor] = []
        self._watching: list[Monitor] = []
        """The latest, and those whose models other threads train."""
        self.group = group or new_group()
        self.is_needed = True
        self.refusal: VarioError | None = None
        """A wrong option, which ends the script before it trains."""
        self.problem: str | None = None
        """Why the script's model could not be watched; it trains all the same."""
        self._began = time.time()
        self._is_fork = False
        self._search: Search | None = None
        self._follow_no_more: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Look for a model as soon as the script has imported torch, here and in the processes it starts."""
        self._follow_no_more = follow_spawned(self.config, self.group)
        os.register_at_fork(after_in_child=self._forked)
        AfterImport("torch", self._look_for_models).install()

    def stop(self) -> None:
        """Look no more."""
        self._follow_no_more()
        if self._search is not None:
            self._search.stop()
        self.is_needed = False

    def close(self, error: BaseException | None) -> None:
        """End the runs of a script that raised this, or nothing, and say where they are."""
        close_all(error)
        for monitor in self.monitors:
            if not monitor.is_leading:
                continue
            if monitor.path is None:
                sys.stderr.write("vario: nothing was written; `ranks` and `sinks` say so\n")
            else:
                sys.stderr.write(
                    f"vario: recorded up to step {monitor.step_number - 1} in {monitor.path}. "
                    f"Look at it: vario report {monitor.path}\n"
                )

    def why_nothing(self) -> str | None:
        """Why no run was made, and what to do, in one sentence; None where there is no need to say."""
        if self.monitors or not self.is_needed or self._children_recorded():
            return None
        if self.problem is not None:
            return self.problem
        if self._search is None:
            return (
                "the script never imported torch. If it starts the training with a command, such as torchrun or "
                "accelerate, put `-m vario run` there, before the training script"
            )
        if not self._search.has_forward:
            return (
                "no module with parameters was called with gradients on, and no torch optimizer made an update. "
                "If another process trains, start that one with `vario run`"
            )
        if not self._search.has_backward:
            return (
                "models were called, but no gradient reached their parameters and no torch optimizer made an update. "
                "To watch an evaluation, add `vario.watch(model)` to the script"
            )
        return (
            "gradients came, but no weight changed between calls of the model and no torch optimizer made an update. "
            "Add `monitor = vario.watch(model)` to the script, and `monitor.step()` after each step"
        )

    def _children_recorded(self) -> bool:
        """Whether a process that the script started has made a run: the newest there is began after the script."""
        folder = Path(self.config.directory)
        try:
            return any(run.stat().st_mtime >= self._began for run in folder.iterdir())
        except OSError:
            return False

    def _look_for_models(self) -> None:
        try:
            from vario.backends.torch.loop.discovery import Search
        except UnsupportedRelease as error:
            self.problem = str(error)  # said at the end; the script runs as without us
            return
        self._search = Search(self._watch, self._is_followed, lambda: bool(self.monitors))

    def _is_followed(self, optimizer: Any) -> bool:
        return not self.is_needed or any(monitor.follows(optimizer) for monitor in self._watching)

    def _watch(self, models: dict[str, Any], step: int, losses: Sequence[BackwardLoss]) -> None:
        """Watch models that have had this many updates. Only a wrong option may end the script."""
        try:
            self._begin_run(models, step, losses)
        except ConfigError as error:
            self.refusal = error
            raise
        except Exception as error:
            if self.config.strict:
                raise
            self.problem = str(error) if isinstance(error, VarioError) else f"{type(error).__name__}: {error}"
            log.warning("the model cannot be watched, and trains unwatched: %s", self.problem)

    def _begin_run(self, models: dict[str, Any], step: int, losses: Sequence[BackwardLoss]) -> None:
        from vario.backends.torch.targets import is_watched
        from vario.training.monitor import Monitor

        busy = [earlier for earlier in self._watching if earlier.is_busy_elsewhere]
        for earlier in self._watching:
            # Closed before the next one, so that a model the script is done with can leave the memory.
            if earlier not in busy:
                earlier.close()
        self._watching = busy
        if any(is_watched(model) for model in models.values()):
            self.is_needed = False  # the script watches by itself
            return
        config = self.config
        if config.name is not None:
            config = replace(config, name=config.name + self._suffix())
        monitor = Monitor(models.get("", models), None, config, group=self.group)
        if losses:
            monitor.begin_with(losses, is_over=step > 0)
        elif step and config.first_step is None:
            monitor.number_next_step(step)
        if is_child() and not self.monitors:
            at_end_of_child(self._child_ended)
        self.monitors.append(monitor)
        self._watching.append(monitor)

    def _suffix(self) -> str:
        """What sets the name of a run apart from others of the same script; ranks of one job share theirs."""
        from vario.backends.torch.process import rank_and_world_size

        is_worker = (is_child() or self._is_fork) and rank_and_world_size()[1] == 1
        return (f"-{os.getpid()}" if is_worker else "") + (f"-{len(self.monitors) + 1}" if self.monitors else "")

    def _forked(self) -> None:
        """In a process that the script has forked: its parent's runs are not its own."""
        self._is_fork = True
        if self.is_needed and self._search is not None:
            self.monitors, self._watching = [], []
            self._search.begin()

    def _child_ended(self, error: BaseException | None) -> None:
        self.stop()
        self.close(error)


def watch_child(config: Config, group: str) -> None:
    """Watch what this process, which a script under watch has started, trains."""
    Launch(config, group).begin()


def run_script(target: str, arguments: Sequence[str], config: Config, is_module: bool = False) -> int:
    """Run a script or module as `python` would, watched; what it raises, `ScriptRaised` carries on."""
    if not is_module and not Path(target).is_file():
        raise ConfigError(f"run: there is no script '{target}'. A module is run with -m: vario run -m {target}")
    if is_module and _is_missing(target):
        raise ConfigError(f"run: there is no module '{target}'. A script is run without -m: vario run {target}")
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
