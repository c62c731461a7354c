"""The callbacks together: for any loop, and from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vario.compat.mindformers.expert_monitor import TopkBiasBalanceCallback
from vario.compat.mindformers.loading import load_yaml
from vario.compat.mindformers.loss_monitor import MFLossMonitor
from vario.compat.mindformers.settings import read_settings
from vario.compat.mindformers.state_monitor import TrainingStateMonitor
from vario.core.config_file import read_table
from vario.core.process.switch import is_off
from vario.training.idle import idle_monitor
from vario.training.monitor import Monitor


def watch(
    model: Any,
    optimizer: Any = None,
    callbacks: Any = (),
    *,
    tensorboard: Mapping[str, Any] | None = None,
    **options: Any,
) -> Monitor:
    """Watch any loop with these callbacks: one Monitor that does what all of them ask for.

    Nothing has to be called in the loop. `options` are those of `vario.Config`.
    """
    content: dict[str, Any] = {}
    entries: list[Any] = []
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        blocks = callback.content()
        entries += blocks.pop("callbacks")
        content.update(blocks)
    if tensorboard is not None:
        content["tensorboard"] = dict(tensorboard)
    config = load_yaml({**content, "callbacks": entries}, **options)
    if is_off(config.enabled):
        return idle_monitor()
    return Monitor(model, optimizer, config)


def callbacks_from(source: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> list[Any]:
    """Return the callbacks that a YAML file asks for, for `mindspore.train.Model`.

    `options` are those of `vario.Config`, for the run that TrainingStateMonitor records.
    """
    content = dict(source) if isinstance(source, Mapping) else dict(read_table(Path(source)))
    read_settings(content, "" if isinstance(source, Mapping) else str(source))
    board = content.pop("tensorboard", None)
    monitor = content.pop("monitor_config", None) or {}
    entries = {entry["type"]: {**entry} for entry in content.pop("callbacks", None) or () if "type" in entry}
    for entry in entries.values():
        del entry["type"]
    made: list[Any] = []
    if "MFLossMonitor" in entries:
        made.append(MFLossMonitor(**entries["MFLossMonitor"], tensorboard=board, **content))
    if monitor.get("monitor_on") or content.get("check_for_nan_in_loss_and_grad"):
        given = {name: value for name, value in entries.get("TrainingStateMonitor", {}).items() if name != "config"}
        made.append(TrainingStateMonitor(config=monitor, tensorboard=board, options=options, **given))
    if "TopkBiasBalanceCallback" in entries:
        made.append(TopkBiasBalanceCallback(**entries["TopkBiasBalanceCallback"], tensorboard=board))
    return made
