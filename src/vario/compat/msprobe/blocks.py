"""Converts a step's Frames to msprobe's blocks of rows, one block per file prefix.

The rows of a block rarely change, so they are computed once and cached: the writing thread shares the interpreter with
training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.config import FORM_OPS, MonitorConfig
from vario.core.records import COUNT, MAX, MIN, NANS, SUM, Frame, Table, TensorSpec
from vario.statistics import STATISTICS, Values

if TYPE_CHECKING:
    from vario.compat.msprobe.names import Names, TargetChoice
    from vario.compat.msprobe.sides import Sides

log = logging.getLogger("vario")

STAGES = {"actv": 0, "actv_grad": 1, "acc_grad": 1, "post_grad": 1, "exp_avg": 2, "exp_avg_sq": 2}
"""When in a step a tag's tensor exists: forward 0, backward 1, optimizer 2."""

_EARLY = ["actv", "actv_grad", "attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook"]
_EARLY += ["grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq"]
_LATE = ("param_origin", "param_updated", "other")

UNREDUCED = ("gradient", "gradient_accumulated", "gradient_local")
"""Quantities that may be gradients before the reduction over ranks."""
_PARAMETERS = {
    **dict.fromkeys(UNREDUCED, ("grad_unreduced", "acc_grad")),
    "gradient_applied": ("grad_reduced", "post_grad"),
    "weight_before": ("param_origin", "param_origin"),
    "weight": ("param_updated", "param_updated"),
    "direction": ("other", "mg_direction"),
}
_FEATURES = {
    "attention_hook": ("attention", "qkt", ("entropy", "softmax_max")),
    "linear_hook": ("linear", "sr", ("sr", "kernel_norm")),
    "moe_router_weight_hook": ("moe_router", "router_weight", ("router_weight_similarity",)),
    "moe_router_logit_hook": ("moe_router", "router_logit", ("per_token_expert_entropy",)),
}
"""Per hook: what follows the module's name, the tag, and the columns."""
_FEATURES_PER_PASS = ("attention_hook", "moe_router_logit_hook")


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a block; the same object from step to step while they do not change."""

    prefix: str
    suffix: str
    """The suffix of these rows' tag: acc_grad, post_grad, actv, ..."""
    columns: tuple[str, ...]
    names: Sequence[str]
    """`0:fc.weight`."""
    micro_steps: Sequence[int] | None
    made: dict[str, Any] = field(default_factory=dict)
    """A cache for writers."""

    def tag(self, row: int, rank: int) -> str:
        """`0:fc.weight/rank0/acc_grad`."""
        micro = "" if self.micro_steps is None else f":{self.micro_steps[row]}"
        return f"{self.names[row]}{micro}/rank{rank}/{self.suffix}"

    @property
    def statistics(self) -> list[str]:
        """The columns that are numbers."""
        return [column for column in self.columns if column not in FORM_OPS]


@dataclass(frozen=True)
class Block:
    """One step's numbers in these rows."""

    rows: Rows
    values: Values
    """One row per name, one column per statistic."""
    specs: Sequence[TensorSpec] | None
    order: Sequence[int]


@dataclass(frozen=True)
class _Plan:
    """How to build one block from a quantity's concatenated frames."""

    rows: Rows
    picks: npt.NDArray[np.int64]
    """One frame row per row, or for features one per cell."""
    wholes: Sequence[Mapping[TensorSpec, TensorSpec]] = ()
    """Per row: what to write for a shard of a DTensor, for which msprobe writes the whole tensor."""


_Found = tuple[str, int, int]
"""A row's msprobe name, its micro-step, and its position in the frames."""


