"""FSDP2 (`fully_shard`), also with tensor parallelism: DTensor shards, and an unsharded copy that autograd sees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch import naming
from vario.backends.torch.engines.base import Accumulator, Engine, Loop
from vario.backends.torch.loop import hooks, module_hooks

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # torch before 2.6, or built without distributed

    class FSDPModule:  # type: ignore[no-redef]
        """A class without instances."""


class Fsdp2Engine(Engine):
    """The model's parameters are DTensors; backward accumulates into a copy FSDP makes at the first all-gather."""

    name: ClassVar[str] = "fsdp2"
    precedence: ClassVar[int] = 1

    def prepare(self) -> None:
        """Inspect the models once."""
        self._units: list[Any] = list(_units(self.roots))

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether `fully_shard` was applied to any module."""
        return any(True for _ in _units(roots))

    def attach(self, loop: Loop) -> Undo:
        """Look for copies after each call of a unit, because a trainer may never call the outermost module."""
        undo = hooks.Undos()
        seen: set[int] = set()

        def called(unit: torch.nn.Module, *_: Any) -> None:
            if id(unit) not in seen:
                seen.add(id(unit))
                loop.look_for_accumulators()

        for unit in self._units:
            undo.add(module_hooks.after_forward(unit, called))
        return undo

    def accumulators(self, wanted: Collection[str]) -> Iterator[Accumulator]:
        """Yield the unsharded copies, once they exist: making FSDP create one would be a collective."""
        missing = {id(self.parameters[name]): name for name in wanted}
        sharded: set[int] = set()
        for unit in self._units:
            for held in _held_by(unit):
                sharded.add(id(held.sharded_param))
                twin = getattr(held, "_unsharded_param", None)
                name = missing.get(id(held.sharded_param))
                if name is not None and twin is not None and twin.requires_grad:
                    yield Accumulator(twin, [(name, None)], is_internal=True)
        # Excluded from sharding (`ignored_params`): torch accumulates into the parameter itself.
        yield from super().accumulators([name for place, name in missing.items() if place not in sharded])


def _units(roots: Mapping[str, torch.nn.Module]) -> Iterator[Any]:
    for root in roots.values():
        yield from (module for module in naming.unwrap(root).modules() if isinstance(module, FSDPModule))


def _held_by(unit: Any) -> Iterator[Any]:
    """Yield what FSDP keeps per parameter of a unit. Private to torch; all releases since 2.6 have these names."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        yield from group.fsdp_params
