"""A step's Frames as msprobe writes them: blocks of rows, one block per file prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vario.compat.msprobe.config import FORM_OPS, MonitorConfig, Spec
from vario.records import COLUMNS, COUNT, MAX, MIN, NANS, SUM, Form, Frame, Table
from vario.statistics import STATISTICS, Values

if TYPE_CHECKING:
    from vario.compat.msprobe.names import Names, TargetChoice
    from vario.compat.msprobe.sides import Sides

STAGES = {"actv": 0, "actv_grad": 1, "acc_grad": 1, "post_grad": 1, "exp_avg": 2, "exp_avg_sq": 2}
"""When in a step a tag's tensor exists: forward 0, backward 1, optimizer 2."""

_EARLY = ["actv", "actv_grad", "attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook"]
_EARLY += ["grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq"]
_LATE = ("param_origin", "param_updated", "other")

_PARAMETERS = {
    "gradient": ("grad_unreduced", "acc_grad"),
    "gradient_accumulated": ("grad_unreduced", "acc_grad"),
    "gradient_local": ("grad_unreduced", "acc_grad"),
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


@dataclass(frozen=True)
class Block:
    """Rows of one file prefix in one step."""

    prefix: str
    suffix: str
    """What ends the tag of these rows: acc_grad, post_grad, actv, ..."""
    columns: tuple[str, ...]
    names: Sequence[str]
    """`0:fc.weight`."""
    micro_steps: Sequence[int] | None
    values: Values
    """One row per name, one column per statistic among `columns`."""
    forms: Sequence[Form] | None
    order: Sequence[int]

    def tag(self, row: int, rank: int) -> str:
        """`0:fc.weight/rank0/acc_grad`."""
        micro = "" if self.micro_steps is None else f":{self.micro_steps[row]}"
        return f"{self.names[row]}{micro}/rank{rank}/{self.suffix}"

    @property
    def statistics(self) -> list[str]:
        """The columns that are numbers."""
        return [column for column in self.columns if column not in FORM_OPS]


class Translation:
    """From vario's frames to msprobe's blocks, for one model and one config."""

    def __init__(self, config: MonitorConfig, names: Names, choice: TargetChoice, sides: Sides) -> None:
        self._config = config
        self._names = names
        self._choice = choice
        self._sides = sides

    def blocks(self, frames: Iterable[Frame]) -> list[Block]:
        """All blocks of a step, in msprobe's order."""
        by_quantity: dict[str, list[Frame]] = {}
        for frame in frames:
            by_quantity.setdefault(frame.quantity, []).append(frame)
        blocks: list[Block] = []
        for quantity, found in by_quantity.items():
            if quantity == "activation":
                blocks += self._activations(found, "actv", "")
            elif quantity == "activation_gradient":
                blocks += self._activations(found, "actv_grad", "_grad")
            elif quantity == "moment_before":
                blocks += self._moments(found[0])
            elif quantity in _FEATURES:
                blocks += self._features(quantity, found)
            elif quantity in _PARAMETERS:
                blocks.append(self._parameters(*_PARAMETERS[quantity], found))
        return sorted((block for block in blocks if block.names), key=lambda block: _place(block.prefix))

    def _parameters(self, prefix: str, suffix: str, frames: list[Frame]) -> Block:
        per_pass = prefix == "grad_unreduced" and self._config.monitor_mbs_grad
        rows = [
            (self._names.parameters[target], frame.micro_step, frame, row)
            for frame in frames
            for row, target in enumerate(frame.targets)
            if self._names.tensors[target].requires_grad
        ]
        return self._block(prefix, suffix, rows, per_pass)

    def _moments(self, frame: Frame) -> list[Block]:
        rows: dict[str, list[tuple[str, int, Frame, int]]] = {}
        for row, target in enumerate(frame.targets):
            name, _, state = target.rpartition(":")
            rows.setdefault(state, []).append((self._names.parameters[name], 0, frame, row))
        return [self._block(state, state, found, False) for state, found in rows.items()]

    def _activations(self, frames: list[Frame], prefix: str, ending: str) -> list[Block]:
        rows = []
        for frame in frames:
            for row, target in enumerate(frame.targets):
                module, _, path = target.rpartition(":")
                side = self._side(module, path, ending)
                if side is not None:
                    rows.append((f"{self._names.modules[module]}.{side}", frame.micro_step, frame, row))
        if prefix == "actv":
            # A module's passes stand together, modules in the order in which they first returned.
            returned: dict[str, tuple[int, int]] = {}
            for name, micro_step, frame, row in rows:
                before = returned.get(_module(name), (micro_step, 0))
                if before[0] == micro_step:
                    returned[_module(name)] = micro_step, max(before[1], int(frame.order[row]))
            rows.sort(key=lambda row: (returned[_module(row[0])], row[1]))
        return [self._block(prefix, prefix, rows, True)]

    def _side(self, module: str, path: str, ending: str) -> str | None:
        """How msprobe calls one side of a module, None where the config asks for other sides or elements."""
        name, nth = self._sides.place(module, path, of_gradient=bool(ending))
        specs = self._choice.specs(module)
        if not specs:
            return name
        side = path.partition(".")[0]
        spec: Spec | None = specs.get(side + ending)
        if spec is None:
            return None
        if spec.index is None:
            return name
        return side if nth == spec.index else None

    def _features(self, hook: str, frames: list[Frame]) -> list[Block]:
        ending, suffix, columns = _FEATURES[hook]
        cells: dict[tuple[str, int], dict[str, float]] = {}
        order: dict[tuple[str, int], int] = {}
        for frame in frames:
            for row, target in enumerate(frame.targets):
                module, _, column = target.rpartition(":")
                key = f"{self._names.modules[module]}.{ending}", frame.micro_step
                cells.setdefault(key, {})[column] = float(frame.summaries[row, SUM] / frame.summaries[row, COUNT])
                order.setdefault(key, int(frame.order[row]))
        if hook in _FEATURES_PER_PASS:
            # A module's passes stand together.
            seen = {name: nth for nth, name in enumerate(dict.fromkeys(name for name, _ in cells))}
            cells = dict(sorted(cells.items(), key=lambda cell: (seen[cell[0][0]], cell[0][1])))
        values = np.array([[cell.get(column, np.nan) for column in columns] for cell in cells.values()])
        micro_steps = [micro for _, micro in cells] if hook in _FEATURES_PER_PASS else None
        names = [name for name, _ in cells]
        return [Block(hook, suffix, columns, names, micro_steps, values, None, [order[key] for key in cells])]

    def _block(self, prefix: str, suffix: str, rows: list[tuple[str, int, Frame, int]], per_pass: bool) -> Block:
        table = np.array([frame.summaries[row] for _, _, frame, row in rows]).reshape(len(rows), len(COLUMNS))
        return Block(
            prefix,
            suffix,
            self._config.ops,
            [name for name, _, _, _ in rows],
            [micro for _, micro, _, _ in rows] if per_pass else None,
            measure(table, self._config.statistics) if rows else np.empty((0, 0)),
            [frame.forms[row] for _, _, frame, row in rows if frame.forms is not None],
            [int(frame.order[row]) for _, _, frame, row in rows],
        )


def measure(table: Table, statistics: Sequence[str]) -> Values:
    """msprobe's statistics, one column each: an extreme of a tensor with a NaN is NaN."""
    with_nan = table.copy()
    with_nan[table[:, NANS] > 0, MIN] = np.nan
    with_nan[table[:, NANS] > 0, MAX] = np.nan
    return np.stack([STATISTICS.get(name)(with_nan) for name in statistics], axis=1)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _place(prefix: str) -> tuple[int, int]:
    if prefix in _EARLY:
        return 0, _EARLY.index(prefix)
    return (2, _LATE.index(prefix)) if prefix in _LATE else (1, 0)
