"""What a Monitor watches, how often, and where it writes: one frozen dataclass, from TOML, YAML, JSON or keywords."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario import notices
from vario.core.errors import ConfigError, MissingExtra
from vario.core.quantities import PROBES, default_every, watchable
from vario.core.schedule import Schedule
from vario.core.selector import pattern_matcher, place_matcher
from vario.core.text import shown, unknown
from vario.rules import choose
from vario.rules.api.alerts import SEVERITIES
from vario.statistics import STATISTICS

ATTENTION_ORDERS = ("b,s,h,d", "s,b,h,d", "b,h,s,d")
"""Which axis of queries and keys is which: batch, sequence, head, dimension."""
IF_TAKEN = ("raise", "new", "wait")
"""What a Monitor can do about a run folder that is taken."""
ACTIONS = ("escalate", "snapshot", "checkpoint", "stop")
"""What a Monitor can do about an incident."""
MOST_NAME_BYTES = 240
"""File systems take 255 bytes, and files beside a run's folder have its name and a little more."""
ESCALATED = ("activation", "activation_gradient")
"""What `escalate` turns on."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Options of one Monitor. Every field can be a keyword of `vario.watch`, a key of a config file or a flag."""

    quantities: Sequence[str] = (
        *("gradient", "weight", "moment", "activation", "activation_gradient"),
        *("update", "stray", "attention", "unit", "expert"),
    )
    """What to watch: any of weight, weight_before, gradient, gradient_local, gradient_accumulated, gradient_applied,
    activation, activation_gradient, moment, moment_before, update, stray, attention, spectrum, unit, expert,
    communication. Plain numbers (what you log, step time, learning rates, memory, ...) are always kept, and `checksum`
    where ranks hold the same."""

    statistics: Sequence[str] = ("norm", "mean", "rms", "std", "min", "max", "absmax", "nans", "infs", "zeros", "count")
    """Which statistics you want to read later. Columns that none of them needs are not computed; NaN and Inf are
    counted whatever you choose."""

    every: int | Mapping[str, int] = field(default_factory=dict)
    """Watch one step in this many: one number for all quantities, or a number per quantity (`{activation = 50}`)."""

    start: int = 0
    """First step that is watched."""

    count: int | None = None
    """Watch at most this many steps of each quantity; unset: no limit."""

    targets: Sequence[str] = ()
    """Names, globs (`layers.*.attn`) or regular expressions (`re:.*norm`) of modules and parameters; a module brings
    its parameters along. Empty: all."""

    invert: bool = False
    """Watch what `targets` does not match."""

    attention: Sequence[str] = ()
    """Names, globs or regular expressions (as in `targets`) of the modules that the quantity `attention` looks at:
    those called with queries and keys as their first two positional inputs. Empty: attention is found by itself."""

    attention_order: str = "b,s,h,d"
    """How queries and keys are laid out: batch, sequence, head and dimension as `b,s,h,d`, `s,b,h,d` or `b,h,s,d`."""

    experts: Sequence[str] = ()
    """Names, globs or regular expressions (as in `targets`) of the routers that the quantity `expert` looks at: modules
    that return logits of experts or a choice of them. Empty: found by themselves."""

    communication: Sequence[str] = ()
    """Places in the code whose collectives the quantity `communication` looks at: `train.py[31]`, `trainer/`, or a
    regular expression (`re:train.py.3[0-9].`), searched for in the call stack. Empty: all."""

    rules: Sequence[str] | Mapping[str, Any] | bool = True
    """Which rules look at the steps as they come: all (true), none (false), a list of names, or a table with options
    of some of them (`grad_spike = {threshold = 10}`) and those to leave out (`drift = false`). In Python a rule of
    one's own can stand in the list. `vario rules` lists them."""

    notify: Mapping[str, Any] | Callable[[Any], Any] = field(default_factory=dict)
    """Where incidents are told besides the log: a table with any of `command`, `webhook`, `email`, `prometheus` and, in
    Python, `callback`; `least` is the least severity that is told (note, warn or page; unset: warn). A function alone
    is a callback. `env:NAME` stands for an environment variable. See docs/alerts.md."""

    actions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What is done about incidents: a table from a severity (note, warn, page: that or a more urgent one) or a rule's
    name to a list of `escalate`, `snapshot`, `checkpoint` and `stop`. See docs/alerts.md."""

    escalate_steps: int = 20
    """For how many steps `escalate` watches activations and their gradients, every step of them."""

    snapshot_bytes: int = 256 * 2**20
    """What all snapshots of a run may take on each rank; tensors that do not fit are cut to a sample."""

    ranks: Sequence[int] = ()
    """Ranks that record; empty: all."""

    replicas: bool = False
    """Record on every rank what several ranks hold alike (weights, reduced gradients and moments under DDP, ...);
    off: the first of those ranks records it, the others keep a checksum."""

    engine: str | None = None
    """Which runtime drives the model: plain, fsdp, fsdp2, deepspeed or megatron; unset: found by looking at it."""

    directory: str = "vario_runs"
    """Folder under which runs are made."""

    name: str | None = None
    """Name of this run's folder; unset: the time it started."""

    resume: bool = False
    """Go on writing into the run `name` instead of refusing a folder that already holds a run."""

    if_taken: str = "raise"
    """What to do if another process is writing the run `name`, or its folder already holds a run: `raise` an error,
    start a `new` run in `NAME-2`, or (with `resume`) `wait` for that process to end. Single-process training only."""

    first_step: int | None = None
    """Number of the first step; unset: 0, or the one after the last recorded when resuming."""

    eps: float = 1e-8
    """Elements smaller in magnitude than this count as zero; 0 counts exact zeros."""

    strict: bool = False
    """Raise when a part of the monitor fails, instead of switching that part off and going on."""

    enabled: bool = True
    """Watch at all. Off: every call does nothing and costs nothing, as with `VARIO=off` in the environment."""

    sinks: Sequence[str] = ("store",)
    """Where frames go: `store` is the run folder, `in_memory` keeps them on the Monitor for tests."""

    def __post_init__(self) -> None:
        for key in ("quantities", "statistics", "targets", "attention", "experts", "communication", "ranks", "sinks"):
            value = getattr(self, key)
            if isinstance(value, (str, int)):
                value = (value,)
            if not isinstance(value, Sequence):
                raise ConfigError(f"{key}: expected a list, got {value!r}")
            object.__setattr__(self, key, tuple(value))
        for key in ("quantities", "statistics", "sinks"):
            if not all(isinstance(name, str) for name in getattr(self, key)):
                raise ConfigError(f"{key}: expected names, got {list(getattr(self, key))!r}")
        for key, parts, allowed in (
            ("quantities", PROBES, watchable()),
            ("statistics", STATISTICS, STATISTICS.names()),
        ):
            for name in getattr(self, key):
                if name not in allowed:
                    raise ConfigError(parts.refusal(name, key, allowed))
        self._check_every()
        for key in ("start", "count", "first_step"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(f"{key}: expected a whole number of at least 0, got {value!r}")
        for key in ("invert", "resume", "strict", "replicas", "enabled"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(f"{key}: expected true or false, got {getattr(self, key)!r}")
        if isinstance(self.eps, bool) or not isinstance(self.eps, (int, float)) or not self.eps >= 0:
            raise ConfigError(f"eps: expected a number of at least 0, got {self.eps!r}")
        for rank in self.ranks:
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
                raise ConfigError(f"ranks: expected whole numbers of at least 0, got {rank!r}")
        for key in ("targets", "attention", "experts"):
            for pattern in getattr(self, key):
                if not isinstance(pattern, str):
                    raise ConfigError(f"{key}: expected names or patterns, got {pattern!r}")
                pattern_matcher(pattern, key)
        for place in self.communication:
            if not isinstance(place, str):
                raise ConfigError(f"communication: expected places in the code or patterns, got {place!r}")
            place_matcher(place, "communication")
        choose(self.rules)
        self._check_reactions()
        self._check_attention()
        if self.engine is not None and not isinstance(self.engine, str):
            raise ConfigError(f"engine: expected a name, got {self.engine!r}")
        if self.resume and self.name is None:
            raise ConfigError("resume: needs the name of the run to go on with. Add name = '...'")
        if self.if_taken not in IF_TAKEN:
            known = "', '".join(IF_TAKEN)
            raise ConfigError(f"if_taken: expected one of '{known}', got {self.if_taken!r}")
        if self.if_taken == "wait" and not self.resume:
            raise ConfigError("if_taken: 'wait' needs resume = true. Without it, a folder with a run stays taken.")
        if not isinstance(self.directory, (str, os.PathLike)) or "\0" in str(self.directory):
            raise ConfigError(f"directory: expected a folder, got {self.directory!r}")
        if self.name is not None:
            check_name(self.name)

    def _check_reactions(self) -> None:
        notices.check(self.notify)
        for key in ("escalate_steps", "snapshot_bytes"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{key}: expected a whole number of at least 1, got {value!r}")
        if not isinstance(self.actions, Mapping):
            raise ConfigError(f"actions: expected a table such as {{page = ['snapshot']}}, got {self.actions!r}")
        chosen = [found.rule for found in choose(self.rules)]
        if not chosen and (self.actions or notices.ways(self.notify)):
            key = "actions" if self.actions else "notify"
            raise ConfigError(f"{key}: there is nothing to wait for, since no rule is chosen. Leave out rules = false.")
        over_ranks = [rule.name for rule in chosen if rule.over == "ranks"]
        known = [*SEVERITIES, *(rule.name for rule in chosen if rule.over == "rank")]
        for key, wanted in self.actions.items():
            if key in over_ranks:
                raise ConfigError(f"actions.{key}: this rule compares ranks, which only `vario follow` can, afterwards")
            if key not in known:
                raise ConfigError(unknown("actions", str(key), known))
            for name in self.actions_of(key):
                if name not in ACTIONS:
                    raise ConfigError(unknown(f"actions.{key}", str(name), ACTIONS))
            if not isinstance(wanted, (str, Sequence)):
                raise ConfigError(f"actions.{key}: expected a list, got {wanted!r}")
        if self.takes("snapshot") and "store" not in self.sinks:
            raise ConfigError("actions: 'snapshot' needs a run folder. Add the sink 'store'.")

    def actions_of(self, key: str) -> list[str]:
        """What is done about a severity, or about what one rule finds."""
        wanted = self.actions.get(key, ())
        if isinstance(wanted, str):
            return [wanted]
        return list(wanted) if isinstance(wanted, Sequence) else []

    def takes(self, action: str) -> bool:
        """Whether anything leads to this action."""
        return any(action in self.actions_of(key) for key in self.actions)

    @property
    def idle_quantities(self) -> tuple[str, ...]:
        """What is watched only while an incident asks for it."""
        return tuple(name for name in ESCALATED if name not in self.quantities) if self.takes("escalate") else ()

    def _check_attention(self) -> None:
        if not isinstance(self.attention_order, str) or self.attention_order.replace(" ", "") not in ATTENTION_ORDERS:
            known = "', '".join(ATTENTION_ORDERS)
            raise ConfigError(f"attention_order: expected one of '{known}', got {self.attention_order!r}")

    def _check_every(self) -> None:
        known = watchable()
        every = self.every if isinstance(self.every, Mapping) else dict.fromkeys(known, self.every)
        for quantity, interval in every.items():
            if quantity not in known:
                raise ConfigError(unknown("every", quantity, known))
            if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
                raise ConfigError(f"every: expected a whole number of at least 1, got {interval!r}")

    def schedule(self, quantity: str) -> Schedule:
        """When one quantity is watched."""
        if quantity in self.idle_quantities:
            return Schedule(count=0)
        every = self.every
        if isinstance(every, Mapping):
            every = every.get(quantity) or default_every(quantity)
        return Schedule(every, self.start, self.count)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they stand in `run.json`."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        plain["every"] = {name: self.schedule(name).every for name in self.quantities}
        plain["rules"] = {found.rule.name: dict(found.options) for found in choose(self.rules)}
        # A run folder is passed around: what could be used to write to others stays here.
        plain["notify"] = notices.shown(self.notify)
        plain["actions"] = {key: self.actions_of(key) for key in self.actions}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a run's folder, or would be another folder."""
    if not isinstance(name, str) or not name or Path(name).name != name or name in ("..", ".jobs"):
        raise ConfigError(f"name: {name!r} is not a plain folder name. The folder above it is `directory`.")
    if shown(name) != name or not set("\n\t").isdisjoint(name):
        raise ConfigError(f"name: {name!a} holds characters that no name should have")
    if len(name.encode()) > MOST_NAME_BYTES:
        raise ConfigError(f"name: '{name[:40]}...' has {len(name.encode())} bytes, and {MOST_NAME_BYTES} are the most")


def make_config(options: Mapping[str, Any], base: Config | None = None, where: str = "") -> Config:
    """A Config from keywords or the content of a file, over `base`; an unknown key names the nearest known one."""
    if base is not None and not isinstance(base, Config):
        raise ConfigError(
            f"config: expected a vario.Config, got {type(base).__name__}. A file is read with vario.config.read_config."
        )
    known = [item.name for item in dataclasses.fields(Config)]
    for key in options:
        if key not in known:
            raise ConfigError(unknown(where or "option", key, known))
    try:
        return dataclasses.replace(base or Config(), **options)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def read_config(path: str | Path, base: Config | None = None) -> Config:
    """A Config from a .toml, .yaml, .yml or .json file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error}") from error
    try:
        options = _parse(path, text)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    if not isinstance(options, Mapping):
        raise ConfigError(f"{path}: expected a table of options, got {type(options).__name__}")
    return make_config(options, base, str(path))


def _parse(path: Path, text: str) -> Any:
    kind = path.suffix.lower()
    try:
        if kind == ".json":
            return json.loads(text)
        if kind == ".toml":
            if sys.version_info >= (3, 11):
                import tomllib  # novermin - only where it is there
            else:
                import tomli as tomllib
            return tomllib.loads(text)
        if kind in (".yaml", ".yml"):
            try:
                import yaml
            except ImportError:
                raise MissingExtra(f"{path}: reading YAML", "yaml") from None
            return yaml.safe_load(text) or {}
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind[1:].upper()}: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        raise
    raise ConfigError(f"{path}: unknown kind of config file '{kind}'. Use .toml, .yaml or .json.")
