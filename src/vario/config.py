"""The options of a Monitor: one frozen dataclass, read from TOML, YAML, JSON or keywords."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario import notices
from vario.core.config_file import read_table
from vario.core.errors import ConfigError
from vario.core.machine_options import default_machine, machine_options
from vario.core.old_names import QUANTITIES, new_options
from vario.core.overhead import default_overhead, overhead_share
from vario.core.params import check_params, without_credentials
from vario.core.quantities import PROBES, default_every, watchable
from vario.core.retention_options import TIERS, retention_options
from vario.core.run_place import DEFAULT_DIRECTORY, check_name, checked_directory, default_directory
from vario.core.schedule import Schedule
from vario.core.selector import pattern_matcher, place_matcher
from vario.core.text import unknown
from vario.core.urls import is_url
from vario.rules import choose
from vario.rules.api.alerts import SEVERITIES
from vario.statistics import STATISTICS

log = logging.getLogger("vario")

ATTENTION_ORDERS = ("b,s,h,d", "s,b,h,d", "b,h,s,d")
"""The order of the axes of queries and keys: batch, sequence, head, dimension."""
WITH_PARTS = ("attention", "expert")
"""Quantities whose parts may get a row each."""
ORIGIN_PARTS = ("code", "environment", "packages", "output")
"""What can be kept of where a run comes from."""
LISTS = ("quantities", "statistics", "each", "origin", "sinks")
"""Options that are lists of names."""
IF_TAKEN = ("raise", "new", "wait")
"""What a Monitor can do if its run folder is taken."""
ACTIONS = ("escalate", "snapshot", "checkpoint", "stop")
"""What a Monitor can do about an incident."""
ESCALATED = ("activation", "activation_gradient")
"""What `escalate` turns on."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Options of a Monitor. Every field is a keyword of `vario.watch`, a key of a config file and a flag."""

    quantities: Sequence[str] = (
        *("gradient", "weight", "moment", "activation", "activation_gradient"),
        *("update", "unexpected_change", "attention", "unit", "expert", "router", "distribution"),
    )
    """What to watch: any of weight, weight_before, gradient, gradient_local, gradient_accumulated, gradient_applied,
    activation, activation_gradient, moment, moment_before, update, unexpected_change, attention, spectrum, unit,
    expert, router, distribution, channel, gradient_sketch, communication. Plain numbers (what you log, step time,
    learning rates, memory, ...) are always recorded, and `checksum` for replicated tensors."""

    statistics: Sequence[str] = ("norm", "mean", "rms", "std", "min", "max", "absmax", "nans", "infs", "zeros", "count")
    """Which statistics you want to read later. Columns that none of them needs are not computed; NaN and Inf are always
    counted."""

    every: int | Mapping[str, int] = field(default_factory=dict)
    """Watch one step in this many: one number for all quantities, or a number per quantity (`{activation = 50}`)."""

    overhead: float | str | None = field(default_factory=default_overhead)
    """The most that watching may add to the time of a step: a share (`0.02`), a percentage (`2%`), or `off`. Quantities
    whose interval `every` does not set are watched less often until the measured cost is below it; short steps may cost
    0.1 ms. Default: the environment variable `VARIO_OVERHEAD`, or else 2%."""

    start: int = 0
    """First step to watch."""

    count: int | None = None
    """Watch at most this many steps of each quantity (default: no limit)."""

    targets: Sequence[str] = ()
    """Names, globs (`layers.*.attn`) or regular expressions (`re:.*norm`) of modules and parameters; a module includes
    its parameters. Empty: all."""

    invert: bool = False
    """Watch what `targets` does not match."""

    attention: Sequence[str] = ()
    """Names, globs or regular expressions (as in `targets`) of the modules for the quantity `attention`: those called
    with queries and keys as their first two positional inputs. Empty: found automatically."""

    attention_order: str = "b,s,h,d"
    """The axis order of queries and keys: batch, sequence, head and dimension as `b,s,h,d`, `s,b,h,d` or `b,h,s,d`."""

    each: Sequence[str] = ()
    """Quantities that also get a row for each part: `attention` for each head, `expert` for each expert."""

    experts: Sequence[str] | Mapping[str, Callable[..., Any]] = ()
    """Names, globs or regular expressions (as in `targets`) of the routers for the quantities `expert` and `router`:
    modules that return expert logits or a choice of experts. In Python also a table from such a name to a function that
    reads what the router returns. Empty: found automatically."""

    communication: Sequence[str] = ()
    """Places in the code whose collectives the quantity `communication` records: `train.py[31]`, `trainer/`, or a
    regular expression (`re:train.py.3[0-9].`), matched against the call stack. Empty: all."""

    rules: Sequence[str] | Mapping[str, Any] | bool = True
    """Which rules check the steps during training: all (true), none (false), a list of names, or a table that sets
    options (`grad_spike = {threshold = 10}`) or turns rules off (`drift = false`). In Python the list may contain your
    own rules. `vario rules` lists them."""

    notify: Mapping[str, Any] | Callable[[Any], Any] = field(default_factory=dict)
    """Where to send incidents besides the log: a table with any of `command`, `webhook`, `email`, `prometheus` and, in
    Python, `callback`; `least` is the lowest severity to send (note, warn or page; default: warn). A function alone is
    a callback. `env:NAME` reads an environment variable. See docs/alerts.md."""

    actions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What to do about incidents: a table from a severity (note, warn, page: this one or higher) or a rule's name to a
    list of `escalate`, `snapshot`, `checkpoint` and `stop`. See docs/alerts.md."""

    escalate_steps: int = 20
    """How many steps `escalate` watches activations and their gradients for, at every step."""

    snapshot_bytes: int = 256 * 2**20
    """The most disk space for all snapshots of a run, per rank; tensors that do not fit are reduced to a sample."""

    ranks: Sequence[int] = ()
    """Ranks that record. Empty: all."""

    replicas: bool = False
    """Record replicated tensors (weights, reduced gradients and moments under DDP, ...) on every rank. Off: the first
    rank that has a tensor records it, the others record a checksum."""

    engine: str | None = None
    """The runtime of the model: plain, fsdp, fsdp2, deepspeed or megatron; of a MindSpore model pynative or graph
    (default: detected)."""

    directory: str = field(default_factory=default_directory)
    """Folder in which runs are created, or a URL such as `s3://bucket/runs`, to which they are copied while they are
    written. See docs/remote.md. Default: the environment variable `VARIO_DIRECTORY`, or else vario_runs."""

    staging: str = DEFAULT_DIRECTORY
    """Folder in which runs are written if `directory` is a URL. They stay there."""

    name: str | None = None
    """Name of this run's folder (default: the start time)."""

    resume: bool = False
    """Resume the run `name` instead of raising an error because its folder already contains a run."""

    if_taken: str = "raise"
    """What to do if another process is writing the run `name`, or its folder already contains a run: `raise` an error,
    start a `new` run in `NAME-2`, or (with `resume`) `wait` for that process to end. Single-process training only."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of this run, to compare runs by: a table of numbers, texts, lists or tables. They take
    precedence over those vario finds: in argparse's namespace, Hydra's config, a trainer's arguments, `VARIO_PARAMS`
    and the optimizer."""

    first_step: int | None = None
    """Number of the first step (default: 0; when resuming, the one after the last recorded step)."""

    eps: float = 1e-8
    """Elements smaller in magnitude than this count as zero; 0 counts exact zeros."""

    strict: bool = False
    """Raise if a part of the monitor fails, instead of disabling that part and continuing."""

    enabled: bool = True
    """Whether to watch at all. Off: every call does nothing and costs nothing, as with `VARIO=off` in the
    environment."""

    origin: Sequence[str] = ORIGIN_PARTS
    """What to keep of where a run comes from, besides its command: `code` (git commit and diff), `environment`
    (variables that matter to a training, seeds), `packages`, `output` (what the script prints, first and last lines).
    Secrets are masked. Empty: nothing."""

    machine: float | str | Mapping[str, Any] | None = field(default_factory=default_machine)
    """What the CPUs, memory, disks, network and GPUs do, as plain numbers: seconds between readings, a table of
    `seconds`, the `price` of a kWh and its `carbon` in grams, or `off`. Default: the environment variable
    `VARIO_MACHINE`, or else 1. See docs/machine.md."""

    retention: str | Mapping[str, Any] = TIERS
    """How long rows are kept in full. `tiers`: a quantity with more than `bytes` on disk (512MB per rank) keeps its
    newest `steps` (1000), rows with NaN or Inf, `around` steps (20) before and after an incident, one step in `every`
    (500), and of all steps the lowest, highest, mean and last values of ever longer intervals. Plain numbers stay
    complete. `all`: every row. A table changes this, also for one quantity: `{bytes = "2GB", gradient = "all"}`."""

    sinks: Sequence[str] = ("store",)
    """Where frames go: `store` is the run folder, `in_memory` keeps them on the Monitor for tests."""

    live: Sequence[str] | Mapping[str, Any] = ()
    """Other tools that get chosen numbers while the run is recorded, any of tensorboard, wandb, mlflow, trackio,
    opentelemetry: names, or a table with options (`wandb = {project = "x", series = ["loss", "gradient|*|norm"], every
    = 10}`). See docs/live-sinks.md."""

    def __post_init__(self) -> None:
        for key in (*LISTS, "targets", "attention", "experts", "communication", "ranks"):
            value = getattr(self, key)
            if isinstance(value, (str, int)):
                value = (value,)
            if key == "experts" and isinstance(value, Mapping) and all(map(callable, value.values())):
                continue
            if not isinstance(value, Sequence):
                raise ConfigError(f"{key}: expected a list, got {value!r}")
            object.__setattr__(self, key, tuple(value))
        for key in LISTS:
            if not all(isinstance(name, str) for name in getattr(self, key)):
                raise ConfigError(f"{key}: expected names, got {list(getattr(self, key))!r}")
        self._rename_quantities()
        for key, parts, allowed in (
            ("quantities", PROBES, watchable()),
            ("statistics", STATISTICS, STATISTICS.names()),
        ):
            for name in getattr(self, key):
                if name not in allowed:
                    raise ConfigError(parts.refusal(name, key, allowed))
        for key, names in (("origin", ORIGIN_PARTS), ("each", WITH_PARTS)):
            for part in getattr(self, key):
                if part not in names:
                    raise ConfigError(unknown(key, part, names))
        self._check_every()
        object.__setattr__(self, "overhead", overhead_share(self.overhead))
        object.__setattr__(self, "machine", machine_options(self.machine))
        object.__setattr__(self, "retention", retention_options(self.retention, (*watchable(), "checksum", "scalar")))
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
            raise ConfigError("resume: needs the name of the run to resume. Add name = '...'")
        if self.if_taken not in IF_TAKEN:
            known = "', '".join(IF_TAKEN)
            raise ConfigError(f"if_taken: expected one of '{known}', got {self.if_taken!r}")
        if self.if_taken == "wait" and not self.resume:
            raise ConfigError("if_taken: 'wait' needs resume = true. Without it, a folder with a run stays taken.")
        object.__setattr__(self, "directory", checked_directory("directory", self.directory))
        if is_url(checked_directory("staging", self.staging)):
            raise ConfigError(f"staging: expected a folder of this machine, got {self.staging!r}")
        if self.name is not None:
            check_name(self.name)
        object.__setattr__(self, "params", check_params(self.params))
        self.live_sinks  # noqa: B018 - raises for what is no table of tables

    def _rename_quantities(self) -> None:
        every = self.every if isinstance(self.every, Mapping) else {}
        old = [name for name in QUANTITIES if name in self.quantities or name in every]
        for name in old:
            log.warning("quantities: '%s' is deprecated: use '%s'.", name, QUANTITIES[name])
        if old:
            new = new_options({"quantities": self.quantities, "every": self.every})
            object.__setattr__(self, "quantities", tuple(new["quantities"]))
            object.__setattr__(self, "every", new["every"])

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
            raise ConfigError(f"{key}: has no effect without rules. Remove rules = false.")
        over_ranks = [rule.name for rule in chosen if rule.over == "ranks"]
        known = [*SEVERITIES, *(rule.name for rule in chosen if rule.over == "rank")]
        for key, wanted in self.actions.items():
            if key in over_ranks:
                raise ConfigError(
                    f"actions.{key}: this rule compares ranks, so it runs only in `vario follow`, not in training"
                )
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
        """Return the actions for a severity, or for the findings of one rule."""
        wanted = self.actions.get(key, ())
        if isinstance(wanted, str):
            return [wanted]
        return list(wanted) if isinstance(wanted, Sequence) else []

    def takes(self, action: str) -> bool:
        """Whether this action is configured for anything."""
        return any(action in self.actions_of(key) for key in self.actions)

    @property
    def idle_quantities(self) -> tuple[str, ...]:
        """Quantities that are watched only while an incident needs them."""
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
        """Return the schedule of one quantity."""
        if quantity in self.idle_quantities:
            return Schedule(count=0)
        every = self.every
        if isinstance(every, Mapping):
            every = every.get(quantity) or default_every(quantity)
        return Schedule(every, self.start, self.count)

    @property
    def live_sinks(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of each tool in `live`."""
        live = (self.live,) if isinstance(self.live, str) else self.live
        if not isinstance(live, (Mapping, list, tuple)):
            raise ConfigError(f"live: expected names or a table such as {{wandb = {{project = 'x'}}}}, got {live!r}")
        table = live if isinstance(live, Mapping) else {name: {} for name in live}
        for name, options in table.items():
            if not isinstance(name, str) or not isinstance(options, Mapping):
                raise ConfigError(f"live.{name}: expected a table such as {{series = ['loss']}}, got {options!r}")
        return dict(table)

    @property
    def local_directory(self) -> str:
        """The folder of this machine in which runs are written."""
        return self.staging if is_url(self.directory) else self.directory

    def fixes(self, quantity: str) -> bool:
        """Whether the interval of a quantity was set explicitly, so that no budget may change it."""
        return quantity in self.every if isinstance(self.every, Mapping) else True

    def parts(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return probes and sinks that this config brings along; those of other tools do."""
        return (), {}

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored in `run.json`."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        plain["every"] = {name: self.schedule(name).every for name in self.quantities}
        plain["rules"] = {found.rule.name: dict(found.options) for found in choose(self.rules)}
        # Run folders are shared: do not store secrets.
        plain["notify"] = notices.shown(self.notify)
        plain["live"] = {name: without_credentials(options) for name, options in self.live_sinks.items()}
        plain["actions"] = {key: self.actions_of(key) for key in self.actions}
        plain["experts"] = tuple(self.experts)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def make_config(options: Mapping[str, Any], base: Config | None = None, where: str = "") -> Config:
    """Build a Config from keywords or a file's content, over `base`; for an unknown key it suggests the closest one."""
    if base is not None and not isinstance(base, Config):
        raise ConfigError(
            f"config: expected a vario.Config, got {type(base).__name__}. Read a file with vario.config.read_config."
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
    """Read a Config from a .toml, .yaml, .yml or .json file."""
    return make_config(read_table(Path(path)), base, str(path))
