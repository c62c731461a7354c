"""What the callbacks of `mindspore.train.Model` have in common.

Importing this imports no MindSpore. A callback made while MindSpore is imported is one of its Callbacks too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vario.compat.mindformers.loading import MindformersConfig, load_yaml
from vario.compat.mindformers.model_side import imported_mindspore, named_cell
from vario.compat.mindformers.numbers import STEP_TAGS
from vario.config import Config
from vario.core.errors import ConfigError, TrainingStop
from vario.core.process.switch import is_off
from vario.training.monitor import Monitor

log = logging.getLogger("vario")

watching: list[Monitor] = []
"""The Monitor of the training in progress: the callbacks of one training share it."""
joining: list[BaseCallback] = []
"""Callbacks of a training that begins and is not watched yet: the Monitor will do what they ask for, too."""


_kinds: dict[str, type[Any]] = {}
"""The classes that are also Callbacks of MindSpore, by name."""


def _as_callback(kind: type[Any]) -> type[Any]:
    if kind.__name__ not in _kinds:
        callback = imported_mindspore().train.Callback
        own = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _kinds[kind.__name__] = type(kind.__name__, (kind, callback), own)
    return _kinds[kind.__name__]


class BaseCallback:
    """What the callbacks have in common."""

    _is_off = False
    is_merged = False
    """Whether the Monitor reports what this callback is about."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one that MindSpore accepts, if MindSpore is imported."""
        mindspore = imported_mindspore()
        if mindspore is not None and not issubclass(cls, mindspore.train.Callback):
            cls = _as_callback(cls)
        return object.__new__(cls)

    def content(self) -> dict[str, Any]:
        """Return the entry of this callback in a YAML file, and the blocks it needs."""
        raise NotImplementedError

    def guarded(self, call: Any, *args: Any) -> None:
        """Run a part of this callback; a failure is told once and never ends the training."""
        if self._is_off or is_off():
            return
        try:
            call(*args)
        except (ConfigError, TrainingStop):
            raise
        except Exception as error:  # noqa: BLE001 - the failure policy: whatever it is, training continues
            self._is_off = True
            what = type(self).__name__
            log.warning("%s failed and is switched off; training continues. %s: %s", what, type(error).__name__, error)


def watch_model(args: Any, config: Config) -> None:
    """Watch the model of a `mindspore.train.Model`."""
    while watching:
        watching.pop().close()
    model = getattr(args, "network", None) or args.train_network
    watching.append(Monitor(named_cell(model), getattr(args, "optimizer", None), config))


def merged_config(content: Mapping[str, Any], options: Mapping[str, Any]) -> MindformersConfig:
    """Return the config for this content and that of the callbacks that wait for a Monitor."""
    found: dict[str, Any] = {}
    entries: list[Any] = []
    for callback in joining:
        blocks = callback.content()
        entries += blocks.pop("callbacks")
        found.update(blocks)
    own = dict(content)
    entries += own.pop("callbacks")
    config = load_yaml({**found, **own, "callbacks": entries}, **options)
    # A waiting MFLossMonitor knows the numbers of a step better: it logs them itself.
    tags = frozenset(STEP_TAGS) if joining else frozenset()
    return replace(config, settings=replace(config.settings, supplied=tags))


def joined() -> None:
    """Note that the Monitor does what the waiting callbacks ask for."""
    while joining:
        joining.pop().is_merged = True


def close_monitor() -> None:
    """Write everything and leave the model as it was."""
    joining.clear()
    while watching:
        watching.pop().close()
