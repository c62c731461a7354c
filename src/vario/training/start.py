"""`vario.watch`: one line before the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vario.core.switch import is_off
from vario.training.idle import idle_monitor

if TYPE_CHECKING:
    from vario.config import Config
    from vario.training.monitor import Monitor


def watch(
    model: Any, optimizer: Any = None, *, config: Config | None = None, scaler: Any = None, **options: Any
) -> Monitor:
    """Watch a model: one line before the training loop. Options are the fields of `vario.Config`.

    `model` may be a module, or a list or dict of modules; `optimizer` one, several, or none: then every torch
    optimizer that updates the model is followed. A GradScaler is found by itself unless `scaler` names it.
    With `enabled=False`, or `VARIO=off` in the environment, nothing is watched and every call does nothing.
    """
    # Asked before anything is imported or checked: off costs nothing.
    if is_off(options.get("enabled", getattr(config, "enabled", True)) is not False):
        return idle_monitor()
    from vario.config import make_config
    from vario.training.monitor import Monitor
    from vario.training.succession import follow_up, group_of, place_here

    place = place_here()
    settings = follow_up(make_config(options, config), place)
    return Monitor(model, optimizer, settings, scaler, group=group_of(place))
