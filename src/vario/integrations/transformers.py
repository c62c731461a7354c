"""Hugging Face's Trainer: `MonitorCallback` records a run like `vario.watch`, including what the Trainer logs.

The run's step N is the update that brought the Trainer's `global_step` to N: the number in its logs, reports and
checkpoints. What is logged before the first update, by `eval_on_start`, is step 0.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

from vario.core.package import refuse_older
from vario.core.process.ending import ending
from vario.core.process.last_guard import guards_events
from vario.integrations.deciding import Decisions
from vario.integrations.recording import RecordingCallback
from vario.notices import without_secrets
from vario.rules import choose, to_options
from vario.training.monitor import Monitor

try:
    from transformers import __version__

    refuse_older("transformers", __version__, (4, 50), "vario.MonitorCallback")
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "vario.MonitorCallback needs transformers with PyTorch: pip install transformers torch"
    ) from error

_LOOP_PARTS = ("_run_epoch", "_evaluate", "_finalize_training")
_LOOP_PARTS_OF_OLDER_TRAINERS = ("training_step", "get_batch_samples", "_maybe_log_save_evaluate")
"""Methods of a Trainer through which an exception of the training propagates."""


@guards_events
class MonitorCallback(RecordingCallback, TrainerCallback, ExportableState):
    """Watches each training of a Trainer: `Trainer(..., callbacks=[MonitorCallback()])`.

    `print_model_summary` prints the model's parameters at the start. `log_gpu_memory` adds GPU memory to the Trainer's
    reports. `check_gradients` checks the gradients before clipping, every `gradient_check_steps` steps, and prints each
    problem once. `predict_memory` predicts the peak memory of a step before the first one runs; the report compares it
    with the measured peak. Everything else is an option of `vario.watch`.
    """

    def _begin(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._update_was_unseen = False
        self._decisions: Decisions | None = None
        self._total_steps = 0

    def state(self) -> dict[str, Any]:
        """Return what trainer_state.json stores: the callback's arguments, and its run."""
        recording = self._recording
        options = recording.config.to_json()
        # Checkpoints are shared like runs: do not store notification channels that contain a secret.
        options["notify"] = without_secrets(recording.config.notify)
        options["rules"] = to_options(choose(recording.config.rules))
        for key in ("first_step", "resume"):
            del options[key]
        return {
            "args": {
                "print_model_summary": recording.print_model_summary,
                "log_gpu_memory": recording.log_gpu_memory,
                "check_gradients": recording.check_gradients,
                "gradient_check_steps": recording.gradient_check_steps,
                "predict_memory": recording.predict_memory,
                **options,
                "directory": str(options["directory"]),
            },
            "attributes": {"run_folder": self.run_folder},
        }

    # The Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a run, or resume the one the checkpoint names."""
        self._let_go()
        resumed = state.global_step > 0
        if self._recording.is_off:
            # Stored in this training's checkpoints as well, so that a later training can resume the run.
            self.run_folder = self._folder_in(state) if resumed else None
            self._name_in(state)
            return
        monitor = self._recording.start(
            kwargs["model"],
            kwargs.get("optimizer"),
            first_step=state.global_step + 1 if resumed else 0,
            counts_from=1,
            resumed=resumed,
            stored_folder=self._folder_in(state) if resumed else None,
            speaks=state.is_world_process_zero,
        )
        monitor.params.add("dataset", _dataset_facts(kwargs.get("train_dataloader")))
        self.run_folder = None if monitor.path is None else str(monitor.path.resolve())
        self._total_steps = state.max_steps
        self._decisions = Decisions(self._recording.config, args.world_size, _any_rank)
        self._name_in(state)
        self._update_was_unseen = False
        if self._recording.predict_memory:
            self._undo.append(
                self._recording.foretell_when_called(
                    kwargs["model"],
                    args.device,
                    precision="bf16-mixed" if args.bf16 else "fp16-mixed" if args.fp16 else None,
                    optimizer=kwargs.get("optimizer") or "adamw",
                    accumulation=args.gradient_accumulation_steps,
                    gpus=args.world_size,
                )
            )
        trainer = self._trainer(state)
        if trainer is not None:
            self._undo.append(_put_first(trainer, self))
            self._undo.append(_tell_of_exceptions(trainer, self._training_raised))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Number the step as the Trainer does."""
        monitor = self._recording.monitor
        if monitor is not None:
            self._end_unseen_step(monitor)
            monitor.number_next_step(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that the update was noticed: an engine may update the weights without a torch optimizer."""
        self._update_was_unseen = self._recording.monitor is not None and not self._recording.monitor.is_between_steps
        if self._total_steps > 0:
            self._recording.log({"total_steps": self._total_steps})
            self._total_steps = 0
        if self._decisions is not None:
            checkpoint, stop = self._decisions.take(self._recording.monitor)
            control.should_save = control.should_save or checkpoint
            control.should_training_stop = control.should_training_stop or stop

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record what the Trainer logs, then add numbers for its reports."""
        monitor = self._recording.monitor
        if monitor is None or logs is None:
            return
        # An evaluation before the first step of a resumed training repeats what the run has of the previous step.
        if state.global_step >= monitor.step_number:
            self._recording.log(logs)
        if not any(name.startswith(("eval_", "test_")) for name in logs):
            logs.update(self._recording.for_reports(args.device))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        if self._recording.monitor is not None:
            self._end_unseen_step(self._recording.monitor)
        self._let_go()
        self._recording.close()

    def _end_unseen_step(self, monitor: Monitor) -> None:
        if self._update_was_unseen:
            self._update_was_unseen = False
            monitor.step()

    def _training_raised(self, error: BaseException) -> None:
        self._let_go()
        self._recording.close(*ending(error))

    def _let_go(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _name_in(self, state: Any) -> None:
        # A checkpoint written without this callback has no such entry, and the Trainer would fail when it saves.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def _folder_in(self, state: Any) -> str | None:
        """The run in a checkpoint's trainer_state.json."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, list):
            kept = kept[0] if kept else None
        folder = (kept or {}).get("attributes", {}).get("run_folder")
        return folder if isinstance(folder, str) else self.run_folder

    def _trainer(self, state: Any) -> Any:
        """The Trainer that calls this callback, or None; events do not pass it."""
        for candidate in gc.get_objects():
            if issubclass(type(candidate), Trainer) and getattr(candidate, "state", None) is state:
                handler = getattr(candidate, "callback_handler", None)
                if handler is not None and any(callback is self for callback in handler.callbacks):
                    return candidate
        return None


