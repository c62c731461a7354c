"""`load_yaml`: the configuration of MindSpore Transformers' monitors as a Config that `vario.watch` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario.compat.mindformers.output import Output
from vario.compat.mindformers.probes import ChosenMoments, ExpertShares, LocalNorms, StepNumbers
from vario.compat.mindformers.settings import Settings, read_settings
from vario.config import Config, make_config
from vario.core.config_file import read_table
from vario.core.schedule import Schedule
from vario.probes import Probe
from vario.sinks import Sink

AT_INTERVAL = ("gradient_accumulated", "moment", "weight", "attention")
"""Quantities that `step_interval` is about."""


@dataclass(frozen=True, kw_only=True)
class MindformersConfig(Config):
    """A Config that brings along the monitors of a MindSpore Transformers file."""

    settings: Settings = field(default_factory=Settings)

    def parts(self) -> tuple[Sequence[Probe], Mapping[str, Sink]]:
        """Return the probes of what the file asks for, and the sink that reports it."""
        monitor = self.settings.monitor
        probes: list[Probe] = [StepNumbers(self.settings)]
        if monitor.on("device_local_norm"):
            probes.append(LocalNorms(lambda name: True))
        elif monitor.on("local_norm"):
            probes.append(LocalNorms(monitor.targets.choose))
        if monitor.on("optimizer_state"):
            probes.append(ChosenMoments(monitor.targets.choose))
        if self.settings.shows_experts:
            probes.append(ExpertShares())
        return probes, {Output.name: Output(self.settings)}

    def schedule(self, quantity: str) -> Schedule:
        """Return the schedule of one quantity; an interval of 10 is steps 10, 20, ... counted from 1."""
        found = super().schedule(quantity)
        if quantity in AT_INTERVAL or quantity == "spectrum":
            return Schedule(found.every, self.start + found.every - 1, self.count)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored in `run.json`."""
        plain = super().to_json()
        del plain["settings"]
        return plain


def load_yaml(source: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> MindformersConfig:
    """Read `monitor_config`, `tensorboard` and `callbacks` from a YAML file, or from its content as a mapping.

    The result is for `vario.watch(model, optimizer, config=...)`. `options` are those of `vario.Config`, and take
    precedence. Everything that is wrong with the file is told in one ConfigError.
    """
    if isinstance(source, Mapping):
        settings = read_settings(source)
    else:
        settings = read_settings(read_table(Path(source)), str(source))
    found = make_config({**_options(settings), **options}, MindformersConfig(settings=settings))
    assert isinstance(found, MindformersConfig)
    return found


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of a Config that record what the monitors show."""
    monitor = settings.monitor
    quantities = ["gradient"] if settings.loss_monitor is not None else []
    every = dict.fromkeys(AT_INTERVAL, monitor.step_interval)
    if monitor.on("weight_state"):
        quantities.append("weight")
    if monitor.on("max_attention_logit"):
        quantities.append("attention")
    if monitor.stable_rank_on:
        quantities.append("spectrum")
        every["spectrum"] = monitor.stable_rank.step_interval
    if settings.shows_experts:
        every["expert"] = 1
    # Extremes and zeros, which the monitors do not show, would make reducing a tensor more expensive.
    statistics = [
        *("norm", "rms", "mean", "std", "count", "nans", "infs"),
        *(["max"] if "attention" in quantities else []),
    ]
    options: dict[str, Any] = {"replicas": True, "every": every, "statistics": statistics}
    rules: dict[str, Any] = {}
    actions: dict[str, list[str]] = {}
    if monitor.monitor_on and (monitor.check_for_global_norm or settings.skip_by_norm):
        steps = 1 if monitor.check_for_global_norm else monitor.global_norm_spike_count_threshold
        rules["gradient_norm_limit"] = {"limit": monitor.global_norm_spike_threshold, "steps": steps}
        actions["gradient_norm_limit"] = ["stop"]
        quantities.append("gradient")
    if monitor.monitor_on and monitor.embedding_local_norm_threshold is not None:
        rules["embedding_norm_limit"] = {"limit": monitor.embedding_local_norm_threshold}
        quantities.append("gradient")
    if settings.stop_on_nan:
        actions["non_finite"] = ["stop"]
        quantities.append("gradient")
    options["quantities"] = list(dict.fromkeys(quantities))
    if rules:
        options["rules"] = rules
    if actions:
        options["actions"] = actions
    first = _first_step(settings)
    return {**options, "first_step": first} if first else options


def _first_step(settings: Settings) -> int:
    """Return the steps that were trained before, as `initial_epoch` and `initial_step` say."""
    given = [one for one in (settings.loss_monitor, settings.state_monitor) if one is not None]
    return max(one.initial_epoch * (one.dataset_size or 0) + one.initial_step for one in given)
