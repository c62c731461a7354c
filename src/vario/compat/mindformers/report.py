"""Where the numbers of the monitors go: log lines, the event file of this rank, and the lines under `dump_path`."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from vario.compat.mindformers import lines
from vario.compat.mindformers.config_page import entries
from vario.compat.mindformers.events import RankEvents, open_events
from vario.compat.mindformers.lines import Bar, Place
from vario.compat.mindformers.numbers import SEPARATE_LOSSES, STEP_TAGS
from vario.compat.mindformers.settings import Settings
from vario.core.errors import ConfigError

log = logging.getLogger("vario")

TIMERS = ("iteration-time", "throughput", "B-samples-per-day")
"""Tags that need `log_timers_to_tensorboard`."""
DUMP_FILE = "values.jsonl"
LOG, TENSORBOARD = "log", "tensorboard"


class Report:
    """Writes what the monitors of one rank have to say, in step order. Steps count from 1."""

    def __init__(self, settings: Settings, rank: int = 0, world_size: int = 1, shows_config: bool = True) -> None:
        self.settings = settings
        self._prefix = f"[rank {rank}] " if world_size > 1 else ""
        self._is_leading = rank == 0
        self._bar = Bar()
        self._last_told = self._last_step = 0
        self._num_samples: float | None = None
        self._epoch = -1
        self._losses: list[float] = []
        self._dump: TextIO | None = None
        self._may_dump = True
        self._dump_folder = Path(settings.monitor.dump_path).expanduser().absolute() / f"rank_{rank}"
        self.events: RankEvents | None = None
        lines.show_lines()
        if settings.tensorboard is not None:
            self.events = open_events(settings.tensorboard, rank)
            if shows_config:
                self._show_config()

    def _show_config(self) -> None:
        assert self.events is not None
        try:
            self.events.add_texts(list(entries(self.settings)))
        except OSError as error:
            folder = self.events.folder
            self.events.close()
            raise ConfigError(
                f"tensorboard.tensorboard_dir: '{folder}' cannot be written: {error.strerror}. Name another folder."
            ) from error

    def place(self, step: int) -> Place:
        """Return where a step is in the training."""
        of_loss, of_state = self.settings.loss_monitor, self.settings.state_monitor
        size = (of_loss.dataset_size if of_loss is not None else None) or of_state.dataset_size
        epochs = (of_loss.origin_epochs if of_loss is not None else None) or of_state.origin_epochs
        if epochs is None:
            runner = self.settings.content.get("runner_config")
            said = runner.get("epochs") if isinstance(runner, Mapping) else None
            epochs = said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None
        return Place(step, size, epochs)

    def step(self, step: int, values: Mapping[str, float | None], overflow: bool, now: float) -> None:
        """Report the numbers of MFLossMonitor; None is left out. Call it at every step."""
        known = {tag: float(value) for tag, value in values.items() if value is not None}
        settings = self.settings.loss_monitor
        if settings is None:
            return
        place = self.place(step)
        batch = known.get("batch-size")
        if batch is not None:
            # Not the step times the batch size: batch sizes change. Those before a restart are not known any more.
            before = 0.0 if self._num_samples is None else self._num_samples
            self._num_samples = before + batch * (step - self._last_step)
        self._last_step = step
        mean = self._mean_loss(place, known.get("loss"))
        if step - self._last_told < settings.per_print_times and self._last_told:
            return
        if not self._last_told and step % settings.per_print_times:
            return
        self._last_told = step
        if self.events is not None:
            shown = {tag: known[tag] for tag in (*STEP_TAGS, *SEPARATE_LOSSES) if tag in known and self._shows(tag)}
            self.events.add(shown, step, now, self._num_samples)
        if self._is_leading:
            self._say(lines.step_line(place, known, mean, overflow))
            progress = lines.progress_line(place, known)
            self._say(progress)
            if place.total is not None:
                self._bar.draw(progress)

    def _shows(self, tag: str) -> bool:
        board, loss_monitor = self.settings.tensorboard, self.settings.loss_monitor
        if board is None or loss_monitor is None:
            return False
        if tag in TIMERS:
            return board.log_timers_to_tensorboard
        if tag in SEPARATE_LOSSES:
            return loss_monitor.print_separate_loss
        return tag != "loss-scale" or board.log_loss_scale_to_tensorboard

    def _mean_loss(self, place: Place, loss: float | None) -> float | None:
        epoch = 0 if place.steps_per_epoch is None else (place.step - 1) // place.steps_per_epoch
        if epoch != self._epoch:
            self._epoch, self._losses = epoch, []
        if loss is not None and place.steps_per_epoch is not None:
            self._losses.append(loss)
            return math.fsum(self._losses) / len(self._losses)
        return loss

    def state(self, step: int, values: Mapping[str, float], to: frozenset[str], now: float) -> None:
        """Report numbers of TrainingStateMonitor to the log, to TensorBoard, or both."""
        if TENSORBOARD in to and self.events is not None:
            self.events.add(values, step, now)
        if LOG in to:
            place = self.place(step)
            for tag, value in values.items():
                self._say(lines.value_line(place, tag, value))

    def dump(self, step: int, values: Mapping[str, Any]) -> None:
        """Append a step to the lines under `dump_path`."""
        if not values or not self._may_dump:
            return
        try:
            if self._dump is None:
                self._dump_folder.mkdir(parents=True, exist_ok=True)
                self._dump = open(self._dump_folder / DUMP_FILE, "a", encoding="utf8")  # noqa: SIM115 - closed below
            self._dump.write(json.dumps({"step": step, **_finite(values)}, allow_nan=False) + "\n")
            self._dump.flush()
        except OSError as error:
            self._may_dump = False
            log.warning("monitor_config.dump_path: '%s' cannot be written: %s", self._dump_folder, error.strerror)

    def _say(self, line: str) -> None:
        self._bar.clear()
        lines.log.info("%s%s", self._prefix, line)

    def close(self) -> None:
        """Finish all files."""
        self._bar.clear()
        if self.events is not None:
            self.events.close()
            self.events = None
        if self._dump is not None:
            self._dump.close()
            self._dump = None


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace what JSON has no number for by text, as in the other files of a run."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = _finite(value)
        else:
            found[key] = value if math.isfinite(value) else str(value)
    return found
