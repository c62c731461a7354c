"""`MFLossMonitor`: the numbers of each step, for `mindspore.train.Model` and for loops that report them by hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from vario.compat.mindformers.callback_base import (
    BaseCallback,
    close_monitor,
    joining,
    merged_config,
    watch_model,
    watching,
)
from vario.compat.mindformers.flops import flops_per_sample
from vario.compat.mindformers.model_side import Outputs, learning_rate_of, place_here
from vario.compat.mindformers.numbers import SECONDS_PER_DAY
from vario.compat.mindformers.report import Report
from vario.compat.mindformers.settings import Settings, read_settings
from vario.core.errors import ModelError

log = logging.getLogger("vario")


class MFLossMonitor(BaseCallback):
    """Loss, rate, times and throughputs of each step: log lines, TensorBoard and the run."""

    def __init__(
        self,
        learning_rate: Any = None,
        per_print_times: int = 1,
        micro_batch_num: int = 1,
        micro_batch_interleave_num: int = 1,
        origin_epochs: int | None = None,
        dataset_size: int | None = None,
        initial_epoch: int = 0,
        initial_step: int = 0,
        global_batch_size: int = 0,
        gradient_accumulation_steps: int = 1,
        check_for_nan_in_loss_and_grad: bool = False,
        calculate_per_token_loss: bool = False,
        print_separate_loss: bool = False,
        *,
        tensorboard: Mapping[str, Any] | None = None,
        **content: Any,
    ) -> None:
        """`tensorboard` is the block of that name; `content`: further blocks, for the TEXT page and `model`."""
        given = {name: value for name, value in locals().items() if name not in ("self", "tensorboard", "content")}
        given.pop("__class__", None)
        self._entry = {"type": "MFLossMonitor", **given}
        self._blocks = {**content, **({"tensorboard": dict(tensorboard)} if tensorboard is not None else {})}
        self.settings: Settings = read_settings(self.content())
        self._report: Report | None = None
        self._began = time.monotonic()
        given_now = self.settings.loss_monitor
        assert given_now is not None
        self._step = given_now.initial_epoch * (given_now.dataset_size or 0) + given_now.initial_step
        self._count = 0

    def content(self) -> dict[str, Any]:
        """Return the entry of this callback in a YAML file, and the blocks it needs."""
        return {**self._blocks, "callbacks": [self._entry]}

    # A loop of your own

    def step_started(self) -> None:
        """Note that a step begins."""
        self._began = time.monotonic()

    def step_ended(
        self,
        loss: Any = None,
        learning_rate: Any = None,
        grad_norm: Any = None,
        loss_scale: Any = None,
        overflow: bool = False,
        batch_size: float | None = None,
    ) -> None:
        """Report a step: numbers or tensors with one element; None is left out. `batch_size` is that of all ranks."""
        outputs = Outputs(loss, learning_rate, grad_norm, loss_scale, overflow)
        self.guarded(self._report_step, outputs, time.monotonic() - self._began, batch_size)
        self._began = time.monotonic()

    def close(self) -> None:
        """Finish the event file."""
        if self._report is not None:
            self._report.close()
            self._report = None

    def _report_step(self, outputs: Outputs, seconds: float, batch_size: float | None, num_steps: int = 1) -> None:
        given = self.settings.loss_monitor
        assert given is not None
        rank, num_devices = place_here()
        if self._report is None and not (self.is_merged and watching):
            self._report = Report(self.settings, rank, num_devices)
        self._step += num_steps
        batch = given.global_batch_size or batch_size
        throughput = None if not batch or not seconds else batch / num_devices / seconds
        model = self.settings.content.get("model")
        flops = flops_per_sample(model.get("model_config")) if isinstance(model, Mapping) else None
        values: dict[str, float | None] = {
            "learning-rate": outputs.learning_rate,
            "batch-size": None if not batch else float(batch),
            "loss": outputs.loss,
            "loss-scale": outputs.loss_scale,
            "grad-norm": outputs.grad_norm,
            "iteration-time": seconds * 1e3,
            "throughput": throughput,
            "model-flops-throughput-per-npu": None
            if flops is None or throughput is None
            else flops * throughput / 1e12,
            "B-samples-per-day": None if throughput is None else throughput * num_devices * SECONDS_PER_DAY / 1e9,
        }
        if self._report is not None:
            self._report.step(self._step, values, outputs.overflow, time.time())
        if watching:
            watching[-1].log(**{tag: value for tag, value in values.items() if value is not None})

    # mindspore.train.Model

    def on_train_begin(self, run_context: Any) -> None:
        """Wait for a callback that watches the model."""
        args = run_context.original_args()
        given = self.settings.loss_monitor
        if given is not None and given.dataset_size is None and getattr(args, "batch_num", None):
            self._learn_length(args)
        if not watching:
            joining.append(self)
        self.step_started()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Start the clock of a step; at the first one, watch the model if no other callback does."""
        if self in joining:
            self.guarded(self._watch, run_context.original_args())
        self.step_started()

    def _watch(self, args: Any) -> None:
        config = merged_config({"callbacks": []}, {})
        joining.clear()
        try:
            watch_model(args, config)
        except ModelError as error:
            log.warning("the model cannot be watched, so there is no run: %s", error)
        else:
            self.is_merged = True

    def on_train_step_end(self, run_context: Any) -> None:
        """Report the step from what the training cell returned."""
        self.guarded(self._model_step_ended, run_context.original_args())

    def on_train_end(self, run_context: Any) -> None:
        """Finish."""
        self.close()
        close_monitor()

    def _model_step_ended(self, args: Any) -> None:
        given = self.settings.loss_monitor
        assert given is not None
        outputs = Outputs.of_model(args.net_outputs)
        # Not before: reading the loss waits for the device.
        seconds = time.monotonic() - self._began
        if outputs.learning_rate is None:
            optimizer = getattr(args, "optimizer", None)
            outputs.learning_rate = learning_rate_of(given.learning_rate, optimizer, self._step)
        outputs.correct(given)
        # In sink mode one call tells of several steps.
        count = int(getattr(args, "cur_step_num", 0))
        num_steps = max(count - self._count, 1)
        self._count = count
        self._report_step(outputs, seconds / num_steps, _batch_size(args), num_steps)

    def _learn_length(self, args: Any) -> None:
        """Take the steps of an epoch and the epochs from the Model, which knows them."""
        self._entry = {**self._entry, "dataset_size": int(args.batch_num)}
        if self._entry["origin_epochs"] is None and getattr(args, "epoch_num", None):
            self._entry["origin_epochs"] = int(args.epoch_num)
        self.settings = read_settings(self.content())


def _batch_size(args: Any) -> float | None:
    """Return the rows of all ranks in one step, as the dataset says."""
    dataset = getattr(args, "train_dataset", None)
    size = dataset.get_batch_size() if dataset is not None and hasattr(dataset, "get_batch_size") else None
    return None if not size else float(size) * place_here()[1]
