"""Shared by all trainers' callbacks: one run per training, and what is printed and reported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vario.analysis.memory import MemoryPrediction
from vario.analysis.model_text import model_text
from vario.analysis.parameters import GIB, model_summary
from vario.backends.gpus import Gpu
from vario.config import Config, make_config
from vario.core.errors import ConfigError, ModelError
from vario.core.process.switch import is_off
from vario.core.urls import is_url
from vario.integrations.gradient_checks import GradientChecks, check_interval
from vario.probes import Probe
from vario.probes.trainer_reports import is_number
from vario.training.idle import idle_monitor
from vario.training.monitor import Monitor
from vario.training.succession import new_group

log = logging.getLogger("vario")

_KNOWN_TO_THE_TRAINER = {
    "first_step": "steps are numbered by the trainer",
    "resume": "resuming from a checkpoint resumes its run automatically",
}


class Recording:
    """The runs of one callback, one after another; `monitor` is the current one."""

    def __init__(
        self,
        *,
        print_model_summary: bool,
        log_gpu_memory: bool,
        check_gradients: bool,
        gradient_check_steps: int,
        predict_memory: bool = False,
        config: Config | None,
        scaler: Any,
        options: Mapping[str, Any],
    ) -> None:
        for key, reason in _KNOWN_TO_THE_TRAINER.items():
            if key in options:
                raise ConfigError(f"{key}: {reason}. Remove this option.")
        check_interval(gradient_check_steps)
        self.config = make_config(options, config)
        self.is_off = is_off(self.config.enabled)
        self.print_model_summary = print_model_summary
        self.log_gpu_memory = log_gpu_memory
        self.check_gradients = check_gradients
        self.gradient_check_steps = gradient_check_steps
        self.predict_memory = predict_memory
        self.monitor: Monitor | None = None
        self._scaler = scaler
        self._checks: GradientChecks | None = None
        self._speaks = True
        self._names_used: dict[str, int] = {}
        self._group = new_group()

    @property
    def shown_monitor(self) -> Monitor | None:
        """The Monitor for users of the callback; one that does nothing if watching is off."""
        return idle_monitor() if self.is_off else self.monitor

    def start(
        self,
        model: Any,
        optimizer: Any,
        *,
        first_step: int,
        counts_from: int,
        resumed: bool,
        stored_folder: str | None,
        speaks: bool,
        probes: Sequence[Probe] = (),
    ) -> Monitor:
        """Start watching: a new run, or with `resumed` the one in `stored_folder`, rewound to `first_step`."""
        self.close("crashed", "the training ended without an event")
        self._speaks = speaks
        config = replace(self.config, first_step=first_step, start=max(self.config.start, counts_from))
        config = self._continued(config, stored_folder) if resumed else self._named_anew(config)
        if self.print_model_summary:
            self.say(model_text(model_summary(model)).rstrip("\n"))
        self._checks = None
        if self.check_gradients:
            self._checks = GradientChecks(self.gradient_check_steps, counts_from, self.say)
            probes = (*probes, self._checks)
        self.monitor = make_monitor(model, optimizer, config, self._scaler, probes, self._group)
        return self.monitor

    def foretell_when_called(self, model: Any, device: Any, **options: Any) -> Callable[[], None]:
        """Predict the peak of a step when the model gets its first batch; returns a function that cancels it."""
        from vario.integrations.predictions import FirstBatch

        return FirstBatch(model, self._foretold, gpu=_gpu(device), **options).stop

    def foretell(self, model: Any, batch: Any, device: Any, **options: Any) -> None:
        """Predict the peak of a step with this batch; `options` are passed to `vario.predict_memory`."""
        from vario.integrations.predictions import predict_for

        predict_for(self._foretold, model, lambda: batch, gpu=_gpu(device), **options)

    def _foretold(self, found: MemoryPrediction) -> None:
        from vario.integrations.predictions import prediction_line

        self.say(prediction_line(found))
        self.log(found.scalars())

    def _continued(self, config: Config, stored_folder: str | None) -> Config:
        """The run to resume: at its old path, or under the folder of runs if it was moved there."""
        candidates = [] if stored_folder is None else [Path(stored_folder)]
        candidates += [Path(config.local_directory) / candidate.name for candidate in candidates]
        if config.name is not None:
            candidates = [candidate for candidate in candidates if candidate.name == config.name]
            candidates.append(Path(config.local_directory) / config.name)
        for folder in candidates:
            if folder.is_dir():
                if is_url(config.directory):
                    return replace(config, staging=str(folder.parent), name=folder.name, resume=True)
                return replace(config, directory=str(folder.parent), name=folder.name, resume=True)
        if stored_folder is not None:
            log.warning(
                "the run of this training, %s, no longer exists: a new one starts at step %d",
                stored_folder,
                config.first_step,
            )
        return config

    def _named_anew(self, config: Config) -> Config:
        """Give a second training of the same callback, as in a search, its own folder."""
        if config.name is None:
            return config
        nth = self._names_used[config.name] = self._names_used.get(config.name, 0) + 1
        return config if nth == 1 else replace(config, name=f"{config.name}-{nth}")

    def log(self, values: Mapping[str, Any]) -> None:
        """Record the numbers among these."""
        if self.monitor is not None:
            log_numbers(self.monitor, values)

    def for_reports(self, device: Any) -> dict[str, float]:
        """Return what to add to the trainer's own reports: GPU memory, and the last gradient check."""
        added = self._checks.take_latest() if self._checks is not None else {}
        if self.log_gpu_memory and getattr(device, "type", None) == "cuda":
            from vario.backends.torch.gpu_memory import gpu_memory

            memory = gpu_memory(device)
            if memory is not None:
                added["gpu_memory_used_gb"] = memory.used_bytes / GIB
                added["gpu_memory_allocated_gb"] = memory.allocated_bytes / GIB
                added["gpu_memory_peak_gb"] = memory.peak_bytes / GIB
        return added

    def say(self, text: str) -> None:
        """Print on one rank only."""
        if self._speaks:
            say(text)

    def close(self, state: str = "finished", error: str | None = None) -> None:
        """End the current run, if there is one."""
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            monitor.close(state, error)