def _any_rank(wish: bool) -> bool:
    """Whether it is true on any rank, by the reduction of the library that the Trainer uses."""
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]
    from accelerate.utils import reduce  # type: ignore[import-untyped]

    wishes = torch.tensor(float(wish), device=PartialState().device)
    return bool(reduce(wishes, reduction="sum").item() > 0)


def _put_first(trainer: Any, callback: MonitorCallback) -> Callable[[], None]:
    """Call this callback before all others, so that those which report see what it adds to the logs."""
    handler = trainer.callback_handler
    position = next(index for index, other in enumerate(handler.callbacks) if other is callback)
    # New lists: the Trainer may be iterating over the old one.
    handler.callbacks = [callback, *(other for other in handler.callbacks if other is not callback)]

    def undo() -> None:
        others = [other for other in handler.callbacks if other is not callback]
        if len(others) < len(handler.callbacks):
            handler.callbacks = [*others[:position], callback, *others[position:]]

    return undo


def _tell_of_exceptions(trainer: Any, call: Callable[[BaseException], None]) -> Callable[[], None]:
    """Call a function with any exception that ends the training: the Trainer has no event for it."""
    parts = [(trainer, name) for name in _LOOP_PARTS]
    if not hasattr(trainer, _LOOP_PARTS[0]):
        parts = [(trainer, name) for name in _LOOP_PARTS_OF_OLDER_TRAINERS]
        parts.append(
            (trainer.callback_handler, "call_event")
        )  # an exception of another callback passes only through here
    followed = [(owner, name) for owner, name in parts if hasattr(owner, name) and name not in vars(owner)]
    for owner, name in followed:
        setattr(owner, name, _reporting(getattr(owner, name), call))

    def undo() -> None:
        for owner, name in followed:
            vars(owner).pop(name, None)

    return undo


def _reporting(method: Callable[..., Any], call: Callable[[BaseException], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            call(error)
            raise

    return run


def _dataset_facts(loader: Any) -> dict[str, Any]:
    """The fingerprint and the number of rows of a dataset of Hugging Face's datasets; empty for any other."""
    dataset = getattr(loader, "dataset", None)
    fingerprint = getattr(dataset, "_fingerprint", None)
    if not isinstance(fingerprint, str):
        return {}
    rows = getattr(dataset, "num_rows", None)
    return {"dataset.fingerprint": fingerprint, **({"dataset.rows": rows} if isinstance(rows, int) else {})}
