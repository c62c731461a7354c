"""Plain torch, DistributedDataParallel and tensor parallelism by DTensor: everything where torch itself keeps it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from vario.backends.torch import naming
from vario.backends.torch.engines import sharing
from vario.backends.torch.engines.base import Engine
from vario.records import Mesh, Share


class PlainEngine(Engine):
    """Gradients in `parameter.grad`, state in `optimizer.state[parameter]`, the same on all ranks of a DDP group."""

    name: ClassVar[str] = "plain"
    precedence: ClassVar[int] = -1
    keeps_parameters: ClassVar[bool] = True

    def prepare(self) -> None:
        """Look at the models once."""
        self._groups = _groups_of_replicas(self.roots.values())
        self._is_part: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whatever no other engine drives."""
        return True

    def keeps_state_alone(self, optimizer: torch.optim.Optimizer) -> bool:
        """Inside a ZeroRedundancyOptimizer each rank has an optimizer of its own, for some of the parameters."""
        if optimizer not in self._is_part:
            self._is_part[optimizer] = any(outer.optim is optimizer for outer in _zero_redundancy_optimizers())
        return self._is_part[optimizer]

    def share(self, name: str) -> Share:
        """The whole parameter, replicated over the ranks of DDP; or the shard a DTensor says."""
        found = super().share(name)
        group = self._groups.get(id(self.parameters[name]))
        if group is None:
            return found
        return Share(found.shape, found.box, found.range, tuple(sorted(sharing.group_ranks(group))))

    def mesh(self) -> Mesh:
        """One dimension of data parallelism under DDP."""
        group = next(iter(self._groups.values()), None)
        return super().mesh() or ({} if group is None else sharing.group_mesh("data", group))


def _zero_redundancy_optimizers() -> Iterator[Any]:
    # Whoever makes one has imported this; importing it here would cost those who do not.
    if module := sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer"):
        kind = module.ZeroRedundancyOptimizer
        yield from (found for found in gc.get_objects() if issubclass(type(found), kind) and hasattr(found, "optim"))


def _groups_of_replicas(roots: Any) -> dict[int, Any]:
    """The process group that each parameter is replicated over, by the parameter's identity."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    bare = {id(naming.unwrap(root)): root for root in roots}
    wrappers = [root for root in bare.values() if isinstance(root, DistributedDataParallel)]
    if len(wrappers) < len(bare):
        # Trainers hand out the bare model: whoever wraps it is found among all there are.
        wrappers += [
            found
            for found in gc.get_objects()
            if issubclass(type(found), DistributedDataParallel)
            and "_modules" in found.__dict__
            and id(naming.unwrap(found)) in bare
        ]
    return {
        id(parameter): wrapper.process_group
        for wrapper in wrappers
        for name, parameter in wrapper.module.named_parameters()
        if name not in wrapper.parameters_to_ignore
    }