def _gpu(device: Any) -> Gpu | str:
    """The GPU a training runs on; a default if it runs on none."""
    from vario.backends.torch.gpu_memory import gpu_here

    return (gpu_here(device) if getattr(device, "type", None) == "cuda" else None) or "h100"


def say(text: str) -> None:
    """Print a few lines."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def log_numbers(monitor: Monitor, values: Mapping[str, Any]) -> None:
    """Record the numbers among these; every rank logs the same, so only the leading one records them."""
    if monitor.is_leading:
        monitor.log(**{name: value for name, value in values.items() if is_number(value)})


def make_monitor(
    model: Any, optimizer: Any, config: Config, scaler: Any, probes: Sequence[Probe], group: str | None = None
) -> Monitor:
    """Create a Monitor for this optimizer, or for whatever updates the model."""
    try:
        return Monitor(model, optimizer, config, scaler, probes=probes, group=group)
    except ModelError:
        if optimizer is None:
            raise
        # It updates copies of the parameters, or is not a torch optimizer.
        return Monitor(model, None, config, scaler, probes=probes, group=group)


class RecordingCallback:
    """The options of every trainer's callback, the Monitor of its training and the folder of its run."""

    def __init__(
        self,
        print_model_summary: bool = True,
        log_gpu_memory: bool = True,
        check_gradients: bool = False,
        gradient_check_steps: int = 100,
        *,
        predict_memory: bool = False,
        config: Config | None = None,
        scaler: Any = None,
        **options: Any,
    ) -> None:
        self._recording = Recording(
            print_model_summary=print_model_summary,
            log_gpu_memory=log_gpu_memory,
            check_gradients=check_gradients,
            gradient_check_steps=gradient_check_steps,
            predict_memory=predict_memory,
            config=config,
            scaler=scaler,
            options=options,
        )
        self.run_folder: str | None = None
        """The folder of the latest run, which is stored in checkpoints."""
        self._begin()

    def _begin(self) -> None:
        """Set what belongs to one training; called when the callback is made."""
        raise NotImplementedError

    @property
    def monitor(self) -> Monitor | None:
        """The Monitor of the training in progress."""
        return self._recording.shown_monitor

    @property
    def path(self) -> Path | None:
        """The folder of the latest run, for `vario.open_run`."""
        return None if self.run_folder is None else Path(self.run_folder)
