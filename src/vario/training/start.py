"""`vario.watch`: one line before the training loop. `vario.start`: the same without a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vario.core.errors import VarioError
from vario.core.process.switch import is_off
from vario.training.idle import idle_log, idle_monitor

if TYPE_CHECKING:
    from vario.config import Config
    from vario.training.monitor import Monitor
    from vario.training.run_log import RunLog

log = logging.getLogger("vario")


def watch(
    model: Any, optimizer: Any = None, *, config: Config | None = None, scaler: Any = None, **options: Any
) -> Monitor:
    """Watch a model: one line before the training loop. Options are the fields of `vario.Config`.

    `model` may be a module, a list or dict of modules, a MindSpore cell or `Model`, or a
    `vario.backends.numpy.NumpyModel`. `optimizer` may be one, several or none; with none, vario follows every optimizer
    that updates the model. torch's GradScaler is found automatically unless you pass `scaler`. With `enabled=False`, or
    `VARIO=off` in the environment, nothing is watched and every call does nothing.
    """
    # Checked before anything is imported: disabled means no cost.
    if is_off(options.get("enabled", getattr(config, "enabled", True)) is not False):
        return idle_monitor()
    try:
        from vario.config import make_config
        from vario.training.monitor import Monitor
        from vario.training.succession import follow_up, group_of, place_here

        place = place_here()
        settings = follow_up(make_config(options, config), place)
        return Monitor(model, optimizer, settings, scaler, group=group_of(place))
    except Exception as error:  # noqa: BLE001 - the failure policy
        _warn(error, "watch this model; training continues unwatched", options, config)
        return idle_monitor()


def start(name: str | None = None, *, config: Config | None = None, **options: Any) -> RunLog:
    """Start a run without a model, for plain numbers: evaluation jobs, reinforcement learning, other frameworks.

    Options are the fields of `vario.Config`; those about a model have no effect. With `enabled=False`, or `VARIO=off`
    in the environment, every call does nothing.
    """
    if is_off(options.get("enabled", getattr(config, "enabled", True)) is not False):
        return idle_log()
    try:
        from vario.config import make_config
        from vario.training.run_log import RunLog
        from vario.training.succession import follow_up, group_of, place_here

        place = place_here()
        options = options if name is None else {**options, "name": name}
        return RunLog(follow_up(make_config(options, config), place), group_of(place))
    except Exception as error:  # noqa: BLE001 - the failure policy
        _warn(error, "start a run; the script continues without one", options, config)
        return idle_log()


def _warn(error: Exception, what: str, options: Mapping[str, Any], config: Config | None) -> None:
    """Log an unexpected error; raise it if it names what is wrong with a model or an option, or with `strict`."""
    if isinstance(error, VarioError) or options.get("strict", getattr(config, "strict", False)):
        raise error
    log.warning("vario cannot %s. %s: %s. `strict=True` shows where", what, type(error).__name__, error)
