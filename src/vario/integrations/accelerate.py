"""accelerate: `watch` records a loop with an Accelerator, including what `accelerator.log` logs."""

from __future__ import annotations

from typing import Any

from vario.analysis.model_text import model_text
from vario.analysis.parameters import model_summary
from vario.config import Config, make_config
from vario.core.process.switch import is_off
from vario.integrations.gradient_checks import GradientChecks, check_interval
from vario.integrations.recording import log_numbers, make_monitor, say
from vario.training.idle import idle_monitor
from vario.training.monitor import Monitor

try:
    from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError("vario.integrations.accelerate needs accelerate: pip install accelerate") from error


class RunLog(GeneralTracker):  # type: ignore[misc]
    """A tracker that records `accelerator.log` calls in the run, beside the Accelerator's other trackers."""

    name = "vario"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor

    @property
    def tracker(self) -> Monitor:
        """The Monitor, for `accelerator.get_tracker("vario", unwrap=True)`."""
        return self._monitor

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: the run stores its own config."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record the numbers at the last updated step: the run counts updates, whatever `step` counts."""
        log_numbers(self._monitor, values)

    def finish(self) -> None:
        """End the run, on `accelerator.end_training()`."""
        self._monitor.close()


def watch(
    accelerator: Any,
    model: Any,
    optimizer: Any = None,
    *,
    print_model_summary: bool = False,
    check_gradients: bool = False,
    gradient_check_steps: int = 100,
    config: Config | None = None,
    **options: Any,
) -> Monitor:
    """Watch a prepared model: `vario.watch` for a loop with an Accelerator, after `prepare`.

    Steps are updates, however many batches `accelerator.accumulate` combines. Only the main process prints.
    """
    check_interval(gradient_check_steps)
    settings = make_config(options, config)

    if is_off(settings.enabled):
        monitor = idle_monitor()
        accelerator.trackers.append(RunLog(monitor))  # a script may ask for it by name
        return monitor

    def speak(text: str) -> None:
        if accelerator.is_main_process:
            say(text)

    if print_model_summary:
        speak(model_text(model_summary(model)).rstrip("\n"))
    probes = [GradientChecks(gradient_check_steps, 0, speak)] if check_gradients else []
    monitor = make_monitor(model, optimizer, settings, accelerator.scaler, probes)
    accelerator.trackers.append(RunLog(monitor))
    return monitor
