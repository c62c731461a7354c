"""The monitoring of `TopkBiasBalanceCallback`: the load of each expert."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from vario.compat.mindformers.callback_base import BaseCallback, watching
from vario.compat.mindformers.model_side import expert_loads, place_here, shares
from vario.compat.mindformers.report import TENSORBOARD, Report
from vario.compat.mindformers.settings import Settings, read_settings


class TopkBiasBalanceCallback(BaseCallback):
    """The load of each expert. Only the monitoring: it never changes a bias."""

    def __init__(
        self,
        balance_via_topk_bias: bool = False,
        topk_bias_update_rate: float = 0.0,
        expert_num: int = 1,
        micro_batch_num: int = 1,
        gradient_accumulation_steps: int = 1,
        *,
        tensorboard: Mapping[str, Any] | None = None,
    ) -> None:
        """Arguments about balancing are accepted and not used."""
        given = {name: value for name, value in locals().items() if name not in ("self", "tensorboard", "__class__")}
        self._entry = {"type": "TopkBiasBalanceCallback", **given}
        self._blocks = {"tensorboard": dict(tensorboard)} if tensorboard is not None else {}
        self.settings: Settings = read_settings(self.content())
        self._report: Report | None = None
        self._before: dict[str, Any] = {}
        self._step = 0

    def content(self) -> dict[str, Any]:
        """Return the entry of this callback in a YAML file, and the blocks it needs."""
        return {**self._blocks, "callbacks": [self._entry]}

    def on_train_step_end(self, run_context: Any) -> None:
        """Read how many tokens each expert got in this step."""
        self.guarded(self._model_step_ended, run_context.original_args())

    def on_train_end(self, run_context: Any) -> None:
        """Finish the event file."""
        if self._report is not None:
            self._report.close()
            self._report = None

    def _model_step_ended(self, args: Any) -> None:
        if not self.settings.shows_experts:
            return
        if self._report is None:
            self._report = Report(self.settings, *place_here(), shows_config=False)
        self._step = int(args.cur_step_num)
        found = expert_loads(args.train_network)
        values = shares(found, self._before)
        self._before = found
        self._report.state(self._step, values, frozenset({TENSORBOARD}), time.time())
        if watching and values:
            watching[-1].log(**values)
