"""The monitors as a sink: each complete step of a watched model becomes what they report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vario.compat.mindformers import numbers
from vario.compat.mindformers.matching import Targets
from vario.compat.mindformers.report import LOG, TENSORBOARD, Report
from vario.compat.mindformers.settings import Settings
from vario.core.records import Frame, StepRecord

if TYPE_CHECKING:
    from vario.core.run_header import RunHeader
    from vario.sinks import PartsOff

EVERYWHERE = frozenset({LOG, TENSORBOARD})


class Output:
    """Reports the steps of one rank. A step is complete when the next one begins: its loss may be logged late."""

    name: ClassVar[str] = "mindformers"

    def __init__(self, settings: Settings) -> None:
        self.first_step = 0
        self.settings = settings
        self.report: Report | None = None
        self._step: int | None = None
        self._frames: list[Frame] = []
        self._scalars: dict[str, float] = {}
        self._time = 0.0

    def open(self, header: RunHeader) -> None:
        """Open the event file and show the configuration."""
        self.first_step = header.first_step or 0
        self.report = Report(self.settings, header.rank, header.world_size)

    def write(self, record: StepRecord) -> None:
        """Take one step, or values logged late for the last one."""
        if self._step is not None and record.step != self._step:
            self._finish()
        self._step, self._time = record.step, record.scalars.time
        self._frames += record.frames
        self._scalars.update(record.scalars.values)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Ignore failures: the run lists them."""

    def close(self, state: str, error: str | None) -> None:
        """Report the last step and finish all files."""
        if self._step is not None:
            self._finish()
        if self.report is not None:
            self.report.close()

    def _finish(self) -> None:
        assert self._step is not None
        assert self.report is not None
        step, frames, scalars = self._step + 1, self._frames, self._scalars
        self._frames, self._scalars, self._step = [], {}, None
        if self.settings.loss_monitor is not None:
            tags = (*numbers.STEP_TAGS, *numbers.SEPARATE_LOSSES)
            values: dict[str, float | None] = {tag: scalars.get(tag) for tag in tags}
            values["loss"] = numbers.loss_of(scalars)
            if values["grad-norm"] is None:
                values["grad-norm"] = numbers.gradient_norm(frames, scalars)
            if values["loss-scale"] is None:
                values["loss-scale"] = scalars.get(numbers.LOSS_SCALE)
            self.report.step(step, values, scalars.get("skipped_step", 0.0) > 0, self._time)
        if self.settings.shows_experts:
            self.report.state(step, numbers.expert_loads(frames), frozenset({TENSORBOARD}), self._time)
        if self.settings.monitor.monitor_on:
            self._finish_state(step, [frame for frame in frames if frame.step == step - 1], scalars)

    def _finish_state(self, step: int, frames: list[Frame], scalars: Mapping[str, float]) -> None:
        assert self.report is not None
        monitor = self.settings.monitor
        ranks = numbers.spectra(frames) if monitor.stable_rank_on else {}
        if ranks:
            self.report.state(step, _chosen(ranks, monitor.stable_rank.target), monitor.stable_rank_on, self._time)
        if step % monitor.step_interval:
            return
        local = {}
        if monitor.on("local_norm"):
            found = numbers.norms(frames, "gradient_accumulated")
            local = {name: value for name, value in found.items() if monitor.targets.choose(name)}
        logits = numbers.attention_logits(frames) if monitor.on("max_attention_logit") else {}
        groups = [
            (monitor.on("local_norm"), {f"local_norm/{name}": value for name, value in local.items()}),
            (monitor.on("device_local_norm"), _some(scalars, "device_local_norm")),
            (monitor.on("local_loss"), _some(scalars, "local_loss")),
            (monitor.on("device_local_loss"), _some(scalars, "device_accum_local_loss")),
            (monitor.on("optimizer_state"), numbers.moment_norms(frames)),
            (monitor.on("weight_state"), _some(scalars, "weight_norm")),
            (
                monitor.on("max_attention_logit"),
                {
                    **{f"max_attention_logit/{module}": value for module, value in logits.items()},
                    **_some(scalars, "max_attention_logit/mean", "max_attention_logit/max"),
                },
            ),
            (EVERYWHERE, _some(scalars, "throughput_linearity")),
        ]
        if LOG in monitor.on("local_loss"):
            number = 0
            while (loss := scalars.get(f"{numbers.MICRO_LOSS}/{number}")) is not None:
                self.report.state(step, {numbers.MICRO_LOSS: loss}, frozenset({LOG}), self._time)
                number += 1
        for to, values in groups:
            if to and values:
                self.report.state(step, values, to, self._time)
        if monitor.dumps:
            kept = _some(scalars, "device_local_norm", "local_loss", "device_accum_local_loss")
            self.report.dump(step, {**({"local_norm": local} if local else {}), **kept})


def _some(scalars: Mapping[str, float], *names: str) -> dict[str, float]:
    return {name: scalars[name] for name in names if name in scalars}


def _chosen(values: Mapping[str, float], target: tuple[str, ...]) -> dict[str, float]:
    targets = Targets(target)
    return {tag: value for tag, value in values.items() if targets.choose(tag.partition("/")[2])}
