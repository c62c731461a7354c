"""Lightning: `MonitorCallback` records a run like `vario.watch`, including what the LightningModule logs.

Steps are numbered from 0 as in Lightning's own loggers: one per update of the weights, after one batch or a group of
accumulated batches.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.loop_capabilities import TrainerPasses
from vario.core.process.ending import ending
from vario.core.process.last_guard import guards_events
from vario.integrations.deciding import Decisions
from vario.integrations.recording import RecordingCallback
from vario.probes import Recorder

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise ImportError("vario.integrations.lightning needs Lightning: pip install lightning") from error


class _Passes:
    """Marks the start and end of passes: Lightning calls `training_step`, not the module that the optimizer trains."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Watch the model."""
        passes = needed(backend, TrainerPasses)
        self.began = recorder.guarded("passes", passes.pass_began)
        self.ended = recorder.guarded("passes", passes.pass_ended)


PRECISIONS = {"16-mixed": "fp16-mixed", "bf16-mixed": "bf16-mixed", "16-true": "fp16", "bf16-true": "bf16"}
"""Lightning's names for precisions, and ours; others leave the model unchanged."""


class _TrainingStep(torch.nn.Module):
    """A LightningModule's `training_step` as a model that returns its loss."""

    def __init__(self, trained: torch.nn.Module) -> None:
        super().__init__()
        self.trained = trained

    def forward(self, batch: Any) -> Any:
        """Return the loss of one batch."""
        step: Any = self.trained.training_step
        takes_number = len(inspect.signature(step).parameters) > 1
        made = step(batch, 0) if takes_number else step(batch)
        return made["loss"] if isinstance(made, Mapping) else made


