"""`TrainingStateMonitor`: norms of gradients, weights and moments, and local losses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vario.compat.mindformers.callback_base import (
    BaseCallback,
    close_monitor,
    joined,
    merged_config,
    watch_model,
    watching,
)
from vario.compat.mindformers.probes import StructurePrinted
from vario.compat.mindformers.settings import Settings, read_settings

log = logging.getLogger("vario")


class TrainingStateMonitor(BaseCallback):
    """Norms of gradients, weights and moments, and local losses; its `config` is `monitor_config`."""

    def __init__(
        self,
        origin_epochs: int | None = None,
        config: Any = None,
        step_interval: int = 1,
        dataset_size: int | None = None,
        initial_epoch: int = 0,
        initial_step: int = 0,
        micro_batch_num: int = 0,
        global_batch_size: int = 0,
        tensor_model_parallel_size: int = 0,
        check_for_nan_in_loss_and_grad: bool = False,
        use_skip_data_by_global_norm: bool = False,
        embedding_size: int = 4096,
        use_local_norm: bool = False,
        *,
        tensorboard: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **content: Any,
    ) -> None:
        """`options` are those of `vario.Config`, such as `name` and `directory` of the run."""
        left_out = ("self", "tensorboard", "content", "config", "options", "__class__", "left_out")
        given = {name: value for name, value in locals().items() if name not in left_out}
        block = {"monitor_on": config is not None, **_plain(config)}
        if step_interval != 1 or "step_interval" not in block:
            block["step_interval"] = step_interval
        self._entry = {"type": "TrainingStateMonitor", **given}
        self._blocks = {**content, "monitor_config": block}
        if tensorboard is not None:
            self._blocks["tensorboard"] = dict(tensorboard)
        self._options = dict(options or {})
        self.settings: Settings = read_settings(self.content())

    def content(self) -> dict[str, Any]:
        """Return the entry of this callback in a YAML file, and the blocks it needs."""
        return {**self._blocks, "callbacks": [self._entry]}

    def on_train_begin(self, run_context: Any) -> None:
        """Watch the model."""
        try:
            self.guarded(self._begin, run_context.original_args())
        except StructurePrinted as listed:
            log.warning("%s", listed)
            run_context.request_stop()

    def _begin(self, args: Any) -> None:
        content = self.content()
        if self._entry["dataset_size"] is None and getattr(args, "batch_num", None):
            content["callbacks"] = [{**self._entry, "dataset_size": int(args.batch_num)}]
            if self._entry["origin_epochs"] is None and getattr(args, "epoch_num", None):
                content["callbacks"][0]["origin_epochs"] = int(args.epoch_num)
        config = merged_config(content, self._options)
        if config.first_step is None and (first := getattr(args, "cur_step_num", 0)):
            config = replace(config, first_step=int(first))
        watch_model(args, config)
        joined()

    def on_train_step_end(self, run_context: Any) -> None:
        """Stop if a rule asks for it."""
        if watching and watching[-1].should_stop:
            run_context.request_stop()

    def on_train_end(self, run_context: Any) -> None:
        """Write everything and leave the model as it was."""
        close_monitor()


def _plain(config: Any) -> dict[str, Any]:
    """Return a config as a dict, whatever object it is."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}
