"""The JSON config of msprobe's Monitor: every documented field and its default; anything else is an error."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError
from vario.core.schedule import Schedule
from vario.core.text import unknown

log = logging.getLogger("vario")

OPS = ("norm", "min", "max", "mean", "nans", "zeros", "id")
FORM_OPS = ("shape", "dtype")
"""Columns that describe the tensor; always written, last unless named among the others."""
FORMATS = ("csv", "tensorboard", "api")
SIDES = ("input", "output", "input_grad", "output_grad")
HOOKS = ("attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook")
ORDERS = ("s,b,h,d", "b,s,h,d")
RULES = ("AnomalyTurbulence", "AnomalyNan")

_TIME_TAG = re.compile(r"[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}")
_SPEC = re.compile(r"(?P<kind>tensor|tuple|list)(\[(?P<length>\d+)\](:(?P<index>\d+))?)?")


@dataclass(frozen=True)
class Spec:
    """Which tensors of one side of a module: `tensor`, `tuple[2]` (all), or `tuple[2]:0` (one)."""

    length: int | None = None
    index: int | None = None


@dataclass(frozen=True)
class AlertRule:
    """One rule of `alert`."""

    name: str
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """The content of the file; fields as documented by msprobe."""

    targets: Mapping[str, Mapping[str, Spec]] = field(default_factory=dict)
    dynamic_on: bool = False
    start_step: int = 0
    collect_times: int = 100_000_000
    step_interval: int = 1
    print_struct: bool = False
    module_ranks: tuple[int, ...] = ()
    ur_distribution: bool = False
    xy_distribution: bool = False
    all_xy: bool = False
    forward_only: bool = False
    backward_only: bool = False
    mv_distribution: bool = False
    wg_distribution: bool = False
    monitor_mbs_grad: bool = False
    param_distribution: bool = False
    alert_rules: tuple[AlertRule, ...] = ()
    alert_dump: bool = False
    cc_enable: bool = False
    cc_codeline: tuple[str, ...] = ()
    cc_pre_hook: bool = False
    cc_log_only: bool = False
    mg_direction: bool = False
    format: str = "csv"
    ops: tuple[str, ...] = ("norm", *FORM_OPS)
    eps: float = 1e-8
    ndigits: int = 6
    step_count_per_record: int = 1
    append_output: tuple[str, ...] = ()
    squash_name: bool = False
    stack_info: bool = False
    l2_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recording_l2_features: bool = False
    sa_order: str = "s,b,h,d"

    @property
    def statistics(self) -> tuple[str, ...]:
        """The numbers among `ops`."""
        return tuple(op for op in self.ops if op not in FORM_OPS)

    @property
    def measured(self) -> tuple[str, ...]:
        """The vario statistics these need: `id`, the value of a single number, is its mean."""
        return tuple(dict.fromkeys("mean" if op == "id" else op for op in self.statistics))

    def quantities(self, world_size: int) -> tuple[str, ...]:
        """The quantities that vario's probes must watch for this."""
        unreduced = "gradient_accumulated" if world_size > 1 else "gradient"
        wanted = {
            "activation": self.xy_distribution and not self.backward_only,
            "gradient_local" if self.monitor_mbs_grad else unreduced: self.wg_distribution,
            "moment_before": self.mv_distribution,
        }
        return tuple(quantity for quantity, is_wanted in wanted.items() if is_wanted)

    def schedule(self, first_step: int, num_collected: int) -> Schedule:
        """Return the schedule: every `step_interval`-th step from `start_step`, up to the remaining number of
        collections."""
        late = max(0, first_step - self.start_step)
        start = self.start_step + -(-late // self.step_interval) * self.step_interval
        return Schedule(self.step_interval, start, self.collect_times - num_collected)

    @property
    def records_something(self) -> bool:
        """Whether any kind of recording is enabled."""
        switches = (self.xy_distribution, self.wg_distribution, self.mv_distribution, self.param_distribution)
        more = (self.mg_direction, self.ur_distribution, self.stack_info, self.print_struct, self.cc_enable)
        return any((*switches, *more, self.recording_l2_features and self.l2_targets))

    def with_ops(self, ops: Any) -> MonitorConfig:
        """Return a copy with other statistics."""
        return dataclasses.replace(self, ops=_ops("ops", ops))


def read_monitor_config(path: Path) -> MonitorConfig:
    """Read a config file; raises ConfigError with the field, its value and what is accepted."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    try:
        return make_monitor_config(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def make_monitor_config(content: Any) -> MonitorConfig:
    """Build the config from a parsed file."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected an object of fields, got {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in _FIELDS:
            raise ConfigError(unknown("field", key, list(_FIELDS)))
        found = _FIELDS[key](key, value)
        values.update(found if key in ("alert", "cc_distribution") else {key: found})
    config = MonitorConfig(**values)
    if config.xy_distribution and config.forward_only and config.backward_only:
        log.warning(
            "forward_only and backward_only are both true: neither activations nor their gradients are recorded"
        )
    if config.ur_distribution and config.format != "tensorboard":
        log.warning("ur_distribution writes heat maps to TensorBoard: it needs format 'tensorboard' and is disabled")
        config = dataclasses.replace(config, ur_distribution=False)
    return dataclasses.replace(config, all_xy=True) if config.xy_distribution and not config.targets else config


def _refuse(key: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(f"{key}: expected {expected}, got {json.dumps(value, default=str)}")


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(key, "true or false", value)
    return value


def _whole(least: int, most: int | None = None) -> Callable[[str, Any], int]:
    def check(key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
            upper = "" if most is None else f" and at most {most}"
            raise _refuse(key, f"a whole number of at least {least}{upper}", value)
        return value

    return check


def _one_of(accepted: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        text = value.replace(" ", "") if isinstance(value, str) else value
        if text not in accepted:
            raise _refuse(key, f"one of {', '.join(map(repr, accepted))}", value)
        return str(text)

    return check


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise _refuse(key, "a number of at least 0", value)
    return float(value)


def _list_of(kind: type, expected: str) -> Callable[[str, Any], tuple[Any, ...]]:
    def check(key: str, value: Any) -> tuple[Any, ...]:
        wrong = not isinstance(value, list) or any(not isinstance(item, kind) or item is True for item in value)
        if wrong or any(item is False for item in value):
            raise _refuse(key, expected, value)
        return tuple(value)

    return check


def _ops(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _refuse(key, f"a list of {', '.join(OPS)}", value)
    ops = [op for op in dict.fromkeys(value) if op in OPS + FORM_OPS]
    if strange := [op for op in value if op not in OPS + FORM_OPS]:
        log.warning("ops: unknown and ignored: %s. Known: %s", ", ".join(map(str, strange)), ", ".join(OPS))
    if not any(op in OPS for op in ops):
        ops.insert(0, "norm")
    return (*ops, *(op for op in FORM_OPS if op not in ops))


def _targets(key: str, value: Any) -> dict[str, dict[str, Spec]]:
    if not isinstance(value, dict):
        raise _refuse(key, "an object of module or parameter names", value)
    targets: dict[str, dict[str, Spec]] = {}
    for name, sides in value.items():
        if not isinstance(sides, dict):
            raise _refuse(f"{key}: {name}", 'an object such as {"output": "tensor"}, or {}', sides)
        for side in sides:
            if side not in SIDES:
                raise ConfigError(unknown(f"{key}: {name}", side, SIDES))
        targets[name] = {side: _spec(f"{key}: {name}: {side}", spec) for side, spec in sides.items()}
    return targets


def _spec(key: str, value: Any) -> Spec:
    found = _SPEC.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found["kind"] == "tensor") != (found["length"] is None):
        raise _refuse(key, "'tensor', 'tuple[2]' or 'tuple[2]:0'", value)
    length = None if found["length"] is None else int(found["length"])
    index = None if found["index"] is None else int(found["index"])
    if index is not None and length is not None and index >= length:
        raise _refuse(key, f"an index below {length}", value)
    return Spec(length, index)


def _alert(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(key, "an object with 'rules' and 'dump'", value)
    for name in value:
        if name not in ("rules", "dump"):
            raise ConfigError(unknown(key, name, ["rules", "dump"]))
    rules = value.get("rules") or []
    if not isinstance(rules, list):
        raise _refuse(f"{key}: rules", "a list", rules)
    return {
        "alert_rules": tuple(_rule(f"{key}: rules", rule) for rule in rules),
        "alert_dump": _flag(f"{key}: dump", value.get("dump", False)),
    }


def _rule(key: str, value: Any) -> AlertRule:
    if not isinstance(value, dict) or set(value) - {"rule_name", "args"}:
        raise _refuse(key, "objects with 'rule_name' and 'args'", value)
    name = _one_of(RULES)(f"{key}: rule_name", value.get("rule_name"))
    args = value.get("args") or {}
    if not isinstance(args, dict) or set(args) - {"threshold"}:
        raise _refuse(f"{key}: {name}: args", "an object with 'threshold'", args)
    threshold = args.get("threshold")
    if threshold is None and name == "AnomalyTurbulence":
        raise ConfigError(f"{key}: {name} needs args: {{'threshold': 0.5}} reports what exceeds its mean by half")
    return AlertRule(name, None if threshold is None else _number(f"{key}: {name}: threshold", threshold))


def _communication(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(key, "an object with 'enable'", value)
    checks: dict[str, Callable[[str, Any], Any]] = {
        "enable": _flag,
        "cc_codeline": _list_of(str, "a list of code lines such as 'train.py\\\\[23\\\\]'"),
        "cc_pre_hook": _flag,
        "cc_log_only": _flag,
    }
    for name, item in value.items():
        if name not in checks:
            raise ConfigError(unknown(key, name, list(checks)))
        checks[name](f"{key}: {name}", item)
    for line in value.get("cc_codeline", ()):
        try:
            re.compile(line)
        except re.error as error:
            raise ConfigError(f"{key}: cc_codeline: '{line}' is not a regular expression: {error}") from error
    return {
        "cc_enable": value.get("enable", False),
        "cc_codeline": tuple(value.get("cc_codeline", ())),
        "cc_pre_hook": value.get("cc_pre_hook", False),
        "cc_log_only": value.get("cc_log_only", False),
    }


def _l2_targets(key: str, value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise _refuse(key, f"an object with {', '.join(HOOKS)}", value)
    for hook in value:
        if hook not in HOOKS:
            raise ConfigError(unknown(key, hook, HOOKS))
    check = _list_of(str, "a list of module names")
    return {hook: check(f"{key}: {hook}", names) for hook, names in value.items()}


def _time_tags(key: str, value: Any) -> tuple[str, ...]:
    tags = _list_of(str, "two time tags such as 'Dec03_21-34-40', or []")(key, value)
    if len(tags) not in (0, 2) or not all(_TIME_TAG.fullmatch(tag) for tag in tags):
        raise _refuse(key, "two time tags such as 'Dec03_21-34-40', or []", value)
    return tags


def _digits(key: str, value: Any) -> int:
    return 6 if value is None else _whole(1, 20)(key, value)


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(
        (item.name for item in dataclasses.fields(MonitorConfig) if item.type == "bool" and "_dump" not in item.name),
        _flag,
    ),
    "targets": _targets,
    "start_step": _whole(0),
    "collect_times": _whole(0),
    "step_interval": _whole(1),
    "module_ranks": _list_of(int, "a list of rank numbers"),
    "alert": _alert,
    "cc_distribution": _communication,
    "format": _one_of(FORMATS),
    "ops": _ops,
    "eps": _number,
    "ndigits": _digits,
    "step_count_per_record": _whole(1, 1_000_000),
    "append_output": _time_tags,
    "l2_targets": _l2_targets,
    "sa_order": _one_of(ORDERS),
}
for _part in ("cc_enable", "cc_pre_hook", "cc_log_only"):
    _FIELDS.pop(_part)
