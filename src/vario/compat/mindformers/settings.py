"""The blocks `monitor_config`, `tensorboard` and `callbacks` of a YAML file, checked as a whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vario.compat.mindformers.checks import Block, Problems
from vario.compat.mindformers.matching import Targets, check_targets
from vario.core.text import suggestion

log = logging.getLogger("vario")

FORMATS = (
    *("local_loss_format", "device_local_loss_format", "local_norm_format", "device_local_norm_format"),
    *("optimizer_state_format", "weight_state_format", "max_attention_logit_format"),
)
"""The keys that say where a kind of number is written."""
STABLE_RANK = ("format", "step_interval", "target", "do_aggregation", "moe_show_mode", "power_iteration_num")
HEALTH = ("embedding_local_norm_threshold", "global_norm_spike_threshold")
MOE_SHOW_MODES = ("all", "full", "statistics")
TENSORBOARD = (
    *("tensorboard_dir", "tensorboard_queue_size", "log_loss_scale_to_tensorboard", "log_timers_to_tensorboard"),
    "log_expert_load_to_tensorboard",
)
CALLBACKS = ("MFLossMonitor", "TrainingStateMonitor", "TopkBiasBalanceCallback")
OTHER_CALLBACKS = (
    *("CheckpointMonitor", "SummaryMonitor", "ObsMonitor", "ProfileMonitor", "EvalCallBack", "SDCMonitor"),
    *("ColdHotExpertMonitor", "MoEDropRateCallback", "ExpertMigrateCallback", "StressDetectCallBack"),
    *("StressTestModelMonitor", "MaxLogitsMonitor", "LossCallback"),
)
"""Callbacks of MindSpore Transformers that are not about monitoring; they are accepted and left to it."""


@dataclass(frozen=True)
class StableRank:
    """`monitor_config.stable_rank_config`."""

    format: frozenset[str] = frozenset()
    step_interval: int = 100
    target: tuple[str, ...] = ()
    do_aggregation: bool = False
    moe_show_mode: str = "all"
    power_iteration_num: int = 5


@dataclass(frozen=True)
class MonitorSettings:
    """`monitor_config`, with the documented defaults."""

    monitor_on: bool = False
    dump_path: str = "./dump"
    target: tuple[str, ...] = (".*",)
    invert: bool = False
    step_interval: int = 1
    local_loss_format: frozenset[str] = frozenset()
    device_local_loss_format: frozenset[str] = frozenset()
    local_norm_format: frozenset[str] = frozenset()
    device_local_norm_format: frozenset[str] = frozenset()
    optimizer_state_format: frozenset[str] = frozenset()
    weight_state_format: frozenset[str] = frozenset()
    max_attention_logit_format: frozenset[str] = frozenset()
    throughput_baseline: float | None = None
    print_struct: bool = False
    check_for_global_norm: bool = False
    global_norm_spike_threshold: float = 3.0
    global_norm_spike_count_threshold: int = 10
    embedding_local_norm_threshold: float | None = None
    """From `health_checkpoint`."""
    stable_rank: StableRank = field(default_factory=StableRank)

    @property
    def targets(self) -> Targets:
        """The parameters that `local_norm` and the optimizer state are about."""
        return Targets(self.target, self.invert)

    def on(self, kind: str) -> frozenset[str]:
        """Where a kind of number (`local_norm`, ...) is written; nowhere if monitoring is off."""
        found: frozenset[str] = getattr(self, f"{kind}_format")
        return found if self.monitor_on else frozenset()

    @property
    def stable_rank_on(self) -> frozenset[str]:
        """Where the stable rank is written."""
        return self.stable_rank.format if self.monitor_on else frozenset()

    @property
    def dumps(self) -> bool:
        """Whether anything goes to `dump_path`."""
        kinds = ("local_norm", "device_local_norm", "local_loss", "device_local_loss")
        return any(self.on(kind) for kind in kinds)


@dataclass(frozen=True)
class TensorBoardSettings:
    """`tensorboard`."""

    tensorboard_dir: str
    tensorboard_queue_size: int = 10
    log_loss_scale_to_tensorboard: bool = False
    log_timers_to_tensorboard: bool = False
    log_expert_load_to_tensorboard: bool = False


@dataclass(frozen=True)
class LossMonitorSettings:
    """Constructor arguments of `MFLossMonitor`."""

    learning_rate: Any = None
    per_print_times: int = 1
    micro_batch_num: int = 1
    micro_batch_interleave_num: int = 1
    origin_epochs: int | None = None
    dataset_size: int | None = None
    initial_epoch: int = 0
    initial_step: int = 0
    global_batch_size: int = 0
    gradient_accumulation_steps: int = 1
    check_for_nan_in_loss_and_grad: bool = False
    calculate_per_token_loss: bool = False
    print_separate_loss: bool = False


@dataclass(frozen=True)
class StateMonitorSettings:
    """Constructor arguments of `TrainingStateMonitor`, besides `config`."""

    origin_epochs: int | None = None
    step_interval: int | None = None
    dataset_size: int | None = None
    initial_epoch: int = 0
    initial_step: int = 0
    micro_batch_num: int = 0
    global_batch_size: int = 0
    tensor_model_parallel_size: int = 0
    check_for_nan_in_loss_and_grad: bool = False
    use_skip_data_by_global_norm: bool = False
    embedding_size: int = 4096
    use_local_norm: bool = False


@dataclass(frozen=True)
class ExpertSettings:
    """Constructor arguments of `TopkBiasBalanceCallback`; only its monitoring is used."""

    balance_via_topk_bias: bool = False
    topk_bias_update_rate: float = 0.0
    expert_num: int = 1
    micro_batch_num: int = 1
    gradient_accumulation_steps: int = 1


@dataclass(frozen=True)
class Settings:
    """Everything that a file says about monitoring, and the rest of it for the TEXT page."""

    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    tensorboard: TensorBoardSettings | None = None
    loss_monitor: LossMonitorSettings | None = None
    state_monitor: StateMonitorSettings = field(default_factory=StateMonitorSettings)
    experts: ExpertSettings | None = None
    stop_on_nan: bool = False
    skip_by_norm: bool = False
    content: Mapping[str, Any] = field(default_factory=dict)
    """The whole file."""
    supplied: frozenset[str] = frozenset()
    """Tags that a callback logs itself."""

    @property
    def shows_experts(self) -> bool:
        """Whether the load of each expert is written."""
        has_folder = self.tensorboard is not None and self.tensorboard.log_expert_load_to_tensorboard
        return self.experts is not None and has_folder


def read_settings(content: Mapping[str, Any], where: str = "") -> Settings:
    """Return the settings of a file's content; raises one ConfigError with everything that is wrong."""
    problems = Problems(where)
    tensorboard = _tensorboard(content.get("tensorboard"), problems)
    monitor = _monitor(content.get("monitor_config"), problems)
    calls = _callbacks(content.get("callbacks"), problems)
    stop_on_nan = _top_flag(content, "check_for_nan_in_loss_and_grad", problems)
    skip_by_norm = _top_flag(content, "use_skip_data_by_global_norm", problems) or _skips(content, problems)
    if monitor.check_for_global_norm and (skip_by_norm or calls[1].use_skip_data_by_global_norm):
        problems.add(
            "monitor_config.check_for_global_norm",
            "stops at the first spike, use_skip_data_by_global_norm skips it. Set one of the two to false",
        )
    problems.raise_if_any()
    if tensorboard is None:
        monitor = _downgraded(monitor)
    return Settings(
        monitor,
        tensorboard,
        *calls,
        stop_on_nan=stop_on_nan or calls[1].check_for_nan_in_loss_and_grad,
        skip_by_norm=skip_by_norm or calls[1].use_skip_data_by_global_norm,
        content=dict(content),
    )


