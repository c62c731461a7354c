"""Plain torch, DistributedDataParallel and tensor parallelism with DTensor: everything where torch itself keeps it."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from vario.backends.torch import naming
from vario.backends.torch.engines import sharing
from vario.backends.torch.engines.base import Engine
from vario.core.records import Mesh, Share

log = logging.getLogger("vario")


class PlainEngine(Engine):
    """Gradients in `parameter.grad`, state in `optimizer.state[parameter]`, the same on all ranks of a DDP group."""

    name: ClassVar[str] = "plain"
    precedence: ClassVar[int] = -1
    has_plain_gradients: ClassVar[bool] = True
    keeps_parameters: ClassVar[bool] = True

    def prepare(self) -> None:
        """Inspect the models once."""
        self._groups = _groups_of_replicas(self.roots.values())
        self._warn_of_pieces()
        self._is_part: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether it fits: always, if no other engine does."""
        return True

    def keeps_state_alone(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is inside a ZeroRedundancyOptimizer, where each rank has its own for some of the parameters."""
        if optimizer not in self._is_part:
            self._is_part[optimizer] = any(outer.optim is optimizer for outer in _zero_redundancy_optimizers())
        return self._is_part[optimizer]

    def share(self, name: str) -> Share:
        """Return the whole parameter or a DTensor's shard, replicated over the ranks of DDP."""
        found = super().share(name)
        group = self._groups.get(id(self.parameters[name]))
        if group is None:
            return found
        return Share(found.shape, found.box, found.range, tuple(sorted(sharing.group_ranks(group))))

    def shares(self) -> dict[str, Share]:
        """Return the shares of all parameters."""
        if self._groups or not sharing.are_whole(self.parameters.values()):
            return super().shares()
        # Without DDP they differ only in shape, and there may be a hundred thousand.
        shapes = [(name, parameter.shape) for name, parameter in self.parameters.items()]
        known = {shape: Share(tuple(shape)) for _, shape in shapes}
        return {name: known[shape] for name, shape in shapes}

    def mesh(self) -> Mesh:
        """Return one dimension of data parallelism under DDP, beside those of tensor parallelism inside it."""
        group = next(iter(self._groups.values()), None)
        inner = super().mesh()
        return inner if group is None else {**sharing.group_mesh("data", group), **inner}

    def _warn_of_pieces(self) -> None:
        """Warn that merged values will not cover parameters whose split over ranks is unknown."""
        # If tensor parallelism describes how some parameters are split, the others are the same on all ranks.
        if (
            not self._groups
            or torch.distributed.get_rank() != 0
            or any(map(sharing.spread_of, self.parameters.values()))
        ):
            return
        world = torch.distributed.get_world_size()
        apart = [name for name, parameter in self.parameters.items() if self._num_replicas(parameter) < world]
        if apart:
            log.warning(
                "DDP does not synchronise '%s' (and %d more of %d parameters) across all %d ranks. If ranks have "
                "different tensors under one name (tensor or expert parallelism), values merged over ranks (rank='all')"
                " come from the lowest rank only; use rank=N to see each rank.",
                apart[0],
                len(apart) - 1,
                len(self.parameters),
                world,
            )

    def _num_replicas(self, parameter: torch.nn.Parameter) -> int:
        group = self._groups.get(id(parameter))
        return 1 if group is None else torch.distributed.get_world_size(group)


def _zero_redundancy_optimizers() -> Iterator[Any]:
    # Code that creates one has imported this; importing it here would cost everyone else.
    if module := sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer"):
        kind = module.ZeroRedundancyOptimizer
        yield from (found for found in gc.get_objects() if issubclass(type(found), kind) and hasattr(found, "optim"))


def _groups_of_replicas(roots: Any) -> dict[int, Any]:
    """Return the process group that each parameter is replicated over, by the parameter's identity."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    bare = {id(naming.unwrap(root)): root for root in roots}
    wrappers = [root for root in bare.values() if isinstance(root, DistributedDataParallel)]
    if len(wrappers) < len(bare):
        # Trainers expose the bare model: its wrapper is found among all live objects.
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