class Translation:
    """Converts vario's frames to msprobe's blocks, for one model and one config."""

    def __init__(self, config: MonitorConfig, names: Names, choice: TargetChoice, sides: Sides) -> None:
        self._config = config
        self._names = names
        self._choice = choice
        self._sides = sides
        self._places = {name: place for place, name in enumerate(names.parameters)}
        self._plans: dict[str, tuple[Any, list[_Plan]]] = {}
        self._missing: set[tuple[str, str]] = set()

    def blocks(self, frames: Iterable[Frame]) -> list[Block]:
        """Yield all blocks of a step, in msprobe's order."""
        by_quantity: dict[str, list[Frame]] = {}
        for frame in frames:
            by_quantity.setdefault(frame.quantity, []).append(frame)
        blocks: list[Block] = []
        for quantity, found in by_quantity.items():
            plans = self._plans_for(quantity, found)
            if not plans:
                continue
            table = np.concatenate([frame.summaries for frame in found])
            order = np.concatenate([frame.order for frame in found])
            specs = [spec for frame in found for spec in frame.specs or ()]
            blocks += [self._block(plan, quantity, table, order, specs) for plan in plans]
        return sorted(blocks, key=lambda block: _place(block.rows.prefix))

    def _block(
        self, plan: _Plan, quantity: str, table: Table, order: npt.NDArray[np.int32], specs: list[TensorSpec]
    ) -> Block:
        if quantity in _FEATURES:
            with np.errstate(all="ignore"):
                means = np.append(table[:, SUM] / table[:, COUNT], np.nan)
            return Block(plan.rows, means[plan.picks], None, order[plan.picks[:, 0]].tolist())
        picks = plan.picks
        kept = [specs[pick] for pick in picks.tolist()] if specs else None
        values = measure(table[picks], self._config.statistics)
        if kept is not None:
            _leave_out_ids(values, self._config.statistics, kept)
            kept = [whole.get(spec, spec) if whole else spec for spec, whole in zip(kept, plan.wholes, strict=True)]
        return Block(plan.rows, values, kept, order[picks].tolist())

    def _plans_for(self, quantity: str, frames: list[Frame]) -> list[_Plan]:
        key = tuple((frame.micro_step, tuple(frame.targets)) for frame in frames), self._sides.version
        known = self._plans.get(quantity)
        if known is None or known[0] != key:
            known = self._plans[quantity] = (
                key,
                [plan for plan in self._make_plans(quantity, frames) if plan.rows.names],
            )
        return known[1]

    def _make_plans(self, quantity: str, frames: list[Frame]) -> list[_Plan]:
        targets = [(target, frame.micro_step) for frame in frames for target in frame.targets]
        if quantity == "activation":
            order = [int(number) for frame in frames for number in frame.order]
            return [self._activations(targets, "actv", "", order)]
        if quantity == "activation_gradient":
            return [self._activations(targets, "actv_grad", "_grad", [])]
        if quantity == "moment_before":
            return self._moments(targets)
        if quantity == "communication":
            found = [(f"0:{target.replace(':', '.')}", micro, at) for at, (target, micro) in enumerate(targets)]
            return [self._plan("other", "cc", found, False)]
        if quantity in _FEATURES:
            return [self._features(quantity, targets)]
        return [self._parameters(*_PARAMETERS[quantity], targets)] if quantity in _PARAMETERS else []

    def _parameters(self, prefix: str, suffix: str, targets: list[tuple[str, int]]) -> _Plan:
        numbered = list(enumerate(targets))
        if prefix != "grad_unreduced":
            # In model order, whatever groups an optimizer has; gradients come in the order of the backward pass.
            numbered.sort(key=lambda row: (row[1][1], self._places[row[1][0]]))
        found = [(self._names.parameters[target], micro, at) for at, (target, micro) in numbered]
        wholes = [self._whole(target) for _, (target, _) in numbered] if prefix.startswith("param_") else ()
        return self._plan(prefix, suffix, found, prefix == "grad_unreduced" and self._config.monitor_mbs_grad, wholes)

    def _whole(self, target: str) -> Mapping[TensorSpec, TensorSpec]:
        """Map the shape of this rank's shard to the whole tensor's, if the parameter is a DTensor."""
        parameter = self._names.tensors[target]
        if not hasattr(parameter, "to_local"):
            return {}
        return {(parameter.to_local().shape, parameter.dtype): (parameter.shape, parameter.dtype)}

    def _moments(self, targets: list[tuple[str, int]]) -> list[_Plan]:
        found: dict[str, list[tuple[str, int]]] = {}
        for at, (target, _) in enumerate(targets):
            name, _, state = target.rpartition(":")
            found.setdefault(state, []).append((name, at))
        plans = []
        for state, members in found.items():
            members.sort(key=lambda member: self._places[member[0]])
            rows = [(self._names.parameters[name], 0, at) for name, at in members]
            plans.append(self._plan(state, state, rows, False, [self._whole(name) for name, _ in members]))
        return plans

    def _activations(self, targets: list[tuple[str, int]], prefix: str, ending: str, order: list[int]) -> _Plan:
        found: list[_Found] = []
        for at, (target, micro) in enumerate(targets):
            module, _, path = target.rpartition(":")
            side = self._side(module, path, ending)
            if side is not None:
                found.append((f"{self._choice.module_name(module)}.{side}", micro, at))
        self._check_specs(targets, found, ending)
        if order:
            # A module's passes are listed together, modules in the order in which they first returned.
            returned: dict[str, tuple[int, int]] = {}
            for name, micro, at in found:
                before = returned.get(_module(name), (micro, 0))
                if before[0] == micro:
                    returned[_module(name)] = micro, max(before[1], order[at])
            found.sort(key=lambda row: (returned[_module(row[0])], row[1]))
        return self._plan(prefix, prefix, found, True)

    def _side(self, module: str, path: str, ending: str) -> str | None:
        """msprobe's name for one side of a module; None if the config selects other sides or elements."""
        name, nth = self._sides.place(module, path, of_gradient=bool(ending))
        specs = self._choice.specs(module)
        if not specs:
            return name
        side = path.partition(".")[0]
        spec = specs.get(side + ending)
        if spec is None:
            return None
        if spec.index is None:
            return name
        return side if nth == spec.index else None

    def _check_specs(self, targets: list[tuple[str, int]], found: list[_Found], ending: str) -> None:
        """Warn once about a side or element in the config that does not exist."""
        kept = {targets[at][0] for _, _, at in found}
        for module in {target.rpartition(":")[0] for target, _ in targets}:
            for side in ("input", "output"):
                spec = (self._choice.specs(module) or {}).get(side + ending)
                here = [path for path in kept if path.startswith(f"{module}:{side}")]
                if spec is not None and not here and (module, side + ending) not in self._missing:
                    self._missing.add((module, side + ending))
                    name = self._names.modules[module]
                    log.warning("targets: %s: no such %s%s, so it has no rows", name, side, ending)

    def _features(self, hook: str, targets: list[tuple[str, int]]) -> _Plan:
        ending, suffix, columns = _FEATURES[hook]
        typed = self._config.l2_targets.get(hook, ())
        cells: dict[tuple[str, int], dict[str, int]] = {}
        for at, (target, micro) in enumerate(targets):
            module, _, column = target.rpartition(":")
            name = self._names.module_name(module, typed)
            cells.setdefault((f"{name}.{ending}", micro), {})[column] = at
        per_pass = hook in _FEATURES_PER_PASS
        if per_pass:
            # A module's passes are listed together.
            seen = {name: nth for nth, name in enumerate(dict.fromkeys(name for name, _ in cells))}
            cells = dict(sorted(cells.items(), key=lambda cell: (seen[cell[0][0]], cell[0][1])))
        micro_steps = [micro for _, micro in cells] if per_pass else None
        picks = np.array([[cell.get(column, -1) for column in columns] for cell in cells.values()], dtype=np.int64)
        return _Plan(Rows(hook, suffix, columns, [name for name, _ in cells], micro_steps), picks)

    def _plan(
        self,
        prefix: str,
        suffix: str,
        found: list[_Found],
        per_pass: bool,
        wholes: Sequence[Mapping[TensorSpec, TensorSpec]] = (),
    ) -> _Plan:
        micro_steps = [micro for _, micro, _ in found] if per_pass else None
        rows = Rows(prefix, suffix, self._config.ops, [name for name, _, _ in found], micro_steps)
        return _Plan(rows, np.array([at for _, _, at in found], dtype=np.int64), wholes or [{}] * len(found))


def measure(table: Table, statistics: Sequence[str]) -> Values:
    """Compute msprobe's statistics, one column each: an extreme of a tensor with a NaN is NaN."""
    with_nan = table.copy()
    with_nan[table[:, NANS] > 0, MIN] = np.nan
    with_nan[table[:, NANS] > 0, MAX] = np.nan
    return np.stack([STATISTICS.get("mean" if name == "id" else name)(with_nan) for name in statistics], axis=1)


def _leave_out_ids(values: Values, statistics: Sequence[str], specs: Sequence[TensorSpec]) -> None:
    """Only a tensor without dimensions has an `id`: its value."""
    if "id" in statistics:
        values[[len(shape) > 0 for shape, _ in specs], statistics.index("id")] = np.nan


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _place(prefix: str) -> tuple[int, int]:
    if prefix in _EARLY:
        return 0, _EARLY.index(prefix)
    return (2, _LATE.index(prefix)) if prefix in _LATE else (1, 0)