@guards_events
class MonitorCallback(RecordingCallback, Callback):
    """Watches each `fit` of a Lightning Trainer: `Trainer(callbacks=[MonitorCallback()])`.

    `print_model_summary` prints the model's parameters at the start. `log_gpu_memory` logs GPU memory to the Trainer's
    loggers. `check_gradients` checks the gradients before clipping, every `gradient_check_steps` steps, and prints each
    problem once. `predict_memory` predicts the peak memory of a step before the first one runs; the report compares it
    with the measured peak. Everything else is an option of `vario.watch`.
    """

    _next_step: int | None = None
    _decisions: Decisions | None = None

    def _begin(self) -> None:
        self._passes = _Passes()
        self._waits_for_batch = False
        self._was_updated = False
        self._update_was_unseen = False
        self._is_between_steps = True
        self._losses: list[Any] = []
        self._seen: dict[str, Any] = {}
        self._reported: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores: the run, and the number of its next step."""
        next_step = self._next_step if self._recording.monitor is None else self._recording.monitor.next_step_number
        return {"run_folder": self.run_folder, "next_step": next_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it from a checkpoint."""
        self.run_folder = state_dict.get("run_folder")
        self._next_step = state_dict.get("next_step")

    # Lightning's events

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a run, or resume the one the checkpoint names."""
        if self._recording.is_off:
            return
        resumed = trainer.global_step > 0
        first_step = trainer.global_step if self._next_step is None else self._next_step
        self._begin()
        self._waits_for_batch = self._recording.predict_memory
        monitor = self._recording.start(
            pl_module,
            list(trainer.optimizers) or None,
            first_step=first_step if resumed else 0,
            counts_from=0,
            resumed=resumed,
            stored_folder=self.run_folder if resumed else None,
            speaks=trainer.is_global_zero,
            probes=[self._passes],
        )
        self.run_folder = None if monitor.path is None else str(monitor.path.resolve())
        total_steps = trainer.estimated_stepping_batches
        if 0 < total_steps < math.inf:
            self._recording.log({"total_steps": float(total_steps)})
        reduce = trainer.strategy.reduce_boolean_decision
        self._decisions = Decisions(
            self._recording.config, trainer.world_size, lambda wish: bool(reduce(wish, all=False))
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start a pass; what was logged after the last one still belongs to that one."""
        if self._waits_for_batch:
            self._waits_for_batch = False
            self._predict(trainer, pl_module, batch)
        monitor = self._recording.monitor
        if monitor is not None:
            new = self._what_is_new(trainer)
            if self._is_between_steps:
                self._recording.log(new)
            self._is_between_steps = False
            if self._update_was_unseen:
                self._update_was_unseen = False
                monitor.step()
            self._passes.began()
            # training_step is called with it, not the module itself.
            monitor.batch(batch)

    def _predict(self, trainer: Any, pl_module: Any, batch: Any) -> None:
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            self._recording.say("peak memory is not predicted: the module uses manual optimization")
            return
        self._recording.foretell(
            _TrainingStep(pl_module),
            (batch,),
            pl_module.device,
            precision=PRECISIONS.get(str(trainer.precision)),
            optimizer=trainer.optimizers[0],
            accumulation=trainer.accumulate_grad_batches,
            clip=trainer.gradient_clip_val is not None,
            gpus=trainer.world_size,
        )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Record the learning rate of this update."""
        if self._recording.monitor is not None:
            self._was_updated = True
            position = next((nth for nth, known in enumerate(trainer.optimizers) if _is_same(known, optimizer)), 0)
            suffix = f"_{position}" if len(trainer.optimizers) > 1 else ""
            # A module without optimizers gets an empty one.
            rates = [group["lr"] for group in optimizer.param_groups[:1] if "lr" in group]
            self._recording.log({f"learning_rate{suffix}": float(rate) for rate in rates})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a pass; if it made an update, record its loss and what was logged."""
        self._keep_pass(trainer, pl_module, outputs)
        if self._decisions is not None:
            checkpoint, stop = self._decisions.take(self._recording.monitor)
            if checkpoint:
                trainer.save_checkpoint(_checkpoint_folder(trainer) / f"incident-step={trainer.global_step}.ckpt")
            trainer.should_stop = trainer.should_stop or stop

    def _keep_pass(self, trainer: Any, pl_module: Any, outputs: Any) -> None:
        monitor = self._recording.monitor
        if monitor is None:
            return
        self._passes.ended()
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if loss is not None:
            # Lightning passes the loss divided by the number of accumulated batches.
            self._losses.append(loss.detach() * trainer.accumulate_grad_batches)
        if not self._was_updated:
            self._what_is_new(trainer)  # a pass of an accumulation; the numbers of the last one are the step's
            return
        self._was_updated = False
        self._is_between_steps = True
        self._update_was_unseen = not monitor.is_between_steps
        self._log_what_is_new(trainer)
        if self._losses:
            loss = sum(self._losses) / len(self._losses)
            # The module uses this name for something else, or for the mean over ranks.
            if "loss" not in self._seen:
                self._recording.log({"loss": loss})
        self._losses.clear()
        if (monitor.step_number + 1) % max(trainer.log_every_n_steps, 1) == 0:
            added = self._recording.for_reports(pl_module.device)
            self._reported.update(added)
            pl_module.log_dict(added)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record what the validation logged."""
        if not trainer.sanity_checking:
            self._log_what_is_new(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record what the previous epoch logged at its end."""
        self._log_what_is_new(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        self._log_what_is_new(trainer)
        if self._recording.monitor is not None and self._update_was_unseen:
            self._recording.monitor.step()
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run as crashed, or as interrupted."""
        self._close(*ending(exception))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Release the model, whatever happened."""
        self._close()

    def _close(self, state: str = "finished", error: str | None = None) -> None:
        if self._recording.monitor is not None:
            self._next_step = self._recording.monitor.next_step_number
        self._recording.close(state, error)

    def _log_what_is_new(self, trainer: Any) -> None:
        if self._recording.monitor is not None:
            self._recording.log(self._what_is_new(trainer))

    def _what_is_new(self, trainer: Any) -> dict[str, Any]:
        """The numbers logged since the last call: Lightning keeps the old ones beside them."""
        new = {}
        for name, value in trainer.logged_metrics.items():
            seen = self._seen.get(name)
            if name not in self._reported and (seen is None or seen.data_ptr() != value.data_ptr()):
                # Kept alive, so that its id is not reused.
                new[name] = self._seen[name] = value
        return new


def _checkpoint_folder(trainer: Any) -> Path:
    """The folder of the Trainer's own checkpoints, the same on all ranks."""
    saving = trainer.checkpoint_callback
    return Path(getattr(saving, "dirpath", None) or trainer.default_root_dir)


def _is_same(optimizer: Any, other: Any) -> bool:
    return getattr(optimizer, "optimizer", optimizer) is getattr(other, "optimizer", other)
