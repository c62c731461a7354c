"""FSDP1 with `use_orig_params=True`: autograd sees one flat parameter per unit, the optimizer a flat piece of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from vario.backends.torch import naming
from vario.backends.torch.engines import sharing
from vario.backends.torch.engines.base import Accumulator, Engine
from vario.core.errors import ModelError
from vario.core.records import Mesh, Share

_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


class FsdpEngine(Engine):
    """Gradients accumulate in each unit's FlatParameter; each rank's optimizer has flat pieces under the old names.

    The metadata of a flat parameter is private to torch; everything read from it is in this file.
    """

    name: ClassVar[str] = "fsdp"
    precedence: ClassVar[int] = 2

    def prepare(self) -> None:
        """Inspect the models once."""
        self._units = list(_units(self.roots))
        self._flat: dict[str, tuple[FullyShardedDataParallel, Any, slice]] = {}
        self._shares: dict[str, Share] = {}
        for prefix, unit in self._units:
            self._read(prefix, unit)

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether any module is wrapped by FullyShardedDataParallel."""
        return any(True for _ in _units(roots))

    @classmethod
    def check(cls, roots: Mapping[str, torch.nn.Module]) -> None:
        """Raise ModelError for units whose parameters have lost their names."""
        for _, unit in _units(roots):
            if not unit._use_orig_params:
                raise ModelError(
                    "watch: this FSDP model was built with use_orig_params=False, so its parameters have no "
                    "names or shapes. Build it with FSDP(..., use_orig_params=True)."
                )

    def _read(self, prefix: str, unit: FullyShardedDataParallel) -> None:
        flat: Any = unit._handle.flat_param  # type: ignore[union-attr]
        ranks = _replicas(unit)
        # A NO_SHARD unit has no metadata about shards: each rank has everything.
        shards = getattr(flat, "_shard_param_infos", None) or [None] * len(flat._fqns)
        at, entries = 0, iter(zip(flat._fqns, flat._shapes, shards, strict=True))
        for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not is_padding:
                name, shape, shard = next(entries)
                name = prefix + naming.clean(name)
                self._flat[name] = unit, flat, slice(at, at + numel)
                self._shares[name] = Share(tuple(shape), None, _held(shard), ranks)
            at += numel

    def accumulators(self, wanted: Collection[str]) -> Iterator[Accumulator]:
        """Yield one per unit; its parameters are consecutive, with padding between them."""
        for _, unit in self._units:
            flat: Any = unit._handle.flat_param  # type: ignore[union-attr]
            parts = [(name, part) for name, (owner, _, part) in self._flat.items() if owner is unit]
            if flat.requires_grad and any(name in wanted for name, _ in parts):
                yield Accumulator(flat, parts, is_internal=True)
        inside = self._flat.keys()
        yield from super().accumulators([name for name in wanted if name not in inside])

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return the flat piece after the reduction; under `no_sync` there is only this rank's own, and it is whole."""
        owner, gradient = self._flat.get(name), super().gradient(name)
        if owner is None or gradient is None:
            return gradient
        is_reduced = getattr(owner[0], "_sync_gradients", True) and gradient.shape == self.parameters[name].shape
        return gradient if is_reduced else None

    def share(self, name: str) -> Share:
        """Return a range of the flattened parameter, or all of it if the unit does not shard."""
        return self._shares.get(name) or super().share(name)

    def mesh(self) -> Mesh:
        """Return how units are sharded and replicated."""
        found: Mesh = {}
        for _, unit in self._units:
            if unit.sharding_strategy in _HYBRID:
                found = sharing.group_mesh("replicate", unit._inter_node_pg)
            key = "data" if unit.sharding_strategy is ShardingStrategy.NO_SHARD else "shard"
            return {**found, **sharing.group_mesh(key, unit.process_group)}
        return found


def _units(roots: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, FullyShardedDataParallel]]:
    """Yield the wrapped modules with their own parameters, each with the prefix of their names."""
    for prefix, root in roots.items():
        for name, module in root.named_modules():
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
                inner = naming.clean(name.removeprefix("module.") if _is_ddp(root) else name)
                yield prefix + (f"{inner}." if inner else ""), module


def _is_ddp(root: torch.nn.Module) -> bool:
    return isinstance(root, torch.nn.parallel.DistributedDataParallel)


def _held(shard: Any) -> tuple[int, int] | None:
    """Return this rank's elements of a parameter, from torch's metadata."""
    if shard is None:
        return None
    if not shard.in_shard:
        return (0, 0)
    start = int(shard.intra_param_start_idx)
    return (start, int(shard.intra_param_end_idx) + 1)


def _replicas(unit: Any) -> tuple[int, ...]:
    here = torch.distributed.get_rank()
    if unit.sharding_strategy is ShardingStrategy.NO_SHARD:
        return tuple(sorted(sharing.group_ranks(unit.process_group)))
    if unit.sharding_strategy in _HYBRID:
        return tuple(sorted(sharing.group_ranks(unit._inter_node_pg)))
    return (here,)