def _monitor(content: object, problems: Problems) -> MonitorSettings:
    if content is None:
        return MonitorSettings()
    known = [item.name for item in fields(MonitorSettings)]
    known = [name for name in known if name not in ("stable_rank", "embedding_local_norm_threshold")]
    block = Block("monitor_config", content, [*known, "stable_rank_config", "health_checkpoint"], problems)
    target = block.names("target") or (".*",)
    check_targets("monitor_config.target", target, problems)
    spike = block.positive("global_norm_spike_threshold", 3.0) or 3.0
    health = Block("monitor_config.health_checkpoint", block.raw("health_checkpoint") or {}, HEALTH, problems)
    return MonitorSettings(
        monitor_on=block.flag("monitor_on", False),
        dump_path=block.text("dump_path", "./dump") or "./dump",
        target=target,
        invert=block.flag("invert", False),
        step_interval=block.whole("step_interval", 1),
        throughput_baseline=block.positive("throughput_baseline", None),
        print_struct=block.flag("print_struct", False),
        check_for_global_norm=block.flag("check_for_global_norm", False),
        global_norm_spike_threshold=health.positive("global_norm_spike_threshold", spike) or spike,
        global_norm_spike_count_threshold=block.whole("global_norm_spike_count_threshold", 10),
        embedding_local_norm_threshold=health.positive("embedding_local_norm_threshold", None),
        stable_rank=_stable_rank(block.raw("stable_rank_config"), problems),
        **{key: block.formats(key) for key in FORMATS},
    )


