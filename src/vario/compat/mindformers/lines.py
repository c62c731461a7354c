"""The log lines of the monitors: step numbers, progress and time left; and a bar in a terminal."""

from __future__ import annotations

import datetime
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

log = logging.getLogger("vario.mindformers")
"""Where the monitors' lines go: your handlers, or standard error if there are none."""

BAR_WIDTH = 50


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


def show_lines() -> None:
    """Make the lines visible: at their own level, and on standard error if nobody has set up logging."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(_ToStandardError())


@dataclass(frozen=True)
class Place:
    """Where training is: epochs and steps count from 1."""

    step: int
    """Since the beginning of the training, restarts included."""
    steps_per_epoch: int | None = None
    num_epochs: int | None = None

    @property
    def total(self) -> int | None:
        """The steps of the whole training, if known."""
        if self.steps_per_epoch is None:
            return None
        return self.steps_per_epoch * (self.num_epochs or 1)

    @property
    def text(self) -> str:
        """`Epoch:[  1/  2], step:[    5/   10]`, without what is not known."""
        if self.steps_per_epoch is None:
            return f"step:[{self.step:5d}]"
        epoch, step = divmod(self.step - 1, self.steps_per_epoch)
        epochs = f"/{self.num_epochs:3d}" if self.num_epochs else ""
        return f"Epoch:[{epoch + 1:3d}{epochs}], step:[{step + 1:5d}/{self.steps_per_epoch:5d}]"


def step_line(place: Place, values: Mapping[str, float], mean_loss: float | None, overflow: bool) -> str:
    """Return the first line about a step."""
    parts = [place.text]
    loss = values.get("loss")
    if loss is not None:
        parts.append(f"loss:[{loss:5.6f}/{loss if mean_loss is None else mean_loss:5.6f}]")
    if "iteration-time" in values:
        parts.append(f"per_step_time: {values['iteration-time']:.0f}ms")
    if "learning-rate" in values:
        parts.append(f"lr: {values['learning-rate']:.6e}")
    parts.append(f"overflow cond: {overflow}")
    parts.append(f"loss_scale: {values.get('loss-scale', 'unavailable')}")
    if "grad-norm" in values:
        parts.append(f"global_norm: [{values['grad-norm']:.6g}]")
    if "model-flops-throughput-per-npu" in values:
        parts.append(f"train_throughput_per_npu: {values['model-flops-throughput-per-npu']:.3f}T")
    return "{ " + ", ".join(parts)


def progress_line(place: Place, values: Mapping[str, float]) -> str:
    """Return the second line: percent, a bar, samples per second and device, and the time left."""
    total = place.total
    parts = []
    if total:
        share = min(place.step / total, 1.0)
        full = int(share * BAR_WIDTH)
        parts.append(f"{share * 100:4.1f}% |{'█' * full}{' ' * (BAR_WIDTH - full)}|")
    if "throughput" in values:
        parts.append(f"{values['throughput']:.5f} samples/s/p")
    milliseconds = values.get("iteration-time")
    if total and milliseconds is not None and math.isfinite(milliseconds):
        left = datetime.timedelta(seconds=int(max(total - place.step, 0) * milliseconds / 1e3))
        parts.append(f" {left}")
    return f"  {' '.join(parts)} }}"


def value_line(place: Place, tag: str, value: float) -> str:
    """Return the line about one number of the training's state."""
    return f"{place.text} {tag}: {value:.9g}"


class Bar:
    """The progress in the last line of a terminal; nothing anywhere else."""

    def __init__(self) -> None:
        self._is_drawn = False

    def draw(self, line: str) -> None:
        """Draw it, over the one before."""
        stream = sys.stderr
        if stream is not None and stream.isatty():
            stream.write(f"\r\x1b[K{line.removesuffix(' }').strip()}")
            stream.flush()
            self._is_drawn = True

    def clear(self) -> None:
        """Take it away, so that a line can be written."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            self._is_drawn = False