def _stable_rank(content: object, problems: Problems) -> StableRank:
    if content is None:
        return StableRank()
    block = Block("monitor_config.stable_rank_config", content, STABLE_RANK, problems)
    target = block.names("target")
    check_targets("monitor_config.stable_rank_config.target", target, problems)
    mode = block.text("moe_show_mode", "all") or "all"
    if mode not in MOE_SHOW_MODES:
        problems.expected(f"{block.name}.moe_show_mode", f"one of {', '.join(MOE_SHOW_MODES)}", mode)
    return StableRank(
        block.formats("format"),
        block.whole("step_interval", 100),
        target,
        block.flag("do_aggregation", False),
        mode,
        block.whole("power_iteration_num", 5),
    )


def _tensorboard(content: object, problems: Problems) -> TensorBoardSettings | None:
    if content is None:
        return None
    block = Block("tensorboard", content, TENSORBOARD, problems)
    folder = block.text("tensorboard_dir", None)
    if folder is None and block.raw("tensorboard_dir") in (None, ""):
        problems.add("tensorboard.tensorboard_dir", "missing. Name a folder for event files, or remove the block")
    return TensorBoardSettings(
        folder or "",
        block.whole("tensorboard_queue_size", 10),
        *(block.flag(key, False) for key in TENSORBOARD[2:]),
    )


def _callbacks(
    content: object, problems: Problems
) -> tuple[LossMonitorSettings | None, StateMonitorSettings, ExpertSettings | None]:
    loss: LossMonitorSettings | None = None
    state = StateMonitorSettings()
    experts: ExpertSettings | None = None
    if content is not None and not isinstance(content, (list, tuple)):
        problems.expected("callbacks", "a list of entries with a `type`", content)
        content = None
    for number, entry in enumerate(content or ()):
        where = f"callbacks[{number}]"
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if not isinstance(kind, str):
            problems.expected(where, "an entry with a `type`", entry)
        elif kind == "MFLossMonitor":
            loss = LossMonitorSettings(**_arguments(LossMonitorSettings, entry, where, problems))
        elif kind == "TrainingStateMonitor":
            state = StateMonitorSettings(**_arguments(StateMonitorSettings, entry, where, problems, ("config",)))
        elif kind == "TopkBiasBalanceCallback":
            experts = ExpertSettings(**_arguments(ExpertSettings, entry, where, problems))
        elif kind not in OTHER_CALLBACKS and "Did you mean" in suggestion(kind, CALLBACKS):
            problems.add(where, f"unknown type '{kind}'. {suggestion(kind, CALLBACKS)}")
        elif kind not in OTHER_CALLBACKS:
            log.info("%s: '%s' is none of vario's monitors and is left alone", where, kind)
    return loss, state, experts


def _arguments(
    kind: type[Any], entry: Mapping[str, Any], where: str, problems: Problems, ignored: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the checked arguments of a callback's entry; each field's default says what it must be."""
    known: dict[str, Any] = {item.name: item.default for item in fields(kind)}
    block = Block(where, entry, ["type", *known, *ignored], problems)
    found: dict[str, Any] = {}
    for name, default in known.items():
        if name not in block:
            continue
        if name == "learning_rate":
            found[name] = block.raw(name)
        elif isinstance(default, bool):
            found[name] = block.flag(name, default)
        elif isinstance(default, float):
            found[name] = block.raw(name)
            if isinstance(found[name], bool) or not isinstance(found[name], (int, float)):
                problems.expected(f"{where}.{name}", "a number", found[name])
        elif default is None:
            found[name] = block.whole_or_none(name)
        else:
            found[name] = block.whole(name, default, min(default, 1))
    return found


def _top_flag(content: Mapping[str, Any], key: str, problems: Problems) -> bool:
    value = content.get(key, False)
    if not isinstance(value, bool):
        problems.expected(key, "true or false", value)
    return value is True


def _skips(content: Mapping[str, Any], problems: Problems) -> bool:
    wrapper = content.get("runner_wrapper")
    if not isinstance(wrapper, Mapping) or "use_skip_data_by_global_norm" not in wrapper:
        return False
    return Block("runner_wrapper", wrapper, wrapper, problems).flag("use_skip_data_by_global_norm", False)


def _downgraded(monitor: MonitorSettings) -> MonitorSettings:
    """Without a `tensorboard` block, what was to go there is logged; one warning says so."""
    changed = [key for key in FORMATS if "tensorboard" in getattr(monitor, key)]
    ranks = monitor.stable_rank
    formats: dict[str, Any] = {key: frozenset({"log"}) for key in changed}
    found = replace(monitor, **formats)
    if "tensorboard" in ranks.format:
        changed.append("stable_rank_config.format")
        found = replace(found, stable_rank=replace(ranks, format=frozenset({"log"})))
    if changed and monitor.monitor_on:
        log.warning(
            "monitor_config: there is no `tensorboard` block, so 'tensorboard' becomes 'log' for %s. "
            "Add `tensorboard: {tensorboard_dir: ...}` to write event files.",
            ", ".join(changed),
        )
    return found
